# SPDX-License-Identifier: BSD-2-Clause
"""Serves the running configuration, and reloads the cluster file on request."""

import json

from aiohttp import web

from mrcd.api import incoming
from mrcd.daemon.daemon import Daemon
from mrcd.daemon.reload import Reloader
from mrcd.versions import SCHEMA_VERSION


class ConfigApi:
    """The handlers of one daemon."""

    def __init__(self, daemon: Daemon, reloader: Reloader) -> None:
        self._daemon, self._reloader = daemon, reloader

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the handlers."""
        return [web.get("/v1/config", self.config), web.post("/v1/reload", self.reload)]

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
