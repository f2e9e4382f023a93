# SPDX-License-Identifier: BSD-2-Clause
"""Tests the client of etcd against a real etcd on the loopback: keys, leases, watches, failover, TLS, users."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from mrcd.config.sections import Fleet
from mrcd.errors import ConfigError
from mrcd.fleet.etcd import Change, Etcd, EtcdAway, EtcdError, Value, ahead_s
from tests.etcd_server import MISSING, Server, free_port, make_certificates

pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")

T = TypeVar("T")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("plain"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An etcd that takes clients with certificates only, and users: a host that may write its report, and root."""
    server = Server(tmp_path_factory.mktemp("guarded"), tls=True)
    server.start()
    for words in (
        "role add host",
        "role grant-permission host --prefix=true read /mrcd/want/",
        "role grant-permission host --prefix=true readwrite /mrcd/hosts/",
        "user add root:secret",
        "user grant-role root root",
        "user add host:pass:word",
        "user grant-role host host",
        "auth enable",
    ):
        server.ctl(*words.split())
    server.user = "root:secret"
    yield server
    server.stop()


def using(fleet: Fleet, work: Callable[[Etcd], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Etcd(fleet) as etcd:
            return await work(etcd)

    return asyncio.run(run())


def test_a_request_after_the_end_of_the_client_says_so(plain: Server) -> None:
    async def work() -> None:
        async with Etcd(Fleet(etcd=[plain.url])) as etcd:
            pass
        with pytest.raises(EtcdAway, match="this host is connecting anew"):
            await etcd.read("/")

    asyncio.run(work())


def fleet_of(server: Server, **more: Any) -> Fleet:
    files = {"ca_file": str(server.ca), "cert_file": str(server.cert), "key_file": str(server.key)}
    return Fleet(etcd=[server.url], **((files if server.tls else {}) | more))


def user_file(directory: Path, text: str, mode: int = 0o600) -> str:
    path = directory / "user"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_keys_are_put_read_and_deleted(plain: Server) -> None:
    async def work(etcd: Etcd) -> None:
        revision = await etcd.put("/keys/a", b"1")
        await etcd.put("/keys/b", "ü".encode())
        found = await etcd.read("/keys/")
        assert {k: v.data for k, v in found.values.items()} == {"/keys/a": b"1", "/keys/b": "ü".encode()}
        assert found.values["/keys/a"].revision == revision
        assert found.revision > (revision or 0)
        assert (await etcd.read("/none/")).cluster == found.cluster
        await etcd.delete([f"/keys/{n}" for n in range(200)] + ["/keys/a"])  # more than a transaction takes
        assert list((await etcd.read("/keys/")).values) == ["/keys/b"]

    using(fleet_of(plain), work)


def test_a_key_is_put_only_at_its_expected_revision(plain: Server) -> None:
    async def work(etcd: Etcd) -> None:
        first = await etcd.put("/cas/a", b"1", if_revision=0)
        assert first
        assert await etcd.put("/cas/a", b"2", if_revision=0) is None
        assert await etcd.put("/cas/a", b"2", if_revision=first)
        assert (await etcd.read("/cas/a")).values["/cas/a"].data == b"2"

    using(fleet_of(plain), work)


def test_a_watch_yields_all_changes_in_order_from_its_revision_on(plain: Server) -> None:
    big = bytes(range(256)) * 4000  # a line longer than any buffer

    async def work(etcd: Etcd) -> None:
        first = await etcd.put("/watch/a", b"1")
        assert first
        seen: list[Change] = []
        async for changes in etcd.watch("/watch/", first):
            if changes == []:
                await etcd.put("/watch/b", big)
                await etcd.put("/elsewhere", b"")
                await etcd.delete(["/watch/a"])
            seen += changes
            if len(seen) == 3:
                break
        assert seen[0] == Change("/watch/a", Value(b"1", first))
        assert seen[1].value is not None
        assert (seen[1].key, seen[1].value.data) == ("/watch/b", big)
        assert seen[2] == Change("/watch/a", None)

    using(fleet_of(plain), work)


def test_a_watch_from_a_forgotten_revision_ends(plain: Server) -> None:
    async def work(etcd: Etcd) -> None:
        revision = await etcd.put("/compacted", b"")
        plain.ctl("compaction", str(revision))
        with pytest.raises(EtcdAway, match="is compacted"):
            async for _ in etcd.watch("/compacted", 1):
                pass

    using(fleet_of(plain), work)


def test_keys_vanish_with_their_lease(plain: Server) -> None:
    async def work(etcd: Etcd) -> None:
        lease = await etcd.grant(60)
        await etcd.put("/lease/a", b"", lease=lease)
        assert await etcd.keep(lease)
        await etcd.revoke(lease)
        assert not (await etcd.read("/lease/")).values
        assert not await etcd.keep(lease)
        with pytest.raises(EtcdError, match="lease not found") as caught:
            await etcd.put("/lease/a", b"", lease=lease)
        assert not isinstance(caught.value, EtcdAway)

    using(fleet_of(plain), work)


def test_a_value_that_etcd_finds_too_long_is_explained(plain: Server) -> None:
    with pytest.raises(EtcdError, match="too large") as caught:
        using(fleet_of(plain), lambda etcd: etcd.put("/long", bytes(2_000_000)))
    assert "--max-request-bytes" in str(caught.value.hint)


def test_requests_go_to_the_next_endpoint_if_one_is_closed_or_silent(plain: Server, monkeypatch: Any) -> None:
    monkeypatch.setattr("mrcd.fleet.etcd._ANSWER_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        urls = [f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{silent.getsockname()[1]}", plain.url]

        async def work(etcd: Etcd) -> str:
            await etcd.put("/failover", b"")
            return etcd.endpoint

        assert using(Fleet(etcd=urls), work) == plain.url
        with pytest.raises(EtcdAway, match="no endpoint of etcd answers: ") as caught:
            using(Fleet(etcd=urls[:2]), work)
        assert f"{urls[0]}: Connection refused" in caught.value.args[0]
        assert f"{urls[1]}: no answer in time" in caught.value.args[0]


def test_requests_side_by_side_each_ask_all_endpoints(plain: Server, monkeypatch: Any) -> None:
    monkeypatch.setattr("mrcd.fleet.etcd._ANSWER_S", 0.3)
    monkeypatch.setattr("random.randrange", lambda _: 0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        urls = [f"http://127.0.0.1:{silent.getsockname()[1]}", f"http://127.0.0.1:{free_port()}", plain.url]

        async def work(etcd: Etcd) -> tuple[int | None, int | None]:
            return await asyncio.gather(etcd.put("/side/a", b""), etcd.put("/side/b", b""))

        assert all(using(Fleet(etcd=urls), work))


@pytest.mark.parametrize(
    ("date", "before", "expected"),
    [
        ("Wed, 02 Jan 2030 03:04:05 GMT", 0.0, 0.0),
        ("Wed, 02 Jan 2030 03:04:07 GMT", 0.0, 0.0),
        ("Wed, 02 Jan 2030 04:04:05 GMT", 0.0, 3600.5),
        ("Wed, 02 Jan 2030 04:04:06 GMT", 3600.5, 3600.5),
        ("Wed, 02 Jan 2030 04:04:16 GMT", 3600.5, 3611.5),
        ("Wed, 02 Jan 2030 03:04:05 GMT", 3600.5, 0.0),
        ("Wed, 02 Jan 2030 02:04:05 GMT", 0.0, -3599.5),
        ("tomorrow", 7.0, 7.0),
        (None, 7.0, 7.0),
    ],
)
def test_how_far_the_clock_of_etcd_is_ahead(date: str | None, before: float, expected: float) -> None:
    assert ahead_s(date, 1893553445.0, before) == expected


def test_etcd_tells_its_time(plain: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(etcd: Etcd) -> float:
        await etcd.read("/none")
        return etcd.ahead_s

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86_400)
    assert 86_300 < using(fleet_of(plain), work) < 87_400


def test_no_redirect_is_followed() -> None:
    """Requests have a password or a token, and etcd redirects none."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")  # which keeps the body

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/{any:.*}", answer)
        async with TestServer(app) as server, Etcd(Fleet(etcd=[str(server.make_url("/"))])) as etcd:
            with pytest.raises(EtcdAway, match="HTTP status 307"):
                await etcd.put("/k", b"")

    asyncio.run(run())
    assert asked == ["/v3/kv/put"]


# ---- TLS and users ----


def test_a_host_reads_what_is_wanted_and_writes_its_report_only(guarded: Server, tmp_path: Path) -> None:
    async def work(etcd: Etcd) -> None:
        assert not (await etcd.read("/mrcd/want/")).values
        await etcd.put("/mrcd/hosts/h0", b"{}", lease=await etcd.grant(10))
        with pytest.raises(EtcdError, match="permission denied") as caught:
            await etcd.put("/mrcd/want/file", b"")
        assert "docs/security.md" in str(caught.value.hint)
        async for changes in etcd.watch("/mrcd/want/", 1):
            assert changes == []
            break

    using(fleet_of(guarded, user_file=user_file(tmp_path, "host:pass:word\n")), work)


def test_a_token_that_etcd_has_forgotten_is_renewed(guarded: Server, tmp_path: Path) -> None:
    async def work(etcd: Etcd) -> None:
        await etcd.read("/mrcd/want/")
        guarded.stop()
        guarded.start()
        await etcd.read("/mrcd/want/")

    using(fleet_of(guarded, user_file=user_file(tmp_path, "host:pass:word\n")), work)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("host:wrong\n", EtcdError, "authentication failed"),
        ("host\n", ConfigError, "not one line NAME:PASSWORD"),
        ("", ConfigError, "not one line NAME:PASSWORD"),
        ("a:b\nc:d\n", ConfigError, "not one line NAME:PASSWORD"),
        ("open:x\n", ConfigError, r"open to other users \(mode 0644\)"),
    ],
)
def test_a_wrong_user_file_is_explained(
    guarded: Server, tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    file = user_file(tmp_path, text, 0o644 if text.startswith("open") else 0o600)
    with pytest.raises(error, match=message) as caught:
        using(fleet_of(guarded, user_file=file), lambda etcd: etcd.read("/mrcd/want/"))
    assert "wrong" not in str(caught.value.args[0]).removeprefix(str(tmp_path))


def test_an_etcd_of_another_authority_is_not_trusted(guarded: Server, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    with pytest.raises(EtcdAway, match="certificate verify failed"):
        using(fleet_of(guarded, ca_file=str(tmp_path / "ca.pem")), lambda etcd: etcd.read("/mrcd/"))


@pytest.mark.parametrize("key", ["ca_file", "cert_file"])
def test_a_missing_tls_file_is_named(guarded: Server, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} /nowhere.pem.*: No such file"):
        using(fleet_of(guarded, **{key: "/nowhere.pem"}), lambda etcd: etcd.read("/mrcd/"))
