# SPDX-License-Identifier: BSD-2-Clause
"""Serves the web page of a host without a daemon: tables as arrays, other documents canned."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web

from mrcd.api.metrics.endpoint import application
from mrcd.api.metrics.page import Page
from mrcd.api.metrics.rates import Sample
from mrcd.api.metrics.web_config import WebConfig
from mrcd.daemon.daemon import Daemon
from mrcd.kernel.enums import EvState, Reason
from tests.unit import canned_daemon
from tests.unit.test_metrics import Host

EVENT = canned_daemon.EVENT


class Readers:
    """Reads in a thread, as the daemon does."""

    async def read(self, make: Any) -> Any:
        return await asyncio.to_thread(make)


class View:
    """The documents of a host: `status` is canned, others are made from arrays."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.status_document: dict[str, Any] = canned_daemon.STATUS | {
            "host": "h0",
            "evs": {"GOOD": 18},
            "peers": {"total": 3, "reachable": 3, "unreachable": 0, "detached": 0},
            "planes": [{"plane": p, "interface": f"p{p}", "hook": "tcx", "up": True} for p in range(2)],
        }
        self.tick_age: float | None = 0.01
        self.made = 0
        self.error: Exception | None = None
        self.begun, self.may_end = threading.Event(), threading.Event()  # of making a document
        self.may_end.set()

    def tick_age_s(self) -> float | None:
        return self.tick_age

    def status(self) -> dict[str, Any]:
        self.made += 1
        self.begun.set()
        assert self.may_end.wait(10)
        if self.error is not None:
            raise self.error
        return self.status_document | {"probing": {"tick_age_s": self.tick_age}}

    def peers(self, most: int | None = None) -> list[dict[str, Any]]:
        return self.host.view.peers(most)

    def path_map(self) -> dict[str, Any]:
        return self.host.view.path_map()


class PageServer:
    """A page with its daemon: tests change `host`, `view`, `events` and `daemon`, and read `page`."""

    def __init__(self, host: Host | None = None) -> None:
        self.host = host or Host()
        self.view = View(self.host)
        self.events: list[dict[str, Any]] = [EVENT]
        self.denials: list[dict[str, Any]] = []
        self.are_programs_complete = True
        self.daemon = SimpleNamespace(
            readers=Readers(),
            view=self.view,
            tables=self.host,
            plan=self.host.plan,
            started=time.monotonic() - 3600,
            detached=False,
            nics=None,
            events=SimpleNamespace(newest=lambda most: self.events[:most]),
            denials=SimpleNamespace(brief=lambda: self.denials),
            programs=SimpleNamespace(are_complete=lambda nics: self.are_programs_complete),
        )
        self.page = Page(cast(Daemon, self.daemon))

    def add_samples(self, count: int = 60) -> None:
        """Adds samples of the last minutes: a flow over both planes."""
        now = time.monotonic()
        for i in range(count):
            sent, n = 25_000_000 * i, 1000 * i
            self.page.rates.add(Sample(now - 2 * (count - i), [sent] * 2, [sent // 2] * 2, [n, n], [0, n // 50]))

    def fail(self, plane: int, t1: int) -> None:
        """Fails all EVs through a T1."""
        for row, peer in enumerate(self.host.plan.peers):
            for ev in peer.evs:
                if (ev.plane, ev.t1) == (plane, t1):
                    at = self.host.plan.peers[row].host.id, ev.ev
                    self.host.evs["state"][at], self.host.evs["reason"][at] = EvState.ASSUMED_BAD, Reason.OVERDUE

    def application(self, config: WebConfig | None = None) -> web.Application:
        return application(self.page.routes(), config)


@contextlib.contextmanager
def running(server: PageServer) -> Iterator[str]:
    """Serves the page in a thread, and yields its address."""
    loop, runner = asyncio.new_event_loop(), web.AppRunner(server.application(), access_log=None, shutdown_timeout=0.1)

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return int(runner.addresses[0][1])

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{asyncio.run_coroutine_threadsafe(start(), loop).result(10)}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
