# SPDX-License-Identifier: BSD-2-Clause
"""Computes goodput from bytes per bin. Pure.

Bins are {start in CLOCK_MONOTONIC ns: bytes}, aligned to multiples of their width; empty ones are absent.
Goodput is what the receiving application has read: no headers, no retransmissions.
"""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

BIN_NS = 20_000_000  # fine enough to see a hole begin and end
WIDE_NS = 100_000_000  # for requirements and drawings
HOLE = 0.05  # a bin below this share of the usual goodput is part of a hole
_S = 1_000_000_000

Bins = Mapping[int, int]


def regular(bins: Bins, begin_ns: int, end_ns: int, width_ns: int = WIDE_NS) -> list[int]:
    """Returns bytes per bin of `width_ns` in [begin, end), from `begin_ns` on; whole bins only.

    Exact if `begin_ns` and `width_ns` are multiples of the measured bins' width.
    """
    found = [0] * max(0, (end_ns - begin_ns) // width_ns)
    for start, count in bins.items():
        i = (start - begin_ns) // width_ns
        if 0 <= i < len(found):
            found[i] += count
    return found


def bits_per_s(count: float, ns: float) -> float:
    """Converts bytes in a time to bits per second."""
    return count * 8 * _S / ns if ns else 0.0


def mean(bins: Bins, begin_ns: int, end_ns: int) -> float | None:
    """Returns the mean goodput in bit/s over the whole bins inside [begin, end); None if there is none."""
    begin_ns += -begin_ns % BIN_NS
    end_ns -= end_ns % BIN_NS
    if end_ns <= begin_ns:
        return None
    return bits_per_s(sum(n for start, n in bins.items() if begin_ns <= start < end_ns), end_ns - begin_ns)


def usual(bins: Bins, begin_ns: int, end_ns: int) -> float:
    """Returns the median goodput in bit/s over bins of 100 ms; 0 if there is none."""
    found = regular(bins, begin_ns + -begin_ns % BIN_NS, end_ns)
    return bits_per_s(median(found), WIDE_NS) if found else 0.0


class Run(NamedTuple):
    """A number of bins in a row."""

    first: int
    length: int


def longest_run(values: Iterable[bool]) -> Run:
    """Returns the longest run of true values, the first of several; length 0 if there is none."""
    best, length = Run(0, 0), 0
    for i, value in enumerate(values):
        length = length + 1 if value else 0
        if length > best.length:
            best = Run(i + 1 - length, length)
    return best


class Hole(NamedTuple):
    """An interval in which (nearly) nothing arrived."""

    begin_ns: int
    length_ns: int


def longest_hole(bins: Bins, begin_ns: int, end_ns: int, usual_bits_per_s: float, width_ns: int = BIN_NS) -> Hole:
    """Returns the longest run of bins below 5 % of the usual goodput; length 0 if there is none."""
    begin_ns += -begin_ns % BIN_NS
    limit = HOLE * usual_bits_per_s
    run = longest_run(bits_per_s(n, width_ns) < limit for n in regular(bins, begin_ns, end_ns, width_ns))
    return Hole(begin_ns + run.first * width_ns, run.length * width_ns)
