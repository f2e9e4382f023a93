# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrcd.ctl.terminal.render: numbers as text, tables in a narrow terminal, colour."""

import re
from collections.abc import Callable

import pytest

from mrcd.ctl.terminal import render


def test_columns_that_have_no_room_are_left_out_and_named() -> None:
    columns = [render.Column("A"), render.Column("BBBB", rank=1), render.Column("CCCC", True, rank=2)]
    rows = [["a", "b", "c"]]
    assert render.table(columns, rows, colour=False, width=13) == ["A  BBBB  CCCC", "a  b        c"]
    assert render.table(columns, rows, colour=False, width=12) == [
        "A  BBBB",
        "a  b",
        "(no room for",
        " CCCC: see",
        " --wide)",
    ]
    assert render.table(columns, rows, colour=False, width=1)[:2] == ["A", "a"]
    assert render.table(columns, rows, colour=False, width=30, heading=False) == ["a  b        c"]
    assert len(render.table(columns, rows, colour=False)) == 2


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (render.count, {None: "-", 0: "0", 9999: "9999", 10_000: "10k", 12_345: "12.3k", 999_499: "999k",
                        999_500: "1M", 1_851_850_500: "1.85G", 4 * 10**15: "4000T"}),
        (render.percent, {None: "-", 0.0: "0", 0.00002: "0.002", 0.1234: "12.3", 0.9999: "100", 1.0: "100"}),
        (render.duration, {None: "-", -0.001: "0.0 s", 0.04: "0.0 s", 42: "42 s", 119: "119 s", 300: "5 min",
                           9000: "2.5 h", 10**6: "12 d"}),
    ],
)  # fmt: skip
def test_numbers(function: Callable[[float | None], str], shown: dict[float | None, str]) -> None:
    assert {value: function(value) for value in shown} == shown


def test_cutting_counts_no_colours() -> None:
    assert render.cut("\033[32mGOOD\033[0m news", 6) == "\033[32mGOOD\033[0m …"
    assert render.cut("\033[32mGOOD\033[0m", 4) == "\033[32mGOOD\033[0m"
    assert render.cut("GOOD", 3) == "GO…"


def test_colour_changes_nothing_but_colour() -> None:
    columns, rows = [render.Column("STATE"), render.Column("EV")], [["GOOD", "1"], ["ASSUMED_BAD", "2"]]
    plain = render.table(columns, rows, colour=False)
    coloured = render.table(columns, rows, colour=True)
    assert coloured[1:] == ["\033[32mGOOD\033[0m         1", "\033[31mASSUMED_BAD\033[0m  2"]
    assert [re.sub("\033\\[[0-9]+m", "", line) for line in coloured] == plain


def test_a_long_line_is_cut_and_not_wrapped() -> None:
    lines = render.table([render.Column("A"), render.Column("B")], [["a" * 30, "b" * 30]], colour=False, width=40)
    assert lines[1:] == ["a" * 25 + "…  " + "b" * 11 + "…", "(no room for the text at …: see --wide)"]


def test_a_long_name_is_cut_so_that_the_last_column_has_room() -> None:
    columns = [render.Column("NAME"), render.Column("N", True), render.Column("REASON")]
    lines = render.table(columns, [["n" * 30, "5", "overdue"]], colour=False, width=30)
    assert lines[1] == "n" * 17 + "…  5  overdue"
    assert lines[2:] == ["(no room for the text at …:", " see --wide)"]
