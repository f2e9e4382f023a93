"""What the programs tell through the ring buffer, into the event log; and what was lost of it."""

import asyncio
from collections import deque
from collections.abc import Mapping

import numpy as np

from mrcd import abi, health, lazy
from mrcd.abi import EvState, Reason
from mrcd.dataplane import Dataplane
from mrcd.events import EventLog, evidence
from mrcd.tables import Tables
from mrcd.topology import EV, Peer

_TOLD_NS = 1_000_000_000  # by then an event has been read, or was lost
_AT_ONCE = 64  # events told; the loop has others to serve
_UNTOLD = -1


class Listener:
    """Hears of transitions. `peers` by their rows."""

    def __init__(self, peers: Mapping[int, Peer], tables: Tables, dataplane: Dataplane, events: EventLog) -> None:
        self._peers, self._dataplane, self._events = peers, dataplane, events
        self.stalled: set[int] = set()  # peers to which a flow has stopped
        self.why: dict[tuple[int, int], tuple[Reason, Mapping[str, object]]] = {}  # what events will not say
        self.loop: asyncio.AbstractEventLoop | None = None  # where the rest is told, if it is much
        self._waiting: deque[np.void] = deque()
        self._told_ns = lazy.zeros(tables.evs.shape, np.uint64)
        self._told = lazy.zeros(tables.evs.shape, np.int16)  # states, as events say; SKIP counts as GOOD
        self._told[:] = _UNTOLD
        self.drain()
        self.stalled.clear()  # long ago
        self._told[:], self._told_ns[:] = _UNTOLD, tables.evs["state_since_ns"]

    def drain(self) -> None:
        """Take what is in the ring buffer into the event log; the rest soon, if it is much."""
        found = self._dataplane.events()
        stalled = found["ev"] == abi.EVENT_STALLED
        self.stalled.update(found["host_id"][stalled].tolist())
        self._waiting.extend(found[~stalled])
        self._tell_some()

    def _tell_some(self) -> None:
        for _ in range(min(len(self._waiting), _AT_ONCE) if self.loop else len(self._waiting)):
            self._tell(self._waiting.popleft())
        if self._waiting and self.loop:
            self.loop.call_soon(self._tell_some)

    def _tell(self, record: np.void) -> None:
        row, number = int(record["host_id"]), int(record["ev"])
        after, reason = EvState(int(record["after"])), Reason(int(record["reason"]))
        ev = self._ev(row, number)
        if ev is None:  # of a configuration before this one
            return
        before = EvState(int(record["before"]))
        if int(self._told[row, number]) not in (_UNTOLD, _plain(before)):
            self._miss(1)
        self._told[row, number], self._told_ns[row, number] = _plain(after), record["ns"]
        known, said = self.why.pop((row, number), (reason, {}))
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

    def _ev(self, row: int, number: int) -> EV | None:
        peer = self._peers.get(row)
        return next((e for e in peer.evs if e.ev == number), None) if peer else None

    def find_lost(self, rows: health.Ints, evs: health.Records, now: int) -> None:
        """Notice states that changed without an event, because the ring buffer was full."""
        since = evs["state_since_ns"]
        lost = (since > self._told_ns[rows]) & (since < max(0, now - _TOLD_NS))
        if self._waiting or not lost.any():
            return
        self._miss(int(lost.sum()))
        self._told[rows] = np.where(lost, _UNTOLD, self._told[rows])
        self._told_ns[rows] = np.where(lost, since, self._told_ns[rows])

    def _miss(self, count: int) -> None:
        """Events were lost, one at least for each of `count` EVs. What is usable is seen in the tables."""
        self._events.add("daemon", reason="events_lost", evidence={"evs": count})


def _plain(state: EvState) -> EvState:
    """SKIP comes and goes without an event."""
    return EvState.GOOD if state is EvState.SKIP else state
