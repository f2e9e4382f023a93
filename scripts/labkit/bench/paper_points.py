# SPDX-License-Identifier: BSD-2-Clause
"""Reads the MRC paper's points (data/), and computes levels and gaps of a course, the paper's or our own. Pure."""

import csv
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from labkit.cluster.observe import Document
from labkit.measure import goodput
from mrcd.errors import MachineError

DATA = Path(__file__).with_name("data")
_LEAST_SAMPLES = 8  # least samples of a plateau
_TOLERANCE = 0.1  # around k parts, as a share of one part
LAST_PART = 0.4  # end part of a phase that gives its level; planes may still be returning before
_LEAST_BINS = 5  # bins of a message, at least, for a meaningful goodput

Point = tuple[float, float]


class Curve(NamedTuple):
    """A measured quantity over time; a sample is the mean over the time since the previous one."""

    times_s: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def spacing_s(self) -> float:
        """Returns the usual time between two samples."""
        return median(b - a for a, b in pairwise(self.times_s))


class Plateau(NamedTuple):
    """Samples [first, end) around k parts of the usual level; `level` is their median."""

    first: int
    end: int
    parts: int
    level: float


class Phase(NamedTuple):
    """The number of planes from a time on."""

    begin_s: float
    planes: int


# ---- the paper's points ----


def rows(name: str, columns: Sequence[str]) -> list[list[str]]:
    """Returns the lines of a CSV file with exactly these columns. Raises MachineError."""
    path = DATA / name
    try:
        head, *found = list(csv.reader(path.read_text(encoding="ascii").splitlines())) or [[]]
    except (OSError, UnicodeDecodeError) as e:
        raise MachineError(
            f"{path}: {e}", hint="the paper's points are in the repository: check it out again"
        ) from None
    if head != list(columns):
        raise MachineError(f"{path} is not a table of {', '.join(columns)}", hint="check the repository out again")
    return found


def curve(name: str, until_s: float = math.inf) -> Curve:
    """Returns a file of x (seconds) and y, as a share of the usual level: the median of the samples until a time."""
    points = sorted((float(x), float(y)) for x, y in rows(name, ("x", "y")))
    usual = median(y for x, y in points if x <= until_s)
    return Curve(tuple(x for x, _ in points), tuple(y / usual for _, y in points))


def messages() -> dict[str, list[Point]]:
    """Returns figure 16: series, like `MRC1@0.1%` → (bytes of a message, bit/s)."""
    found: dict[str, list[Point]] = {}
    for series, size, rate in rows("fig16.csv", ("series", "msg_MB", "gbps")):
        found.setdefault(series, []).append((float(size) * 1e6, float(rate) * 1e9))
    return found


def plateaus(shares: Curve, parts: int) -> list[Plateau]:
    """Returns the intervals in which samples stay around the same k/parts; samples between are transitions."""
    near = [round(x) if abs(x - round(x)) <= _TOLERANCE else None for x in (v * parts for v in shares.values)]
    found: list[Plateau] = []
    first = 0
    for i in range(1, len(near) + 1):
        if i < len(near) and near[i] == near[first]:
            continue
        k = near[first]
        if k is not None and i - first >= _LEAST_SAMPLES:
            found.append(Plateau(first, i, k, median(shares.values[first:i])))
        first = i
    return found


def edges(shares: Curve, found: Sequence[Plateau]) -> list[float]:
    """Returns the end of each plateau but the last: the time of its last sample."""
    return [shares.times_s[p.end - 1] for p in found[:-1]]


def beside(shares: Curve, theirs_s: Sequence[float], ours_s: Sequence[float], end_s: float) -> list[Point]:
    """Returns the samples around each of their edges, moved to ours at the same distance.

    Each edge gets samples up to half the way to our neighbouring edges; samples farther away are left out.
    """
    middles = [0.0, *((a + b) / 2 for a, b in pairwise(ours_s)), end_s]
    found = []
    for their, our, (left, right) in zip(theirs_s, ours_s, pairwise(middles), strict=True):
        moved = ((t - their + our, v) for t, v in zip(shares.times_s, shares.values, strict=True))
        found += [(t, v) for t, v in moved if left <= t < right]
    return found


def theirs(shares: Curve, found: Sequence[Plateau]) -> list[Document]:
    """Returns for each of the paper's plateaus after the first its level, and the gap before it.

    `hole_ms`: samples in a row below half of the lower level; 0 if there is none. `most_hidden_ms`: the longest gap
    that a sample of the transition can hide, if the rest of the sample is at the higher level.
    """
    documents = []
    for before, now in pairwise(found):
        lower, higher = sorted((before.level, now.level))
        run = goodput.longest_run(v < lower / 2 for v in shares.values[before.end : now.end])
        between = shares.values[before.end : now.first + 1]
        documents.append(
            {
                "level_ratio": now.level / found[0].level,
                "hole_ms": run.length * shares.spacing_s * 1000,
                "most_hidden_ms": max([1 - v / higher for v in between] + [0.0]) * shares.spacing_s * 1000,
            }
        )
    return documents


# ---- our own course: goodput in regular bins ----


def mean(bits_per_s: Sequence[float], bin_s: float, begin_s: float, end_s: float) -> float:
    """Returns the mean over the whole bins inside [begin, end); 0 if there is none."""
    found = bits_per_s[math.ceil(begin_s / bin_s - 1e-9) : math.floor(end_s / bin_s + 1e-9)]
    return fmean(found) if found else 0.0


def steps(bits_per_s: Sequence[float], bin_s: float, phases: Sequence[Phase], end_s: float) -> list[Document]:
    """Returns every phase after the first, which has all planes. A level is the mean in the last part of a phase.

    level_ratio  as a ratio to the first phase's level
    ideal_ratio  present planes, as a ratio to all
    error_ratio  difference of these two, as a share of the ideal
    hole_ms      longest run of bins below half of the lower of the two neighbouring levels, in the whole phase
    """
    ends = [p.begin_s for p in phases[1:]] + [end_s]
    levels = [
        mean(bits_per_s, bin_s, end - LAST_PART * (end - p.begin_s), end) for p, end in zip(phases, ends, strict=True)
    ]
    documents = []
    for (begin_s, planes), end, before, level in zip(phases[1:], ends[1:], levels, levels[1:], strict=False):
        inside = bits_per_s[int(begin_s / bin_s + 1e-9) : math.floor(end / bin_s + 1e-9)]
        lower = min(before, level)
        ratio, ideal = _ratio(level, levels[0]), planes / phases[0].planes
        documents.append(
            {
                "begin_s": begin_s,
                "end_s": end,
                "planes": planes,
                "level_ratio": ratio,
                "ideal_ratio": ideal,
                "error_ratio": ratio / ideal - 1,
                "hole_ms": goodput.longest_run(v < lower / 2 for v in inside).length * bin_s * 1000,
            }
        )
    return documents


def _ratio(value: float, of: float) -> float:
    return value / of if of else 0.0


def middle(values: Sequence[float | None]) -> float | None:
    """Returns the median; None is greater than all else."""
    known = sorted(v for v in values if v is not None)
    if 2 * len(known) <= len(values):
        return None
    return median(known) if len(known) == len(values) else known[(len(values) - 1) // 2]


def arrived(bits_per_s: Sequence[float], bin_s: float, sizes: Sequence[float]) -> list[Point]:
    """Returns (bytes, bit/s) of messages that begin with the first bin and end when all their bytes have arrived.

    Only those of `sizes` that arrived by the end, and took at least five bins.
    """
    found = []
    so_far, wanted = 0.0, sorted(sizes)
    for i, rate in enumerate(bits_per_s):
        count = rate * bin_s / 8
        while wanted and so_far + count >= wanted[0] and count:
            size = wanted.pop(0)
            seconds = bin_s * (i + (size - so_far) / count)
            if seconds >= _LEAST_BINS * bin_s:
                found.append((size, size * 8 / seconds))
        so_far += count
    return found
