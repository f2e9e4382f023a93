# SPDX-License-Identifier: BSD-2-Clause
"""Tests the display of the tick's runner and of the probes."""

import numpy as np
import pytest

from mrcd.kernel import abi
from mrcd.view import probe_budget

MS = 1_000_000
NOW = 10**12


@pytest.mark.parametrize(
    ("ticked_ms", "packet_ms", "by"),
    [
        *[(0, 10_000, "daemon"), (49, 10_000, "daemon")],
        *[(51, 20, "timer packet"), (51, -20, "timer packet")],
        *[(10_000, 101, None), (10_000, 10_000, None)],
    ],
)
def test_the_runner_of_the_tick_is_shown(ticked_ms: int, packet_ms: int, by: str | None) -> None:
    node, clock = np.zeros((), abi.NODE), np.zeros((), abi.CLOCK)
    node["ticked_ns"], clock["packet_due_ns"] = NOW - ticked_ms * MS, NOW - packet_ms * MS
    assert probe_budget.document(node, clock, {}, 4000, NOW)["tick_by"] == by


def test_sent_probes_and_the_budget_are_shown() -> None:
    node, clock = np.zeros((), abi.NODE), np.zeros((), abi.CLOCK)
    clock["budget"], clock["by_daemon"], clock["by_packet"] = -7, 5, 6
    assert probe_budget.document(node, clock, {"idle": 3}, 100, NOW) == {
        "tick_by": None,
        "ticks_by_daemon": 5,
        "ticks_by_packet": 6,
        "budget_probes_per_s": 100,
        "budget_left_probes": -7,
        "sent_probes": {"idle": 3},
    }
