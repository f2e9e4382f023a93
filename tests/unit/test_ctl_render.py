# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrcd.ctl.terminal.render: numbers, shares and durations as text, and colour."""

import pytest

from mrcd.ctl.documents.events import event_lines
from mrcd.ctl.documents.histograms import histogram_lines
from mrcd.ctl.documents.keys import key_lines
from mrcd.ctl.documents.paths import hop_lines, path_lines
from mrcd.ctl.documents.peers import peer_lines
from mrcd.ctl.documents.status import status_lines
from mrcd.ctl.terminal import render
from tests.unit.canned_daemon import BAD_PATH, EVENT, HISTOGRAM, KEYS, PATH, PEER, STATUS


@pytest.mark.parametrize(
    ("usable", "weight", "shown"),
    [(True, 1.0, "yes"), (True, 0.125, "1/8"), (True, 0.5, "1/2"), (False, 0.125, "no"), (True, None, "yes")],
)
def test_a_returning_ev_is_shown_with_its_weight(usable: bool, weight: float | None, shown: str) -> None:
    heading, line = path_lines([{**PATH, "usable": usable, "weight": weight}], colour=False)
    assert line[heading.index("USABLE") :].split()[0] == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (9999, "9999"),
        (10_000, "10k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (1_851_850_500, "1.85G"),
        (4 * 10**15, "4000T"),
    ],
)
def test_count(value: int | None, shown: str) -> None:
    assert render.count(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0, "0"), (0.00002, "0.002"), (0.1234, "12.3"), (0.9999, "100"), (1.0, "100")],
)
def test_percent(value: float | None, shown: str) -> None:
    assert render.percent(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (-0.001, "0.0 s"),
        (0.04, "0.0 s"),
        (42, "42 s"),
        (119, "119 s"),
        (300, "5 min"),
        (9000, "2.5 h"),
        (10**6, "12 d"),
    ],
)
def test_duration(value: float | None, shown: str) -> None:
    assert render.duration(value) == shown


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


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_fit_the_terminal(width: int) -> None:
    for lines in (
        status_lines(STATUS, colour=False, width=width),
        peer_lines([PEER], colour=False, width=width),
        path_lines([PATH, BAD_PATH], colour=False, width=width),
        hop_lines([{**PATH, "hops": []}], colour=False, width=width),
        event_lines([EVENT], colour=False, width=width),
        histogram_lines([HISTOGRAM], width=width),
        key_lines({**KEYS}, width=width),
    ):
        assert max(map(len, lines)) <= width, lines


def test_a_narrow_terminal_keeps_what_matters_most() -> None:
    peer, path, event = (
        f([doc], colour=False, width=40)[0].split()
        for f, doc in ((peer_lines, PEER), (path_lines, BAD_PATH), (event_lines, EVENT))
    )
    assert peer == ["PEER", "STATUS", "EVS", "USABLE", "RTT", "µs"]
    assert path[:3] == ["PEER", "EV", "PLANE"]
    assert "STATE" in path
    assert event == ["TIME", "(UTC)", "PEER", "EV", "REASON"]


def test_a_long_line_is_cut_and_not_wrapped() -> None:
    lines = render.table([render.Column("A"), render.Column("B")], [["a" * 30, "b" * 30]], colour=False, width=40)
    assert lines[1:] == ["a" * 25 + "…  " + "b" * 11 + "…", "(no room for the text at …: see --wide)"]


def test_a_long_name_is_cut_so_that_the_last_column_has_room() -> None:
    columns = [render.Column("NAME"), render.Column("N", True), render.Column("REASON")]
    lines = render.table(columns, [["n" * 30, "5", "overdue"]], colour=False, width=30)
    assert lines[1] == "n" * 17 + "…  5  overdue"
    assert lines[2:] == ["(no room for the text at …:", " see --wide)"]


def test_flaps_are_in_the_table() -> None:
    heading, line = path_lines([BAD_PATH], colour=False)
    at = heading.index("FLAPS")
    assert line[at : at + len("FLAPS")].strip() == "2"


def test_lifetime_figures_say_so() -> None:
    assert "LOSS % ever" in path_lines([PATH], colour=False)[0]
    assert "LOSS % ever" in peer_lines([PEER], colour=False)[0]


def test_colour_changes_nothing_but_colour() -> None:
    plain = path_lines([PATH, BAD_PATH], colour=False)
    coloured = path_lines([PATH, BAD_PATH], colour=True)
    assert "\033[32mGOOD\033[0m" in coloured[1]
    assert "\033[31mASSUMED_BAD\033[0m" in coloured[2]
    for code in ("\033[32m", "\033[31m", "\033[0m"):
        coloured = [line.replace(code, "") for line in coloured]
    assert coloured == plain
