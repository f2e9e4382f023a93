# SPDX-License-Identifier: BSD-2-Clause
"""Tests the list of other programs at a hook, and their position relative to mrcd's."""

import pytest

from mrcd.ctl.commands.status import brief_lines, status_lines
from mrcd.net import other_programs


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ([], []),
        ([(7, None)], []),  # ours
        ([(3, "theirs"), (7, None), (9, None)], [("before", 3, "theirs"), ("after", 9, None)]),
        ([(0, "a u32 filter"), (7, None)], [("before", None, "a u32 filter")]),
        ([(3, None)], [("alone", 3, None)]),
    ],
)
def test_the_position_of_other_programs_is_found(
    there: list[other_programs.Program], found: list[tuple[str, int | None, str | None]]
) -> None:
    told = other_programs.documents("p0", "ingress", there, {7, 8})
    assert [(d["position"], d["program_id"], d["program"]) for d in told] == found


def test_status_lists_programs_in_front_first_and_numbers_unnamed_ones() -> None:
    told = other_programs.documents("p0", "ingress", [(3, None), (7, None), (9, "theirs")], {7})[::-1]
    status = {"other_programs": told, "pins": {"directory": "/x", "lost": "nothing is pinned at /x"}}
    lines = status_lines(status, colour=False)
    assert (
        "other BPF   program 3 at ingress of p0 (RUNS BEFORE MRCD'S); theirs at ingress of p0 (runs after mrcd's)"
        in lines
    )
    assert "pins        nothing is pinned at /x: see `mrcctl doctor`" in lines
    (brief,) = brief_lines(status, colour=False)
    assert brief.endswith("pins lost  other programs 2")
