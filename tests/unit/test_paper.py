# SPDX-License-Identifier: BSD-2-Clause
"""Tests the pure parts of labkit.bench.paper, and the paper's points."""

from pathlib import Path
from typing import Any

import pytest

from labkit.bench.paper import figures, medians, part, planes, plateaus
from labkit.bench.paper.figures import Curve, Plateau
from labkit.bench.paper.plateaus import Phase

# ---- the paper's points ----


def test_the_papers_plateaus_are_found() -> None:
    shares, found = planes.paper_19b()
    assert [p.parts for p in found] == [4, 3, 2, 1, 2, 3, 4]
    assert [p.level for p in found] == pytest.approx([1, 0.747, 0.498, 0.249, 0.498, 0.747, 0.995], abs=0.002)
    assert figures.edges(shares, found) == pytest.approx([15.2, 30.0, 44.5, 61.0, 77.0, 91.4], abs=0.1)
    shares, found = planes.paper_9b()
    assert [p.parts for p in found] == [2, 1, 2]
    assert found[1].level == pytest.approx(0.497, abs=0.002)


def test_the_papers_holes_are_samples_at_zero() -> None:
    theirs = plateaus.papers(*planes.paper_19b())
    assert [round(p["hole_ms"], -1) for p in theirs] == [
        0,
        0,
        pytest.approx(220, abs=20),
        pytest.approx(220, abs=20),
        0,
        0,
    ]
    assert theirs[3]["lowest_sample_ratio"] == pytest.approx(0, abs=0.001)
    assert theirs[0]["lowest_sample_ratio"] > 0.9


def test_points_in_any_order_become_a_curve(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("x,y\n2,30\n0,10\n1,20\n")
    found = figures.curve("f.csv", tmp_path)
    assert found == Curve((0, 1, 2), (10, 20, 30))
    assert found.spacing_s == 1
    assert figures.usual(found, 1.5) == 15
    assert figures.scaled(found, 20).values == (0.5, 1, 1.5)


def shares(*runs: tuple[float, int]) -> Curve:
    values = tuple(v for value, n in runs for v in [value] * n)
    return Curve(tuple(float(i) for i in range(len(values))), values)


def test_a_plateau_is_long_and_near_a_part() -> None:
    found = figures.plateaus(shares((1.01, 10), (0.6, 2), (0.5, 3), (0.0, 1), (0.49, 8), (0.53, 20), (1.0, 4)), 4)
    assert found == [Plateau(0, 10, 4, 1.01), Plateau(16, 24, 2, 0.49)]


# ---- plateaus ----

BIN = 0.01
PHASES = [Phase(0.0, 4), Phase(1.0, 3), Phase(2.0, 4)]


def bins(*runs: tuple[float, int]) -> list[float]:
    return [v for value, n in runs for v in [value] * n]


def test_steps_are_judged_by_their_last_parts() -> None:
    rates = bins((400, 100), (0, 7), (300, 33), (290, 60), (150, 60), (400, 40))
    down, up = plateaus.judged(rates, BIN, PHASES, 3.0, 0.2)
    assert (down["planes"], down["ideal_ratio"], up["ideal_ratio"]) == (3, 0.75, 1.0)
    assert down["level_ratio"] == pytest.approx(0.725)
    assert down["error_ratio"] == pytest.approx(0.725 / 0.75 - 1)
    assert (down["hole_ms"], down["hole_after_ms"]) == (pytest.approx(70), 0)
    assert (up["hole_ms"], up["hole_after_ms"]) == (0, None)  # 150 is more than half of 290
    assert up["settled_ms"] == pytest.approx(600, abs=15)
    assert up["lowest_sample_ratio"] == pytest.approx(150 / 290)
    assert down["lowest_sample_ratio"] == pytest.approx(13 * 300 / 20 / 290)


def test_a_hole_counts_wherever_it_is_in_its_phase() -> None:
    rates = bins((400, 100), (300, 80), (10, 3), (300, 17), (400, 100))
    down, up = plateaus.judged(rates, BIN, PHASES, 3.0, 0.2)
    assert (down["hole_ms"], down["hole_after_ms"]) == (pytest.approx(30), pytest.approx(800))
    assert up["hole_ms"] == 0


def test_a_plane_that_does_not_return_is_no_plateau() -> None:
    _, up = plateaus.judged(bins((400, 100), (300, 200)), BIN, PHASES, 3.0, 0.2)
    assert up["error_ratio"] == pytest.approx(-0.25)
    assert up["settled_ms"] == 0  # at the level that it has


def test_a_stopped_flow_is_judged() -> None:
    found = plateaus.judged([0.0] * 300, BIN, PHASES, 3.0, 0.2)
    assert [s["level_ratio"] for s in found] == [0, 0]
    assert [s["settled_ms"] for s in found] == [None, None]


def test_the_mean_takes_whole_bins() -> None:
    assert plateaus.mean([1, 2, 3, 4], BIN, 0.005, 0.035) == 2.5
    assert plateaus.mean([1, 2, 3, 4], BIN, 0.0, 0.04) == 2.5
    assert plateaus.mean([1, 2], BIN, 0.05, 0.06) == 0


# ---- requirements, text, picture ----


def step(hole_ms: float, paper_ms: float | None, *, error: float = 0.0, lowest: float = 0.9) -> dict[str, Any]:
    theirs = {"parts": 3, "level_ratio": 0.75, "hole_ms": paper_ms, "most_hidden_ms": 60.0, "settled_ms": 220.0}
    return {
        "begin_s": 1.0,
        "end_s": 2.0,
        "planes": 3,
        "level_bits_per_s": 585e6 * (1 + error),
        "level_ratio": 0.75 * (1 + error),
        "ideal_ratio": 0.75,
        "error_ratio": error,
        "errors": [error],
        "hole_ms": hole_ms,
        "holes_ms": [hole_ms],
        "hole_after_ms": 0.0,
        "settled_ms": None,
        "lowest_sample_ratio": lowest,
        "paper": theirs if paper_ms is not None else None,
    }


def experiment(*steps: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "19b",
        "figure": "19b",
        "what": "planes <leave>",
        "seconds": 2.0,
        "bin_s": 0.5,
        "bits_per_s": [780e6, 780e6, 585e6, 585e6],
        "usual_bits_per_s": 780e6,
        "undisturbed": {"hole_ms": 0.0, "lowest_sample_ratio": 0.98},
        "faults": [{"begin_s": 1.0, "end_s": 2.0, "target": "nic:h0:0", "label": "−h0:0", "what": "link down"}],
        "flows": {"count": 1, "mss_bytes": 8968},
        "rounds": 1,
        "each": [{"mean_ratio": 0.97}],
        "steps": list(steps),
        "paper": {"sample_s": 0.22, "points": [(0.1, 1.0), (1.5, 0.75)]},
    }


@pytest.mark.parametrize(("error", "met"), [(0.019, True), (-0.019, True), (0.03, False), (-0.03, False)])
def test_plateaus_are_required_both_ways(error: float, met: bool) -> None:
    found = part.plateaus_required(experiment(step(0, 0), step(0, 0, error=error)))
    assert found["met"] is met
    assert f"{error:+.1%}" in found["measured"]


@pytest.mark.parametrize(
    ("ours", "theirs", "met"),
    [(100, 230, True), (230, 230, False), (50, 0, True), (60, 0, False), (0, 0, True), (900, None, True)],
)
def test_holes_are_compared_with_the_papers_or_with_what_its_samples_can_hide(
    ours: float, theirs: float | None, met: bool
) -> None:
    found = part.holes_required(experiment(step(ours, theirs)))
    assert found["met"] is met
    if theirs == 0 and ours:
        assert f"3 planes {ours:.0f} ms (paper: none seen, 60 ms can be hidden)" in found["measured"]


# ---- several runs ----


def test_runs_become_medians_and_the_one_in_the_middle_is_drawn() -> None:
    runs = [
        experiment(step(hole, 0, error=error)) | {"bits_per_s": [hole], "out_after_ms": out, "mean_ratio": 1.0}
        for hole, error, out in ((10, 0.01, 5.0), (200, -0.03, None), (30, 0.02, 9.0))
    ]
    found = medians.combined(runs)
    assert found["rounds"] == 3
    assert found["bits_per_s"] == [30]
    (one,) = found["steps"]
    assert (one["hole_ms"], one["holes_ms"]) == (30, [10, 200, 30])
    assert one["error_ratio"] == pytest.approx(0.01)
    assert one["errors"] == [0.01, -0.03, 0.02]
    assert one["settled_ms"] is None
    assert found["out_after_ms"] == 9.0
    assert [r["out_after_ms"] for r in found["each"]] == [5.0, None, 9.0]


@pytest.mark.parametrize(
    ("values", "median"), [([1, 3], 2), ([3, 1, None], 3), ([1, None], None), ([None, None, 4], None), ([], None)]
)
def test_missing_values_sort_last(values: list[float | None], median: float | None) -> None:
    assert medians.middle(values) == median


def test_the_gap_that_a_sample_can_hide() -> None:
    *_, (down, _) = [plateaus.papers(*planes.paper_9b())]
    assert down["hole_ms"] == 0
    assert down["most_hidden_ms"] == pytest.approx(110, abs=3)  # half of a sample of 220 ms at half of the level
