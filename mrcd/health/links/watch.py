# SPDX-License-Identifier: BSD-2-Clause
"""Paces link probes, judges the links once a second, and logs an event for each link whose state has changed."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrcd.errors import MrcdError
from mrcd.fabric import links
from mrcd.fabric.topology import Plan
from mrcd.health.events import EventLog
from mrcd.health.links.verdicts import (
    KNOWN_PROBES,
    Counts,
    History,
    Ints,
    Moment,
    State,
    States,
    grid,
    judge,
    own_ratio,
    read,
)
from mrcd.kernel.abi import MAX_PLANES
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.pinned import Tables

LEAST_INTERVAL_S = 0.1  # between two probes of a link
WINDOW_S = 10  # of the loss,
LONG_WINDOW_S = 60  # or this, where fewer probes were sent in WINDOW_S than
WINDOW_PROBES = 50
_JUDGED_S = 1.0
_SHARE = 8  # link probes are at most one in so many of [health] idle_probes (budget_reserve() in bpf/probe.h)
_STALE_NS = 3_000_000_000
_SHORT_S = 3
_FEW = 10  # probes: a loss among fewer is not known well
_NS = 1_000_000_000


@dataclass(frozen=True)
class Pace:
    """Every `interval_s`, the links between NICs and T0s are probed, and those to the next `t1s` T1s."""

    interval_s: float
    t1s: int


def pace(idle_probes: int, planes: int, t1s: int) -> Pace:
    """Returns the pace for a host with so many planes and T1s, and `idle_probes` probes per second in all."""
    per_second = max(1, idle_probes // _SHARE)
    interval_s = max(LEAST_INTERVAL_S, 2 * planes / per_second)
    return Pace(interval_s, min(t1s, max(1, int(per_second * interval_s) // planes - 1)))


@dataclass(frozen=True)
class Verdicts:
    """The states of all links, (1 + T1s, planes). `since_ns`: CLOCK_MONOTONIC, when they changed; 0: not yet."""

    states: States
    since_ns: Ints
    recent: Counts  # in the window


class LinkWatch:
    """The links of one host. Threads may read `verdicts`, which is replaced as a whole."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self.verdicts: Verdicts | None = None
        """None without links, or before the first second."""
        self._carriers: list[links.Link] = []
        self._judged_s = 0.0

    def use_plan(self, plan: Plan) -> None:
        """Watches the links of this plan. What is known is kept if they are the same as before."""
        c = plan.config.cluster
        self._plan, self.pace = plan, pace(plan.config.health.idle_probes, c.planes, c.t1s)
        cycle_s = self.pace.interval_s * -(-c.t1s // max(1, self.pace.t1s))
        self._stale_ns = max(_STALE_NS, int(4e9 * cycle_s))
        if (found := list(links.links(plan))) == self._carriers:
            return
        self._carriers, self.verdicts, self._next_t1 = found, None, 0
        self._samples: deque[tuple[int, Counts]] = deque()
        zeros = np.zeros((1 + c.t1s, c.planes), np.int64)
        self._begin, self._received, self._told = Counts(zeros, zeros), zeros, zeros + State.OK
        self._loss_at, self._loss = zeros, np.zeros(zeros.shape)  # when links last lost a probe, and how much

    async def run(
        self,
        in_force: Callable[[], tuple[Dataplane, Tables] | None],
        is_calm: Callable[[], bool],
        warn: Callable[[str], None],
    ) -> None:
        """Probes and judges until cancelled. `in_force` returns None while no link may be probed.

        In calm weather (Monitor.is_calm) each link is probed half as often.
        """
        while True:
            begun = time.monotonic()
            if found := in_force():
                dataplane, tables = found
                try:
                    self.probe(dataplane.probe_links)
                    self.check(tables, begun)
                except MrcdError as e:
                    warn(f"links are not probed: {e}")
            interval_s = self.pace.interval_s * (2 if found and is_calm() else 1)
            await asyncio.sleep(max(0.0, begun + interval_s - time.monotonic()))

    def probe(self, send: Callable[[int, int], int]) -> None:
        """Sends the probes of one interval: `send` takes the number of the first link, and how many follow."""
        if not self._carriers:
            return
        send(0, MAX_PLANES)
        t1s = self._plan.config.cluster.t1s
        first, count = self._next_t1, self.pace.t1s
        for begin, end in ((first, min(first + count, t1s)), (0, first + count - t1s)):
            if begin < end:
                send(links.number(0, begin), (end - begin) * MAX_PLANES)
        self._next_t1 = (first + count) % max(1, t1s)

    def check(self, tables: Tables, now_s: float) -> None:
        """Judges the links if a second has passed, and logs changes. `now_s` is time.monotonic()."""
        if not self._carriers or now_s - self._judged_s < _JUDGED_S:
            return
        self._judged_s = now_s
        records = grid(tables.links, self._plan).copy()
        self.update(read(records, int(tables.node["plane_mask"]), time.monotonic_ns()))

    def update(self, m: Moment) -> None:
        """Takes what the table says at a moment."""
        previous = self._samples[-1][1] if self._samples else m.counts
        if (m.received < self._received).any():  # the tables are new
            self._carriers = []
            self.use_plan(self._plan)
            previous = m.counts
        self._received = m.received
        before = self.verdicts or Verdicts(np.zeros(m.counts.lost.shape, np.int8), np.zeros_like(m.rx_ns), m.counts)
        has_lost = m.counts.lost > previous.lost
        self._loss_at = np.where(has_lost, m.counts.judged, self._loss_at)
        self._samples.append((m.now_ns, m.counts))
        # Losses of a link before it returned tell nothing of it now.
        is_back = (before.states == State.DEAD) & (m.unanswered <= KNOWN_PROBES)
        self._begin_anew(is_back, Counts(previous.judged, m.counts.lost))
        window, longer = self._windows(m)
        # A loss may have begun just now, so its ratio is not that of the whole window.
        short = self._in_last(m, _SHORT_S)
        losses = np.maximum(window.lost / (window.judged + _FEW), short.lost / (short.judged + 2 * _FEW))
        self._loss = np.where(has_lost, losses, self._loss)
        history = History(window, longer, m.counts.judged - self._loss_at, self._loss, before.states)
        states = judge(m, history, self._stale_ns)
        self._begin_anew((before.states == State.LOSSY) & (states == State.OK), m.counts)
        begun_ns = np.where((states == State.DEAD) & m.is_linked & (m.rx_ns > 0), m.rx_ns, m.now_ns)
        since_ns = np.where(states != before.states, begun_ns, before.since_ns)
        self.verdicts = Verdicts(states, since_ns, window)
        self._tell(m, self.verdicts)

    def _begin_anew(self, which: NDArray[np.bool_], at: Counts) -> None:
        """Lets the windows of these links begin at these counts; for a NIC's link, those of its whole plane."""
        which = which | which[0]
        self._begin = Counts(*(np.where(which, getattr(at, n), getattr(self._begin, n)) for n in ("judged", "lost")))

    def _windows(self, m: Moment) -> tuple[Counts, Counts]:
        """Returns what was counted in WINDOW_S, or in more time where probes are few, and in LONG_WINDOW_S."""
        while m.now_ns - self._samples[0][0] > LONG_WINDOW_S * _NS:
            self._samples.popleft()
        recent, longer = self._in_last(m, WINDOW_S), self._since(m.counts, self._samples[0][1])
        has_few = recent.judged < WINDOW_PROBES
        window = (np.where(has_few, getattr(longer, n), getattr(recent, n)) for n in ("judged", "lost"))
        return Counts(*window), longer

    def _in_last(self, m: Moment, seconds: int) -> Counts:
        newest_first = reversed(self._samples)
        then = next((c for ns, c in newest_first if m.now_ns - ns >= seconds * _NS), self._samples[0][1])
        return self._since(m.counts, then)

    def _since(self, now: Counts, then: Counts) -> Counts:
        judged = np.maximum(now.judged - np.maximum(then.judged, self._begin.judged), 0)
        lost = np.maximum(now.lost - np.maximum(then.lost, self._begin.lost), 0)
        return Counts(judged, np.minimum(lost, judged))

    def _tell(self, m: Moment, found: Verdicts) -> None:
        """Logs the links whose state is known, and another one than it was when it was last known.

        Events of planes tell of NICs without a link.
        """
        is_new = m.is_linked & (found.states != State.UNKNOWN) & (found.states != self._told)
        for row, plane in zip(*(a.tolist() for a in np.nonzero(is_new)), strict=True):
            t1 = row - 1 if row else None
            state, before = State(int(found.states[row, plane])), State(int(self._told[row, plane]))
            evidence: dict[str, object] = {"target": target(self._plan, plane, t1)}
            if state is State.LOSSY:
                evidence["loss_percent"] = round(100 * float(own_ratio(found.recent)[row, plane]), 1)
            if state is State.DEAD:
                evidence["unanswered_probes"] = int(m.unanswered[row, plane])
            self._events.add(
                "link",
                reason="link_probes",
                before=before.text,
                after=state.text,
                plane=plane,
                t1=t1,
                evidence=evidence,
            )
        self._told = np.where(is_new, found.states, self._told)


def target(plan: Plan, plane: int, t1: int | None) -> str:
    """Returns the words that name a link for `mrcctl deny`."""
    return f"nic:{plan.host.name}:{plane}" if t1 is None else f"link:{plane}:{plan.host.t0}:{t1}"
