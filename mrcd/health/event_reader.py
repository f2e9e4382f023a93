# SPDX-License-Identifier: BSD-2-Clause
"""Reads the programs' events from the ring buffer, and logs them."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from mrcd.config.cluster_file import Health
from mrcd.fabric.topology import Peer
from mrcd.health.events import Budget, EventLog, evidence
from mrcd.health.probe_pace import hold_down_ns
from mrcd.kernel import abi
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.pinned import Tables

_MS = 1_000_000
_SHARED_REASONS = (Reason.OVERDUE, Reason.ICMP_ERROR)  # the same as in transit() of bpf/states.h


class Listener:
    """Reads the ring buffer of a data plane. `peers`: table row → peer."""

    def __init__(
        self, settings: Health, peers: Mapping[int, Peer], tables: Tables, dataplane: Dataplane, events: EventLog
    ) -> None:
        self._settings, self._peers, self._tables = settings, peers, tables
        self._dataplane, self._events = dataplane, events
        self._unlogged: deque[np.void] = deque()
        # (row, EV) → evidence that the daemon adds to the next event of that reason
        self.added_evidence: dict[tuple[int, int], tuple[Reason, Mapping[str, object]]] = {}
        self._budget, self._starts = Budget(), Budget()  # of events that are no news: EVs that a start has probed
        # (plane, T1, state before, state after, reason) → the changes that have no events of their own
        self._summed: dict[tuple[int, int | None, int, int, Reason], list[np.void]] = {}
        self.drain()
        self._lost_events = self._count_lost_events()

    def drain(self, most: int | None = None) -> bool:
        """Reads the ring buffer, and logs up to `most` events.

        Returns whether the tick has work: a flow has stopped, or a path has failed that shares switches with others.
        """
        found = self._dataplane.events()
        is_idle_timeout = found["ev"] == abi.EVENT_IDLE_TIMEOUT
        reasons = found["reason"][found["after"] == EvState.ASSUMED_BAD]
        is_shared = any((reasons == reason).any() for reason in _SHARED_REASONS)
        self._unlogged.extend(found[~is_idle_timeout])
        for _ in range(len(self._unlogged) if most is None else min(most, len(self._unlogged))):
            self._log(self._unlogged.popleft())
        return is_shared or bool(is_idle_timeout.any())

    @property
    def is_behind(self) -> bool:
        """Returns whether drain() has read events that are not logged yet."""
        return bool(self._unlogged)

    def _log(self, record: np.void) -> None:
        row, number = int(record["host_id"]), int(record["ev"])
        reason = Reason(int(record["reason"]))
        peer = self._peers.get(row)
        place = peer.place(number) if peer else None
        if peer is None or place is None:  # the event belongs to an earlier configuration
            return
        added_for, added = self.added_evidence.pop((row, number), (reason, {}))
        is_start = reason is Reason.PROBED
        if not (self._starts if is_start else self._budget).take(int(record["ns"])):
            where = (place[0], None) if is_start else place  # a start has EVs on all T1s
            key = (*where, int(record["before"]), int(record["after"]), reason)
            self._summed.setdefault(key, []).append(record)
            return
        self._events.add(
            "ev",
            peer=peer.host.name,
            ev=number,
            plane=place[0],
            t1=place[1],
            before=EvState(int(record["before"])).name,
            after=EvState(int(record["after"])).name,
            reason=reason.text,
            evidence={**self._evidence(record, reason), **(added if added_for is reason else {})},
            monotonic_ns=int(record["ns"]),
        )

    def log_sums(self) -> None:
        """Logs the changes that have no events of their own: one event for all that have the same place and reason."""
        summed, self._summed = self._summed, {}
        for (plane, t1, before, after, reason), records in summed.items():
            self._events.add(
                "ev",
                plane=plane,
                t1=t1,
                before=EvState(before).name,
                after=EvState(after).name,
                reason=reason.text,
                evidence={"evs": len(records), "peers": len({int(r["host_id"]) for r in records})},
                monotonic_ns=int(records[0]["ns"]),
            )

    def _evidence(self, record: np.void, reason: Reason) -> dict[str, Any]:
        found: dict[str, Any] = evidence(record)
        if reason is Reason.HEALED:
            found["hold_down_ms"] = int(hold_down_ns(self._settings, int(record["flaps"]))) // _MS
        return found

    def find_lost(self) -> None:
        """Logs how many state changes had no room in the ring buffer since the last call."""
        before, self._lost_events = self._lost_events, self._count_lost_events()
        if self._lost_events > before:
            self._events.add("daemon", reason="events_lost", evidence={"evs": self._lost_events - before})

    def _count_lost_events(self) -> int:
        return int(self._tables.transitions()["lost_events"].sum())
