"""Logs the events that the programs put into the ring buffer."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from mrcd.config.cluster_file import Health
from mrcd.fabric.topology import Peer
from mrcd.health.events import EventLog, evidence
from mrcd.health.hold_down import hold_down_ns
from mrcd.loader.dataplane import Dataplane
from mrcd.tables import abi
from mrcd.tables.abi import EvState, Reason
from mrcd.tables.pinned import Tables

_MS = 1_000_000
_SHARED = (Reason.OVERDUE, Reason.ICMP_ERROR)  # as transit() of bpf/states.h


class Listener:
    """Reads the ring buffer of a data plane. `peers` by their rows."""

    def __init__(
        self, settings: Health, peers: Mapping[int, Peer], tables: Tables, dataplane: Dataplane, events: EventLog
    ) -> None:
        self._settings, self._peers, self._tables = settings, peers, tables
        self._dataplane, self._events = dataplane, events
        self._unlogged: deque[np.void] = deque()
        self.why: dict[tuple[int, int], tuple[Reason, Mapping[str, object]]] = {}  # what the programs do not know
        self.drain()
        self._untold = self._count_untold()

    def drain(self, most: int | None = None) -> bool:
        """Read the ring buffer and log what it told, `most` events at most.

        Returns whether the tick has work: a flow has stopped, or a path has failed whose switches others cross too.
        """
        found = self._dataplane.events()
        stalled = found["ev"] == abi.EVENT_IDLE_TIMEOUT
        reasons = found["reason"][found["after"] == EvState.ASSUMED_BAD]
        is_shared = any((reasons == reason).any() for reason in _SHARED)
        self._unlogged.extend(found[~stalled])
        for _ in range(len(self._unlogged) if most is None else min(most, len(self._unlogged))):
            self._log(self._unlogged.popleft())
        return is_shared or bool(stalled.any())

    @property
    def is_behind(self) -> bool:
        """Whether there are events that `drain` has read and not logged."""
        return bool(self._unlogged)

    def _log(self, record: np.void) -> None:
        row, number = int(record["host_id"]), int(record["ev"])
        reason = Reason(int(record["reason"]))
        peer = self._peers.get(row)
        place = peer.place(number) if peer else None
        if peer is None or place is None:  # of a configuration before this one
            return
        known, said = self.why.pop((row, number), (reason, {}))
        self._events.add(
            "ev",
            peer=peer.host.name,
            ev=number,
            plane=place[0],
            t1=place[1],
            before=EvState(int(record["before"])).name,
            after=EvState(int(record["after"])).name,
            reason=reason.text,
            evidence={**self._evidence(record, reason), **(said if known is reason else {})},
            monotonic_ns=int(record["ns"]),
        )

    def _evidence(self, record: np.void, reason: Reason) -> dict[str, Any]:
        found: dict[str, Any] = evidence(record)
        if reason is Reason.HEALED:
            found["hold_down_ms"] = int(hold_down_ns(self._settings, int(record["flaps"]))) // _MS
        return found

    def find_lost(self) -> None:
        """Log that there were changes of state for which the ring buffer had no room."""
        before, self._untold = self._untold, self._count_untold()
        if self._untold > before:
            self._events.add("daemon", reason="events_lost", evidence={"evs": self._untold - before})

    def _count_untold(self) -> int:
        return int(self._tables.transitions()["lost_events"].sum())
