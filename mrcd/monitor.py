"""Watching the paths: sweeps out, the programs' events in, the slow verdicts back.

The decisions are health.py's and grey.py's; this reads the tables for them and says when which peer is probed.
What a peer says of itself is peerwatch.py's, carrying out what was decided statechanges.py's. States are changed by
the programs alone, and told by them through the ring buffer alone.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from mrcd import abi, giveway, grey, health
from mrcd.abi import EvState, Reason
from mrcd.calm import Calm, Losses
from mrcd.dataplane import Dataplane
from mrcd.errors import MrcdError
from mrcd.events import EventLog
from mrcd.listener import Listener
from mrcd.pacing import Budget, Sweeps, Windows, pace
from mrcd.peerwatch import PeerWatch
from mrcd.selfwatch import Durations, Rounds
from mrcd.stalls import Stalls
from mrcd.statechanges import StateChanges
from mrcd.tables import Tables
from mrcd.topology import Plan
from mrcd.turns import BUSY_NS, Turns, from_

log = logging.getLogger("mrcd.monitor")

_MS = 1_000_000
_HURRY = 4  # sweeps of a peer whose flow has stalled with a reply missing are this many times as frequent
_FLOWING_NS = 50_000_000  # a peer whose traffic flows is judged so seldom: the programs look after it
_STALLED_NS = 300_000_000  # what has stopped may have stalled; by then it is known by which path, or it has ended
_BEAT_NS = 100_000_000  # peers are looked at together so often, at least, where they are few
_LATE_NS = 2_000_000  # a reply is missing after this, or four round trips
_AT_ONCE = 8  # peers: what is copied of their EVs fits into a cache
_PASSED_AT_ONCE = 64  # the same, where little is read of each EV
_LOOK_NS = int(grey.LOOK_S * 1e9)  # a peer that is well is judged so seldom: what changes is seen at once
_FLOCK_NS = 500_000_000  # where many peers are quiet, as many wait for each other: to wake for a few takes as long
_SLICE_S = 0.005  # between ticks, where one had more to do than its time was for


class Monitor:
    """Probes and judges this host's EVs. `changed` is called with a row whose routes may be others now."""

    def __init__(
        self, plan: Plan, tables: Tables, dataplane: Dataplane, events: EventLog, changed: Callable[[int], None]
    ) -> None:
        self._tables, self._dataplane = tables, dataplane
        self._peers = {p.host.id: p for p in plan.peers}
        self._rows = np.array(sorted(self._peers), np.int64)
        self._judge = health.Judge(plan.config.health, *tables.evs.shape)
        self._grey = grey.Grey(plan.config.health, *tables.evs.shape)
        n = len(tables.peers)
        self._swept_ns, self._judged_ns, self._traffic = (np.zeros(n, np.int64) for _ in range(3))
        self._words = tables.evs.view(np.uint64), tables.ledgers.view(np.uint64)
        self._next: asyncio.TimerHandle | None = None
        self._telling: asyncio.Handle | None = None
        self._hurry = False
        h = plan.config.health
        self._pace = pace(h, len(self._peers), plan.ev_count, tables.evs.shape[1])
        self._budget = Budget(h.idle_probes)
        self._windows = Windows(self._pace.window, tables.evs.shape).take
        self._turns = [0, 0, 0]  # rows at which urgent and other visits go on, and passing by
        self._slack_ns = h.probe_interval_ms * _MS // 2  # a visit may come a little early
        turn_ns = min(h.idle_interval_ms * _MS, _BEAT_NS)
        flock_ns = max(turn_ns, min(_FLOCK_NS, self._pace.interval_ns // 16)) if self._pace.window else 0
        self._who = Turns(tables, self._rows, turn_ns, flock_ns)
        self._behind = False  # there was more to do than a tick has time for
        self._until = 0.0  # time.perf_counter() at which this tick has had its time
        self._to_tell: deque[int] = deque()  # peers, of this host's status
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ticks, self.rounds = Durations(), Rounds(len(self._peers))
        self._losses = Losses(tables)
        self._visited_ns, self._settled = np.zeros(n, np.int64), tables.rounds["settled"].copy()
        self._unjudged = np.zeros(n, bool)  # since it was calm
        self._interval_ns, self._idle_ns = h.probe_interval_ms * _MS, self._pace.interval_ns
        self._hurry_ns = self._interval_ns // _HURRY
        self._beat_ns = self._idle_ns // -(-self._idle_ns // _BEAT_NS)  # sweeps are as far apart as they should be
        self._early_ns = self._slack_ns if self._pace.window else max(self._slack_ns, self._beat_ns // 2)
        self._stalled_ns = max(_STALLED_NS, 4 * self._interval_ns)
        self._listener = Listener(self._peers, tables, dataplane, events)
        self.peerwatch = PeerWatch(plan, tables, events, changed)
        self._stalls = Stalls(self._peers.keys(), self._listener, dataplane, self.peerwatch, self._who)
        self._calm = Calm(tables, self.peerwatch, (1 << plan.config.cluster.planes) - 1)
        self.changes = StateChanges(h, tables, dataplane, self._listener, self.peerwatch.names, changed)

    @property
    def bad_ns(self) -> NDArray[np.int64]:
        """When each EV was last not known to be well."""
        return self._judge.bad_ns

    # ---- probing ----

    async def run(self) -> None:
        """Judge what the last probes brought, then send the next: at every probe interval, or when somebody may be due.
        Tell of events at once."""
        self._loop = loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._dataplane.events_fd(), self.listen)
        self._next = loop.call_at(loop.time(), self._beat, loop.time())
        self._tell_some()
        try:
            await self._failed
        finally:
            self._loop = None
            loop.remove_reader(self._dataplane.events_fd())
            self._stalls.cancel()
            for handle in (self._next, self._telling):
                if handle:
                    handle.cancel()

    def _beat(self, at: float) -> None:
        """One tick, `at` loop.time(), and when the next is to be. A callback: to wake a task takes a turn more."""
        loop = asyncio.get_running_loop()
        self._hurry, begun = False, time.perf_counter()
        try:
            self._tick(now := time.monotonic_ns())
            self._hurry |= self._stalls.ask()  # those of which the tick has heard
        except MrcdError as e:
            log.error("%s; probing goes on", e)
        except Exception as e:
            self._failed.set_exception(e)
            return
        self.ticks.add(time.perf_counter() - begun)
        if self._behind:
            at = loop.time() + _SLICE_S
        else:
            at = max(self._after(int(at * 1e9), now) / 1e9, loop.time())
        self._next = loop.call_at(at, self._beat, at)

    def _after(self, at: int, now: int) -> int:
        """When the next tick is to be, after one that was to be `at` some time and was `now`; in ns."""
        return max(at + (self._hurry_ns if self._hurry else self._interval_ns), now + self._who.rest_ns(now))

    def listen(self) -> None:
        """Take what the programs have told; where a flow has stalled, ask at once."""
        self.drain()
        if self._stalls.ask():
            self._wake()  # who is quiet is looked at seldom, but these are not any more

    def _wake(self) -> None:
        """Have the next tick soon."""
        if self._loop and self._next:
            soon = self._loop.time() + self._hurry_ns / 1e9
            if self._next.when() > soon:
                self._next.cancel()
                self._next = self._loop.call_at(soon, self._beat, soon)

    def announce(self) -> None:
        """Probe all peers now, or when the paths are watched: probes carry this host's port status."""
        self._to_tell = deque(self._peers)
        self._who.due_ns[self._rows] = 0
        self._who.again()
        self._tell_some()
        self._wake()

    def _tell_some(self) -> None:
        if self._loop is None:
            return
        until, failed = giveway.until(), False
        while self._to_tell:
            try:
                self._sweep(self._to_tell.popleft(), 0, self._pace.window)
            except MrcdError as e:
                if not failed:  # what fails for one peer may fail for thousands
                    log.error("%s; probing goes on", e)
                failed = True
            if time.perf_counter() > until:
                self._telling = self._loop.call_soon(self._tell_some)
                return

    def _sweep(self, row: int, first: int, count: int) -> int:
        return self._dataplane.sweep(row, first, count) if count else self._dataplane.sweep(row)

    def follow(self, before: "Monitor", strangers: AbstractSet[int]) -> None:
        """Know of the peers what an earlier plan's monitor knew, but for strangers."""
        self.peerwatch.follow(before.peerwatch, strangers)

    def forget(self) -> None:
        """Judge all peers anew: what was missed while nobody listened says nothing."""
        self._judge.forget(self._rows)

    def _tick(self, now: int) -> None:
        begun, looked = time.perf_counter(), self.rounds.looked
        self._until = giveway.until()
        self._listener.begin(now)
        self.changes.carry_out(self._until)
        urgent, others = self._due(now)
        if not len(urgent) and not len(others):
            self._behind = bool(self.changes)
            return
        passed = self._pass_by(urgent, now)
        urgent, late = urgent[~passed], self._behind
        if self._pace.window and len(others):
            calm = self._calm.well(others) & self._calm.answered(others, self._swept_ns[others])
            if calm.any() and not self._greet(others[calm], now):
                others, late = others[:0], True
                self._who.again()
            else:
                others = others[~calm]
        elif len(others):
            others = others[~self._leave_well(others, now)]
        due = np.concatenate([from_(urgent, self._turns[0]), others])
        visited = 0
        while visited < len(due) and (not visited or time.perf_counter() < self._until):
            rows = due[visited : visited + _AT_ONCE]
            visited += len(rows)
            self._visit(rows, now)
        self._behind = late or visited < len(due) or bool(self.changes)
        if visited < len(due):
            self._who.again()
        if visited:  # those that are left are due still, and first in the next tick
            self._turns[visited > len(urgent)] = int(due[visited - 1]) + 1
        if visited or self.rounds.looked != looked:
            self.rounds.looked += visited
            self.rounds.add_part(time.perf_counter() - begun)

    def _due(self, now: int) -> tuple[health.Ints, health.Ints]:
        """Rows to visit: those of peers that have traffic, and the others that there are probes left for."""
        urgent, others = self._who.due(now)
        if self._pace.window and len(others):
            others = from_(others, self._turns[1])[: self._budget.left(now) // (self._pace.window + 1)]
        return urgent, others

    def _pass_by(self, rows: health.Ints, now: int) -> health.Bools:
        """Which of the due peers need no visit: they are well, and their traffic flows and brings reports. Counts what
        they lose. Those for which there is no time stay due."""
        self._behind = False
        if not len(rows):
            return np.zeros(0, bool)
        rounds = self._tables.rounds
        asked, settled = rounds["round"][rows], rounds["settled"][rows]
        passed: health.Bools = (asked != self._who.asked[rows]) & (settled != self._settled[rows])
        passed &= (now - self._who.busy_ns[rows] < BUSY_NS) & (now - self._visited_ns[rows] < _LOOK_NS)
        self._settled[rows] = settled
        if not passed.any():
            return passed
        passed[passed] = self._calm.well(rows[passed])
        left = from_(rows[passed], self._turns[2])
        while len(left) and not self._behind:
            some, left = left[:_PASSED_AT_ONCE], left[_PASSED_AT_ONCE:]
            self._turns[2] = int(some[-1]) + 1
            self._who.note_busy(some, now)
            self._who.due_ns[some] = now + _FLOWING_NS if self._pace.window else self._together(now, _FLOWING_NS)
            sliced = some[now - self._judged_ns[some] >= _FLOWING_NS - self._slack_ns]
            self._grey.slice(sliced, *self._losses.counts(sliced), now)
            self._judged_ns[sliced] = now
            swept = some[now - self._swept_ns[some] >= self._idle_ns - self._slack_ns]
            self._swept_ns[swept] = now
            self._send(self._windows(swept), now)
            self._who.note_asked(some)  # those just asked for are no traffic
            self.rounds.looked += len(some)
            self._behind = time.perf_counter() >= self._until
        self._behind &= bool(len(left))
        return passed

    def _greet(self, rows: health.Ints, now: int) -> bool:
        """Probe peers that are calm. False if there was no time for all: then the others are due still."""
        self._judge.forget(self.peerwatch.look(rows, now))
        sent = rows[: self._send(self._windows(rows), now, self._until)]
        self._unjudged[sent] = True
        self._swept_ns[sent], self._who.due_ns[sent] = now, now + self._idle_ns - self._slack_ns
        self._who.note_asked(sent)
        self.rounds.looked += len(sent)
        self._turns[1] = int(sent[-1]) + 1
        return len(sent) == len(rows)

    def _together(self, now: int, interval_ns: int) -> int:
        """Return a time about an interval from now, the same for all peers: one wake-up serves them all.

        Hosts need no phases of their own: CLOCK_MONOTONIC begins with each one's boot."""
        return (now + interval_ns * 3 // 2) // interval_ns * interval_ns

    def _leave_well(self, rows: health.Ints, now: int) -> health.Bools:
        """Which of the due peers need no visit: they are well, had no traffic, and have answered all that was asked.
        Probes these, if it is time."""
        left: health.Bools = (now - self._visited_ns[rows] < _LOOK_NS) & self._calm.well(rows)
        left &= self._judge.knows(rows)
        if left.any():
            left[left] = self._calm.all_answered(rows[left]) & (self._packets(rows[left]) == self._traffic[rows[left]])
        some = rows[left]
        self._judge.note_well(some, self._tables.evs, self._tables.ledgers, now)
        self._judge.forget(self.peerwatch.look(some, now))
        self._who.due_ns[some] = self._together(now, self._beat_ns)
        old = some[now - self._swept_ns[some] >= self._idle_ns - self._early_ns]
        sent = self._send(self._windows(old), now, self._until)
        self._swept_ns[old[:sent]] = now
        self._who.due_ns[old[sent:]] = now  # there was no time for these
        left &= ~np.isin(rows, old[sent:])
        self._who.note_asked(rows[left])
        self.rounds.looked += int(left.sum())
        return left

    def _visit(self, due: health.Ints, now: int) -> None:
        """Judge what the last probes brought, and send the next."""
        flowing = self._flowing(due, now)
        seldom = flowing & (now - self._judged_ns[due] < _FLOWING_NS)
        self._who.due_ns[due[seldom]] = now + self._interval_ns - self._slack_ns
        due, flowing = due[~seldom], flowing[~seldom]
        if not len(due):
            return
        self._judged_ns[due] = self._visited_ns[due] = now
        # Copies: judged is one moment. Words, for numpy copies records field by field.
        evs, ledgers = self._words[0][due].view(abi.EV), self._words[1][due].view(abi.LEDGER)
        self.drain()
        self._listener.find_lost(due, evs, now)
        self._judge.forget(self.peerwatch.look(due, now))
        judged = self.peerwatch.judged(due)
        self._judge.forget(due[self._unjudged[due]])  # what came before it was calm says nothing of now
        self._unjudged[due] = False
        if judged.all():
            self._decide(due, evs, ledgers, now)
        else:
            self._decide(due[judged], health.some(evs, judged), health.some(ledgers, judged), now)
            self._judge.forget(due[~judged])
        self._send(self._schedule(due, judged, flowing, evs, ledgers, now), now)
        self._who.note_asked(due)
        self.drain()

    def _send(self, sweeps: Sweeps, now: int, until: float = math.inf) -> int:
        """Sweep peers until time.perf_counter() says so, the first at least. Returns how many were."""
        done, spent, begun = 0, 0, time.perf_counter()
        for row, first, count in zip(*(a.tolist() for a in sweeps), strict=True):
            if done and time.perf_counter() >= until:
                break
            probes = self._sweep(row, first, count)
            spent += probes if now - self._who.busy_ns[row] >= BUSY_NS else 0
            done += 1
        self._budget.spend(spent)
        self.rounds.sending_s += time.perf_counter() - begun
        return done

    def _packets(self, rows: health.Ints) -> health.Ints:
        """Sent to and received from each peer."""
        sent, received = self._tables.evs["tx_packets"][rows].sum(axis=1), self._tables.rxs["packets"][rows].sum(axis=1)
        return np.asarray((sent + received).astype(np.int64))

    def _flowing(self, due: health.Ints, now: int) -> health.Bools:
        """Which of the due peers have had traffic since they were last due, and of a kind that carries probes."""
        traffic = self._packets(due)
        busy = traffic != self._traffic[due]
        asked = self._tables.rounds["round"][due]
        flowing: health.Bools = busy & (asked != self._who.asked[due])
        self._traffic[due], self._who.asked[due] = traffic, asked
        self._who.note_busy(due[busy], now)
        return flowing

    def _schedule(
        self,
        due: health.Ints,
        judged: health.Bools,
        flowing: health.Bools,
        evs: health.Records,
        ledgers: health.Records,
        now: int,
    ) -> Sweeps:
        """Which of the due peers to sweep now, and which of their EVs; sets when to look at them again.

        Traffic brings its own probes, so peers are swept seldom; at every visit only where a flow may have
        stalled, where a reply is missing until it is clear why, and where an EV is to be tried.
        """
        both = self._tables.peers["ports"][due] & self._tables.node["ports"]
        linked = health.plane_bits(both, evs["plane"])  # else silence is no news
        state, probed = evs["state"], (evs["configured"] != 0) & linked
        in_use = probed & ((state == EvState.GOOD) | (state == EvState.SKIP))  # others are tried in their own time
        late = np.maximum(4 * self._tables.rounds["rtt_ns"][due].astype(np.int64), _LATE_NS)
        old = now - ledgers["probe_ns"].astype(np.int64) > late[:, None]
        missing = in_use & (((evs["probe_seq"] != ledgers["reply_seq"]) & old) | (ledgers["lag_ns"] != 0))
        missing = missing.any(axis=1) & judged & ~np.isin(due, list(self.peerwatch.silent))
        try_evs = probed & ((state == EvState.ASSUMED_BAD) | (state == EvState.UNKNOWN))
        try_evs &= ledgers["probe_after_ns"] <= now
        tried = try_evs.any(axis=1)
        stalled = ~flowing & (now - self._who.busy_ns[due] < self._stalled_ns)
        fast = (missing | tried | stalled | flowing) & (not self.peerwatch.detached)
        early = np.where(flowing, self._slack_ns, self._early_ns)
        old_sweep = now - self._swept_ns[due] >= self._idle_ns - early
        sweep: health.Bools = old_sweep | (fast & (missing | tried | stalled))
        self._swept_ns[due] = np.where(sweep, now, self._swept_ns[due])
        # A reply is missing, and nothing flows that would ask again: the programs' verdict waits for several reports.
        hurry = missing & stalled & fast
        self._hurry |= bool(hurry.any())
        soon = now + np.where(hurry, self._hurry_ns // 2, self._interval_ns - self._slack_ns)
        few, rested = not self._pace.window, self._swept_ns[due] + self._idle_ns - self._slack_ns
        rested = np.where(now - self._who.busy_ns[due] < BUSY_NS, now + self._beat_ns, rested)  # its traffic may go on
        # Of those at rest, what comes of it is seen next time.
        self._who.due_ns[due] = np.where(fast, soon, self._together(now, self._beat_ns) if few else rested)
        return self._windows(due[sweep], try_evs[sweep], stalled[sweep])

    # ---- verdicts ----

    def _decide(self, rows: health.Ints, evs: health.Records, ledgers: health.Records, now: int) -> None:
        ports = self._tables.peers["ports"][rows]
        verdict = self._judge.judge(rows, evs, ledgers, ports, int(self._tables.node["ports"]), now)
        tables = self._tables
        for field, found, table, wanted in (
            ("weight", evs, tables.evs, verdict.weight),
            ("probe_after_ns", ledgers, tables.ledgers, verdict.probe_after_ns),
        ):
            at = np.nonzero(wanted != found[field])
            table[field][rows[at[0]], at[1]] = wanted[at]
        self.changes.add(verdict.steers)
        self.peerwatch.note_silence(set(verdict.silent), set(verdict.heard))
        busy = now - self._who.busy_ns[rows] < BUSY_NS
        self._grey.slice(rows[busy], *self._losses.counts(rows[busy]), now)
        bad, why = EvState.ASSUMED_BAD, Reason.GREY_LOSS
        alarms = self._grey.look(rows[busy], health.some(evs, busy), now)
        self.changes.add(health.Steer(a.row, a.ev, health.IN_USE, bad, why, a.evidence) for a in alarms)
        self.changes.carry_out(self._until)

    def drain(self) -> bool:
        """Take what the programs have told into the event log; much of it by and by. Whether there is more."""
        self._listener.drain()
        return self._listener.unread
