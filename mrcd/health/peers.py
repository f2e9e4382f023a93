# SPDX-License-Identifier: BSD-2-Clause
"""Watches peers: their status in probes, whether they answer, and whether their routes match their usable EVs.

Rows are host ids, as in the tables.
"""

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from mrcd.fabric.topology import Plan
from mrcd.health.events import Budget, EventLog
from mrcd.kernel import abi
from mrcd.kernel.pinned import CHANGING, Tables, is_detached, wire_of

GRACE_S = 3.0  # hosts of a cluster start together, so silence right after a start is not reported
_UNKNOWN_HEAD = np.uint64(2**64 - 1)  # no status has been read yet
_STEADY_NS = 2_000_000_000  # routes are changed when the usable EVs have not changed for this time


def _words(wire: int) -> str:
    return "changing" if wire == CHANGING else f"version {wire}"


class PeerWatch:
    """Logs changes of peers, and calls `changed` with a peer's row when its routes may have to change."""

    def __init__(self, plan: Plan, tables: Tables, events: EventLog, changed: Callable[[int], None]) -> None:
        self._config, self._tables = plan.config.cluster, tables
        self._events, self._changed = events, changed
        self._budget, self._now_ns = Budget(), 0
        # (reason, before, after, planes that are up) → when it first had no event of its own, ns; and of which rows
        self._summed: dict[tuple[str, str | None, str | None, tuple[int, ...] | None], tuple[int, set[int]]] = {}
        self.names = {p.host.id: p.host.name for p in plan.peers}
        self.silent: set[int] = set()  # rows of peers that have not answered for some time
        n = len(tables.peers)
        self._heads = tables.peers.view(np.uint64).reshape(n, -1)[:, 1]  # plane_mask, and status in the upper half
        self._known_heads = np.full(n, _UNKNOWN_HEAD)
        self._known_heard = np.zeros(n, bool)  # whether each peer had been heard
        self._known_wires = self._wires(np.arange(n))
        # At the last check: what probes said of the peers, who had been heard, and the own version.
        self._told = b"", b"", 0
        self._usable, self._routed = tables.peers["usable"].copy(), tables.peers["usable"].copy()
        self._is_routed = True  # no peer's usable EVs differed from those of its routes
        self._steady_ns = np.zeros(n, np.int64)  # time of the last change of a peer's usable EVs
        self._started = time.monotonic()

    def take_over(self, before: "PeerWatch", replaced_hosts: AbstractSet[int] = frozenset()) -> None:
        """Takes over what was known of the peers under an earlier plan, except of `replaced_hosts`."""
        self._started = before._started  # noqa: SLF001 - the same class
        heads, heard = before._known_heads, before._known_heard  # noqa: SLF001 - the same class
        known = [row for row in self.names.keys() - replaced_hosts if row < len(heads)]
        self._known_heads[known], self._known_heard[known] = heads[known], heard[known]
        self._known_wires[known] = before._known_wires[known]  # noqa: SLF001 - the same class
        self.silent = before.silent & self.names.keys() - replaced_hosts
        self._budget = before._budget  # noqa: SLF001 - the same class

    @property
    def detached(self) -> bool:
        """Returns whether this host's data plane is detached."""
        return is_detached(self._tables.node)

    def can_spray(self, rows: NDArray[np.int64] | int) -> NDArray[np.bool_]:
        """Returns whether traffic to these peers may be sprayed.

        Both data planes must be attached, and speak the same wire version. The peer must have been heard, except with
        encapsulation ecmp, which has no fallback routes.
        """
        peers = self._tables.peers
        has_answered = peers["heard_ns"][rows] > 0
        peer_detached = (peers["status"][rows] & abi.STATUS_DETACHED) != 0
        ecmp, speaks_same = self._config.encapsulation == "ecmp", self._wires(rows) == self._own_wire
        if self._own_wire == CHANGING:
            speaks_same = np.zeros_like(speaks_same)
        return np.asarray((has_answered | ecmp) & speaks_same & ~peer_detached & (not self.detached))

    @property
    def _own_wire(self) -> int:
        return int(wire_of(self._tables.node["status"]))

    def _wires(self, rows: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Returns the wire versions of peers; this host's for those that were never heard."""
        peers = self._tables.peers
        return np.where(peers["heard_ns"][rows] > 0, wire_of(peers["status"][rows]), self._own_wire)

    def usable_for_routes(self, row: int) -> NDArray[np.uint64]:
        """Returns a peer's usable EVs (mrc_peer.usable), and records that its routes are made of them now."""
        self._routed[row] = self._tables.peers["usable"][row]
        self._is_routed = False  # they may be others again before the next check
        return np.asarray(self._routed[row])

    def check(self, rows: NDArray[np.int64], now: int) -> None:
        """Checks the status, the usable EVs and the silence of these peers; `now` is CLOCK_MONOTONIC in ns."""
        self._now_ns = now
        heard = (self._tables.peers["heard_ns"][rows] > 0).tobytes()
        told = self._heads[rows].tobytes(), heard, self._own_wire
        if told != self._told:
            self._note_statuses(rows)
            self._note_versions(rows)
            self._told = told
        self._note_usable(rows, now)
        silent = self._tables.watches["silent"][rows] != 0
        if silent.any() or self.silent:
            self._note_silence(set(rows[silent].tolist()), set(rows[~silent].tolist()))

    def _note_statuses(self, rows: NDArray[np.int64]) -> None:
        """Logs the peers whose status or plane mask in probes has changed."""
        no_news = np.uint64((abi.STATUS_PLAIN | abi.STATUS_TAGS_ONLY | 0xFF << abi.STATUS_WIRE) << 32)
        heads, heard_ns = self._heads[rows] & ~no_news, self._tables.peers["heard_ns"][rows]
        has_changed = (heads != self._known_heads[rows]) | ((heard_ns > 0) != self._known_heard[rows])
        for index in np.flatnonzero(has_changed).tolist():
            row, word, heard = int(rows[index]), int(heads[index]), bool(heard_ns[index] > 0)
            word_before, heard_before = int(self._known_heads[row]), bool(self._known_heard[row])
            status, plane_mask = word >> 32, word & 0xFFFFFFFF
            self._known_heads[row], self._known_heard[row] = word, heard
            if (heard_before, word_before >> 32) != (heard, status):
                is_first_look = word_before == _UNKNOWN_HEAD  # after a start: that a peer is attached is no news
                if heard and not (is_first_look and not status & abi.STATUS_DETACHED):
                    after = "detached" if status & abi.STATUS_DETACHED else "attached"
                    self._note(row, "port_status", after=after)
            else:
                up = tuple(p for p in range(self._config.planes) if plane_mask & (1 << p))
                self._note(row, "port_status", up=up)
            self._changed(row)

    def _note_versions(self, rows: NDArray[np.int64]) -> None:
        """Logs the peers whose wire version in probes has changed."""
        before, now = self._known_wires[rows], self._wires(rows)
        self._known_wires[rows] = now
        for index in np.flatnonzero((before != now) & (self._tables.peers["heard_ns"][rows] > 0)).tolist():
            row, words = int(rows[index]), [_words(int(version)) for version in (before[index], now[index])]
            self._note(row, "wire_version", words[0], words[1])
            self._changed(row)

    def _note_usable(self, rows: NDArray[np.int64], now: int) -> None:
        """Calls `changed` for peers whose usable EVs have differed from those of their routes for _STEADY_NS.

        These fallback routes are not urgent: they carry traffic only while the data plane is detached.
        """
        if self._is_routed and np.array_equal(self._tables.peers["usable"], self._usable):
            return
        usable = self._tables.peers["usable"][rows]
        same = (usable == self._usable[rows]).all(axis=1)
        self._usable[rows] = usable
        self._steady_ns[rows] = np.where(same, self._steady_ns[rows], now)
        steady, differs = now - self._steady_ns[rows] >= _STEADY_NS, (usable != self._routed[rows]).any(axis=1)
        self._is_routed = not differs.any()
        for row in rows[steady & differs].tolist():
            self._changed(row)

    def _note_silence(self, silent: set[int], heard: set[int]) -> None:
        """Logs the peers that have stopped answering, and those that answer again."""
        if time.monotonic() - self._started > GRACE_S:
            for row in silent - self.silent:
                self._note(row, "no_replies", after="unreachable")
            self.silent |= silent
        for row in heard & self.silent:
            self._note(row, "replies", after="reachable")
        self.silent -= heard

    def _note(
        self,
        row: int,
        reason: str,
        before: str | None = None,
        after: str | None = None,
        up: tuple[int, ...] | None = None,
    ) -> None:
        if not self._summed and self._budget.take(self._now_ns):  # else an event would come before an older sum
            evidence = {} if up is None else {"planes_up": list(up)}
            self._events.add("peer", peer=self.names[row], reason=reason, before=before, after=after, evidence=evidence)
        else:
            self._summed.setdefault((reason, before, after, up), (self._now_ns, set()))[1].add(row)

    def log_sums(self) -> None:
        """Logs the changes that have no events of their own: one event for all peers with the same change."""
        summed, self._summed = self._summed, {}
        for (reason, before, after, up), (first_ns, rows) in summed.items():
            evidence = {"peers": len(rows)} | ({} if up is None else {"planes_up": list(up)})
            self._events.add(
                "peer", reason=reason, before=before, after=after, evidence=evidence, monotonic_ns=first_ns
            )
