# SPDX-License-Identifier: BSD-2-Clause
"""Compares two ways that were measured in pairs: do they differ? Pure.

The interval of the median is the inverted sign test: it holds every ratio that the test would not reject
(Conover, Practical Nonparametric Statistics, 3.2: order statistics by the binomial distribution). It assumes
nothing about the distribution of the ratios, which on a machine with two busy CPUs is not normal.
"""

import math
from collections.abc import Sequence
from statistics import median

from labkit.cluster.observe import Document

CONFIDENCE = 0.95
LEAST = 6  # fewer pairs have no interval of that confidence


def compare(ratios: Sequence[float]) -> Document:
    """Returns median, min, max and the interval of the true median with a confidence of `CONFIDENCE`.

    `low` and `high` are None, and `confidence_ratio` 0, for fewer than `LEAST` pairs.
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


def below(found: Document, bound: float) -> bool:
    """Returns whether the median is measurably below `bound`: the whole interval is."""
    return found["high"] is not None and bool(found["high"] < bound)


def words(found: Document) -> str:
    """Returns `median 0.99 (0.9–1.1), 96 % interval 0.97–1.02, 20 pairs`."""
    if found["low"] is None:
        return f"{len(found['ratios'])} pairs are too few for an interval"
    return (
        f"median {found['median']:.3f} ({found['min']:.2f}–{found['max']:.2f}), "
        f"{found['confidence_ratio']:.0%} interval {found['low']:.3f}–{found['high']:.3f}, {len(found['ratios'])} pairs"
    )
