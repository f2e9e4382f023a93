# SPDX-License-Identifier: BSD-2-Clause
"""Computes percentiles of times of which some never came, and intervals of the median of pairs. Pure.

The interval of the median is the inverted sign test: it holds every ratio that the test would not reject
(Conover, Practical Nonparametric Statistics, 3.2: order statistics by the binomial distribution). It assumes
nothing about the distribution of the ratios, which on a machine with two busy CPUs is not normal.
"""

import math
from collections.abc import Sequence
from statistics import median

from labkit.cluster.observe import Document
from labkit.tables import duration

Times = Sequence[float | None]  # None: it never came, which is longer than any time
CONFIDENCE = 0.95


def percentile(values: Times, share: float) -> float | None:
    """Returns the nearest rank: the least value that `share` of all do not exceed. None: never, or no values."""
    ordered = sorted(math.inf if v is None else v for v in values)
    if not ordered:
        return None
    found = ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]
    return None if math.isinf(found) else found


def summary(values: Times) -> Document:
    """Returns p50, p99 and max; `never` of `count` never came."""
    return {
        "count": len(values),
        "never": sum(v is None for v in values),
        "p50": percentile(values, 0.5),
        "p99": percentile(values, 0.99),
        "max": percentile(values, 1.0),
    }


def spread(name: str, found: Document) -> Document:
    """Returns the cells of a summary of ns: p50, p99 and the maximum."""
    none = not found["count"]
    return {f"{name}_{p}": "-" if none else duration(found[p]) for p in ("p50", "p99", "max")}


def compare(ratios: Sequence[float]) -> Document:
    """Returns median, min, max and the interval of the true median with a confidence of `CONFIDENCE`.

    `low` and `high` are None, and `confidence_ratio` 0, for too few pairs.
    """
    ordered, rank, confidence = sorted(ratios), *_rank(len(ratios))
    return {
        "ratios": list(ratios),
        "median": median(ordered) if ordered else None,
        "min": ordered[0] if ordered else None,
        "max": ordered[-1] if ordered else None,
        "low": ordered[rank - 1] if rank else None,
        "high": ordered[-rank] if rank else None,
        "confidence_ratio": confidence,  # of this interval; the number of pairs limits it
    }


def _rank(n: int) -> tuple[int, float]:
    """Returns rank r and confidence of the interval from the r-th least to the r-th greatest of n; 0: n too small."""
    best = 0, 0.0
    for rank in range(1, n // 2 + 1):
        # The chance that fewer than `rank` values are on one side of the true median, each with probability 1/2.
        confidence = 1 - 2 * sum(math.comb(n, i) for i in range(rank)) / 2**n
        if confidence < CONFIDENCE:
            break
        best = rank, confidence
    return best


def words(found: Document) -> str:
    """Returns `0.990 (0.90–1.10), 96 % interval 0.970–1.020, 20 pairs`; the interval only if there are enough."""
    if found["median"] is None:
        return "none"
    said = f"{found['median']:.3f} ({found['min']:.2f}–{found['max']:.2f})"
    if found["low"] is not None:
        said += f", {found['confidence_ratio']:.0%} interval {found['low']:.3f}–{found['high']:.3f}"
    return f"{said}, {len(found['ratios'])} pairs"
