# SPDX-License-Identifier: BSD-2-Clause
"""Tests the pure parts of labkit.bench.failover."""

from collections.abc import Sequence
from typing import Any

import pytest

from labkit.bench.failover import events, holes, loss, part, pauses, stats
from labkit.bench.failover.events import BIN_NS, Event
from labkit.bench.failover.kinds import BY_NAME, MS, US, Place
from labkit.bench.failover.pauses import Pause
from labkit.cluster.fabric import Parameters, build
from labkit.traffic import pause_watcher

FABRIC = build("x", Parameters())
H = {h.name: h for h in FABRIC.config.hosts}  # h0, h1 below T0 0; h2, h3 below T0 1
PLACE = Place(1, 2)


# ---- stats ----


def test_percentiles_are_measurements() -> None:
    values = [float(n) for n in range(1, 201)]
    assert [stats.percentile(values, p) for p in (0.5, 0.99, 1.0)] == [100, 198, 200]
    assert stats.percentile([7.0], 0.99) == 7
    assert stats.percentile([], 0.5) is None


def test_never_is_longer_than_any_time() -> None:
    values = [*(float(n) for n in range(97)), None, None, None]
    found = stats.summary(values)
    assert found == {"count": 100, "never": 3, "p50": 49, "p99": None, "max": None}


@pytest.mark.parametrize(
    ("values", "met"),
    [([100.0] * 99 + [9e9], True), ([100.0] * 98 + [9e9] * 2, False), ([100.0] * 98 + [None] * 2, False), ([], False)],
)
def test_a_requirement_on_percentiles(values: list[float | None], met: bool) -> None:
    found = stats.within("out", stats.summary(values), (("p50", 500 * US), ("p99", 3 * MS)))
    assert found["met"] is met
    assert found["requirement"] == "out: p50 within 500 µs and p99 within 3 ms"


# ---- kinds ----


def hit(name: str) -> set[tuple[str, str]]:
    """Returns the pairs whose path crosses the place."""
    kind, pairs = BY_NAME[name], [(a, b) for a in H for b in H if a != b]
    return {(a, b) for a, b in pairs if kind.hits(PLACE, H[a], H[b], 1, 2 if H[a].t0 != H[b].t0 else None)}


def test_the_pairs_that_a_fault_hits() -> None:
    forward = {("h0", "h2"), ("h0", "h3"), ("h1", "h2"), ("h1", "h3")}
    back = {(b, a) for a, b in forward}
    assert hit("t0-t1-link") == forward | back
    assert hit("one-way-forward") == forward
    assert hit("one-way-reverse") == back
    assert hit("nic-link") == {(a, b) for a in H for b in H if a != b and "h0" in (a, b)}
    kind = BY_NAME["t1-blackhole"]
    assert not kind.hits(PLACE, H["h0"], H["h2"], 1, 3)
    assert not kind.hits(PLACE, H["h0"], H["h2"], 0, 2)
    assert not kind.hits(PLACE, H["h0"], H["h1"], 1, None)  # below the same T0
    assert BY_NAME["nic-down"].hits(PLACE, H["h0"], H["h1"], 1, None)


# ---- events ----


def event(leave_ns: int | None, *, in_use: bool = True) -> Event:
    return Event(0, 0, 1, leave_ns, leave_ns, 3, 20, in_use)


def test_faults_on_unused_paths_are_left_out() -> None:
    found = events.summaries([event(5), event(0, in_use=False), event(None)])
    assert found["leave_ns"] == {"count": 2, "never": 1, "p50": 5, "p99": None, "max": None}
    assert found["lost_packets"]["count"] == 2


# ---- holes ----

T = 1000 * BIN_NS


def bins(*empty: int, rate: int = 1000) -> dict[int, int]:
    """Returns 100 bins of 10 ms before T and 100 after, without those in `empty` after T."""
    return {T + n * BIN_NS: rate for n in range(-100, 100) if n not in empty}


def hole_of(found: dict[int, int], begin_ns: int, paused: Sequence[Pause] = ()) -> dict[str, Any]:
    """Returns the result of a blackhole from `begin_ns` on, without a delay of the command."""
    return holes.hole(found, T - 100 * BIN_NS, begin_ns, begin_ns, T + 100 * BIN_NS, paused)


def test_a_gap_in_the_first_20_ms_is_allowed() -> None:
    found = hole_of(bins(0, 1, 2), T + 4 * MS)
    assert found["longest_zero_ms"] == 30
    assert found["longest_zero_after_ms"] == -4
    assert (found["late_zero_bins"], found["late_bins"]) == (0, 97)
    assert found["before_longest_zero_ms"] == 0
    assert found["over"]


def test_a_lasting_gap_is_late_and_not_over() -> None:
    found = hole_of(bins(*range(5, 100)), T)
    assert (found["longest_zero_ms"], found["below_half_ms"], found["late_zero_bins"]) == (950, 950, 95)
    assert not found["over"]
    said = holes.required({"bin_ms": 10.0, "blackholes": 1, **holes.summaries([found])})
    assert not said["met"]
    assert "from 50 ms after the first drop on" in said["measured"]


@pytest.mark.parametrize(("before", "after", "met"), [((), (), True), ((), (50,), False), ((-9,), (50,), False)])
def test_a_late_empty_bin_misses_the_bound(before: tuple[int, ...], after: tuple[int, ...], met: bool) -> None:
    found = hole_of(bins(*before, *after), T - 2 * BIN_NS)
    assert holes.required({"bin_ms": 10.0, "blackholes": 1, **holes.summaries([found])})["met"] == met


@pytest.mark.parametrize(
    ("pause", "still", "met"),
    [
        (Pause(1, T + 49 * BIN_NS, T + 50 * BIN_NS + 6 * MS, 1), 1, True),
        (Pause(1, T + 49 * BIN_NS, T + 50 * BIN_NS + 5 * MS, 1), 0, False),  # half of it is not enough
        (Pause(1, T + 60 * BIN_NS, T + 70 * BIN_NS, 1), 0, False),  # at another time
        (Pause(1, T + 49 * BIN_NS, T + 52 * BIN_NS, 0), 0, False),  # packets kept it from running, perhaps ours
    ],
)
def test_empty_bins_in_pauses_of_the_machine_are_counted_apart(pause: Pause, still: int, met: bool) -> None:
    found = hole_of(bins(50), T - 2 * BIN_NS, [pause])
    assert (found["late_zero_bins"], found["late_still_bins"]) == (1, still)
    assert found["empty_bins"][0]["at_ms"] == 520
    assert [p["cpu"] for p in found["pauses"]] == [1]
    said = holes.required({"bin_ms": 10.0, "blackholes": 1, **holes.summaries([found])})
    assert said["met"] == met
    assert f"1 of 100 bins (1 %) in 1 blackholes, {still} of them the hypervisor's" in said["measured"]


# ---- witness ----


def test_the_longest_pause_of_any_cpu_counts() -> None:
    found = [Pause(0, 0, 4, 1), Pause(0, 6, 20, 2), Pause(1, 2, 9, 1), Pause(2, 0, 99, 0)]
    assert pauses.stood_still_ns(found, 1, 10) == 7
    assert pauses.stood_still_ns(found, 30, 40) == 0
    assert pauses.stood_still_ns([], 1, 10) == 0
    assert pauses.stood_still_ns([Pause(0, 0, 70 * MS, 1)], 0, 60 * MS) == 20 * MS  # no more than was stolen


def test_steal_time_is_read_for_the_right_cpu() -> None:
    stat = b"cpu  1 2 3 4 5 6 7 80 9 0\ncpu1 1 2 3 4 5 6 7 81 9 0\ncpu10 1 2 3 4 5 6 7 82 9 0\nintr 5\n"
    assert [pause_watcher.stolen_ticks(stat, n) for n in (10, 1)] == [82, 81]


# ---- the whole ----


def kind_document(name: str, leave_ns: list[int | None], wrong: list[str], lost: int = 0) -> dict[str, Any]:
    found = [event(n) for n in leave_ns]
    return {
        "kind": name,
        "what": "words",
        "wanted": len(found),
        **events.summaries(found),
        "wrong_demotions": wrong,
        "flow": {
            "median_bits_per_s": 9e9,
            "sent_packets": 1000,
            "lost_packets": lost,
            "retransmitted_segments": 0,
        },
        "events": [{"leave_ns": n, "in_use": True} for n in leave_ns],
    }


def document() -> dict[str, Any]:
    hole = {"unwatched": None, **hole_of(bins(0), T)}
    stuck = {"unwatched": "not here", **hole_of(bins(*range(100)), T)}
    way = {"failed": None, "what": "w", "bin_ms": 10.0, "watch_s": 1.0, "restarts": 0, "restarted_after_s": 2.0}
    return {
        "lab": Parameters().as_json(),
        "kinds": [
            kind_document("t1-blackhole", [0, 100_000, 200_000], []),
            kind_document("one-way-reverse", [4_000_000], ["h0 → host 2 EV 6"], lost=1),
            kind_document("drop-1", [None], []),
        ],
        "loss": [
            {
                "what": "x",
                "seconds": 10.0,
                "loss_ratio": r,
                "lost_packets": 7,
                "sent_packets": 9,
                "median_bits_per_s": 9e9,
            }
            for r in (0.0007, 0.0008)
        ],
        "holes": [
            {"name": "hole", **way, **holes.summaries([hole])},
            {"name": "kernel-ecmp", **way, **holes.summaries([stuck])},
        ],
        "notes": ["a note"],
        "failed": [{"stage": "mptcp", "why": "nobody knows"}],
        "bfd_floor_ns": part.BFD_NS,
    }


def test_the_requirements() -> None:
    found = part.requirements(document())
    assert [r["met"] for r in found] == [False, True, False, False, True, True, False, True], found
    assert found[0]["requirement"] == "mptcp can be measured"


def test_a_loss_bound_without_packets_is_not_met() -> None:
    run = {"what": "x", "seconds": 10.0, "loss_ratio": None, "lost_packets": 0, "sent_packets": 0}
    assert not loss.required(run)["met"]
