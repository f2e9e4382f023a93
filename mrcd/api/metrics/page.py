# SPDX-License-Identifier: BSD-2-Clause
"""Serves the web page of this host: static files, /status.json, /healthz and /readyz. Read-only."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from mrcd import __version__
from mrcd.api.metrics import page_document
from mrcd.api.metrics.rates import INTERVAL_S, Rates, Sample, take_sample
from mrcd.api.metrics.recent_events import MOST_READ, event_lines
from mrcd.daemon.daemon import Daemon

log = logging.getLogger("mrcd.api.metrics.page")

FILES = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HUNG_S = 10.0
"""Seconds without a tick of the daemon after which /healthz says so: as systemd's WatchdogSec."""

_LEAST_AGE_S, _MOST_AGE_S = 1.0, 10.0
_COST = 20  # a document is served for so many times what it took to make: at most 5 % of a CPU


class Cached:
    """Makes a text when it is asked for, and serves it to all who ask in the next second, or longer if it is costly."""

    def __init__(self, make: Callable[[], Awaitable[bytes]], clock: Callable[[], float] = time.monotonic) -> None:
        self._make, self._clock = make, clock
        self._text, self._until_s = b"", 0.0
        self._task: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        """Return the text. Raises what `make` raises. Those who ask while it is being made share the result."""
        if self._text and self._clock() < self._until_s:
            return self._text
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._renew())
        return await asyncio.shield(self._task)  # a client that goes away does not end it for the others

    async def _renew(self) -> bytes:
        begun = self._clock()
        self._text = await self._make()
        now = self._clock()
        self._until_s = now + min(_MOST_AGE_S, max(_LEAST_AGE_S, _COST * (now - begun)))
        return self._text


class Page:
    """The page of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.rates = Rates()
        self._status = Cached(self._make_status)
        self._files = {path.name: path.read_bytes() for path in FILES.iterdir() if path.suffix in TYPES}

    def routes(self) -> list[web.RouteDef]:
        """Return the routes, all for GET and HEAD."""
        found = [web.get("/", self._file), web.get("/status.json", self.status)]
        found += [web.get("/healthz", self.health), web.get("/readyz", self.readiness)]
        return found + [web.get(f"/page/{name}", self._file) for name in self._files]

    async def run(self) -> None:
        """Sample counters for the rates until cancelled."""
        failed = ""
        while True:
            try:
                self.rates.add(await self._daemon.readers.read(self._sample))
                failed = ""
            except Exception as e:  # the page shows no rates then; nothing else depends on them
                if str(e) != failed:
                    log.error("the web page lacks rates: %s", e)
                failed = str(e)
            await asyncio.sleep(INTERVAL_S)

    def _sample(self) -> Sample:
        return take_sample(self._daemon.tables, self._daemon.plan, time.monotonic())

    async def _file(self, request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2] or "index.html"
        kind = TYPES[Path(name).suffix]
        return web.Response(body=self._files[name], content_type=kind, charset="utf-8")

    async def status(self, _: web.Request) -> web.Response:
        """Return the page's document."""
        return web.Response(body=await self._status.get(), content_type="application/json")

    async def _make_status(self) -> bytes:
        daemon = self._daemon
        newest, denials = daemon.events.newest(MOST_READ), daemon.denials.brief()  # both change in the event loop only
        uptime_s = round(time.monotonic() - daemon.started, 3)
        rates = self.rates.document()

        def make() -> bytes:
            status = daemon.view.status()
            status["daemon"] = {"version": __version__, "uptime_s": uptime_s}
            status["denials"] = denials
            peers, path_map = daemon.view.peers(page_document.MOST_PEERS), daemon.view.path_map()
            found = page_document.document(status, peers, path_map, rates, event_lines(newest))
            found["at_s"] = round(time.monotonic(), 3)
            return json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()

        return await daemon.readers.read(make)

    async def health(self, _: web.Request) -> web.Response:
        """Answer 200 while mrcd works: its event loop answers this, and its tick runs; else 503."""
        age_s = self._daemon.view.tick_age_s()
        up_s = time.monotonic() - self._daemon.started
        if age_s is not None and age_s > HUNG_S and up_s > HUNG_S:
            return _sentence(503, f"mrcd answers, but its last tick was {age_s:.0f} s ago: the states of paths are old")
        return _sentence(200, "mrcd works")

    async def readiness(self, _: web.Request) -> web.Response:
        """Answer 200 while the tables are installed and the programs attached, so that traffic is sprayed; else 503."""
        daemon = self._daemon
        if daemon.detached:
            return _sentence(503, "an administrator has detached this host: `mrcctl attach` resumes spraying")
        if not daemon.programs.are_complete(daemon.nics):
            return _sentence(503, "the programs are not attached to all NICs of the planes: `mrcctl doctor` names them")
        return _sentence(200, "the tables are installed and the programs are attached")


def _sentence(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
