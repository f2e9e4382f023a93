# SPDX-License-Identifier: BSD-2-Clause
"""Evaluates the programs' histograms, and collects the daemon's own durations in one. Pure.

The programs' histograms have four linear buckets per power of two (bucket_of() in bpf/arith.h).
"""

import bisect
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.kernel.abi import BUCKETS
from mrcd.kernel.enums import Histogram

Counts = NDArray[np.uint64]  # (BUCKETS,)

_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Durations:
    """A histogram of durations, with their sum and their maximum."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self.sum_s = self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Adds a duration."""
        self._counts[bisect.bisect_left(_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def cumulative(self) -> list[tuple[float | str, int]]:
        """Returns pairs of (bound in seconds, durations up to it); the last bound is +Inf."""
        return list(zip((*_BOUNDS_S, "+Inf"), itertools.accumulate(self._counts), strict=True))


def lowest(bucket: int) -> int:
    """Returns the least value of a bucket."""
    if bucket < 4:
        return bucket
    return (4 + bucket % 4) << (bucket // 4 - 1)


LOWEST = [lowest(b) for b in range(BUCKETS + 1)]


def highest(bucket: int) -> int:
    """Returns the greatest value of a bucket."""
    return LOWEST[bucket + 1] - 1


def quantile(counts: Counts, q: float) -> int | None:
    """Returns an upper bound of the quantile `q`, at most a quarter too high; None if the histogram is empty."""
    total = int(counts.sum())
    if not total:
        return None
    reached = np.cumsum(counts) >= max(1, np.ceil(q * total))
    return highest(int(np.argmax(reached)))


def count_below(counts: Counts, power: int) -> int:
    """Returns how many values are less than 2^power."""
    return int(counts[: 4 * (power - 1) if power >= 2 else 1 << power].sum())


def approximate_sum(counts: Counts) -> float:
    """Returns the sum of all values, each counted as the middle of its bucket: wrong by an eighth at most."""
    middles = np.array([(lowest(b) + highest(b)) / 2 for b in range(BUCKETS)])
    return float((counts * middles).sum())


def histograms_in_use(planes: int) -> Iterator[tuple[int, str, str, int | None]]:
    """Yields index, name, unit and plane of every histogram in use."""
    yield Histogram.DETECTION, "detection", "ns", None
    yield Histogram.AFTER_GOOD, "packets_before_detection", "packets", None
    yield Histogram.REINSTATEMENT, "reinstatement", "ns", None
    for plane in range(planes):
        yield Histogram.RTT + plane, "rtt", "ns", plane


def documents(counts: NDArray[np.uint64], planes: int) -> list[dict[str, Any]]:
    """Returns a document per histogram of (HISTOGRAMS, BUCKETS) counts. Quantiles are upper bounds."""
    found = []
    for index, name, unit, plane in histograms_in_use(planes):
        row = counts[index]
        buckets = [{"from": lowest(b), "to": highest(b), "count": int(row[b])} for b in np.flatnonzero(row).tolist()]
        found.append(
            {
                "histogram": name,
                "plane": plane,
                "unit": unit,
                "count": int(row.sum()),
                "p50": quantile(row, 0.5),
                "p99": quantile(row, 0.99),
                "max": quantile(row, 1.0),
                "buckets": buckets,
            }
        )
    return found
