"""Watching the paths: probes out, verdicts in, states and usable EVs into the tables.

The decisions are health.py's; this is the hand that reads and writes the tables for them.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from mrcd import abi, health
from mrcd.abi import EvState, Reason
from mrcd.dataplane import Dataplane
from mrcd.errors import MrcdError, UsageError
from mrcd.events import EventLog
from mrcd.tables import Tables
from mrcd.topology import EV, Plan

log = logging.getLogger("mrcd.monitor")

_MS = 1_000_000
_BUSY_NS = 2_000_000_000  # a peer counts as busy for this long after its last packet
_HURRY = 4  # probes of a peer with a missing reply are this many times as frequent
_PATIENCE_S = 3.0  # hosts of a cluster start together: silence is no news in the first moments


class Monitor:
    """Probes and judges this host's EVs. `changed` is called with a row whose routes may be others now."""

    def __init__(
        self, plan: Plan, tables: Tables, dataplane: Dataplane, events: EventLog, changed: Callable[[int], None]
    ) -> None:
        self._plan, self._tables, self._dataplane = plan, tables, dataplane
        self._events, self._changed = events, changed
        self.transitions: Counter[tuple[EvState, Reason]] = Counter()
        self._peers = {p.host.id: p for p in plan.peers}
        self._evs: dict[tuple[int, int], EV] = {(p.host.id, e.ev): e for p in plan.peers for e in p.evs}
        self._rows = np.array(sorted(self._peers), np.int64)
        self._judge = health.Judge(plan.config.health, *tables.evs.shape)
        n = len(tables.peers)
        self._due_ns, self._swept_ns, self._traffic, self._busy_ns = (np.zeros(n, np.int64) for _ in range(4))
        self._statuses: dict[int, tuple[bool, int, int]] = {}
        self._silent: set[int] = set()
        self._hurry = False
        self._started = time.monotonic()
        for row in self._peers:
            self.update_usable(row)

    # ---- probing ----

    async def run(self) -> None:
        """Judge what the last probes brought, then send the next, at every probe interval."""
        interval = self._plan.config.health.probe_interval_ms / 1000
        loop = asyncio.get_running_loop()
        next_tick = loop.time()
        while True:
            self._hurry = False
            try:
                self._tick(time.monotonic_ns())
            except MrcdError as e:
                log.error("%s; probing goes on", e)
            next_tick = max(next_tick + (interval / _HURRY if self._hurry else interval), loop.time())
            await asyncio.sleep(next_tick - loop.time())

    def announce(self) -> None:
        """Probe all peers now: probes carry this host's port status."""
        for row in self._peers:
            self._dataplane.sweep(row)
        self._due_ns[self._rows] = 0

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
        if not len(due):
            return
        evs = self._tables.evs[due]  # a copy: the judge sees one moment
        self._note_statuses(due)
        judged = np.array([self._judged(row) for row in due.tolist()])
        if judged.any():
            rows = due[judged]
            ports = self._tables.peers["ports"][rows]
            self._apply(self._judge.judge(rows, evs[judged], ports, int(self._tables.node["ports"]), now), now)
        if not judged.all():
            self._judge.forget(due[~judged])
        for row in due[self._schedule(due, evs, now)].tolist():
            self._dataplane.sweep(row)

    def _judged(self, row: int) -> bool:
        return self.sprayed(row) or (not self._detached and not self._tables.peers[row]["heard_ns"])

    def _schedule(self, due: health.Ints, evs: health.Records, now: int) -> health.Bools:
        """Which of the due peers to sweep now; sets when to look at them again.

        Peers with traffic are swept at every visit. Idle ones are swept seldom, but looked at soon
        after: if a reply is missing then, they are probed fast until it is clear why.
        """
        h = self._plan.config.health
        traffic = evs["tx_packets"].sum(axis=1).astype(np.int64) + self._tables.rxs[due]["packets"].sum(axis=1)
        self._busy_ns[due] = np.where(traffic != self._traffic[due], now, self._busy_ns[due])
        self._traffic[due] = traffic
        both = self._tables.peers["ports"][due].astype(np.int64) & int(self._tables.node["ports"])
        linked = (np.left_shift(1, evs["plane"].astype(np.int64)) & both[:, None]) != 0  # else silence is no news
        bad = (evs["state"] == EvState.ASSUMED_BAD) | (evs["state"] == EvState.DENIED)
        watched = (evs["configured"] != 0) & ~bad & linked
        missing = (watched & (evs["probe_seq"] != evs["reply_seq"])).any(axis=1) & ~np.isin(due, list(self._silent))
        # A stalled flow sends nothing, and needs the probes most.
        fast = (missing | (now - self._busy_ns[due] < _BUSY_NS)) & (not self._detached)
        slack = h.probe_interval_ms * _MS // 2
        sweep: health.Bools = fast | (now - self._swept_ns[due] >= h.idle_interval_ms * _MS - slack)
        self._swept_ns[due] = np.where(sweep, now, self._swept_ns[due])
        # A missing reply: ask again sooner, for the verdict waits for several.
        self._hurry |= bool((missing & fast).any())
        soon = now + np.where(missing, h.probe_interval_ms * _MS // _HURRY // 2, h.probe_interval_ms * _MS - slack)
        self._due_ns[due] = np.where(sweep, soon, self._swept_ns[due] + h.idle_interval_ms * _MS - slack)
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
            self.update_usable(row)
            self._changed(row)

    def _apply(self, verdict: health.Verdict, now: int) -> None:
        for t in verdict.transitions:
            self._transit(t.row, t.ev, t.after, t.reason, now, relapses=t.relapses, evidence=t.evidence)
        self._touched({t.row for t in verdict.transitions})
        silent, heard = set(verdict.silent), set(verdict.heard)
        if time.monotonic() - self._started > _PATIENCE_S:
            for row in silent - self._silent:
                self._events.add("peer", peer=self._peers[row].host.name, reason="no_replies", after="unreachable")
            self._silent |= silent
        for row in heard & self._silent:
            self._events.add("peer", peer=self._peers[row].host.name, reason="answers", after="reachable")
        self._silent -= heard

    def _transit(
        self,
        row: int,
        number: int,
        after: EvState,
        reason: Reason,
        now: int,
        *,
        relapses: int | None = None,
        evidence: dict[str, int | float] | None = None,
    ) -> None:
        record = self._tables.evs[row, number : number + 1].reshape(())
        before = EvState(int(record["state"]))
        record["state"], record["reason"], record["state_since_ns"] = after, reason, now
        if relapses is not None:
            record["relapses"] = relapses
        self.transitions[after, reason] += 1
        ev = self._evs[row, number]
        self._events.add(
            "ev",
            peer=ev.peer,
            ev=ev.ev,
            plane=ev.plane,
            t1=ev.t1,
            before=before.name,
            after=after.name,
            reason=reason.text,
            evidence=evidence,
        )

    def _touched(self, rows: set[int]) -> None:
        for row in rows:
            self.update_usable(row)
            self._changed(row)

    def update_usable(self, row: int) -> None:
        """Write which EVs of a peer the programs may use."""
        c = self._plan.config.cluster
        both = int(self._tables.node["ports"]) & int(self._tables.peers[row]["ports"])
        evs = self._tables.evs[row]
        linked: health.Bools = (np.left_shift(1, evs["plane"].astype(np.int64)) & both) != 0
        usable = health.usable_evs(evs, self._floor(row), linked)
        bits = health.bitmap(usable, c.planes, c.evs_per_plane, abi.MAX_PLANES, abi.EV_WORDS)
        self._tables.peers[row]["usable"][:] = bits

    def _floor(self, row: int) -> int:
        return self._plan.config.cluster.ev_min_active or health.default_floor(len(self._peers[row].evs))

    # ---- what administrators ask for ----

    def deny(self, peer: str | None, ev: int | None, plane: int | None) -> tuple[list[EV], list[EV]]:
        """Take EVs out of use; those below the floor are refused. Returns (denied, refused)."""
        done: list[EV] = []
        refused: list[EV] = []
        for e in self._selected(peer, ev, plane):
            if self._state(e) is EvState.DENIED:
                continue
            record = self._tables.evs[e.peer_id]
            left = (record["configured"] != 0) & (record["state"] != EvState.DENIED)
            if int(left.sum()) <= self._floor(e.peer_id):
                refused.append(e)
                continue
            self._transit(e.peer_id, e.ev, EvState.DENIED, Reason.ADMIN, time.monotonic_ns())
            done.append(e)
        self._touched({e.peer_id for e in done})
        return done, refused

    def allow(self, peer: str | None, ev: int | None, plane: int | None) -> list[EV]:
        """Give denied EVs back: they are probed before they carry traffic again."""
        done = [e for e in self._selected(peer, ev, plane) if self._state(e) is EvState.DENIED]
        for e in done:
            self._transit(e.peer_id, e.ev, EvState.UNKNOWN, Reason.ADMIN, time.monotonic_ns())
        self._touched({e.peer_id for e in done})
        return done

    def _state(self, e: EV) -> EvState:
        return EvState(int(self._tables.evs[e.peer_id, e.ev]["state"]))

    def _selected(self, peer: str | None, ev: int | None, plane: int | None) -> list[EV]:
        names = {p.host.name for p in self._peers.values()}
        if peer is not None and peer not in names:
            raise UsageError(f"there is no peer {peer!r}", hint=f"peers: {', '.join(sorted(names)[:10])}")
        found = [
            e
            for e in self._evs.values()
            if (peer is None or e.peer == peer) and (ev is None or e.ev == ev) and (plane is None or e.plane == plane)
        ]
        if not found:
            raise UsageError("no path fits that choice", hint="`mrcctl paths` lists them")
        return found
