"""Histograms: the programs' with four linear buckets per power of two (bucket_of() in bpf/arith.h), and one of the
daemon's own durations. Pure."""

import bisect
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.tables.abi import BUCKETS, Histogram

Counts = NDArray[np.uint64]  # (BUCKETS,)

_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Durations:
    """A histogram of durations, with their sum and the longest."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self.sum_s = self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Counts one duration."""
        self._counts[bisect.bisect_left(_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def cumulative(self) -> list[tuple[float | str, int]]:
        """Returns how many durations are no longer than each bound; the last bound is +Inf."""
        return list(zip((*_BOUNDS_S, "+Inf"), itertools.accumulate(self._counts), strict=True))


def lowest(bucket: int) -> int:
    """The least value of a bucket."""
    if bucket < 4:
        return bucket
    return (4 + bucket % 4) << (bucket // 4 - 1)


LOWEST = [lowest(b) for b in range(BUCKETS + 1)]


def highest(bucket: int) -> int:
    """The greatest value of a bucket."""
    return LOWEST[bucket + 1] - 1


def quantile(counts: Counts, q: float) -> int | None:
    """A value that at least the share `q` of all does not exceed: too high by a fourth at most. None if empty."""
    total = int(counts.sum())
    if not total:
        return None
    reached = np.cumsum(counts) >= max(1, np.ceil(q * total))
    return highest(int(np.argmax(reached)))


def below(counts: Counts, power: int) -> int:
    """How many values are less than 2^power."""
    return int(counts[: 4 * (power - 1) if power >= 2 else 1 << power].sum())


def about(counts: Counts) -> float:
    """The sum of all values, each taken as the middle of its bucket: off by an eighth at most."""
    middles = np.array([(lowest(b) + highest(b)) / 2 for b in range(BUCKETS)])
    return float((counts * middles).sum())


def each(planes: int) -> Iterator[tuple[int, str, str, int | None]]:
    """Index, name, unit and plane of every histogram in use."""
    yield Histogram.DETECTION, "detection", "ns", None
    yield Histogram.AFTER_GOOD, "packets_before_detection", "packets", None
    yield Histogram.REINSTATEMENT, "reinstatement", "ns", None
    for plane in range(planes):
        yield Histogram.RTT + plane, "rtt", "ns", plane


def documents(counts: NDArray[np.uint64], planes: int) -> list[dict[str, Any]]:
    """Of (HISTOGRAMS, BUCKETS) counts: a document each. Values are in `unit`; quantiles are upper bounds."""
    found = []
    for index, name, unit, plane in each(planes):
        mine = counts[index]
        buckets = [{"from": lowest(b), "to": highest(b), "count": int(mine[b])} for b in np.flatnonzero(mine).tolist()]
        found.append(
            {
                "histogram": name,
                "plane": plane,
                "unit": unit,
                "count": int(mine.sum()),
                "p50": quantile(mine, 0.5),
                "p99": quantile(mine, 0.99),
                "max": quantile(mine, 1.0),
                "buckets": buckets,
            }
        )
    return found
