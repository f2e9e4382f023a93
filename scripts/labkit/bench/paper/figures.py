# SPDX-License-Identifier: BSD-2-Clause
"""Reads the paper's points, scales them to their usual level, and moves them to the times of a course of our own.

Pure but for reading.
"""

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from mrcd.errors import MachineError

DATA = Path(__file__).with_name("data")
_LEAST_SAMPLES = 8  # least samples of a plateau
_TOLERANCE = 0.1  # around k parts, as a share of one part

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


def rows(name: str, columns: Sequence[str], directory: Path = DATA) -> list[list[str]]:
    """Returns the lines of a CSV file with exactly these columns. Raises MachineError."""
    path = directory / name
    try:
        with path.open(encoding="ascii", newline="") as file:
            head, *found = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError) as e:
        raise MachineError(
            f"{path}: {e}", hint="the paper's points are part of the repository: check it out again"
        ) from None
    if head != list(columns) or not found or any(len(row) != len(head) for row in found):
        raise MachineError(f"{path} is not a table of {', '.join(columns)}", hint="check the repository out again")
    return found


def curve(name: str, directory: Path = DATA) -> Curve:
    """Returns a file of x (seconds) and y."""
    points = sorted((_number(x, name), _number(y, name)) for x, y in rows(name, ("x", "y"), directory))
    return Curve(tuple(x for x, _ in points), tuple(y for _, y in points))


def messages(directory: Path = DATA) -> dict[str, list[Point]]:
    """Returns figure 16: series, like `MRC1@0.1%` → (bytes of a message, bit/s)."""
    found: dict[str, list[Point]] = {}
    name = "fig16.csv"
    for series, size, rate in rows(name, ("series", "msg_MB", "gbps"), directory):
        found.setdefault(series, []).append((_number(size, name) * 1e6, _number(rate, name) * 1e9))
    return found


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise MachineError(f"{name}: {text!r} is not a number", hint="check the repository out again") from None


def scaled(measured: Curve, usual: float) -> Curve:
    """Returns the curve as a share of the usual level."""
    return Curve(measured.times_s, tuple(v / usual for v in measured.values))


def usual(measured: Curve, until_s: float | None = None) -> float:
    """Returns the median of the samples, of those until a time if one is given."""
    return median(v for t, v in zip(measured.times_s, measured.values, strict=True) if until_s is None or t <= until_s)


def plateaus(shares: Curve, parts: int) -> list[Plateau]:
    """Returns the intervals in which samples stay around the same k/parts; samples between are transitions."""
    near = [_parts(v, parts) for v in shares.values]
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


def _parts(share: float, parts: int) -> int | None:
    """Returns the number of parts; None for a level between."""
    k = round(share * parts)
    return k if abs(share * parts - k) <= _TOLERANCE else None


def edges(shares: Curve, found: Sequence[Plateau]) -> list[float]:
    """Returns the end of each plateau but the last: the time of its last sample."""
    return [shares.times_s[p.end - 1] for p in found[:-1]]


def beside(shares: Curve, theirs_s: Sequence[float], ours_s: Sequence[float], end_s: float) -> list[Point]:
    """Returns the samples around each of their edges, moved to ours at the same distance.

    Each edge gets samples up to half the way to our neighbouring edges; samples farther away are left out.
    `end_s`: the end of our course, which begins at 0.
    """
    middles = [0.0, *((a + b) / 2 for a, b in pairwise(ours_s)), end_s]
    found = []
    for their, our, (left, right) in zip(theirs_s, ours_s, pairwise(middles), strict=True):
        moved = ((t - their + our, v) for t, v in zip(shares.times_s, shares.values, strict=True))
        found += [(t, v) for t, v in moved if left <= t < right]
    return found
