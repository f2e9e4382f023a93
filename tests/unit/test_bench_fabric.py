# SPDX-License-Identifier: BSD-2-Clause
"""Tests the requirements and tables of the planner's benchmark."""

from typing import Any

from labkit.bench import fabric


def document(**other: Any) -> dict[str, Any]:
    one = {
        "format": "frr",
        "switches": 2048,
        "bytes": 102_000_000,
        "lines": {"t0-0-3": 1946, "t1-0-1": 920},
        "followed": 1_050_176,
        "mistakes": {},
        "examples": {},
        "took_s": 12.0,
    }
    sizes = {"nics": 131_072, "hosts": 65_535, "file_bytes": 452}
    times = {"plan_s": 2.0, "plan_cpu_s": 1.9, "load_s": 3.0, "load_cpu_s": 2.5, "load_bytes": 217e6}
    return {**sizes, **times, "formats": [one | other]}


def test_all_bounds_are_met() -> None:
    found = fabric.requirements(document())
    assert [r["met"] for r in found] == [True] * 4
    assert found[3]["measured"] == "1050176 followed, no mistake"


def test_a_mistake_or_too_few_packets_miss_the_bound() -> None:
    wrong = fabric.requirements(document(mistakes={"lost": 2}, examples={"lost": "a → b"}))
    assert [r["met"] for r in wrong] == [True, True, True, False]
    assert wrong[3]["measured"] == "1050176 followed, 2 × lost (a → b)"
    assert not fabric.requirements(document(followed=999_999))[3]["met"]
    slow = fabric.requirements(document() | {"plan_s": 10.1, "load_s": 5.1, "load_bytes": 501e6})
    assert [r["met"] for r in slow] == [False, False, False, True]


def test_the_table_has_a_row_per_format() -> None:
    lines = fabric.lines(document())
    assert lines[0].startswith("A fabric of 131072 NICs: planned in 2.0 s (1.9 s of CPU)")
    assert lines[-1].split() == ["frr", "2048", "1946", "920", "102", "1.05M", "0", "12"]
