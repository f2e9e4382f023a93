"""What is known of each peer as a whole: what it says of itself in its probes, whether it answers, and whether its
routes are still those of its usable EVs. Rows are host ids, as in the tables."""

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from mrcd.fabric.topology import Plan
from mrcd.health import hold_down
from mrcd.health.events import EventLog
from mrcd.tables import abi
from mrcd.tables.pinned import Tables, is_detached

_PATIENCE_S = 3.0  # hosts of a cluster start together: silence is no news in the first moments
_NOTHING = np.uint64(2**64 - 1)  # has been said yet
_STEADY_NS = 2_000_000_000  # usable EVs that are the same for so long are worth new routes


class PeerWatch:
    """Tells what is new of a peer, and calls `changed` with a row whose routes may be others now."""

    def __init__(self, plan: Plan, tables: Tables, events: EventLog, changed: Callable[[int], None]) -> None:
        self._config, self._tables = plan.config.cluster, tables
        self._events, self._changed = events, changed
        self.names = {p.host.id: p.host.name for p in plan.peers}
        self.silent: set[int] = set()  # rows of those that have not answered for some time
        n = len(tables.peers)
        words = tables.peers.view(np.uint64).reshape(n, -1)
        self._heads = words[:, 1:9:7]  # ports and, above them, status; heard_ns, which begins the second cache line
        self._said = np.full((n, 2), _NOTHING)  # the same, but of heard_ns whether it is any
        self._usable, self._routed = tables.peers["usable"].copy(), tables.peers["usable"].copy()
        self._steady_ns = np.zeros(n, np.int64)  # since when a peer's usable EVs are the same
        self._started = time.monotonic()

    def follow(self, before: "PeerWatch", replaced_hosts: AbstractSet[int] = frozenset()) -> None:
        """Know of the peers what was known under an earlier plan, but for replaced_hosts."""
        self._started = before._started
        known = [row for row in self.names.keys() - replaced_hosts if row < len(before._said)]
        self._said[known] = before._said[known]
        self.silent = before.silent & self.names.keys() - replaced_hosts

    @property
    def detached(self) -> bool:
        """Whether this host is."""
        return is_detached(self._tables.node)

    def sprayed(self, rows: hold_down.Ints | int) -> hold_down.Bools:
        """Whether peers' traffic may be sprayed: both data planes are attached, and it has been heard,
        unless there is nothing to fall back to."""
        peers = self._tables.peers
        heard, gone = peers["heard_ns"][rows] > 0, (peers["status"][rows] & abi.STATUS_DETACHED) != 0
        ecmp = self._config.encapsulation == "ecmp"
        return np.asarray((heard | ecmp) & ~gone & (not self.detached))

    def routed(self, row: int) -> NDArray[np.uint64]:
        """The usable EVs of a peer, of which its routes are to be made now: mrc_peer.usable."""
        self._routed[row] = self._tables.peers["usable"][row]
        return np.asarray(self._routed[row])

    def look(self, rows: hold_down.Ints, now: int) -> None:
        """See what these peers say, whether they answer, and what of them is usable; `now` is CLOCK_MONOTONIC in ns."""
        self._note_statuses(rows)
        self._note_usable(rows, now)
        silent = self._tables.watches["silent"][rows] != 0
        if silent.any() or self.silent:
            self._note_silence(set(rows[silent].tolist()), set(rows[~silent].tolist()))

    def _note_statuses(self, rows: hold_down.Ints) -> None:
        said = self._heads[rows]
        said[:, 1] = said[:, 1] > 0
        other = (said != self._said[rows]).any(axis=1)
        for row, (word, heard) in zip(rows[other].tolist(), said[other].tolist(), strict=True):
            word_before, heard_before = self._said[row].tolist()
            name, status, ports = self.names[row], word >> 32, word & 0xFFFFFFFF
            self._said[row] = word, heard
            if (heard_before, word_before >> 32) != (heard, status):
                if heard:
                    after = "detached" if status & abi.STATUS_DETACHED else "attached"
                    self._events.add("peer", peer=name, reason="port_status", after=after)
            else:
                up = [p for p in range(self._config.planes) if ports & (1 << p)]
                self._events.add("peer", peer=name, reason="port_status", evidence={"planes_up": up})
            self._changed(row)

    def _note_usable(self, rows: hold_down.Ints, now: int) -> None:
        """Peers whose usable EVs are others than those that their routes were made of, for some time already.
        Nothing waits for these routes: they are for the day when this data plane is detached."""
        usable = self._tables.peers["usable"][rows]
        same = (usable == self._usable[rows]).all(axis=1)
        self._usable[rows] = usable
        self._steady_ns[rows] = np.where(same, self._steady_ns[rows], now)
        steady = now - self._steady_ns[rows] >= _STEADY_NS
        for row in rows[steady & (usable != self._routed[rows]).any(axis=1)].tolist():
            self._changed(row)

    def _note_silence(self, silent: set[int], heard: set[int]) -> None:
        """Which of the peers answer nothing, and which have answered."""
        if time.monotonic() - self._started > _PATIENCE_S:
            for row in silent - self.silent:
                self._events.add("peer", peer=self.names[row], reason="no_replies", after="unreachable")
            self.silent |= silent
        for row in heard & self.silent:
            self._events.add("peer", peer=self.names[row], reason="replies", after="reachable")
        self.silent -= heard
