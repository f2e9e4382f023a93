# SPDX-License-Identifier: BSD-2-Clause
"""Tests the requirements on the time in which a dead T1 is left."""

from typing import Any

import pytest

from labkit.bench.scale import t1_failure


def died(**other: Any) -> dict[str, Any]:
    """Returns the result for a T1 that died."""
    requests = {"traffic": 0, "suspicion": 500, "retry": 4500, "idle": 5000}
    return {"all_s": 1.9, "after_first_s": 0.019, "after_found_s": 0.01, "requests": requests, "taken_s": 2.0, **other}


@pytest.mark.parametrize(
    ("idle", "busy", "met"),
    [
        ({}, {}, [True, True, True]),
        ({"all_s": 2.1}, {}, [False, True, True]),
        ({"requests": {"idle": 10_001}}, {}, [True, False, True]),
        ({"requests": {"idle": 20_001}, "taken_s": 4.5}, {}, [True, False, True]),
        ({}, {"after_found_s": 0.021}, [True, True, False]),
    ],
)
def test_a_dead_t1_must_be_left_in_time(idle: dict[str, Any], busy: dict[str, Any], met: list[bool]) -> None:
    found = t1_failure.requirements({"idle": died(**idle), "busy": died(**busy)}, 4096)
    assert [r["met"] for r in found] == met
