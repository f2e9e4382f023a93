# SPDX-License-Identifier: BSD-2-Clause
"""Tests the kernel's histograms: quantiles, sums, and the bars."""

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from mrcd.ctl.commands import histograms as bars
from mrcd.kernel import abi, enums, histograms
from mrcd.kernel.histograms import Durations

LARGEST = 2**64 - 1


def counts(*values: int) -> NDArray[np.uint64]:
    """Returns a histogram of these values."""
    found = np.zeros(abi.BUCKETS, np.uint64)
    for value in values:
        found[next(b for b in range(abi.BUCKETS) if histograms.highest(b) >= value)] += 1
    return found


def test_quantiles_are_bounds_from_above() -> None:
    assert histograms.quantile(counts(), 0.5) is None
    assert [histograms.quantile(counts(3), q) for q in (0.0, 0.5, 1.0)] == [3, 3, 3]
    rng = random.Random(2)
    values = sorted(rng.randrange(10**6) for _ in range(999))
    for q in (0.01, 0.5, 0.9, 0.99, 1.0):
        found = histograms.quantile(counts(*values), q)
        true = values[max(0, int(np.ceil(q * len(values))) - 1)]
        assert found is not None
        assert true <= found <= true * 1.25


@pytest.mark.parametrize("power", [0, 1, 2, 3, 10, 40, 63])
def test_counts_below_a_power_of_two_are_exact(power: int) -> None:
    values = [0, 1, 2, 3, 4, 5, 7, 8, 1023, 1024, 2**40 - 1, 2**40, 2**63, LARGEST]
    assert histograms.count_below(counts(*values), power) == sum(v < 2**power for v in values)


def test_the_sum_is_about_right() -> None:
    values = [random.Random(i).randrange(1, 10**7) for i in range(300)]
    assert histograms.approximate_sum(counts(*values)) == pytest.approx(sum(values), rel=0.125)


def every() -> NDArray[np.uint64]:
    found = np.zeros((enums.HISTOGRAMS, abi.BUCKETS), np.uint64)
    found[enums.Histogram.DETECTION] = counts(300_000, 420_000, 9_000_000)
    found[enums.Histogram.AFTER_GOOD] = counts(0, 5)
    found[enums.Histogram.RTT + 1] = counts(31_000)
    return found


def test_bars() -> None:
    lines = bars.histogram_lines(histograms.documents(every(), 2))
    assert lines == [
        "Detection: from the last packet known to have arrived on an EV to ASSUMED_BAD",
        "  3: p50 ≤ 459 µs, p99 ≤ 10.5 ms, max ≤ 10.5 ms",
        f"   262 µs –  524 µs  {'█' * 40}  2",
        f"   524 µs – 1.05 ms  {' ' * 40}  0",
        f"  1.05 ms –  2.1 ms  {' ' * 40}  0",
        f"   2.1 ms – 4.19 ms  {' ' * 40}  0",
        f"  4.19 ms – 8.39 ms  {' ' * 40}  0",
        f"  8.39 ms – 16.8 ms  {'█' * 20:<40}  1",
        "",
        "Packets before detection: data packets sent on a failed EV until it was left",
        "  2: p50 ≤ 0, p99 ≤ 5, max ≤ 5",
        f"  0 – 0  {'█' * 40}  1",
        f"  1 – 1  {' ' * 40}  0",
        f"  2 – 3  {' ' * 40}  0",
        f"  4 – 7  {'█' * 40}  1",
        "",
        "Reinstatement: from ASSUMED_BAD to GOOD",
        "  none yet",
        "",
        "Round trips of probes, plane 0",
        "  none yet",
        "",
        "Round trips of probes, plane 1",
        "  1: p50 ≤ 32.8 µs, p99 ≤ 32.8 µs, max ≤ 32.8 µs",
        f"  16.4 µs – 32.8 µs  {'█' * 40}  1",
    ]
    assert bars.histogram_lines([]) == []


def test_durations_count_what_is_no_longer_than_each_bound() -> None:
    d = Durations()
    for seconds in (0.0001, 0.003, 0.02, 5.0):
        d.add(seconds)
    found = dict(d.cumulative())
    assert (found[0.0001], found[0.002], found[0.005], found[0.02], found[1.0], found["+Inf"]) == (1, 1, 2, 3, 3, 4)
    assert d.longest_s == 5.0
    assert d.sum_s == pytest.approx(5.0231)


def test_documents() -> None:
    docs = histograms.documents(every(), 2)
    assert [(d["histogram"], d["plane"], d["unit"], d["count"]) for d in docs] == [
        ("detection", None, "ns", 3),
        ("packets_before_detection", None, "packets", 2),
        ("reinstatement", None, "ns", 0),
        ("rtt", 0, "ns", 0),
        ("rtt", 1, "ns", 1),
    ]
    assert docs[1]["buckets"] == [{"from": 0, "to": 0, "count": 1}, {"from": 5, "to": 5, "count": 1}]
    assert (docs[1]["p50"], docs[1]["max"]) == (0, 5)
    assert (docs[3]["p50"], docs[3]["buckets"]) == (None, [])
