# SPDX-License-Identifier: BSD-2-Clause
"""Tests the limits of connections: idle ones leave room, and end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from mrcd.api import connections, incoming
from mrcd.api.control_socket import SOCKET, ControlSocket

REQUEST = b"GET / HTTP/1.1\r\nHost: mrcd\r\n\r\n"
Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def hello(_: web.Request) -> web.Response:
    return web.Response(text="hello")


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[Open]:
    application = web.Application()
    application.add_routes([web.get("/", hello)])
    control = ControlSocket(directory, application)
    await control.start()
    try:
        yield lambda: asyncio.open_unix_connection(str(directory / SOCKET))
    finally:
        await control.stop()


async def answer(open_: Open, request: bytes = REQUEST) -> bytes:
    """Returns the first bytes of the answer; none if the connection is closed."""
    reader, writer = await open_()
    try:
        writer.write(request)
        return await reader.read(15)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def eventually(open_: Open) -> None:
    """Waits until a connection is answered: the server closes the others in turn."""
    while await answer(open_) != b"HTTP/1.1 200 OK":
        pass


def test_more_connections_are_closed_but_root_s_and_the_rest_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    users = [1000, 1000, 0]
    monkeypatch.setattr(incoming, "user", lambda _: users.pop(0))

    async def scenario() -> None:
        async with served(tmp_path) as open_:
            idle = [await open_() for _ in range(connections.MOST)]
            assert await answer(open_) == b""
            assert await answer(open_) == b""
            assert await answer(open_) == b"HTTP/1.1 200 OK"
            monkeypatch.undo()
            idle[0][1].write(REQUEST)
            assert await idle[0][0].read(15) == b"HTTP/1.1 200 OK"
            for _, writer in idle:
                writer.close()
            await eventually(open_)

    asyncio.run(scenario())
    assert caplog.text.count("128 connections are open") == 1


@pytest.mark.parametrize("begun", [b"", REQUEST[:-2]])
def test_a_connection_without_a_whole_request_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connections, "FIRST_S", 0.0)

    async def scenario() -> None:
        async with served(tmp_path) as open_:
            assert await answer(open_, begun) == b""

    asyncio.run(scenario())


def test_a_connection_with_a_request_stays_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        loop, later = asyncio.get_running_loop(), list[Callable[[], object]]()
        async with served(tmp_path) as open_:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(loop, "call_later", lambda _, what, *given: later.append(lambda: what(*given)))
                reader, writer = await open_()
                for _ in range(2):
                    writer.write(REQUEST)
                    assert await reader.readuntil(b"hello")
                    for end in later:
                        end()
            writer.close()
        assert later

    asyncio.run(scenario())
