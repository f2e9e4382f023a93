# SPDX-License-Identifier: BSD-2-Clause
"""Tests the control API with requests that Hypothesis generates: each is answered, and a refused one changes nothing.

Every request is valid HTTP: aiohttp refuses all else itself. The denials, the events and the documents of paths
are real, over emulated tables; reload, attach and detach are recorded, and etcd is a dictionary.
"""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yarl import URL

from mrcd import state_dir
from mrcd.api import server
from mrcd.daemon import attachment
from mrcd.daemon.daemon import Daemon
from mrcd.daemon.reload import Reloader
from mrcd.fleet.keys import Keys
from mrcd.fleet.source import FileSource
from mrcd.health.snapshot import Snapshot
from mrcd.view import paths
from mrcd.view.workers import Readers
from tests.unit.arrays import TEXT
from tests.unit.memory_etcd import MemoryEtcd
from tests.unit.served_routes import routes
from tests.unit.test_denials import Host

ROUTES = routes()
REQUESTS = 10  # of one example

_words = st.sampled_from(
    ["t1:1:2", "t0:0:1", "link:1:0:2", "nic:h1:1", "plane:1", "plane:9", "peer:h1", "peer:h9", "ev:5", "ev:h1:5", ""]
)
_any_text = st.text(max_size=20) | st.sampled_from(["\ud800", "h1", "30m", "1d", "always", "9" * 5000, "\x00"])
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_any_text, inner, max_size=3),
    max_leaves=6,
)
_bodies = st.fixed_dictionaries(
    {},
    optional={
        "target": st.lists(_words | _any_text, max_size=3) | _json,
        "peer": st.sampled_from(["h1", "h9"]) | _json,
        "ev": st.integers(-1, 9) | _json,
        "plane": st.integers(-1, 3) | _json,
        "for": st.sampled_from(["30m", "1d", "always", "0s"]) | _json,
        "reason": _any_text | _json,
        "force": st.booleans() | _json,
        "drain": st.booleans() | _json,
        "all": st.booleans() | _json,
        "text": st.sampled_from([TEXT, TEXT.replace("h1", "h7")]) | _any_text | _json,
        "if_generation": st.integers(0, 3) | _json,
        "first": st.integers(-1, 3) | _json,
        "wait_s": st.integers(-1, 100) | _json,
        "watch_s": st.integers(-1, 100) | _json,
        "lease": st.integers(-1, 100) | _json,
        "more": _json,
    },
)
_contents = st.one_of(
    _bodies.map(lambda body: json.dumps(body).encode()),
    _json.map(lambda body: json.dumps(body).encode()),
    st.binary(max_size=30),
    st.none(),
    st.sampled_from([b"[" * 100_000, b'{"plane": ' + b"1" * 5000 + b"}", b" " * 100_000]),
)
_values = st.sampled_from(
    ["0", "1", "-1", "good", "h1", "nan", "inf", "-inf", "1e400", "²", "9" * 18, "9" * 30]
) | st.text(max_size=5)
_queries = st.dictionaries(
    st.sampled_from(["peer", "state", "plane", "decode", "after", "wait", "x"]), _values, max_size=3
)
_headers = st.fixed_dictionaries(
    {},
    optional={
        "Content-Type": st.sampled_from(
            [
                "text/plain",
                "application/json; charset=utf-16",
                "x; charset=no",
                "a/b; charset=hex",
                "",
                "/",
                ";charset=",
            ]
        ),
        "Expect": st.sampled_from(["100-continue"]),
        "If-None-Match": st.just("*"),
        "Range": st.just("bytes=5-1"),
    },
)
_methods = st.sampled_from(["GET"] * 4 + ["POST"] * 4 + ["HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "PURGE"])
_paths = st.one_of(
    st.sampled_from(ROUTES),
    st.sampled_from(ROUTES),
    st.sampled_from(["/", "/v1", "//v1/deny", "/v1/deny/", "/v2/deny"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map("/v1/".__add__),
)
_requests = st.tuples(_methods, _paths, _queries, _headers | st.just({}), _contents)


class Served:
    """The API over a unix socket, and what its requests have changed."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host, self.etcd, self.monkeypatch = Host(directory / state_dir.DENIALS), MemoryEtcd(), monkeypatch
        self.path = str(directory / "s")
        self.done: list[str] = []
        arrays, plan = self.host.tables, self.host.bench.plan
        view = SimpleNamespace(
            status=lambda: {},
            peers=list,
            histograms=list,
            links=list,
            keys=dict,
            snapshot=lambda: Snapshot(arrays, plan),
            paths=lambda peer, plane, state, decode: paths.documents(arrays, plan, peer, plane, state, decode),
        )
        self.daemon = self.host.as_daemon(view=view, readers=Readers(), events=self.host.bench.log, started=0.0)
        self.daemon.readers.go_on()

    async def start(self) -> web.AppRunner:
        daemon, source = cast(Daemon, self.daemon), FileSource(Path("mrcd.toml"), Path("/nowhere"))
        reloader = Reloader(daemon, source)
        member: Any = SimpleNamespace(connected=lambda: (self.etcd, Keys("/mrcd")), brief=lambda: {"etcd": []})
        self.monkeypatch.setattr(reloader, "reload", self.reload)
        runner = web.AppRunner(server.Api(daemon, reloader, member).application())
        await runner.setup()
        await web.UnixSite(runner, self.path).start()
        return runner

    async def reload(self, *, force: bool) -> dict[str, Any]:
        self.done.append(f"reload {force}")
        return {}

    async def attach(self, daemon: object) -> str:
        self.done.append("attach")
        return "attached"

    async def detach(self, daemon: object, force: bool) -> str:
        self.done.append(f"detach {force}")
        return "detached"

    @property
    def state(self) -> tuple[Any, ...]:
        """Returns all that requests may change."""
        host = self.host
        log = host.bench.log
        return (
            host.bench.arrays.evs.tobytes(),
            host.control.document(),
            log.last_id,
            list(self.done),
            dict(self.etcd.values),
        )


def _check(method: str, status: int, content: bytes) -> None:
    """Asserts that an answer is a document, or an error document."""
    assert 200 <= status < 300 or 400 <= status < 500, (status, content)
    if method == "HEAD":
        return
    document = json.loads(content)
    if status >= 400:
        assert set(document) == {"error", "hint", "exit_code"}, document
        assert isinstance(document["error"], str)
        assert document["exit_code"] in (1, 2)
        assert "Traceback" not in document["error"]


def test_any_request_is_answered_and_a_refused_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "LONGEST_WAIT_S", 0.01)
    served = Served(tmp_path, monkeypatch)
    monkeypatch.setattr(attachment, "attach", served.attach)
    monkeypatch.setattr(attachment, "detach", served.detach)
    statuses: set[int] = set()

    async def ask(session: aiohttp.ClientSession, request: tuple[Any, ...]) -> None:
        method, path, query, headers, content = request
        before = served.state
        url = URL.build(scheme="http", host="mrcd", path=path, query=query)
        async with session.request(method, url, data=content, headers=headers) as answer:
            _check(method, answer.status, await answer.read())
            statuses.add(answer.status)
        if answer.status >= 400 or method not in ("POST",):
            assert served.state == before

    with asyncio.Runner() as loop:
        site = loop.run(served.start())

        async def ask_all(batch: list[tuple[Any, ...]]) -> None:
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(served.path, force_close=True)) as session:
                for request in batch:
                    await ask(session, request)

        @settings(
            max_examples=200, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
        )
        @given(st.lists(_requests, min_size=REQUESTS, max_size=REQUESTS))
        def compare(batch: list[tuple[Any, ...]]) -> None:
            loop.run(ask_all(batch))

        try:
            compare()
        finally:
            loop.run(site.cleanup())
    assert {200, 400, 404, 405} <= statuses
    assert not [r for r in caplog.records if r.exc_info]
