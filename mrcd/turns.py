"""Whose turn it is to be looked at: told by a few words of each peer, and of nobody where nothing can be due."""

import numpy as np
from numpy.typing import NDArray

from mrcd.health import Ints
from mrcd.tables import Tables

BUSY_NS = 2_000_000_000  # a peer counts as busy for this long after its last packet
_NEVER = np.iinfo(np.int64).max
_NOBODY = np.zeros(0, np.int64)


class Turns:
    """Over a host's peers, `rows` of the tables; arrays have an entry per row, times are CLOCK_MONOTONIC in ns.

    due_ns    when a peer is to be looked at
    busy_ns   when a look last found that it had traffic: see `note_busy`
    asked     reports asked of it when it was last looked at: traffic asks for more
    """

    def __init__(self, tables: Tables, rows: Ints, turn_ns: int, flock_ns: int = 0) -> None:
        """Traffic of quiet peers is looked for each `turn_ns`; where peers are many, those that stay quiet are due each
        `flock_ns` at most, 0 = as soon as one is."""
        self._rounds: NDArray[np.uint32] = tables.rounds["round"]
        n = len(self._rounds)
        self.due_ns = np.full(n, _NEVER, np.int64)
        self.due_ns[rows] = 0
        self.busy_ns = np.zeros(n, np.int64)
        self.asked = self._rounds.copy()
        self._mine = np.isin(np.arange(n), rows)
        self._turn_ns, self._taken_ns = turn_ns, 0
        self._flock_ns, self._gathered_ns = flock_ns, 0
        self._lively, self._others_too = _NOBODY, True  # who is busy; and someone more, perhaps

    def due(self, now: int) -> tuple[Ints, Ints]:
        """Rows to look at, ascending: of peers that have traffic, and of others."""
        if self._next_ns() > now:
            if self._others_too:
                self._find_lively(now)
            return self._lively[self.due_ns[self._lively] <= now] if len(self._lively) else _NOBODY, _NOBODY
        self._taken_ns = now
        if self._nothing(now):
            return _NOBODY, _NOBODY
        self._find_lively(now)
        urgent, others = self._lively[self.due_ns[self._lively] <= now], _NOBODY
        if now - self._gathered_ns >= self._flock_ns:
            self._gathered_ns = now
            others = np.flatnonzero(self.due_ns <= now)
            others = others[now - self.busy_ns[others] >= BUSY_NS]
        awake = np.flatnonzero(self._rounds != self.asked)  # traffic asks for reports
        if len(awake):
            awake = awake[self._mine[awake] & (now - self.busy_ns[awake] >= BUSY_NS)]
            is_awake = np.zeros(len(self.due_ns), bool)
            is_awake[awake] = True
            urgent, others = np.sort(np.concatenate([urgent, awake])), others[~is_awake[others]]
        return urgent, others

    def _nothing(self, now: int) -> bool:
        """That nobody is due, told at once."""
        if self._others_too or len(self._lively) or self.due_ns.min(initial=_NEVER) <= now:
            return False
        return not ((self._rounds != self.asked) & self._mine).any()

    def _find_lively(self, now: int) -> None:
        self._lively, self._others_too = np.flatnonzero(now - self.busy_ns < BUSY_NS), False

    def note_busy(self, rows: Ints | list[int], now: int) -> None:
        """These have had traffic since the last look."""
        self._others_too |= bool((now - self.busy_ns[rows] >= BUSY_NS).any())
        self.busy_ns[rows] = now

    def note_asked(self, rows: Ints | list[int]) -> None:
        """What was asked of these until now is no traffic."""
        self.asked[rows] = self._rounds[rows]

    def again(self) -> None:
        """There was no time for all: the quiet ones are looked for with the next call of `due`."""
        self._taken_ns = self._gathered_ns = 0

    def rest_ns(self, now: int) -> int:
        """For so long nobody is due or looked for."""
        if self._others_too:
            return 0
        soonest = min(self._next_ns(), int(self.due_ns[self._lively].min(initial=_NEVER)))
        return max(0, soonest - now)

    def _next_ns(self) -> int:
        ready = max(self._gathered_ns + self._flock_ns, int(self.due_ns.min(initial=_NEVER)))
        return min(self._taken_ns + self._turn_ns, ready)


def from_(rows: Ints, first: int) -> Ints:
    """Ascending rows, from `first` on, round after the last."""
    if not len(rows) or first <= rows[0]:
        return rows
    start = int(rows.searchsorted(first))
    return np.concatenate([rows[start:], rows[:start]])
