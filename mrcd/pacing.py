"""How often quiet peers are looked at, and on how many of their EVs they are probed each time. Pure.

In a small cluster all EVs of a quiet peer are probed in every idle interval. Where that would be more probes than
[health] idle_probes allows, peers take turns, and each time some of a peer's EVs are probed, in their turn. What
carries traffic needs none of it: its packets carry the probes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrcd.config import Health

_MS = 1_000_000
_LEAST_WINDOW = 16  # EVs: fewer are not worth the look at the peer


@dataclass(frozen=True)
class Pace:
    """`window` EVs of a quiet peer, 0 = all, each `interval_ns`."""

    window: int
    interval_ns: int


def pace(settings: Health, peers: int, evs: int, evs_per_peer: int) -> Pace:
    """The pace for so many peers, with so many EVs in all, `evs_per_peer` each at most.

    Half of the probes allowed are for these rounds, the rest for what is to be tried besides.
    """
    interval_ns = settings.idle_interval_ms * _MS
    allowed = settings.idle_probes * settings.idle_interval_ms // 1000  # in an interval
    if evs + peers <= allowed:  # each time one more, which asks for a report
        return Pace(0, interval_ns)
    window = min(max(allowed // peers - 1, _LEAST_WINDOW), evs_per_peer)
    return Pace(window, max(interval_ns, peers * (window + 1) * 2_000_000_000 // settings.idle_probes))


def silent_ns(pace: Pace, least_ns: int) -> int:
    """A peer that was not heard for so long, `least_ns` at least, is not reachable."""
    return max(least_ns, 3 * pace.interval_ns)


Ints = NDArray[np.int64]
Sweeps = tuple[Ints, Ints, Ints]  # rows, first EVs, how many from there on (0 = all)


class Windows:
    """Which of their EVs quiet peers are probed on next: all, or as many as the pace says, in their turn."""

    def __init__(self, window: int, shape: tuple[int, ...]) -> None:
        """`shape`: (peers, evs_per_peer)."""
        self._window, (peers, self._evs) = window, shape
        self._next = np.zeros(peers, np.int64)

    def take(
        self, rows: Ints, try_evs: NDArray[np.bool_] | None = None, stalled: NDArray[np.bool_] | None = None
    ) -> Sweeps:
        """Where peers are many, from the next EV that is to be tried on, if there is one; but all where a flow may have
        stalled. `try_evs` is (rows, evs_per_peer), `stalled` (rows,)."""
        if not self._window:
            return rows, np.zeros_like(rows), np.zeros_like(rows)
        evs, first = self._evs, self._next[rows]
        if try_evs is not None:
            nearest = np.where(try_evs, (np.arange(evs) - first[:, None]) % evs, evs).min(axis=1, initial=evs)
            first = (first + np.where(nearest < evs, nearest, 0)) % evs
        self._next[rows] = (first + self._window) % evs
        count = np.full(len(rows), self._window)
        if stalled is not None:
            count[stalled] = 0
        return rows, first, count


class Budget:
    """Probes that may be sent to quiet peers: so many per second, and half of that at once."""

    def __init__(self, per_second: int) -> None:
        self._rate = per_second
        self._left = self._most = per_second / 2
        self._at_ns: int | None = None

    def left(self, now: int) -> int:
        """How many may be sent now, CLOCK_MONOTONIC in ns."""
        passed = now - (now if self._at_ns is None else self._at_ns)
        self._at_ns = now
        self._left = min(self._most, self._left + self._rate * max(0, passed) / 1e9)
        return int(max(0, self._left))

    def spend(self, probes: int) -> None:
        """So many were sent; more than were left are owed."""
        self._left -= probes
