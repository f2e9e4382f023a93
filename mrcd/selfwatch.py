"""How long the daemon's own work takes, and how long its loop was held up."""

import bisect
import itertools
import selectors
import time

from mrcd.giveway import Round, idle

_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_GRAIN_S = 0.001


class Durations:
    """A histogram of durations, with their sum and the longest."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self.sum_s = self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self._counts[bisect.bisect_left(_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def cumulative(self) -> list[tuple[float | str, int]]:
        """How many were no longer than each bound; the last bound is +Inf."""
        return list(zip((*_BOUNDS_S, "+Inf"), itertools.accumulate(self._counts), strict=True))


class TimedSelector(selectors.DefaultSelector):
    """An event loop's selector that measures how long the loop is away from it, or should be back: nobody is served
    meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.away = Durations()
        self._left: float | None = None

    def begin(self) -> None:
        """From now on: what was before is forgotten."""
        self.away.forget()
        self._left = time.perf_counter()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the base class."""
        if self._left is not None:
            self.away.add(time.perf_counter() - self._left)
        begun = time.perf_counter()
        idle.set()
        found = super().select(timeout)
        idle.clear()
        now = time.perf_counter()
        # Late: a thread had the interpreter's lock, or somebody else the CPU. The kernel waits in whole milliseconds.
        self._left = now if timeout is None else min(now, begun + max(timeout, 0.0) + _GRAIN_S)
        Round.began_s = now
        return found

    def close(self) -> None:
        """As the base class; no thread waits for this loop any more."""
        super().close()
        Round.began_s = None
        idle.set()
