# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.plot.chart: data → SVG."""

import math
from xml.etree import ElementTree

import pytest

from labkit.plot import chart, svg
from labkit.plot.chart import Fault, Group, Picture, Row, Span
from tests.unit.drawings import SVG, assert_coloured

SPANS = (Span(0, 4, "GOOD"), Span(4, 8, "ASSUMED_BAD"), Span(8, 20, "GOOD"))
PICTURE = Picture(
    title="a flow & its <paths>",
    subtitle="what it is",
    seconds=20,
    bin_s=0.1,
    bits_per_s=[2.9e10] * 150 + [0.0] * 50,
    faults=[Fault(4, 14, "one"), Fault(9, 16.5, "two")],
    groups=[Group("plane 0", (Row("0", SPANS), Row("1", (Span(0, 20, "GOOD"),))))],
    strip_title="states",
    notes=["a note"],
)


def texts(picture: Picture) -> list[str]:
    return [t.text or "" for t in ElementTree.fromstring(chart.draw(picture)).iter(f"{SVG}text")]


def test_it_is_an_svg_with_every_word_in_it() -> None:
    found = texts(PICTURE)
    for words in ("a flow & its <paths>", "what it is", "one", "two", "plane 0", "states", "a note", "goodput, Gbit/s"):
        assert words in found


def test_it_is_described_for_those_who_do_not_see_it() -> None:
    root = ElementTree.fromstring(chart.draw(PICTURE))
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == PICTURE.title
    assert "two" in (root.findtext(f"{SVG}desc") or "")


def test_every_class_has_a_colour_for_light_and_for_dark() -> None:
    assert_coloured(chart.draw(PICTURE))


def test_nothing_is_drawn_outside() -> None:
    late = Fault(19.5, 20, "a label that is far too long for the little room that is left beside its band")
    picture = Picture("t", "s", 20, 0.1, [1e9] * 200, faults=[late], groups=PICTURE.groups)
    root = ElementTree.fromstring(chart.draw(picture))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for shape in root.iter():
        x, y = float(shape.get("x", 0)), float(shape.get("y", 0))
        assert 0 <= x <= width
        assert 0 <= y <= height
        assert x + float(shape.get("width", 0)) <= width
    label = next(t for t in root.iter(f"{SVG}text") if t.text == late.label)
    assert float(label.get("x", 0)) + svg.text_width(late.label, 12) <= width


def test_an_empty_recording_still_makes_a_picture() -> None:
    ElementTree.fromstring(chart.draw(Picture("t", "s", 1, 0.1, [])))
    ElementTree.fromstring(chart.draw(Picture("t", "s", 1, 0.1, [0.0] * 10)))


def test_only_states_that_occur_are_explained() -> None:
    found = texts(PICTURE)
    assert "ASSUMED_BAD" in found
    assert "DENIED" not in found


@pytest.mark.parametrize(
    ("top", "step"),
    [(30, 10), (25, 5), (38.4, 10), (7, 2), (1, 0.2), (0.3, 0.1), (5, 1), (5.1, 2), (0, 1), (9.999, 2)],
)
def test_steps_are_round_and_not_too_many(top: float, step: float) -> None:
    assert chart.nice_step(top) == pytest.approx(step)
    assert math.ceil(top / step) <= 5


@pytest.mark.parametrize(
    ("value", "unit"), [(3e10, (1e9, "Gbit/s")), (5e7, (1e6, "Mbit/s")), (999, (1.0, "bit/s")), (0, (1.0, "bit/s"))]
)
def test_the_unit_suits_the_value(value: float, unit: tuple[float, str]) -> None:
    assert chart.unit(value) == unit


def test_labels_share_a_lane_only_if_they_do_not_touch() -> None:
    assert chart.lanes([(0, 10), (11, 20), (5, 12), (13, 30)]) == [0, 0, 1, 1]
    assert chart.lanes([(0, 10), (10, 20)]) == [0, 1]
    assert chart.lanes([]) == []
