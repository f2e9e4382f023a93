# SPDX-License-Identifier: BSD-2-Clause
"""Tests the smallest form of scripts/demo-training: one fault, without and with mrcd. `make test-training` runs it."""

import io

from rich.console import Console

from labkit.cluster.attachment import ATTACHED, DETACHED
from labkit.demo import training, training_report
from labkit.traffic.job import RANKS
from tests.lab.conftest import a_lab

TIMES = training.Times(lead_s=0.3, before_s=0.3, fault_s=1.0, after_s=1.0)


def test_a_t1_that_dies_stops_the_job_without_mrcd_only() -> None:
    printed = io.StringIO()
    with a_lab("job", hosts=RANKS, planes=2, t1=2) as lab:
        episodes, twice = training.run(lab, TIMES, Console(file=printed, width=100), 1)
        document = training_report.build(episodes, twice, lab.fabric.parameters)
    assert 0 < twice < 1
    without, with_mrcd = (document["ways"][way]["faults"][0] for way in (DETACHED, ATTACHED))
    assert without["target"] == with_mrcd["target"]
    assert without["dropped_skbs"] > 0
    assert with_mrcd["dropped_skbs"] > 0
    assert without["longest_ms"] > 1000 * TIMES.fault_s * 0.9  # until TCP retransmits after the healing
    assert with_mrcd["longest_ms"] < 1000 * TIMES.fault_s * 0.9
    assert with_mrcd["steps"] > without["steps"]
    assert "fault: a T1 dies" in printed.getvalue()
