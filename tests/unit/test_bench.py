# SPDX-License-Identifier: BSD-2-Clause
"""Tests the arithmetic of labkit.bench in which a wrong number could hide."""

import pytest

from labkit.bench import gaps
from labkit.bench.faults import BY_NAME, MS, Place
from labkit.bench.frame import Bound
from labkit.bench.gaps import BIN_NS
from labkit.cluster.fabric import Parameters, build
from labkit.measure import machine
from labkit.measure.machine import Pause
from labkit.measure.statistics import compare, summary
from labkit.tables import shown
from labkit.traffic import pause_watcher

HOSTS = {h.name: h for h in build("x", Parameters()).config.hosts}  # h0, h1 below T0 0; h2, h3 below T0 1
T = 1000 * BIN_NS


@pytest.mark.parametrize(
    ("values", "p50", "p99", "most"),
    [
        ([float(n) for n in range(1, 201)], 100, 198, 200),
        ([7.0], 7, 7, 7),
        ([], None, None, None),
        ([*(float(n) for n in range(97)), None, None, None], 49, None, None),  # never is longer than any time
    ],
)
def test_percentiles_are_measurements(values: list[float | None], p50: float, p99: float, most: float) -> None:
    found = summary(values)
    assert (found["p50"], found["p99"], found["max"], found["never"]) == (p50, p99, most, values.count(None))


@pytest.mark.parametrize(
    ("pairs", "low", "high"),
    [(5, None, None), (6, 1, 6), (8, 1, 8), (9, 2, 8), (20, 6, 15)],  # Conover, table of the sign test
)
def test_the_interval_of_a_median(pairs: int, low: float | None, high: float | None) -> None:
    found = compare([float(n) for n in range(pairs, 0, -1)])
    assert (found["low"], found["high"]) == (low, high)


@pytest.mark.parametrize(
    ("value", "is_least", "met"), [(5.0, False, True), (5.1, False, False), (5.0, True, True), (4.9, True, False)]
)
def test_a_bound(value: float, is_least: bool, met: bool) -> None:
    bound = Bound("words", 5.0, "_ns", is_least=is_least)
    assert (bound.judge(value)["met"], bound.judge(None)["met"]) == (met, False)


@pytest.mark.parametrize(
    ("key", "value", "cell"),
    [
        ("a_ns", 999_600, "1 ms"),
        ("a_ms", 4.56, "4.56 ms"),
        ("a_s", None, "never"),
        ("a_bits_per_s", 12.3e9, "12.30 Gbit/s"),
        ("a_per_s", 50_000.4, "50,000"),
        ("a_ratio", 0.99957, "100.0 %"),
        ("a_bytes", 240e6, "240.0 MB"),
        ("late", (1, 0, 97), "1, 0, 97"),
    ],
)
def test_a_cell_has_its_keys_unit(key: str, value: object, cell: str) -> None:
    assert shown(key, value) == cell


FORWARD = {("h0", "h2"), ("h0", "h3"), ("h1", "h2"), ("h1", "h3")}
BACK = {(b, a) for a, b in FORWARD}


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("t0-t1-link", FORWARD | BACK),
        ("one-way-forward", FORWARD),
        ("one-way-reverse", BACK),
        ("nic-link", {(a, b) for a in HOSTS for b in HOSTS if a != b and "h0" in (a, b)}),
    ],
)
def test_the_pairs_that_a_fault_hits(name: str, pairs: set[tuple[str, str]]) -> None:
    def hits(a: str, b: str, plane: int = 1, t1: int = 2) -> bool:
        through = t1 if HOSTS[a].t0 != HOSTS[b].t0 else None
        return BY_NAME[name].hits(Place(1, 2), HOSTS[a], HOSTS[b], plane, through)

    assert {(a, b) for a in HOSTS for b in HOSTS if a != b and hits(a, b)} == pairs
    assert not hits("h0", "h2", plane=0)
    assert hits("h0", "h2", t1=3) == (name == "nic-link")


@pytest.mark.parametrize(
    ("empty", "begin_ns", "longest_ms", "late", "over"),
    [
        ((0, 1, 2), T + 4 * MS, 30, (0, 97), True),  # a gap in the first 20 ms is allowed
        (range(5, 100), T, 950, (95, 98), False),
        ((50,), T - 2 * BIN_NS, 10, (1, 100), True),
    ],
)
def test_the_gap_of_a_blackhole(
    empty: tuple[int, ...], begin_ns: int, longest_ms: float, late: tuple[int, int], over: bool
) -> None:
    bins = {T + n * BIN_NS: 1000 for n in range(-100, 100) if n not in empty}
    found = gaps.hole(bins, T - 100 * BIN_NS, begin_ns, begin_ns, T + 100 * BIN_NS)
    assert found["longest_zero_ms"] == longest_ms
    assert (found["late_zero_bins"], found["late_bins"], found["over"]) == (*late, over)


@pytest.mark.parametrize(
    ("pause", "still"),
    [
        (Pause(1, T + 49 * BIN_NS, T + 50 * BIN_NS + 6 * MS, 1), 1),
        (Pause(1, T + 49 * BIN_NS, T + 50 * BIN_NS + 5 * MS, 1), 0),  # half of it is not enough
        (Pause(1, T + 60 * BIN_NS, T + 70 * BIN_NS, 1), 0),  # at another time
        (Pause(1, T + 49 * BIN_NS, T + 52 * BIN_NS, 0), 0),  # packets kept it from running, perhaps ours
    ],
)
def test_empty_bins_in_pauses_of_the_machine_are_counted_apart(pause: Pause, still: int) -> None:
    bins = {T + n * BIN_NS: 1000 for n in range(-100, 100) if n != 50}
    begin_ns = T - 2 * BIN_NS
    found = gaps.hole(bins, T - 100 * BIN_NS, begin_ns, begin_ns, T + 100 * BIN_NS, [pause])
    assert (found["late_zero_bins"], found["late_still_bins"]) == (1, still)


def test_the_longest_pause_of_any_cpu_counts() -> None:
    found = [Pause(0, 0, 4, 1), Pause(0, 6, 20, 2), Pause(1, 2, 9, 1), Pause(2, 0, 99, 0)]
    assert machine.stood_still_ns(found, 1, 10) == 7
    assert machine.stood_still_ns(found, 30, 40) == 0
    assert machine.stood_still_ns([Pause(0, 0, 70 * MS, 1)], 0, 60 * MS) == 20 * MS  # no more than was stolen


def test_steal_time_is_read_for_the_right_cpu() -> None:
    stat = b"cpu  1 2 3 4 5 6 7 80 9 0\ncpu1 1 2 3 4 5 6 7 81 9 0\ncpu10 1 2 3 4 5 6 7 82 9 0\nintr 5\n"
    assert [pause_watcher.stolen_ticks(stat, n) for n in (10, 1)] == [82, 81]
