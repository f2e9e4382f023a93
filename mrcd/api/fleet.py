# SPDX-License-Identifier: BSD-2-Clause
"""Serves the commands for all hosts: writes to etcd what every host shall run and deny, and reads what they do."""

import asyncio
import math
import re
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from mrcd.api import incoming
from mrcd.config import cluster_file
from mrcd.daemon.daemon import Daemon
from mrcd.daemon.reload import Reloader
from mrcd.denials import targets
from mrcd.denials.record import Denial
from mrcd.denials.table import FLEET
from mrcd.denials.targets import Target
from mrcd.errors import ConfigError, UsageError
from mrcd.fleet import report
from mrcd.fleet.etcd import Etcd
from mrcd.fleet.keys import FleetFile, denial_value, trial_value
from mrcd.fleet.member import NOTICED_S, FleetMember
from mrcd.health.probe_pace import unreachable_ns
from mrcd.versions import SCHEMA_VERSION

# A secret of a secrets file, or a private key, in a comment: no key of the cluster file takes one.
_SECRET = re.compile(r"(?<![0-9A-Za-z])[0-9A-Fa-f]{64}(?![0-9A-Za-z])|-----BEGIN [A-Z ]*PRIVATE KEY-----")
_LONGEST_S = 100_000  # more than mrcctl's longest --wait
_REPORT_LAG_S = 4.0  # until a host has reported the loss of a peer
_LEASE_MORE_S = 60  # after the end of a denial or a trial: etcd forgets it then


class FleetApi:
    """The handlers of one daemon. Without [fleet] etcd each raises UsageError."""

    def __init__(self, daemon: Daemon, reloader: Reloader, member: FleetMember) -> None:
        self._daemon, self._reloader, self._member = daemon, reloader, member
        self._named: tuple[FleetFile | None, Sequence[str]] = None, ()  # a file in etcd, and the hosts in it

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the handlers."""
        return [
            web.get("/v1/fleet", self.fleet),
            web.get("/v1/fleet/file", self.file),
            web.post("/v1/fleet/file", self.put),
            web.post("/v1/fleet/trial", self.try_),
            web.post("/v1/fleet/trial/end", self.end_trial),
            web.post("/v1/fleet/deny", self.deny),
            web.post("/v1/fleet/allow", self.allow),
        ]

    def _now(self, etcd: Etcd) -> float:
        """Return the time by etcd's clock, with which all hosts of a fleet reckon."""
        table = self._daemon.denials.table
        table.ahead_s = etcd.ahead_s
        return table.now(FLEET)

    async def fleet(self, _: web.Request) -> web.Response:
        """Return what etcd wants of all hosts, and what each of them says."""
        etcd, keys = self._member.connected()
        snapshot = await etcd.read(keys.all)
        wanted, reports = keys.wanted(snapshot.values), keys.reports(snapshot.values)
        running = [h.name for h in self._daemon.plan.config.hosts]
        hosts = [*running, *(await self._names_in(wanted.file) if wanted.file else ())]
        found = report.fleet(wanted, reports, hosts, self._now(etcd))
        return web.json_response(found | {"etcd": self._member.brief()["etcd"], "connected": etcd.endpoint})

    async def _names_in(self, file: FleetFile) -> Sequence[str]:
        """Return the hosts that a file names, also if this host refuses it; none if it cannot be read."""
        if file != self._named[0]:
            try:
                config = await asyncio.to_thread(cluster_file.parse, file.text, "etcd")
                self._named = file, [h.name for h in config.hosts]
            except ConfigError:
                self._named = file, ()
        return self._named[1]

    # ---- the cluster file ----

    async def file(self, _: web.Request) -> web.Response:
        """Return the cluster file in etcd. Raises UsageError if it has none."""
        etcd, keys = self._member.connected()
        file = keys.wanted((await etcd.read(keys.file)).values).file
        if file is None:
            raise UsageError("etcd has no cluster file for this fleet", hint="`mrcctl fleet put FILE`")
        found = {"generation": file.generation, "sha256": file.sha256, "text": file.text}
        return web.json_response({"schema_version": SCHEMA_VERSION} | found)

    async def put(self, request: web.Request) -> web.Response:
        """Write the cluster file, and end a trial. Keys: "text", "force", "if_generation"."""
        body = await incoming.body(request)
        text, difference = await self._checked(body)
        etcd, keys = self._member.connected()
        revision = await etcd.put(keys.file, text.encode(), if_revision=body.get("if_generation"))
        if revision is None:
            raise _other_generation(body)
        await etcd.delete([keys.trial])
        file = FleetFile(revision, text)
        return web.json_response(
            difference | {"generation": revision, "sha256": file.sha256, "message": f"generation {revision} is in etcd"}
        )

    async def try_(self, request: web.Request) -> web.Response:
        """Have a few hosts run a cluster file for a time.

        Keys as of `put`; "first": hosts; "wait_s": seconds until they run it; "watch_s": those to watch them then, by
        default so many that the loss of a host is noticed. The answer has them.
        """
        body = await incoming.body(request)
        text, difference = await self._checked(body)
        first = body.get("first")
        if type(first) is not int or first < 1:
            raise UsageError("first must be a number of hosts")
        noticed_s = max(NOTICED_S, unreachable_ns(self._daemon.plan) / 1e9 + _REPORT_LAG_S)
        wait_s, watch_s = _seconds(body, "wait_s", 0.0), _seconds(body, "watch_s", noticed_s)
        etcd, keys = self._member.connected()
        values = (await etcd.read(keys.all)).values
        if body.get("if_generation") not in (None, values[keys.file].revision if keys.file in values else 0):
            raise _other_generation(body)
        stays = [h for h in self._daemon.plan.config.hosts if h.name not in difference["hosts"]["removed"]]
        hosts = report.first_hosts(stays, keys.reports(values), first)
        revision = lease = None
        if hosts:
            lease = await etcd.grant(math.ceil(wait_s + watch_s) + _LEASE_MORE_S)
            revision = await etcd.put(keys.trial, trial_value(text, hosts, lease), lease=lease, if_revision=0)
            if revision is None:
                await etcd.revoke(lease)
                raise UsageError(
                    "another file is on trial", hint="wait for its end; `mrcctl fleet status` says on which hosts"
                )
        return web.json_response(
            difference | {"generation": revision, "lease": lease, "hosts": hosts, "watch_s": watch_s}
        )

    async def end_trial(self, request: web.Request) -> web.Response:
        """Have all hosts run the same file again. Key: "lease", which tells this trial from another."""
        body = await incoming.body(request)
        lease = body.get("lease")
        if type(lease) is not int or not 0 < lease < 1 << 63:
            raise UsageError("lease must be a number, from the answer of /v1/fleet/trial")
        etcd, _ = self._member.connected()
        await etcd.revoke(lease)
        return web.json_response({"schema_version": SCHEMA_VERSION})

    async def _checked(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the text of a cluster file, and the difference that it would make here. Raises UsageError."""
        text, expected = body.get("text"), body.get("if_generation")
        if type(text) is not str or not (expected is None or type(expected) is int):
            raise UsageError("text must be a string, and if_generation a number")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError("text must be Unicode text") from None
        if (secret := _SECRET.search(text)) is not None:
            line = text.count("\n", 0, secret.start()) + 1
            raise UsageError(
                f"line {line} has what looks like a secret, which everybody who reads etcd would know",
                hint="secrets are in files of their own: see docs/security.md",
            )
        self._member.connected()
        return text, await self._reloader.examine(text, force=incoming.flag(body, "force"))

    # ---- denials ----

    async def deny(self, request: web.Request) -> web.Response:
        """Deny paths on all hosts. Keys as of POST /v1/deny."""
        given = await incoming.denial(request)
        target, reason, for_s = incoming.target(given), given["reason"], given["for_s"]
        etcd, keys = self._member.connected()
        key, host = keys.denial(target), self._daemon.plan.host.name
        before = keys.wanted((await etcd.read(key)).values).denials.get(target)
        now = self._now(etcd)
        if before is not None and before.left_s(now):  # as with a denial of one host, its end and its reason are kept
            for_s = before.left_s(now) if for_s is None else for_s
            reason = reason or before.reason
        until = None if for_s is None or math.isinf(for_s) else now + for_s
        asked = Denial(target, now, until, reason, incoming.uid(request), given["drain"], given["force"], host)
        why = await self._daemon.denials.refusal(asked)
        if why is not None:
            return _done(target, f"{target} is not denied: {host} would refuse it: {why}", [], is_refused=True)
        lease = 0 if until is None or for_s is None else await etcd.grant(math.ceil(for_s) + _LEASE_MORE_S)
        await etcd.put(key, denial_value(asked), lease=lease)
        return _done(target, f"{target} is to be denied on all hosts", [])

    async def allow(self, request: web.Request) -> web.Response:
        """End fleet-wide denials: those within a target, or with the key "all" all."""
        given = await incoming.denial(request)
        target = None if given["all"] else incoming.target(given)
        etcd, keys = self._member.connected()
        plan, values = self._daemon.plan, (await etcd.read(keys.denials)).values
        ended = [t for t in keys.wanted(values).denials if target is None or targets.covers(plan, target, t)]
        doomed = list(values) if target is None else [keys.denial(t) for t in ended]
        if doomed:
            await etcd.delete(doomed)
        said = f"no longer denied: {', '.join(map(str, ended))}" if doomed else "no fleet-wide denial to end"
        return _done(target, said, ended)


def _seconds(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)
    if type(value) not in (int, float) or not 0 <= value <= _LONGEST_S:
        raise UsageError(f"{name} must be a number of seconds")
    return float(value)


def _other_generation(body: dict[str, Any]) -> UsageError:
    return UsageError(
        f"the file in etcd is not of generation {body['if_generation']}: another one was put meanwhile",
        hint="`mrcctl fleet get`, and change that",
    )


def _done(target: Target | None, message: str, ended: list[Target], *, is_refused: bool = False) -> web.Response:
    found = {"target": None if target is None else str(target), "ended": [str(t) for t in ended]}
    return web.json_response({"schema_version": SCHEMA_VERSION} | found | {"refused": is_refused, "message": message})
