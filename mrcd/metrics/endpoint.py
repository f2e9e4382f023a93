# SPDX-License-Identifier: BSD-2-Clause
"""Serves GET /metrics, with TLS and passwords if the web configuration sets them."""

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from mrcd.config.cluster_file import Metrics
from mrcd.daemon.daemon import Daemon
from mrcd.errors import MachineError
from mrcd.metrics.collector import TablesCollector
from mrcd.metrics.web_config import WebConfig

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(
    registry: CollectorRegistry, web_config: WebConfig | None, run: Callable[[Callable[[], bytes]], Awaitable[bytes]]
) -> web.Application:
    """Return the application with its one route, behind the password. `run` encodes the metrics in a worker thread."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if web_config is not None:
            web_config.refresh()
            if not await web_config.allows(request.headers.get("Authorization")):
                raise web.HTTPUnauthorized(headers={"WWW-Authenticate": 'Basic realm="mrcd"'})
        return await handler(request)

    async def scrape(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = await run(lambda: encode(registry))
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application(middlewares=[guard])
    app.add_routes([web.get("/metrics", scrape)])
    return app


class Endpoint:
    """The HTTP server of the metrics."""

    def __init__(self, daemon: Daemon, settings: Metrics) -> None:
        self._settings = settings
        self._web_config = WebConfig(settings.web_config) if settings.web_config else None
        registry = CollectorRegistry()
        registry.register(TablesCollector(daemon))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        app = application(registry, self._web_config, daemon.readers.read)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    async def start(self) -> None:
        """Start to listen. Raises MachineError."""
        await self._runner.setup()
        host, _, port = self._settings.address.rpartition(":")
        context = self._web_config.tls if self._web_config else None
        try:
            await web.TCPSite(self._runner, host.strip("[]"), int(port), ssl_context=context).start()
        except OSError as e:
            await self.stop()
            raise MachineError(
                f"metrics address {self._settings.address}: {e.strerror or e}",
                hint="set [metrics] address to a free address and port",
            ) from None

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()
