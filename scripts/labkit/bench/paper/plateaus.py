"""Goodput in regular bins, with the moments at which planes left and returned → levels, errors, holes. Pure."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from labkit.bench.paper.figures import Curve, Plateau
from labkit.cluster.observe import Document
from labkit.measure import goodput

LAST_PART = 0.4  # of a phase: its level; before, planes may be on their way back
SETTLED = 0.95  # of the new level, over _SETTLED_S
_SETTLED_S = 0.1
_LEAST_BINS = 5  # in which a message arrives, for its goodput to mean something


class Phase(NamedTuple):
    """So many planes are there, from then on."""

    begin_s: float
    planes: int


def levels(bits_per_s: Sequence[float], bin_s: float, phases: Sequence[Phase], end_s: float) -> list[float]:
    """The mean goodput in the last part of each phase."""
    ends = [p.begin_s for p in phases[1:]] + [end_s]
    return [
        mean(bits_per_s, bin_s, end - LAST_PART * (end - p.begin_s), end) for p, end in zip(phases, ends, strict=True)
    ]


def mean(bits_per_s: Sequence[float], bin_s: float, begin_s: float, end_s: float) -> float:
    """Over the whole bins inside [begin, end); 0 if there is none."""
    found = bits_per_s[math.ceil(begin_s / bin_s - 1e-9) : math.floor(end_s / bin_s + 1e-9)]
    return fmean(found) if found else 0.0


def judged(
    bits_per_s: Sequence[float], bin_s: float, phases: Sequence[Phase], end_s: float, sample_s: float
) -> list[Document]:
    """Every phase after the first one, in which all planes are there, with what happened as it began.

    level_ratio        of the first phase's level
    ideal_ratio        planes that are there, of all
    error_ratio        how far the one is from the other, as a share of the ideal
    hole_ms            longest run of bins below half of the lower of the two neighbouring levels, in the whole phase
    hole_after_ms      from the beginning of the phase to that of the hole; None if there is none
    settled_ms         until 100 ms bring 95 % of the new level; None if they never do
    lowest_sample_ratio  least mean over `sample_s` in the phase, of the lower level
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
    """What the bins do before anything happens, by the same measures."""
    inside = bits_per_s[: math.floor(until_s / bin_s + 1e-9)]
    level = fmean(inside) if inside else 0.0
    return {
        "hole_ms": goodput.longest_run(v < level / 2 for v in inside).length * bin_s * 1000,
        "lowest_sample_ratio": _lowest(inside, bin_s, sample_s, level),
    }


def windows(values: Sequence[float], width: int) -> list[float]:
    """The means over every `width` neighbours."""
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
    """The same of the paper's samples: every plateau after the first, and the hole on the way to it.

    `hole_ms`: samples in a row below half of the lower level; 0 if there is none. `most_hidden_ms`: the longest that a
    sample of the way can hide, the higher level being reached in the rest of it.
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
    """The greatest share of a sample in which there may have been nothing."""
    return max([1 - v / level for v in samples] + [0.0])


def messages(bits_per_s: Sequence[float], bin_s: float, sizes: Sequence[float]) -> list[tuple[float, float]]:
    """(bytes, bit/s) of messages that would have begun with the first bin and ended when so much had arrived.

    Of those of `sizes` that had arrived by the end, and took five bins at least.
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
