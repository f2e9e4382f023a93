# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.bench.job: turns of both ways → the ratio and its bound. And labkit.traffic.job: what ranks print."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.bench import control, job
from labkit.bench.control import Sent
from labkit.bench.job import UNPROBED
from labkit.bench.probing import Wire
from labkit.cluster.attachment import ATTACHED, DETACHED
from labkit.cluster.fabric import Parameters, build
from labkit.traffic import job as traffic_job
from labkit.traffic.job import Job
from mrcd.errors import MachineError

FABRIC = build("x", Parameters())


def turn(ms: float) -> dict[str, Any]:
    sent = Sent(1000, 10**6, (10, 0, 0, 0, 0), 10, 10, 0)
    return {
        "median_step_ns": ms * 1e6,
        "steps_ns": [],
        "cpu_s_per_step": 0.05,
        "cpu_busy_ratio": 1.0,
        "retransmitted_segments_per_step": 0.25,
        "control": control.document({"h0": sent}, {"h0": Wire(100, 130, 300)}, 1.0),
    }


def summary(*pairs: tuple[float, float]) -> dict[str, Any]:
    turns = {ATTACHED: [turn(a) for a, _ in pairs], DETACHED: [turn(d) for _, d in pairs]}
    return job.summary(9100, turns | {UNPROBED: turns[DETACHED]})


def test_a_pair_is_a_turn_of_each() -> None:
    found = summary((44, 40), (60, 40), (39, 40))
    assert found["step_ratio"]["ratios"] == pytest.approx([1.1, 1.5, 0.975])
    assert found["unprobed_step_ratio"]["ratios"] == [1, 1, 1]
    assert [w["median_step_ns"] for w in found["ways"]] == [44e6, 40e6, 40e6]
    assert [w["control"] is None for w in found["ways"]] == [False, True, False]


@pytest.mark.parametrize(("attached", "met"), [(40, True), (44, True), (44.1, False), (30, True)])
def test_the_bound_is_of_the_median_ratio(attached: float, met: bool) -> None:
    (bound,) = summary(*[(attached, 40)] * 6)["requirements"]
    assert bound["met"] is met
    assert "at most 1.1 times" in bound["requirement"]


def test_lines_show_the_measurements() -> None:
    found = job.lines(summary(*[(50, 40)] * 6) | {"withdrawals_without_a_fault": 0})
    rows = [line.split()[:4] for line in found if line.startswith((ATTACHED, DETACHED))]
    assert rows[:2] == [[ATTACHED, "6", "50.0", "50.0"], [DETACHED, "6", "40.0", "40.0"]]
    assert rows[2] == [*UNPROBED.split()]
    assert any("attached / detached: median 1.250" in line and "97%" in line for line in found)
    assert sum("control packets are" in line for line in found) == 2
    few = job.lines(summary((50, 40)) | {"withdrawals_without_a_fault": 0})
    assert any("median 1.250 (1.25–1.25), 1 pairs are too few" in line for line in few)


@pytest.mark.parametrize(
    ("way", "packets", "right"),
    [
        *[(ATTACHED, 10**6, True), (ATTACHED, 1000, False), (UNPROBED, 1000, False)],
        *[(DETACHED, 0, True), (DETACHED, 10**6, False)],
    ],
)
def test_data_on_the_wrong_way_is_an_error(way: str, packets: float, right: bool) -> None:
    if right:
        job.check(way, packets)
    else:
        with pytest.raises(MachineError, match=f"was {way} it sprayed"):
            job.check(way, packets)


RANK = """
import json, sys
print("a library complains", flush=True)
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    if line == "13\\n":
        sys.exit("thirteen")
    for n in range(int(line)):
        print(json.dumps({"begin_ns": 10 * n, "end_ns": 10 * n + 1 + int(sys.argv[1])}), flush=True)
"""


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    monkeypatch.setattr(traffic_job, "PROGRAM", program)
    monkeypatch.setattr(traffic_job, "PYTHON", sys.executable)
    monkeypatch.setattr("labkit.cluster.bringup.environment", lambda state, host: {})
    lab = SimpleNamespace(fabric=FABRIC, state=None, popen=lambda _, argv, **kw: subprocess.Popen(argv, **kw))
    return Job(lab, 4)  # type: ignore[arg-type]


def test_steps_are_the_first_ranks(ranks: Job) -> None:
    with ranks:
        assert ranks.run(3) == [(0, 1), (10, 11), (20, 21)]
        assert [step.ns for step in ranks.run(1)] == [1]
        assert len(ranks.steps) == 4


def test_steps_are_read_while_they_run(ranks: Job) -> None:
    with ranks:
        ranks.begin(2)
        until = time.monotonic() + 10
        while len(ranks.steps) < 2 and time.monotonic() < until:
            ranks.poll(0.01)
        assert ranks.steps == [(0, 1), (10, 11)]


def test_a_rank_that_ends_is_an_error(ranks: Job) -> None:
    with ranks, pytest.raises(MachineError, match=r"in h\d ended by itself: thirteen"):
        ranks.run(13)


def test_without_torch_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_job, "PYTHON", "/bin/false")
    with pytest.raises(MachineError, match="no PyTorch") as e:
        traffic_job.require_torch()
    assert e.value.exit_code == 2
    assert e.value.hint == "scripts/set-up --training"
