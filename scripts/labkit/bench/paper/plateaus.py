# SPDX-License-Identifier: BSD-2-Clause
"""Computes levels, errors and gaps from goodput in regular bins and the times of planes leaving and returning. Pure."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from labkit.bench.paper.figures import Curve, Plateau
from labkit.cluster.observe import Document
from labkit.measure import goodput

LAST_PART = 0.4  # end part of a phase that gives its level; planes may still be returning before
SETTLED = 0.95  # share of the new level, over _SETTLED_S
_SETTLED_S = 0.1
_LEAST_BINS = 5  # bins of a message, at least, for a meaningful goodput


class Phase(NamedTuple):
    """The number of planes from a time on."""

    begin_s: float
    planes: int


def levels(bits_per_s: Sequence[float], bin_s: float, phases: Sequence[Phase], end_s: float) -> list[float]:
    """Returns the mean goodput in the last part of each phase."""
    ends = [p.begin_s for p in phases[1:]] + [end_s]
    return [
        mean(bits_per_s, bin_s, end - LAST_PART * (end - p.begin_s), end) for p, end in zip(phases, ends, strict=True)
    ]


def mean(bits_per_s: Sequence[float], bin_s: float, begin_s: float, end_s: float) -> float:
    """Returns the mean over the whole bins inside [begin, end); 0 if there is none."""
    found = bits_per_s[math.ceil(begin_s / bin_s - 1e-9) : math.floor(end_s / bin_s + 1e-9)]
    return fmean(found) if found else 0.0


def judged(
    bits_per_s: Sequence[float], bin_s: float, phases: Sequence[Phase], end_s: float, sample_s: float
) -> list[Document]:
    """Returns every phase after the first, which has all planes, with its start.

    level_ratio        as a ratio to the first phase's level
    ideal_ratio        present planes, as a ratio to all
    error_ratio        difference of these two, as a share of the ideal
    hole_ms            longest run of bins below half of the lower of the two neighbouring levels, in the whole phase
    hole_after_ms      from the start of the phase to that of the gap; None if there is none
    settled_ms         until 100 ms have 95 % of the new level; None if they never do
    lowest_sample_ratio  least mean over `sample_s` in the phase, as a ratio to the lower level
    """
    found = levels(bits_per_s, bin_s, phases, end_s)
    ends = [p.begin_s for p in phases[1:]] + [end_s]
    documents = []
    for i in range(1, len(phases)):
        begin_s, planes = phases[i]
        first = int(begin_s / bin_s + 1e-9)
        inside = bits_per_s[first : math.floor(ends[i] / bin_s + 1e-9)]
        lower = min(found[i - 1], found[i])
        run = goodput.longest_run(v < lower / 2 for v in inside)
        level, ideal = _ratio(found[i], found[0]), planes / phases[0].planes
        documents.append(
            {
                "begin_s": begin_s,
                "end_s": ends[i],
                "planes": planes,
                "level_bits_per_s": found[i],
                "level_ratio": level,
                "ideal_ratio": ideal,
                "error_ratio": level / ideal - 1,
                "hole_ms": run.length * bin_s * 1000,
                "hole_after_ms": max(0.0, (first + run.first) * bin_s - begin_s) * 1000 if run.length else None,
                "settled_ms": _settled_ms(inside, bin_s, found[i]),
                "lowest_sample_ratio": _lowest(inside, bin_s, sample_s, lower),
            }
        )
    return documents


def undisturbed(bits_per_s: Sequence[float], bin_s: float, until_s: float, sample_s: float) -> Document:
    """Returns the same measures of the bins before any fault."""
    inside = bits_per_s[: math.floor(until_s / bin_s + 1e-9)]
    level = fmean(inside) if inside else 0.0
    return {
        "hole_ms": goodput.longest_run(v < level / 2 for v in inside).length * bin_s * 1000,
        "lowest_sample_ratio": _lowest(inside, bin_s, sample_s, level),
    }


def windows(values: Sequence[float], width: int) -> list[float]:
    """Returns the means over every `width` neighbours."""
    return [fmean(values[i : i + width]) for i in range(len(values) - width + 1)] if width > 0 else []


def _settled_ms(inside: Sequence[float], bin_s: float, level: float) -> float | None:
    means = windows(inside, round(_SETTLED_S / bin_s))
    at = next((i for i, m in enumerate(means) if m >= SETTLED * level), None)
    return at * bin_s * 1000 if at is not None and level else None


def _lowest(inside: Sequence[float], bin_s: float, sample_s: float, level: float) -> float:
    return _ratio(min(windows(inside, round(sample_s / bin_s)), default=0.0), level)


def _ratio(value: float, of: float) -> float:
    return value / of if of else 0.0


def papers(shares: Curve, found: Sequence[Plateau]) -> list[Document]:
    """Returns the same for the paper's samples: every plateau after the first, and the gap before it.

    `hole_ms`: samples in a row below half of the lower level; 0 if there is none. `most_hidden_ms`: the longest gap
    that a sample of the transition can hide, if the rest of the sample is at the higher level.
    """
    documents = []
    for before, now in pairwise(found):
        way = shares.values[before.end : now.end]
        lower = min(before.level, now.level)
        run = goodput.longest_run(v < lower / 2 for v in way)
        documents.append(
            {
                "parts": now.parts,
                "level_ratio": now.level / found[0].level,
                "hole_ms": run.length * shares.spacing_s * 1000,
                "most_hidden_ms": _hidden(shares.values[before.end : now.first + 1], max(before.level, now.level))
                * shares.spacing_s
                * 1000,
                "lowest_sample_ratio": min(way) / lower,
                "settled_ms": (shares.times_s[now.first] - shares.times_s[before.end - 1]) * 1000,
            }
        )
    return documents


def _hidden(samples: Sequence[float], level: float) -> float:
    """Returns the greatest share of a sample that may be empty."""
    return max([1 - v / level for v in samples] + [0.0])


def messages(bits_per_s: Sequence[float], bin_s: float, sizes: Sequence[float]) -> list[tuple[float, float]]:
    """Returns (bytes, bit/s) of messages that begin with the first bin and end when all their bytes have arrived.

    Only those of `sizes` that arrived by the end, and took at least five bins.
    """
    found = []
    arrived, wanted = 0.0, sorted(sizes)
    for i, rate in enumerate(bits_per_s):
        count = rate * bin_s / 8
        while wanted and arrived + count >= wanted[0] and count:
            size = wanted.pop(0)
            seconds = bin_s * (i + (size - arrived) / count)
            if seconds >= _LEAST_BINS * bin_s:
                found.append((size, size * 8 / seconds))
        arrived += count
    return found
