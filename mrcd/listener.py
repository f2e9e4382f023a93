"""What the programs tell through the ring buffer, into the event log; and what was lost of it."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping

import numpy as np

from mrcd import abi, giveway, health, lazy
from mrcd.abi import EvState, Reason
from mrcd.dataplane import Dataplane
from mrcd.events import EventLog, evidence
from mrcd.libbpf import EVENTS_AT_ONCE
from mrcd.tables import Tables
from mrcd.topology import Peer

_TOLD_NS = 1_000_000_000  # by then an event has been read, or was lost
_UNTOLD = 0  # states are kept one higher: of a million, few are ever written


class Listener:
    """Hears of transitions. `peers` by their rows."""

    def __init__(self, peers: Mapping[int, Peer], tables: Tables, dataplane: Dataplane, events: EventLog) -> None:
        self._peers, self._dataplane, self._events = peers, dataplane, events
        self.stalled: set[int] = set()  # peers to which a flow has stopped
        self.why: dict[tuple[int, int], tuple[Reason, Mapping[str, object]]] = {}  # what events will not say
        self.unread = False  # there is more in the ring buffer
        self._waiting: deque[np.void] = deque()
        self._rest: asyncio.Handle | None = None
        self._began_ns = 0  # what changed before is known
        self._told_ns = lazy.zeros(tables.evs.shape, np.uint64)
        self._told = lazy.zeros(tables.evs.shape, np.int16)  # states, as events say; SKIP counts as GOOD
        self.drain()
        self.stalled.clear()  # long ago
        self._told = lazy.zeros(tables.evs.shape, np.int16)

    def drain(self) -> None:
        """Take what is in the ring buffer into the event log; the rest soon, if it is much."""
        found = self._dataplane.events()
        self.unread = len(found) >= EVENTS_AT_ONCE
        stalled = found["ev"] == abi.EVENT_STALLED
        self.stalled.update(found["host_id"][stalled].tolist())
        self._waiting.extend(found[~stalled])
        self._tell_some()

    def _tell_some(self) -> None:
        loop = _running()
        until = giveway.until() if loop else math.inf
        while self._waiting:
            self._tell(self._waiting.popleft())
            if time.perf_counter() > until:
                break
        if self._waiting and loop and not self._rest:
            self._rest = loop.call_soon(self._tell_rest)

    def _tell_rest(self) -> None:
        self._rest = None
        self._tell_some()

    def _tell(self, record: np.void) -> None:
        row, number = int(record["host_id"]), int(record["ev"])
        after, reason = EvState(int(record["after"])), Reason(int(record["reason"]))
        peer = self._peers.get(row)
        place = peer.place(number) if peer else None
        if peer is None or place is None:  # of a configuration before this one
            return
        before = EvState(int(record["before"]))
        if int(self._told[row, number]) not in (_UNTOLD, _plain(before)):
            self._miss(1)
        self._told[row, number], self._told_ns[row, number] = _plain(after), record["ns"]
        known, said = self.why.pop((row, number), (reason, {}))
        self._events.add(
            "ev",
            peer=peer.host.name,
            ev=number,
            plane=place[0],
            t1=place[1],
            before=before.name,
            after=after.name,
            reason=reason.text,
            evidence={**evidence(record), **(said if known is reason else {})},
            monotonic_ns=int(record["ns"]),
        )

    def begin(self, now: int) -> None:
        """From now on, CLOCK_MONOTONIC in ns, whatever changes is told; once."""
        self._began_ns = self._began_ns or now - 1

    def find_lost(self, rows: health.Ints, evs: health.Records, now: int) -> None:
        """Notice states that changed without an event, because the ring buffer was full."""
        since = evs["state_since_ns"]
        known = np.maximum(self._told_ns[rows], np.uint64(self._began_ns))
        lost = (since > known) & (since < max(0, now - _TOLD_NS))
        if self._waiting or self.unread or not lost.any():
            return
        self._miss(int(lost.sum()))
        self._told[rows] = np.where(lost, _UNTOLD, self._told[rows])
        self._told_ns[rows] = np.where(lost, since, self._told_ns[rows])

    def _miss(self, count: int) -> None:
        """Events were lost, one at least for each of `count` EVs. What is usable is seen in the tables."""
        self._events.add("daemon", reason="events_lost", evidence={"evs": count})


def _running() -> asyncio.AbstractEventLoop | None:
    """None: there is nobody else to serve."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _plain(state: EvState) -> int:
    """As `_told` keeps it. SKIP comes and goes without an event."""
    return 1 + (EvState.GOOD if state is EvState.SKIP else state)
