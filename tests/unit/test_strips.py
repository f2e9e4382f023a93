# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.plot.strips: times → SVG."""

from xml.etree import ElementTree

import pytest

from labkit.plot import strips
from labkit.plot.strips import Mark, Picture, Row
from tests.unit.drawings import SVG, assert_coloured

ROW = Row("a <kind>", "p50 1 ms", [0.0, 1e-7, 1e-3, 2.0, 500.0, None], 1e-3, None, "said")
PICTURE = Picture(
    "a title & more", "s", [ROW], [Mark(3e-3, "wanted", "target"), Mark(9.9, "a peer with a long name", "peer")], ["n"]
)


def test_every_time_is_a_dot_inside() -> None:
    root = ElementTree.fromstring(strips.draw(PICTURE))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    dots = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in root.iter(f"{SVG}circle")]
    assert len(dots) == 5
    assert all(strips.LEFT <= x <= width - strips.RIGHT and 0 < y < height for x, y in dots)
    assert [x for x, _ in dots] == sorted(x for x, _ in dots)


def test_missing_measurements_are_counted_in_the_picture() -> None:
    found = [t.text for t in ElementTree.fromstring(strips.draw(PICTURE)).iter(f"{SVG}text")]
    for words in ("a title & more", "a <kind>", "6 faults", "1 not found", "wanted", "n", "1 µs", "100 ms", "10 s"):
        assert words in found


def test_a_label_at_the_right_edge_stands_left_of_its_line() -> None:
    root = ElementTree.fromstring(strips.draw(PICTURE))
    label = next(t for t in root.iter(f"{SVG}text") if t.text == "a peer with a long name")
    assert label.get("text-anchor") == "end"


def test_every_class_has_a_colour_for_light_and_for_dark() -> None:
    assert_coloured(strips.draw(PICTURE))


@pytest.mark.parametrize(("picture"), [Picture("t", "s", []), Picture("t", "s", [Row("r", "w", [], None, None, "")])])
def test_a_picture_without_measurements_is_valid(picture: Picture) -> None:
    ElementTree.fromstring(strips.draw(picture))
