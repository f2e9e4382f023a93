# SPDX-License-Identifier: BSD-2-Clause
"""Serves GET /metrics, GET /metrics/fabric and the web page, with TLS and passwords of the web configuration."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from mrcd.api.connections import HANDSHAKE_S, Connections
from mrcd.api.metrics.collector import TablesCollector
from mrcd.api.metrics.fabric_sums import FabricCollector
from mrcd.api.metrics.page import Page
from mrcd.api.metrics.rows import encode
from mrcd.config.cluster_file import Metrics
from mrcd.daemon.daemon import Daemon
from mrcd.fleet.source import FileSource

if TYPE_CHECKING:
    from mrcd.api.metrics.web_config import WebConfig

log = logging.getLogger("mrcd")

_RETRY_S = 5.0
_KEEP_S = 75.0  # Prometheus scrapes each minute at the latest
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


HEADERS = {
    # The page's own files only; nothing inline, no frame around it, no form.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of all answers."""


def application(routes: Iterable[web.RouteDef], web_config: "WebConfig | None") -> web.Application:
    """Return the application with these routes, all behind the password, as are paths that do not exist."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if web_config is not None:
            web_config.refresh()
            if not await web_config.allows(request.headers.get("Authorization")):
                raise web.HTTPUnauthorized(headers={"WWW-Authenticate": 'Basic realm="mrcd"'})
        return await handler(request)

    async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(HEADERS)

    app = web.Application(middlewares=[guard])
    app.on_response_prepare.append(add_headers)
    app.add_routes(routes)
    return app


def scrape_route(
    registry: CollectorRegistry,
    run: Callable[[Callable[[], tuple[bytes, str]]], Awaitable[tuple[bytes, str]]],
    path: str = "/metrics",
) -> web.RouteDef:
    """Return the route of a GET of these metrics. `run` encodes the metrics in a worker thread."""

    async def scrape(request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        body, content_type = await run(lambda: encode(registry, accept))
        return web.Response(body=body, headers={"Content-Type": content_type})

    return web.get(path, scrape)


class Endpoint:
    """The HTTP server of the metrics and the web page."""

    def __init__(self, daemon: Daemon, source: FileSource, settings: Metrics) -> None:
        self._settings = settings
        self._web_config: WebConfig | None = None
        if settings.web_config:
            from mrcd.api.metrics import web_config  # yaml

            self._web_config = web_config.WebConfig(settings.web_config)
        registry = CollectorRegistry()
        registry.register(TablesCollector(daemon, source))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        fabric = CollectorRegistry()
        fabric.register(FabricCollector(daemon))
        self.page = Page(daemon)
        read = daemon.readers.read
        routes = [scrape_route(registry, read), scrape_route(fabric, read, "/metrics/fabric"), *self.page.routes()]
        app = application(routes, self._web_config)
        is_tls = self._web_config is not None and self._web_config.tls is not None
        self._connections = Connections(f"metrics address {settings.address}", app, is_tls=is_tls)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, keepalive_timeout=_KEEP_S)
        self._listener: asyncio.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to listen. While the address is taken, or does not exist yet, only these pages are missing."""
        await self._runner.setup()
        self._connections.use(self._runner.server)
        error = await self._listen()
        if error:
            log.error("%s: no metrics and no page; free it, or set [metrics] address; all else works", error)
        self._serving = asyncio.create_task(self._serve(is_listening=not error))

    async def _serve(self, *, is_listening: bool) -> None:
        while not is_listening:
            await asyncio.sleep(_RETRY_S)
            is_listening = not await self._listen()
        await self.page.run()

    async def _listen(self) -> str:
        """Returns why this is not possible; "" if it listens."""
        host, _, port = self._settings.address.rpartition(":")
        context = self._web_config.tls if self._web_config else None
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                self._connections,
                host.strip("[]"),
                int(port),
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S if context else None,
            )
        except OSError as e:
            return f"metrics address {self._settings.address}: {e.strerror or e}"
        return ""

    async def stop(self) -> None:
        """Stop listening."""
        if self._serving is not None:
            self._serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()
