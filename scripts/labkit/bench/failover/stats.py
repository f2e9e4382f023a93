# SPDX-License-Identifier: BSD-2-Clause
"""Computes percentiles of times of which some never came, requirements on them, and texts. Pure."""

import math
from collections.abc import Iterable, Sequence

from labkit.bench.part import requirement
from labkit.cluster.observe import Document

Times = Sequence[float | None]  # None: it never came, which is longer than any time


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


def within(words: str, found: Document, bounds: Iterable[tuple[str, float]]) -> Document:
    """Returns the requirement that a summary's percentiles (ns) are within their bounds."""
    limits = list(bounds)
    met = found["count"] > 0 and all((v := found[p]) is not None and v <= limit for p, limit in limits)
    said = ", ".join(f"{p} {duration(found[p]) if found['count'] else '-'}" for p in ("p50", "p99"))
    wanted = " and ".join(f"{p} within {duration(limit)}" for p, limit in limits)
    return requirement(f"{words}: {wanted}", met, f"{said} of {found['count']}")


def duration(ns: float | None) -> str:
    """Returns the duration in a suitable unit: 0, 870 ns, 12.3 µs, 4.56 ms, 1.2 s; `never` for None."""
    if ns is None:
        return "never"
    for size, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= 0.9995 * size:
            return f"{ns / size:.3g} {name}"
    return f"{ns:.0f} ns" if ns else "0"
