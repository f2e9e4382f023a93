# SPDX-License-Identifier: BSD-2-Clause
"""Tests the levels and gaps of the bench `paper`, and the paper's points."""

from typing import Any

import pytest

from labkit.bench import paper, paper_points
from labkit.bench.paper_points import Curve, Phase, Plateau

BIN = 0.01
PHASES = [Phase(0.0, 4), Phase(1.0, 3), Phase(2.0, 4)]


def test_the_papers_plateaus_are_found() -> None:
    shares, found = paper.FIGURE_19B.read()
    assert [p.parts for p in found] == [4, 3, 2, 1, 2, 3, 4]
    assert [p.level for p in found] == pytest.approx([1, 0.747, 0.498, 0.249, 0.498, 0.747, 0.995], abs=0.002)
    assert paper_points.edges(shares, found) == pytest.approx([15.2, 30.0, 44.5, 61.0, 77.0, 91.4], abs=0.1)
    theirs = paper_points.theirs(shares, found)
    assert [p["hole_ms"] for p in theirs] == pytest.approx([0, 0, 220, 220, 0, 0], abs=20)
    shares, found = paper.FIGURE_9B.read()
    assert [p.parts for p in found] == [2, 1, 2]
    down, _ = paper_points.theirs(shares, found)
    # Half of a sample of 220 ms at half of the level.
    assert (down["hole_ms"], down["most_hidden_ms"]) == (0, pytest.approx(110, abs=3))


def repeated(*runs: tuple[float, int]) -> list[float]:
    return [v for value, n in runs for v in [value] * n]


def test_a_plateau_is_long_and_near_a_part() -> None:
    values = repeated((1.01, 10), (0.6, 2), (0.5, 3), (0.0, 1), (0.49, 8), (0.53, 20), (1.0, 4))
    found = paper_points.plateaus(Curve(tuple(map(float, range(len(values)))), tuple(values)), 4)
    assert found == [Plateau(0, 10, 4, 1.01), Plateau(16, 24, 2, 0.49)]


@pytest.mark.parametrize(
    ("rates", "down", "up"),
    [
        (
            repeated((400, 100), (0, 7), (300, 33), (290, 60), (150, 60), (400, 40)),
            {"ideal_ratio": 0.75, "level_ratio": 0.725, "error_ratio": 0.725 / 0.75 - 1, "hole_ms": 70},
            # 150 is more than half of 290
            {"ideal_ratio": 1.0, "hole_ms": 0},
        ),
        (
            repeated((400, 100), (300, 80), (10, 3), (300, 17), (400, 100)),
            {"hole_ms": 30},  # wherever it is in its phase
            {"hole_ms": 0},
        ),
        # A plane that does not return.
        (repeated((400, 100), (300, 200)), {"error_ratio": 0}, {"error_ratio": -0.25}),
        ([0.0] * 300, {"level_ratio": 0}, {"level_ratio": 0}),
    ],
)
def test_steps_are_judged_by_their_last_parts(rates: list[float], down: dict[str, Any], up: dict[str, Any]) -> None:
    for step, wanted in zip(paper_points.steps(rates, BIN, PHASES, 3.0), (down, up), strict=True):
        assert {k: step[k] for k in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize(("begin_s", "end_s", "mean"), [(0.005, 0.035, 2.5), (0.0, 0.04, 2.5), (0.05, 0.06, 0)])
def test_the_mean_takes_whole_bins(begin_s: float, end_s: float, mean: float) -> None:
    assert paper_points.mean([1, 2, 3, 4], BIN, begin_s, end_s) == mean


@pytest.mark.parametrize(
    ("ours", "theirs", "is_shorter"),
    [(100, 230, True), (230, 230, False), (50, 0, True), (60, 0, False), (0, 0, True)],
)
def test_gaps_are_compared_with_the_papers_or_with_what_its_samples_can_hide(
    ours: float, theirs: float, is_shorter: bool
) -> None:
    assert paper.shorter(ours, {"hole_ms": theirs, "most_hidden_ms": 60.0}) is is_shorter


@pytest.mark.parametrize(
    ("values", "median"), [([1, 3], 2), ([3, 1, None], 3), ([1, None], None), ([None, None, 4], None), ([], None)]
)
def test_missing_values_sort_last(values: list[float | None], median: float | None) -> None:
    assert paper_points.middle(values) == median


def test_runs_become_medians_and_the_one_in_the_middle_is_drawn() -> None:
    fixed = {"begin_s": 1.0, "end_s": 2.0, "planes": 3, "ideal_ratio": 0.75, "paper": None}
    runs = [
        {"bits_per_s": [hole], "steps": [fixed | {
            "level_ratio": 0.75 * (1 + error), "error_ratio": error, "hole_ms": hole,
        }]}
        for hole, error in ((10, 0.01), (200, -0.03), (30, 0.02))
    ]  # fmt: skip
    found = paper.combined(runs)
    assert (found["rounds"], found["bits_per_s"]) == (3, [30])
    (one,) = found["steps"]
    assert (one["hole_ms"], one["most_hole_ms"]) == (30, 200)
    assert one["error_ratio"] == pytest.approx(0.01)
    assert one["errors"] == [0.01, -0.03, 0.02]
