"""Watching the paths: sweeps out, the programs' events in, the slow verdicts back.

The decisions are health.py's and grey.py's; this is the hand that reads the tables and steers the programs
for them. States are changed by the programs alone, and told by them through the ring buffer alone.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from mrcd import abi, grey, health
from mrcd.abi import EvState, Reason
from mrcd.dataplane import Dataplane
from mrcd.errors import MachineError, MrcdError
from mrcd.events import EventLog, evidence
from mrcd.tables import Tables
from mrcd.topology import EV, Plan

log = logging.getLogger("mrcd.monitor")

_MS = 1_000_000
_BUSY_NS = 2_000_000_000  # a peer counts as busy for this long after its last packet
_HURRY = 4  # sweeps of a peer whose flow has stalled with a reply missing are this many times as frequent
_FLOWING_NS = 50_000_000  # a peer whose traffic flows is judged so seldom: the programs look after it
_LATE_NS = 2_000_000  # a reply is missing after this, or four round trips
_PATIENCE_S = 3.0  # hosts of a cluster start together: silence is no news in the first moments
_TOLD_NS = 1_000_000_000  # by then an event has been read, or was lost
_STEADY_NS = 2_000_000_000  # usable EVs that are the same for so long are worth new routes
_ALARM_NS = 5_000_000  # between two times that a peer is asked about because a flow has stopped
_STEER_TRIES = 16
_AGAIN_S = 0.001  # by then what a sweep sent has arrived, or is missing
_UNTOLD = -1
_ALLOWED = (EvState.UNKNOWN, EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD)


class Monitor:
    """Probes and judges this host's EVs. `changed` is called with a row whose routes may be others now."""

    def __init__(
        self, plan: Plan, tables: Tables, dataplane: Dataplane, events: EventLog, changed: Callable[[int], None]
    ) -> None:
        self._plan, self._tables, self._dataplane = plan, tables, dataplane
        self._events, self._changed = events, changed
        self.transitions: Counter[tuple[EvState, Reason]] = Counter()
        self.lost_events = 0  # the ring buffer was full
        self._peers = {p.host.id: p for p in plan.peers}
        self._evs: dict[tuple[int, int], EV] = {(p.host.id, e.ev): e for p in plan.peers for e in p.evs}
        self._rows = np.array(sorted(self._peers), np.int64)
        self._judge = health.Judge(plan.config.health, *tables.evs.shape)
        self._grey = grey.Grey(plan.config.health, *tables.evs.shape)
        n = len(tables.peers)
        self._due_ns, self._swept_ns, self._judged_ns, self._alarm_ns = (np.zeros(n, np.int64) for _ in range(4))
        self._traffic, self._busy_ns = (np.zeros(n, np.int64) for _ in range(2))
        self._asked = np.zeros(n, np.uint32)  # reports, when a peer was last looked at
        self._statuses: dict[int, tuple[bool, int, int]] = {}
        self._silent: set[int] = set()
        self._stalled: set[int] = set()  # peers to which a flow has stopped
        self._again: asyncio.TimerHandle | None = None
        self._hurry = False
        h = plan.config.health
        self._interval_ns, self._idle_ns = h.probe_interval_ms * _MS, h.idle_interval_ms * _MS
        self._slack_ns = self._interval_ns // 2  # a visit may come a little early
        self._hurry_ns = self._interval_ns // _HURRY
        self._started = time.monotonic()
        self._why: dict[tuple[int, int], tuple[Reason, Mapping[str, object]]] = {}  # what events will not say
        self._usable, self._routed = tables.peers["usable"].copy(), tables.peers["usable"].copy()
        self._steady_ns = np.zeros(n, np.int64)  # since when a peer's usable EVs are the same
        self._told_ns = np.zeros(tables.evs.shape, np.uint64)
        self._told = np.full(tables.evs.shape, _UNTOLD, np.int16)  # states, as events say; SKIP counts as GOOD
        self.drain()
        self._stalled.clear()  # long ago
        self._told[:], self._told_ns[:] = _UNTOLD, tables.evs["state_since_ns"]

    @property
    def bad_ns(self) -> NDArray[np.int64]:
        """When each EV was last not known to be well."""
        return self._judge.bad_ns

    # ---- probing ----

    async def run(self) -> None:
        """Judge what the last probes brought, then send the next, at every probe interval; tell of events at once."""
        interval = self._interval_ns / 1e9
        loop = asyncio.get_running_loop()
        loop.add_reader(self._dataplane.events_fd(), self._listen)
        try:
            next_tick = loop.time()
            while True:
                self._hurry = False
                try:
                    self._tick(time.monotonic_ns())
                    self._ask_about_stalls()  # those of which the tick has heard
                except MrcdError as e:
                    log.error("%s; probing goes on", e)
                next_tick = max(next_tick + (interval / _HURRY if self._hurry else interval), loop.time())
                await asyncio.sleep(next_tick - loop.time())
        finally:
            loop.remove_reader(self._dataplane.events_fd())
            if self._again:
                self._again.cancel()

    def _listen(self) -> None:
        self.drain()
        self._ask_about_stalls()

    def _ask_about_stalls(self) -> None:
        """Where a flow has stopped, ask at once, and once more when replies have had time."""
        stalled, self._stalled = (self._stalled & self._peers.keys()) - self._silent, set()
        now = time.monotonic_ns()
        rows = [r for r in stalled if now - self._alarm_ns[r] >= _ALARM_NS and self.sprayed(r)]
        if rows:
            self._alarm_ns[rows] = now
            self._ask(rows)
            self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._ask, rows)

    def _ask(self, rows: list[int]) -> None:
        try:
            for row in rows:
                self._dataplane.sweep(row)
        except MrcdError as e:
            log.error("%s; probing goes on", e)
        self._asked[rows] = self._tables.rounds["round"][rows]

    def announce(self) -> None:
        """Probe all peers now: probes carry this host's port status."""
        for row in self._peers:
            self._dataplane.sweep(row)
        self._due_ns[self._rows] = 0

    def follow(self, before: "Monitor") -> None:
        """Know of the peers what an earlier plan's monitor knew, and count on."""
        self.transitions, self.lost_events, self._started = before.transitions, before.lost_events, before._started
        self._statuses = {row: known for row, known in before._statuses.items() if row in self._peers}
        self._silent = before._silent & self._peers.keys()

    def forget(self) -> None:
        """Judge all peers anew: what was missed while nobody listened says nothing."""
        self._judge.forget(self._rows)

    def sprayed(self, row: int) -> bool:
        """Whether a peer's traffic may be sprayed: both data planes are attached, and it has been heard,
        unless there is nothing to fall back to."""
        peer = self._tables.peers[row]
        heard = bool(peer["heard_ns"]) or self._plan.config.cluster.steering == "ecmp"
        return not self._detached and heard and not int(peer["status"]) & abi.STATUS_DETACHED

    @property
    def _detached(self) -> bool:
        return bool(int(self._tables.node["status"]) & abi.STATUS_DETACHED)

    def _tick(self, now: int) -> None:
        due = self._rows[self._due_ns[self._rows] <= now]
        flowing = self._flowing(due, now)
        seldom = flowing & (now - self._judged_ns[due] < _FLOWING_NS)
        self._due_ns[due[seldom]] = now + self._interval_ns - self._slack_ns
        due, flowing = due[~seldom], flowing[~seldom]
        if not len(due):
            return
        self._judged_ns[due] = now
        evs, ledgers = self._tables.evs[due], self._tables.ledgers[due]  # copies: judged is one moment
        self.drain()
        self._find_lost_events(due, evs, now)
        self._note_statuses(due)
        self._note_usable(due, now)
        judged = np.array([self._judged(row) for row in due.tolist()])
        if judged.any():
            self._decide(due[judged], evs[judged], ledgers[judged], now)
        if not judged.all():
            self._judge.forget(due[~judged])
        for row in due[self._schedule(due, judged, flowing, evs, ledgers, now)].tolist():
            self._dataplane.sweep(row)
        self._asked[due] = self._tables.rounds["round"][due]
        self.drain()

    def _judged(self, row: int) -> bool:
        return self.sprayed(row) or (not self._detached and not self._tables.peers[row]["heard_ns"])

    def _flowing(self, due: health.Ints, now: int) -> health.Bools:
        """Which of the due peers have had traffic since they were last due, and of a kind that carries probes."""
        traffic = self._tables.evs["tx_packets"][due].sum(axis=1) + self._tables.rxs["packets"][due].sum(axis=1)
        busy = traffic != self._traffic[due].astype(np.uint64)
        asked = self._tables.rounds["round"][due]
        flowing: health.Bools = busy & (asked != self._asked[due])
        self._traffic[due], self._asked[due] = traffic, asked
        self._busy_ns[due[busy]] = now
        return flowing

    def _schedule(
        self,
        due: health.Ints,
        judged: health.Bools,
        flowing: health.Bools,
        evs: health.Records,
        ledgers: health.Records,
        now: int,
    ) -> health.Bools:
        """Which of the due peers to sweep now; sets when to look at them again.

        Traffic brings its own probes, so peers are swept seldom; at every visit only where a flow may have
        stalled, where a reply is missing until it is clear why, and where an EV is to be tried.
        """
        both = self._tables.peers["ports"][due].astype(np.int64) & int(self._tables.node["ports"])
        linked = (np.left_shift(1, evs["plane"].astype(np.int64)) & both[:, None]) != 0  # else silence is no news
        state, probed = evs["state"], (evs["configured"] != 0) & linked
        in_use = probed & ((state == EvState.GOOD) | (state == EvState.SKIP))  # others are tried in their own time
        late = np.maximum(4 * self._tables.rounds["rtt_ns"][due].astype(np.int64), _LATE_NS)
        old = now - evs["probe_ns"].astype(np.int64) > late[:, None]
        missing = in_use & (((evs["probe_seq"] != ledgers["reply_seq"]) & old) | (ledgers["lag_ns"] != 0))
        missing = missing.any(axis=1) & judged & ~np.isin(due, list(self._silent))
        tried = probed & ((state == EvState.ASSUMED_BAD) | (state == EvState.UNKNOWN))
        tried = (tried & (evs["probe_after_ns"] <= now)).any(axis=1)
        stalled = ~flowing & (now - self._busy_ns[due] < _BUSY_NS)
        fast = (missing | tried | stalled | flowing) & (not self._detached)
        old_sweep = now - self._swept_ns[due] >= self._idle_ns - self._slack_ns
        sweep: health.Bools = old_sweep | (fast & (missing | tried | stalled))
        self._swept_ns[due] = np.where(sweep, now, self._swept_ns[due])
        # A reply is missing, and nothing flows that would ask again: the programs' verdict waits for several reports.
        hurry = missing & stalled & fast
        self._hurry |= bool(hurry.any())
        soon = now + np.where(hurry, self._hurry_ns // 2, self._interval_ns - self._slack_ns)
        self._due_ns[due] = np.where(fast | sweep, soon, self._swept_ns[due] + self._idle_ns - self._slack_ns)
        return sweep

    # ---- verdicts ----

    def _note_statuses(self, rows: health.Ints) -> None:
        """Attached, detached or restarted peers: seen in what their probes say."""
        for row in rows.tolist():
            record = self._tables.peers[row]
            status = (bool(record["heard_ns"]), int(record["status"]), int(record["ports"]))
            before = self._statuses.get(row)
            if before == status:
                continue
            self._statuses[row] = status
            name = self._peers[row].host.name
            if before is None or before[:2] != status[:2]:
                if status[0]:
                    after = "detached" if status[1] & abi.STATUS_DETACHED else "attached"
                    self._events.add("peer", peer=name, reason="port_status", after=after)
                self._judge.forget(np.array([row]))
            elif before[2] != status[2]:
                up = [p for p in range(self._plan.config.cluster.planes) if status[2] & (1 << p)]
                self._events.add("peer", peer=name, reason="port_status", evidence={"planes_up": up})
            self._changed(row)

    def _note_usable(self, rows: health.Ints, now: int) -> None:
        """Peers whose usable EVs are others than those that their routes were made of, for some time already.
        Nothing waits for these routes: they are for the day when this data plane is detached."""
        usable = self._tables.peers["usable"][rows]
        same = (usable == self._usable[rows]).all(axis=(1, 2))
        self._usable[rows] = usable
        self._steady_ns[rows] = np.where(same, self._steady_ns[rows], now)
        steady = now - self._steady_ns[rows] >= _STEADY_NS
        for row in rows[steady & (usable != self._routed[rows]).any(axis=(1, 2))].tolist():
            self._changed(row)

    def routed(self, row: int) -> NDArray[np.uint64]:
        """The usable EVs of a peer, of which its routes are to be made now: mrc_peer.usable."""
        self._routed[row] = self._tables.peers["usable"][row]
        return np.asarray(self._routed[row])

    def _decide(self, rows: health.Ints, evs: health.Records, ledgers: health.Records, now: int) -> None:
        ports = self._tables.peers["ports"][rows]
        verdict = self._judge.judge(rows, evs, ledgers, ports, int(self._tables.node["ports"]), now)
        for field, wanted in (("weight", verdict.weight), ("probe_after_ns", verdict.probe_after_ns)):
            at = np.nonzero(wanted != evs[field])
            self._tables.evs[field][rows[at[0]], at[1]] = wanted[at]
        for s in verdict.steers:
            self._steer(s)
        self._note_silence(set(verdict.silent), set(verdict.heard))
        busy = now - self._busy_ns[rows] < _BUSY_NS
        self._grey.slice(rows[busy], ledgers[busy], now)
        for alarm in self._grey.look(rows[busy], evs[busy], now):
            bad, why = EvState.ASSUMED_BAD, Reason.GREY_LOSS
            self._steer(health.Steer(alarm.row, alarm.ev, health.IN_USE, bad, why, alarm.evidence))

    def _steer(self, s: health.Steer) -> bool:
        """False if the EV's state has changed meanwhile: then that is the newer word."""
        if s.after is EvState.GOOD:
            returning = s.reason is Reason.HEALED
            weight = health.first_weight(self._plan.config.health) if returning else abi.WEIGHT_FULL
            self._tables.evs["weight"][s.row, s.ev] = weight
        if not self._dataplane.steer(s.row, s.ev, s.after, s.reason, s.leave):
            return False
        self._why[s.row, s.ev] = s.reason, s.evidence
        return True

    def _note_silence(self, silent: set[int], heard: set[int]) -> None:
        if time.monotonic() - self._started > _PATIENCE_S:
            for row in silent - self._silent:
                self._events.add("peer", peer=self._peers[row].host.name, reason="no_replies", after="unreachable")
            self._silent |= silent
        for row in heard & self._silent:
            self._events.add("peer", peer=self._peers[row].host.name, reason="answers", after="reachable")
        self._silent -= heard

    # ---- what the programs tell ----

    def drain(self) -> None:
        """Take what is in the ring buffer into the event log."""
        for record in self._dataplane.events():
            row, number = int(record["host_id"]), int(record["ev"])
            if number == abi.EVENT_STALLED:
                self._stalled.add(row)
                continue
            after, reason = EvState(int(record["after"])), Reason(int(record["reason"]))
            self.transitions[after, reason] += 1
            ev = self._evs.get((row, number))
            if ev is None:  # of a configuration before this one
                continue
            before = EvState(int(record["before"]))
            if int(self._told[row, number]) not in (_UNTOLD, _plain(before)):
                self._miss(1)
            self._told[row, number], self._told_ns[row, number] = _plain(after), record["ns"]
            known, said = self._why.pop((row, number), (reason, {}))
            self._events.add(
                "ev",
                peer=ev.peer,
                ev=ev.ev,
                plane=ev.plane,
                t1=ev.t1,
                before=before.name,
                after=after.name,
                reason=reason.text,
                evidence={**evidence(record), **(said if known is reason else {})},
                monotonic_ns=int(record["ns"]),
            )

    def _find_lost_events(self, rows: health.Ints, evs: health.Records, now: int) -> None:
        """States that changed without an event, because the ring buffer was full."""
        since = evs["state_since_ns"]
        lost = (since > self._told_ns[rows]) & (since < max(0, now - _TOLD_NS))
        if not lost.any():
            return
        self._miss(int(lost.sum()))
        self._told[rows] = np.where(lost, _UNTOLD, self._told[rows])
        self._told_ns[rows] = np.where(lost, since, self._told_ns[rows])

    def _miss(self, count: int) -> None:
        """Events were lost, one at least for each of `count` EVs. What is usable is seen in the tables."""
        self.lost_events += count
        self._events.add("daemon", reason="events_lost", evidence={"evs": count})

    # ---- what administrators ask for ----

    def administer(self, row: int, ev: int, deny: bool, evidence: Mapping[str, object]) -> bool:
        """Deny an EV, or give it back: then it is probed before it carries traffic again. False if it was so
        already. What it told is in the log after `drain`. Raises MachineError."""
        leave, after = (_ALLOWED, EvState.DENIED) if deny else ((EvState.DENIED,), EvState.UNKNOWN)
        for _ in range(_STEER_TRIES):  # a program may change the state at the same moment
            if self._steer(health.Steer(row, ev, leave, after, Reason.ADMIN, {})):
                self._why[row, ev] = Reason.ADMIN, evidence
                self._changed(row)
                return True
            if (self._tables.evs["state"][row, ev] == EvState.DENIED) == deny:
                return False
        name = self._peers[row].host.name if row in self._peers else f"host {row}"
        raise MachineError(f"{name} EV {ev}: the programs do not take {after.name}", hint="see mrcd's log")


def _plain(state: EvState) -> EvState:
    """SKIP comes and goes without an event."""
    return EvState.GOOD if state is EvState.SKIP else state
