# SPDX-License-Identifier: BSD-2-Clause
"""Tests what a reload's request may say, what a reload answers meanwhile, and threads that make documents."""

import asyncio
import grp
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from mrcd.api import incoming
from mrcd.api.server import Api
from mrcd.daemon.daemon import Daemon
from mrcd.daemon.reload import Reloader
from mrcd.fleet.member import FleetMember
from mrcd.view.workers import Readers


class Asked:
    """Stands in for a reloader, and records its calls."""

    def __init__(self) -> None:
        self.force: list[bool] = []

    async def reload(self, *, force: bool) -> dict[str, Any]:
        """Does nothing."""
        self.force.append(force)
        return {}


def reload(directory: Path, body: bytes | None) -> tuple[int, dict[str, Any], list[bool]]:
    """Returns status and answer, and the recorded calls."""
    asked, path = Asked(), str(directory / "s")

    async def scenario() -> tuple[int, dict[str, Any]]:
        runner = web.AppRunner(Api(cast(Daemon, None), cast(Reloader, asked), cast(FleetMember, None)).application())
        await runner.setup()
        await web.UnixSite(runner, path).start()
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
                session.post("http://mrcd/v1/reload", data=body) as answer,
            ):
                return answer.status, await answer.json()
        finally:
            await runner.cleanup()

    return *asyncio.run(scenario()), asked.force


@pytest.mark.parametrize(
    ("body", "force"), [(None, False), (b"{}", False), (b'{"force": false}', False), (b'{"force": true}', True)]
)
def test_a_reload_passes_the_force_flag(tmp_path: Path, body: bytes | None, force: bool) -> None:
    assert reload(tmp_path, body) == (200, {}, [force])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the request's body is not JSON"),
        (b"[" * 100_000, "the request's body is not JSON"),
        (b"[true]", "the request's body is not a JSON object"),
        (b'{"force": "no"}', "force must be true or false, not 'no'"),
        (b'{"force": 0}', "force must be true or false, not 0"),
    ],
    ids=["cut off", "deep", "list", "text", "number"],
)
def test_an_invalid_body_reloads_nothing(tmp_path: Path, body: bytes, said: str) -> None:
    """A body that is not understood may mean something else than a forced reload."""
    status, answer, asked = reload(tmp_path, body)
    assert (status, answer["error"], answer["exit_code"], asked) == (400, said, 1, [])


def test_a_document_asked_for_during_a_reload_is_made_of_the_new_tables() -> None:
    async def ask() -> str | None:
        daemon = SimpleNamespace(encapsulation=None, readers=Readers(), view=SimpleNamespace(peers=lambda: ["old"]))
        api = Api(cast(Daemon, daemon), cast(Reloader, None), cast(FleetMember, None))
        asking = asyncio.create_task(api.listed("peers")(cast(web.Request, None)))
        await asyncio.sleep(0)
        daemon.view = SimpleNamespace(peers=lambda: ["new"])
        daemon.readers.go_on()
        return (await asking).text

    assert json.loads(asyncio.run(ask()) or "") == ["new"]


@pytest.mark.parametrize(("ids", "newest"), [([], None), ([7], 7), ([255, 1], 1)])
def test_keys_are_those_of_the_tables_and_the_newest_that_of_the_file(ids: list[int], newest: int | None) -> None:
    async def ask() -> str | None:
        view = SimpleNamespace(keys=lambda: {"mode": "required", "newest": None, "peers": []})
        daemon = SimpleNamespace(readers=Readers(), view=view, keyring=SimpleNamespace(ids=ids))
        daemon.readers.go_on()
        return (
            await Api(cast(Daemon, daemon), cast(Reloader, None), cast(FleetMember, None)).keys(cast(web.Request, None))
        ).text

    assert json.loads(asyncio.run(ask()) or "") == {"mode": "required", "newest": newest, "peers": []}


class Slow:
    """A document that waits until `go_on` is set."""

    def __init__(self) -> None:
        self.calls = 0
        self.began, self.go_on = threading.Event(), threading.Event()

    def read(self) -> str:
        self.calls += 1
        self.began.set()
        assert self.go_on.wait(10)
        return "made"


def open_readers() -> Readers:
    readers = Readers()
    readers.go_on()
    return readers


async def begun(slow: Slow) -> None:
    assert await asyncio.to_thread(slow.began.wait, 10)


def test_a_request_during_a_reload_waits_for_its_end() -> None:
    async def ask() -> str:
        readers, slow = open_readers(), Slow()
        slow.go_on.set()
        await readers.stop()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        asking = asyncio.create_task(readers.read(slow.read))
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)  # the only thread would have read before
        assert slow.calls == 0
        readers.go_on()
        return await asking

    assert asyncio.run(ask()) == "made"


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_reload_waits_for_the_threads_that_read(cancelled: bool) -> None:
    """A request may be cancelled; its thread continues to read."""

    async def ask() -> None:
        readers, slow = open_readers(), Slow()
        asking = asyncio.create_task(readers.read(slow.read))
        await begun(slow)
        if cancelled:
            asking.cancel()
            await asyncio.wait([asking])
        stopping = asyncio.create_task(readers.stop())
        for _ in range(10):  # turns of the loop: one ends a task that waits for nothing
            await asyncio.sleep(0)
        assert not stopping.done()
        slow.go_on.set()
        await asyncio.wait_for(stopping, 10)
        assert cancelled or await asking == "made"

    asyncio.run(ask())


def test_an_error_is_raised_to_the_request() -> None:
    async def ask() -> None:
        readers = open_readers()
        with pytest.raises(ValueError, match="mine"):
            await readers.read(lambda: int("mine"))
        await readers.stop()  # no thread reads any more

    asyncio.run(ask())


_ASK = """
import http.client, socket, sys
connection = http.client.HTTPConnection("mrcd")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(sys.argv[1])
connection.request(sys.argv[2], sys.argv[3])
print(connection.getresponse().status)
"""


@pytest.fixture
def shared() -> Iterator[str]:
    """A directory whose sockets everybody may use."""
    before = os.umask(0)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield directory
    os.umask(before)


async def _status(directory: str, groups: list[int], method: str, path: str) -> int:
    """Returns the status of the answer to nobody, a member of these groups."""
    application = Api(cast(Daemon, None), cast(Reloader, Asked()), cast(FleetMember, None)).application()
    runner = web.AppRunner(application)
    await runner.setup()
    at = f"{directory}/s"
    await web.UnixSite(runner, at).start()
    try:
        process = await asyncio.create_subprocess_exec(
            *("/usr/bin/python3", "-I", "-c", _ASK, at, method, path),
            user=65534, group=65534, extra_groups=groups, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await process.communicate()
    finally:
        await runner.cleanup()
    return int(said)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it asks as another user")
@pytest.mark.parametrize(
    ("groups", "method", "path", "status"),
    [
        ([], "GET", "/v1/version", 200),
        ([], "POST", "/v1/reload", 403),
        ([1], "POST", "/v1/detach", 403),
        ([1, 2, 5], "POST", "/v1/reload", 200),
        (list(range(100, 500)), "POST", "/v1/reload", 403),
    ],
)
def test_only_root_and_administrators_may_change_something(
    monkeypatch: pytest.MonkeyPatch, shared: str, groups: list[int], method: str, path: str, status: int
) -> None:
    monkeypatch.setattr(incoming, "ADMINS", grp.getgrgid(5).gr_name)
    assert asyncio.run(_status(shared, groups, method, path)) == status


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it asks as another user")
def test_without_the_group_only_root_may_change_something(monkeypatch: pytest.MonkeyPatch, shared: str) -> None:
    monkeypatch.setattr(incoming, "ADMINS", "no-such-group")
    assert asyncio.run(_status(shared, [5], "POST", "/v1/reload")) == 403
