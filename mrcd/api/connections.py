# SPDX-License-Identifier: BSD-2-Clause
"""Limits the connections of an HTTP server: idle ones must not use up the daemon's descriptors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from mrcd.api import incoming

log = logging.getLogger("mrcd.api")

MOST = 128
HANDSHAKE_S, FIRST_S = 5.0, 10.0
"""A connection is closed if no whole request has come within this time."""
_LOG_S = 60.0


class _Full(asyncio.Protocol):
    """A connection too many: closed, unless it is root's on a unix socket."""

    def __init__(self, server: web.Server) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if incoming.user(transport) != 0:
            transport.abort()
            return
        protocol = self._server()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


class Connections:
    """At most MOST connections of an application at a time, and root's; each with a request within FIRST_S."""

    def __init__(self, name: str, application: web.Application, *, is_tls: bool = False) -> None:
        self._name, self._is_tls = name, is_tls
        self._new: set[web.RequestHandler] = set()  # without a request yet
        self._logged = float("-inf")
        application.middlewares.append(self._note)
        self._server: web.Server | None = None

    def use(self, server: web.Server | None) -> None:
        """Take the server that a runner has set up."""
        self._server = server

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        assert self._server is not None
        loop = asyncio.get_running_loop()
        shaking_hands = sum(p.transport is None for p in self._new) if self._is_tls else 0
        if len(self._server.connections) + shaking_hands >= MOST:
            if loop.time() - self._logged > _LOG_S:
                self._logged = loop.time()
                log.error("%s: %d connections are open: more are closed at once", self._name, MOST)
            return _Full(self._server)
        protocol = self._server()
        self._new.add(protocol)
        loop.call_later(FIRST_S, self._end, protocol)
        return protocol

    def _end(self, protocol: web.RequestHandler) -> None:
        if protocol in self._new:
            self._new.discard(protocol)
            protocol.force_close()

    @web.middleware
    async def _note(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self._new.discard(request.protocol)
        return await handler(request)
