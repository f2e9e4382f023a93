"""The paper's points: read, scaled to what was usual there, and moved to the times of a course of our own. Pure but
for reading."""

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from mrcd.errors import MachineError

DATA = Path(__file__).with_name("data")
_LEAST_SAMPLES = 8  # of a plateau
_TOLERANCE = 0.1  # of one part, around k parts

Point = tuple[float, float]


class Curve(NamedTuple):
    """A measured quantity over time; a sample is the mean over the time since the one before."""

    times_s: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def spacing_s(self) -> float:
        """The usual time between two samples."""
        return median(b - a for a, b in pairwise(self.times_s))


class Plateau(NamedTuple):
    """Samples [first, end) around k parts of what is usual; `level` is their median."""

    first: int
    end: int
    parts: int
    level: float


def rows(name: str, columns: Sequence[str], directory: Path = DATA) -> list[list[str]]:
    """The lines of a CSV file with just these columns. Raises MachineError."""
    path = directory / name
    try:
        with path.open(encoding="ascii", newline="") as file:
            head, *found = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError) as e:
        raise MachineError(f"{path}: {e}", hint="the paper's points belong to the project: check it out anew") from None
    if head != list(columns) or not found or any(len(row) != len(head) for row in found):
        raise MachineError(f"{path} is no table of {', '.join(columns)}", hint="check the project out anew")
    return found


def curve(name: str, directory: Path = DATA) -> Curve:
    """A file of x (seconds) and y."""
    points = sorted((_number(x, name), _number(y, name)) for x, y in rows(name, ("x", "y"), directory))
    return Curve(tuple(x for x, _ in points), tuple(y for _, y in points))


def messages(directory: Path = DATA) -> dict[str, list[Point]]:
    """Figure 16: series, e.g. `MRC1@0.1%` → (bytes of a message, bit/s)."""
    found: dict[str, list[Point]] = {}
    name = "fig16.csv"
    for series, size, rate in rows(name, ("series", "msg_MB", "gbps"), directory):
        found.setdefault(series, []).append((_number(size, name) * 1e6, _number(rate, name) * 1e9))
    return found


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise MachineError(f"{name}: {text!r} is no number", hint="check the project out anew") from None


def scaled(measured: Curve, usual: float) -> Curve:
    """The same as a share of what is usual."""
    return Curve(measured.times_s, tuple(v / usual for v in measured.values))


def usual(measured: Curve, until_s: float | None = None) -> float:
    """The median of the samples, of those until a time if one is given."""
    return median(v for t, v in zip(measured.times_s, measured.values, strict=True) if until_s is None or t <= until_s)


def plateaus(shares: Curve, parts: int) -> list[Plateau]:
    """Where the samples stay around the same k/parts. What lies between is on its way from one to the next."""
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
    """How many parts that is; None if it lies between."""
    k = round(share * parts)
    return k if abs(share * parts - k) <= _TOLERANCE else None


def edges(shares: Curve, found: Sequence[Plateau]) -> list[float]:
    """When each plateau but the last was left: the time of its last sample."""
    return [shares.times_s[p.end - 1] for p in found[:-1]]


def beside(shares: Curve, theirs_s: Sequence[float], ours_s: Sequence[float], end_s: float) -> list[Point]:
    """The samples around each of their edges, at the distance that they have from it, around ours.

    Half of the way to our neighbouring edges is filled; what they measured farther away is left out.
    `end_s`: the end of our course, which begins at 0.
    """
    middles = [0.0, *((a + b) / 2 for a, b in pairwise(ours_s)), end_s]
    found = []
    for their, our, (left, right) in zip(theirs_s, ours_s, pairwise(middles), strict=True):
        moved = ((t - their + our, v) for t, v in zip(shares.times_s, shares.values, strict=True))
        found += [(t, v) for t, v in moved if left <= t < right]
    return found
