# SPDX-License-Identifier: BSD-2-Clause
"""Serves the control API for mrcctl: HTTP and JSON on a unix socket, version 1.

Errors are {"error", "hint", "exit_code"}; no exception reaches the client. Worker threads make large documents, so
that the event loop is never blocked.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from aiohttp import web

from mrcd import __version__
from mrcd.api import incoming
from mrcd.api.control_socket import ControlSocket
from mrcd.api.fleet import FleetApi
from mrcd.api.metrics.endpoint import Endpoint
from mrcd.config.cluster_file import Metrics
from mrcd.daemon import attachment
from mrcd.daemon.daemon import Daemon
from mrcd.daemon.reload import Reloader
from mrcd.errors import MrcdError, UsageError
from mrcd.fleet.member import FleetMember
from mrcd.kernel.enums import EvState
from mrcd.versions import ABI_VERSION, SCHEMA_VERSION, WIRE_VERSION

_BODY_MAX = 8 << 20  # bytes of a request; etcd takes a file of 1.5 MiB by default

log = logging.getLogger("mrcd.api.server")

LONGEST_WAIT_S = 60.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn exceptions into error documents."""
    try:
        return await handler(request)
    except MrcdError as e:
        status = 400 if isinstance(e, UsageError) else 500
        return _error(str(e.args[0]), e.hint, e.exit_code, status)
    except web.HTTPException as e:
        hint = "mrcctl and mrcd may have different versions: see `mrcctl version`"
        return _error(f"{request.method} {request.path}: {e.reason}", hint, 2, e.status)
    except Exception as e:
        log.exception("%s %s", request.method, request.path)
        return _error(f"internal error: {e}", "mrcd's log has the traceback; please report it", 2, 500)


@web.middleware
async def rights(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests that change something to users who may only read."""
    if request.method != "GET" and not incoming.may_change(request):
        hint = f"root may, and members of the group {incoming.ADMINS}"
        return _error(f"you may not change anything on this host ({request.path})", hint, 2, 403)
    return await handler(request)


def _error(message: str, hint: str | None, exit_code: int, status: int) -> web.Response:
    return web.json_response({"error": message, "hint": hint, "exit_code": exit_code}, status=status)


class Api:
    """The handlers of one daemon."""

    def __init__(self, daemon: Daemon, reloader: Reloader, member: FleetMember) -> None:
        self._daemon, self._reloader, self._member = daemon, reloader, member

    def application(self) -> web.Application:
        """Return the application with all routes."""
        app = web.Application(middlewares=[errors, rights], client_max_size=_BODY_MAX)
        app.add_routes(
            [
                web.get("/v1/version", self.version),
                web.get("/v1/status", self.status),
                *(web.get(f"/v1/{name}", self.listed(name)) for name in ("peers", "links", "histograms")),
                web.get("/v1/paths", self.paths),
                web.get("/v1/events", self.events),
                web.get("/v1/keys", self.keys),
                web.get("/v1/config", self.config),
                web.get("/v1/denials", self.denials),
                *FleetApi(self._daemon, self._reloader, self._member).routes(),
                web.post("/v1/deny", self.deny),
                web.post("/v1/allow", self.allow),
                web.post("/v1/reload", self.reload),
                web.post("/v1/detach", self.detach),
                web.post("/v1/attach", self.attach),
            ]
        )
        return app

    async def version(self, _: web.Request) -> web.Response:
        """Return the versions of the daemon, its tables and its packets."""
        return web.json_response(
            {
                "version": __version__,
                "abi_version": ABI_VERSION,
                "wire_version": WIRE_VERSION,
                "schema_version": SCHEMA_VERSION,
            }
        )

    async def status(self, _: web.Request) -> web.Response:
        """Return the document of this host."""
        document = await self._daemon.readers.read(lambda: self._daemon.view.status())
        uptime = time.monotonic() - self._daemon.started
        document["daemon"] = {"running": True, "pid": os.getpid(), "version": __version__, "uptime_s": round(uptime, 3)}
        document["last_event"] = self._daemon.events.last
        document["denials"] = self._daemon.denials.brief()
        document["fleet"] = self._member.brief()
        return web.json_response(document)

    def listed(self, name: str) -> Callable[[web.Request], Coroutine[Any, Any, web.Response]]:
        """Return the handler of a list of documents, which the view makes by the method of that name."""

        async def handle(_: web.Request) -> web.Response:
            return await self._document(lambda: getattr(self._daemon.view, name)())

        return handle

    async def paths(self, request: web.Request) -> web.Response:
        """Return a document per EV, filtered by ?peer=, ?plane=, ?state=; ?decode=1 adds their hops."""
        peer = request.query.get("peer")
        state = request.query.get("state")
        if state is not None and state.upper() not in EvState.__members__:
            raise UsageError(f"there is no EV state {state!r}", hint=f"states: {', '.join(EvState.__members__)}")
        plane = _number(request.query.get("plane"), "plane")
        decode = bool(_number(request.query.get("decode"), "decode"))
        daemon, denials = self._daemon, self._daemon.denials
        brief = denials.brief()  # read in the event loop, where no denial changes meanwhile
        return await self._document(lambda: denials.explain(daemon.view.paths(peer, plane, state, decode), brief))

    async def events(self, request: web.Request) -> web.Response:
        """Return events newer than ?after=; without any, wait up to ?wait= seconds for one."""
        after = _number(request.query.get("after"), "after") or 0
        try:
            wait = min(float(request.query.get("wait", "0")), LONGEST_WAIT_S)
        except ValueError:
            raise UsageError("wait must be a number of seconds") from None
        found = await self._daemon.events.after(after, wait)
        last_id = found[-1]["id"] if found else min(after, self._daemon.events.last_id)
        return web.json_response({"events": found, "last_id": last_id})

    async def keys(self, _: web.Request) -> web.Response:
        """Return the mode of authentication, and the secrets in use by peer; `newest` is that of the file."""
        ids = self._daemon.keyring.ids
        return await self._document(lambda: self._daemon.view.keys() | {"newest": ids[-1] if ids else None})

    async def config(self, _: web.Request) -> web.Response:
        """Return the running configuration with all defaults."""
        plan, source = self._daemon.plan, self._reloader.source
        generation = source.running.file.generation if source.running and source.running.file else None
        found = {"file": str(source.running_path), "generation": generation, "host": plan.host.name}
        head = json.dumps({"schema_version": SCHEMA_VERSION} | found)
        text = f'{head[:-1]}, "config": {plan.config.model_dump_json()}}}'
        return web.Response(text=text, content_type="application/json")

    async def reload(self, request: web.Request) -> web.Response:
        """Reload the cluster file."""
        body = await incoming.body(request) if request.can_read_body else {}
        return web.json_response(await self._reloader.reload(force=incoming.flag(body, "force")))

    async def denials(self, _: web.Request) -> web.Response:
        """Return the denials with their ends and reasons, and the packets in flight on their EVs."""
        return web.json_response(self._daemon.denials.document())

    async def deny(self, request: web.Request) -> web.Response:
        """Deny paths. Keys: "target", or "peer", "ev" and "plane"; "for", "reason", "force", "drain"."""
        given = await incoming.denial(request)
        answer = await self._daemon.denials.deny(
            incoming.target(given),
            for_s=given["for_s"],
            reason=given["reason"],
            uid=incoming.uid(request),
            drain=given["drain"],
            force=given["force"],
        )
        return web.json_response(answer)

    async def allow(self, request: web.Request) -> web.Response:
        """End denials of a target, with the keys of `deny`, or of "all"."""
        given = await incoming.denial(request)
        target = None if given["all"] else incoming.target(given)
        return web.json_response(await self._daemon.denials.allow(target, incoming.uid(request)))

    async def detach(self, request: web.Request) -> web.Response:
        """Detach the data plane."""
        body = await incoming.body(request)
        message = await attachment.detach(self._daemon, incoming.flag(body, "force"))
        return web.json_response({"attached": not self._daemon.detached, "message": message})

    async def attach(self, _: web.Request) -> web.Response:
        """Attach the data plane."""
        message = await attachment.attach(self._daemon)
        return web.json_response({"attached": not self._daemon.detached, "message": message})

    async def _document(self, make: Callable[[], object]) -> web.Response:
        text = await self._daemon.readers.read(lambda: json.dumps(make()))
        return web.Response(text=text, content_type="application/json")


def _number(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"{name} must be a number, not {text!r}")
    return int(text)


class Servers:
    """The control socket and the metrics endpoint. Use as an async context manager."""

    def __init__(
        self, daemon: Daemon, run_dir: Path, metrics: Metrics, reloader: Reloader, member: FleetMember
    ) -> None:
        self._endpoint = Endpoint(daemon, reloader.source, metrics)
        self._control = ControlSocket(run_dir, Api(daemon, reloader, member).application())
        self.restore_socket = self._control.restore

    async def __aenter__(self) -> "Servers":
        await self._control.start()
        await self._endpoint.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self._endpoint.stop())
        await asyncio.shield(self._control.stop())
