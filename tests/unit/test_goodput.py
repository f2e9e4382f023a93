# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.measure.goodput: bytes per bin → goodput, gaps."""

from labkit.measure import goodput
from labkit.measure.goodput import BIN_NS, WIDE_NS

S = 1_000_000_000
BEGIN = 500 * BIN_NS
RATE = 8e9
FULL = int(RATE / 8 * BIN_NS / S)


def flow(seconds: float, *holes: tuple[float, float]) -> dict[int, int]:
    """Returns 8 Gbit/s from BEGIN on, with nothing in the gaps (seconds after BEGIN)."""
    starts = range(BEGIN, BEGIN + int(seconds * S), BIN_NS)
    return {t: FULL for t in starts if not any(a <= (t - BEGIN) / S < b for a, b in holes)}


def test_bins_of_another_width_hold_the_same_bytes() -> None:
    bins = flow(1.0)
    wide = goodput.regular(bins, BEGIN, BEGIN + S)
    assert wide == [5 * FULL] * 10
    assert sum(wide) == sum(bins.values())


def test_a_part_of_a_bin_at_the_end_is_left_out() -> None:
    assert len(goodput.regular(flow(1.0), BEGIN, BEGIN + 2 * WIDE_NS + 1)) == 2
    assert goodput.regular({}, BEGIN, BEGIN - 1) == []


def test_mean_is_over_whole_bins_inside() -> None:
    bins = flow(2.0, (0.5, 1.0))
    assert goodput.mean(bins, BEGIN, BEGIN + 2 * S) == RATE * 0.75
    assert goodput.mean(bins, BEGIN + 1, BEGIN + BIN_NS) is None
    # Measured from the middle of a bin, the bins cut in two do not count.
    assert goodput.mean(flow(1.0), BEGIN + BIN_NS // 2, BEGIN + 10 * BIN_NS + 7) == RATE


def test_usual_ignores_a_short_hole() -> None:
    assert goodput.usual(flow(1.0, (0.2, 0.4)), BEGIN, BEGIN + S) == RATE
    assert goodput.usual({}, BEGIN, BEGIN) == 0


def test_the_longest_hole_is_found_with_its_place() -> None:
    bins = flow(3.0, (0.5, 0.58), (1.0, 1.2), (2.0, 2.1))
    assert goodput.longest_hole(bins, BEGIN, BEGIN + 3 * S, RATE) == (BEGIN + S, S // 5)
    assert goodput.longest_hole(bins, BEGIN + 2 * S, BEGIN + 3 * S, RATE) == (BEGIN + 2 * S, S // 10)


def test_nearly_empty_bins_are_a_gap_and_a_dip_is_none() -> None:
    bins = flow(1.0)
    bins[BEGIN + 10 * BIN_NS] = int(FULL * 0.04)
    bins[BEGIN + 20 * BIN_NS] = int(FULL * 0.06)
    assert goodput.longest_hole(bins, BEGIN, BEGIN + S, RATE) == (BEGIN + 10 * BIN_NS, BIN_NS)


def test_a_flow_without_holes_has_none() -> None:
    assert goodput.longest_hole(flow(1.0), BEGIN, BEGIN + S, RATE).length_ns == 0


def test_a_flow_that_never_returns_is_a_gap_to_the_end() -> None:
    assert goodput.longest_hole(flow(1.0), BEGIN, BEGIN + 3 * S, RATE) == (BEGIN + S, 2 * S)


def test_empty_bins_are_those_of_100_ms_without_a_byte() -> None:
    bins = flow(1.0, (0.5, 0.7), (0.8, 0.88))
    assert goodput.empty(bins, BEGIN, BEGIN + S) == 2
    bins[BEGIN + 26 * BIN_NS] = 1
    assert goodput.empty(bins, BEGIN, BEGIN + S) == 1


def test_the_longest_run_is_the_first_of_its_length() -> None:
    assert goodput.longest_run([True, False, True, True, False, True, True]) == (2, 2)
    assert goodput.longest_run([False, False]) == (0, 0)
    assert goodput.longest_run([]) == (0, 0)
