# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.bench.planes and labkit.measure.order: shares of limited planes, and lateness of data."""

import re
from pathlib import Path
from typing import Any

import pytest

from labkit.bench import planes
from labkit.bench.part import Options
from labkit.faults import inject
from labkit.faults.inject import Fault
from labkit.measure import order
from mrcd.errors import UsageError


def test_the_program_and_python_agree_on_the_histogram() -> None:
    source = (Path(__file__).parents[2] / "bpf/lab/order.bpf.c").read_text()
    assert int(re.findall(r"#define BUCKETS (\d+)", source)[0]) == order.BUCKETS
    assert f"sizeof(struct order) == {order.ORDER.size}" in source


def test_percentiles_are_upper_bounds_of_buckets() -> None:
    late = [90, 0, 0, 6, 4] + [0] * 27  # in order; 4 to 7 bytes; 8 to 15
    assert order.share_late(late) == pytest.approx(0.1)
    assert [order.percentile(late, p) for p in (0.5, 0.9, 0.95, 0.99)] == [0, 0, 8, 16]
    assert order.share_late([0] * 32) == 0


def case(ratio: float, least: float) -> dict[str, Any]:
    ways = [{"name": "mrcd", "median_ratio": ratio}, {"name": "mptcp", "median_ratio": 0.5}]
    return {"case": "some planes", "required_ratio": least, "ways": ways}


def test_the_requirement_compares_the_median_of_mrcd_and_shows_mptcp() -> None:
    assert planes.required(case(0.5, 0.0)) == []
    (met,), (missed,) = planes.required(case(0.97, 0.97)), planes.required(case(0.969, 0.97))
    assert met["met"]
    assert not missed["met"]
    assert met["measured"] == "97 %; mptcp 50 %"


def test_required_cases_run_five_times_and_all_cases_in_the_full_form() -> None:
    required, other = planes.CASES[0], next(c for c in planes.CASES if not c.least)
    short = [planes.number_of_runs(c, w, Options()) for c in (required, other) for w in (planes.MRCD, planes.MPTCP)]
    assert short == [5, 2, 1, 1]
    assert planes.number_of_runs(other, planes.MPTCP, Options(full=True)) == 5
    assert planes.number_of_runs(required, planes.MRCD, Options(pairs=1)) == 1


def test_the_sum_counts_the_other_plane_at_its_own_rate() -> None:
    sums = {c.name: c.sum_bits_per_s / 1e6 for c in planes.CASES}
    assert sums["4 × 200 Mbit/s"] == 800
    assert sums["one of half the rate"] == 700


@pytest.mark.parametrize(("text", "seconds"), [("5ms", 0.005), ("500us", 0.0005), ("0.1s", 0.1)])
def test_times(text: str, seconds: float) -> None:
    assert inject.parse_time(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["5", "ms", "-1ms", "5 ms", ""])
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        inject.parse_time(text)


def test_a_delay_has_a_bound_and_does_not_go_with_a_link_that_is_down() -> None:
    assert Fault(delay_s=0.005).what == "delay 5 ms"
    with pytest.raises(UsageError, match="out of range"):
        Fault(delay_s=11)
    with pytest.raises(UsageError, match="carries no packets"):
        Fault(delay_s=0.005, down=True)
