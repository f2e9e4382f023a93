# SPDX-License-Identifier: BSD-2-Clause
"""Tests the pure parts of labkit.bench.without_daemons."""

from typing import Any

import pytest

from labkit.bench import cli
from labkit.bench.without_daemons import faults, judge, picture, plan, text
from labkit.bench.without_daemons.faults import Fault, Return, Way
from labkit.cluster.fabric import Parameters, build
from labkit.faults import targets
from mrcd.config.cluster_file import Health

FABRIC = build("x", Parameters())
HOSTS = {h.name: h for h in FABRIC.config.hosts}
P = FABRIC.parameters
MS, S = 1_000_000, 1_000_000_000
HEALTH = Health()
BACKOFF_NS = HEALTH.probe_backoff_ms * MS


# ---- plan ----


def test_every_fault_is_valid_in_the_lab_and_hits_both_directions() -> None:
    for number in range(8):
        for step in plan.steps(number, P.planes, P.t1):
            assert targets.parse(FABRIC, step.target).closers
            where = step.place.plane, step.place.t1
            assert step.kind.hits(step.place, HOSTS["h0"], HOSTS["h2"], *where)
            assert step.kind.hits(step.place, HOSTS["h2"], HOSTS["h0"], *where)


def test_a_t1_dies_three_times_in_each_round_and_all_t1s_in_turn() -> None:
    rounds = [plan.steps(n, P.planes, P.t1) for n in range(P.planes * P.t1)]
    for steps in rounds:
        assert [s.kind.name for s in steps] == [plan.NIC, *plan.DEATHS, plan.FIRST, plan.FIRST, plan.LOSS]
        assert len({s.target for s in steps[1:4]}) == 1
    assert len({steps[1].target for steps in rounds}) == P.planes * P.t1
    assert {steps[0].target.split(":")[1] for steps in rounds} == {"h0", "h2"}


def test_no_hold_down_is_longer_than_four_times_the_first() -> None:
    """A flap is forgotten per minute in use (bpf/states.h); the next fault waits for the hold-down of the last."""
    flapped: dict[tuple[int, int], tuple[int, float]] = {}  # path: flaps, in use since
    for number in range(60):
        now = number * plan.ROUND_S
        for i, step in enumerate(plan.steps(number, P.planes, P.t1)):
            hit = []
            for path in ((plane, t1) for plane in range(P.planes) for t1 in range(P.t1)):
                if step.kind.hits(step.place, HOSTS["h0"], HOSTS["h2"], *path):
                    flaps, since = flapped.get(path, (0, now))
                    forgotten = int((now - since) * 1000 / HEALTH.hold_down_max_ms)
                    hit.append((path, max(0, flaps - forgotten) + 1))
            worst = max(flaps for _, flaps in hit)
            assert worst <= 3, (number, step.target)
            if 1 <= i <= 3:
                assert worst == i  # the T1 that dies three times
            for path, flaps in hit:
                flapped[path] = flaps, now + 2.5 + 2 ** (flaps - 1)
            now += 4.8 + 2 ** (worst - 1)
        assert now <= (number + 1) * plan.ROUND_S + 1


# ---- faults ----


def test_the_course_is_the_share_between_samples() -> None:
    samples = [(0, 0.0, 0.0), (S, 10.0, 10.0), (2 * S, 10.0, 20.0), (3 * S, 10.0, 20.0), (4 * S, 11.0, 28.0)]
    assert faults.course(samples, 2 * S) == [(1, 0.125)]  # not long before the fault, nor where nothing was sent


def test_a_loss_during_a_hold_down_restarts_it() -> None:
    hold = faults.Hold()
    for well_ns, good, lost in (
        (5, 0, 7),
        (6, 0, 7),
        (8, 1, 7),
        (8, 9, 7),
        (20, 0, 8),
        (21, 0, 8),
        (22, 1, 8),
        (22, 2, 8),
    ):
        hold.look(well_ns, good, lost)
    assert (hold.began_anew, hold.lost_before) == (1, 7)


def test_a_loss_after_the_return_restarts_no_hold_down() -> None:
    hold = faults.Hold()
    hold.look(8, 1, 7)
    hold.look(20, 0, 8, back_ns=18)
    assert (hold.well_ns, hold.began_anew, hold.lost) == (8, 0, 7)


# ---- judge ----


@pytest.mark.parametrize(("due_s", "limit_s"), [(1, 5), (2, 5), (4, 5.1), (8, 9.1)])
def test_the_limit_for_a_return_includes_a_long_hold_down(due_s: int, limit_s: float) -> None:
    assert judge.limit_ns(due_s * S, BACKOFF_NS) == limit_s * S


def returned(due_s: int, **change: Any) -> Return:
    """Returns an EV that came back in time."""
    usual = {"well_ns": 100 * MS, "hold_ns": due_s * S + 10 * MS, "back_ns": due_s * S + 110 * MS, "share": 1.0}
    return Return("h0", "h2", 5, due_s, due_s * S, **(usual | change))


def fault(name: str, *returns: Return, killed: bool = True, leave_ns: int | None = 300_000, number: int = 1) -> Any:
    ways = [Way(s, p, [5], 7, leave_ns, leave_ns, 1, ["OVERDUE"]) for s, p in faults.WAYS]
    came = list(returns)
    target = "t1:0:1" if name in plan.DEATHS else "nic:h0:1"
    return Fault(
        name, target, number, killed, 3.0, 2.0, 9, ways, came, came[:1], 2, 1000, 0, [(0.0, 1.0), (1.0, 0.0)]
    ).as_json()


def document(*extra: Any, **change: Any) -> Any:
    series = [fault(n, returned(2**i), number=number) for number in (0, 1) for i, n in enumerate(plan.DEATHS)]
    others = [fault(plan.FIRST, returned(1), killed=False, leave_ns=90_000), fault(plan.NIC, returned(1))]
    ticks = {h: {"by_daemon": 0, "by_packet": 99} for h in ("h0", "h2")}
    flows = [{"source": s, "peer": p, "median_bits_per_s": 7e9, "retransmitted_segments": 1} for s, p in faults.WAYS]
    return {
        "faults": [*series, *others, *extra],
        "probe_backoff_ns": BACKOFF_NS,
        "failed": None,
        "wrong_demotions": [],
        "notes": [],
        "killed_s": 40.0,
        "dead_s": 120.0,
        "alive": [],
        "ticks": ticks,
        "flows": flows,
        **change,
    }


def missed(found: Any) -> list[str]:
    """Returns the first words of the requirements that were not met."""
    return [r["requirement"].split(",")[0] for r in judge.requirements(found) if not r["met"]]


def test_a_run_without_failures_meets_all_requirements() -> None:
    assert missed(document()) == []


WITHIN = "GOOD again within 5 s of healing"
AFTER = "after the ramp each EV has a full share: 90 % of the others' mean or more"
HELD = "each hold-down lasts as long as due"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (fault(plan.NIC, returned(1, back_ns=5 * S + 1)), [WITHIN]),
        (fault(plan.NIC, returned(1, back_ns=None, well_ns=None, hold_ns=None, share=None)), [WITHIN, HELD, AFTER]),
        (fault(plan.NIC, returned(1, hold_ns=S - 1)), [HELD]),
        (fault(plan.NIC, returned(1, hold_ns=S + 101 * MS)), [HELD]),
        (fault(plan.NIC, returned(1, share=0.89)), [AFTER]),
        (fault(plan.NIC, returned(1, again=True)), [AFTER]),
        (fault(plan.AGAIN, returned(2), number=1), ["when a T1 dies repeatedly"]),
        (fault(plan.NIC, returned(1), leave_ns=None), ["out of use after the last packet that arrived"]),
        (fault(plan.THIRD, returned(4), leave_ns=3 * MS + 1, number=9), ["out of use after the first drop"]),
        (fault(plan.LOSS, returned(1), leave_ns=19 * MS), []),
        (fault(plan.LOSS, returned(1), leave_ns=21 * MS), ["out of use after the first drop"]),
        (fault(plan.NIC, returned(1, share=0.1), killed=False, leave_ns=None), []),  # the daemons were alive
    ],
)
def test_a_late_return_or_a_wrong_hold_down_misses_its_bound(extra: Any, words: list[str]) -> None:
    assert missed(document(extra)) == words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"failed": "why"}, ["without daemons all can be measured"]),
        ({"wrong_demotions": ["h0 → host 2 EV 6"]}, ["no EV is demoted that no fault has hit"]),
        ({"alive": ["h2"]}, ["no daemon runs at either end until the end"]),
        ({"ticks": {"h0": {"by_daemon": 1, "by_packet": 9}}}, ["no daemon runs at either end until the end"]),
        ({"ticks": {"h0": {"by_daemon": 0, "by_packet": 0}}}, ["no daemon runs at either end until the end"]),
    ],
)
def test_a_wrong_demotion_or_a_living_daemon_misses_its_bound(change: Any, words: list[str]) -> None:
    assert missed(document(**change)) == words


def test_the_series_of_hold_downs() -> None:
    found = judge.series(document()["faults"])
    assert [(s["round"], s["target"], s["killed"]) for s in found] == [(0, "t1:0:1", True), (1, "t1:0:1", True)]
    assert found[0]["due_ns"] == [S, 2 * S, 4 * S]


# ---- text, picture ----


def test_the_tables_show_the_measurements() -> None:
    slow = fault(plan.NIC, returned(1), leave_ns=4 * MS)
    said = "\n".join(text.lines(document(slow, wrong_demotions=["h0 → host 2 EV 6"], notes=["a note"])))
    for words in (
        "90 µs",
        "300 µs",
        "7.0 Gbit/s",
        "1 s (1.01 s), 2 s (2.01 s), 4 s (4.01 s)",
        "4 ms",
        "a note",
        "EV 6",
    ):
        assert words in said
    assert "left after 4 ms, 4 ms; back 1.11 s" in text.said(slow)
    assert "back never" in text.said(fault(plan.NIC, returned(1, back_ns=None, share=None), leave_ns=None))


def test_the_picture_has_a_panel_per_fault() -> None:
    drawn = picture.picture(document())
    assert all(f"{n}: " in drawn for n in (*plan.DEATHS, plan.NIC))
    assert f"{plan.LOSS}: " not in drawn


def test_an_empty_document_can_be_rendered() -> None:
    nothing = document() | {"faults": []}
    assert missed(nothing) == []
    assert text.lines(nothing)
    picture.picture(nothing)


def test_the_part_is_registered() -> None:
    assert [p.name for p in cli.chosen_parts(["alone"])] == ["alone"]
