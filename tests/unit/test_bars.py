# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.plot.bars: medians and histograms → SVG."""

import re
from xml.etree import ElementTree

import pytest

from labkit.plot import bars
from labkit.plot.bars import Bar, Goal, Histogram, Picture, Section

SVG = "{http://www.w3.org/2000/svg}"
SECTION = Section(
    "a <cell>",
    "mrcd: 1.2 × seg6",
    "Gbit/s",
    [Bar("mrcd", 50, 40, 60, "50 Gbit/s", "ours"), Bar("seg6 & co", 25, 25, 25, "25 Gbit/s", "theirs")],
    [Goal(30, "wanted: 1.2 × seg6"), Goal(80, "far away")],
)
HISTOGRAM = Histogram("late", "shares", ["in order", "< 1 KB", "more"], [("mrcd", "ours", [0.75, 0.25, 0.0])])
PICTURE = Picture("a title", "s", [SECTION, HISTOGRAM], ["a note"])


def rects(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [r for r in root.iter(f"{SVG}rect") if list(r)]  # rectangles with a title are data


def number(element: ElementTree.Element, name: str) -> float:
    return float(element.get(name, "nan"))


def test_bars_are_as_long_as_their_values_and_end_inside() -> None:
    mrcd, peer, first, second = rects(ElementTree.fromstring(bars.draw(PICTURE)))
    assert number(mrcd, "width") == pytest.approx(2 * number(peer, "width"))
    assert number(mrcd, "x") + number(mrcd, "width") < bars.WIDTH - bars.RIGHT
    assert number(first, "height") == pytest.approx(3 * number(second, "height"), rel=0.01)


def test_a_line_goes_from_the_least_to_the_greatest_if_they_differ() -> None:
    root = ElementTree.fromstring(bars.draw(PICTURE))
    (line,) = [e for e in root.iter(f"{SVG}line") if e.get("class") == "range" and e.get("y1") == e.get("y2")]
    mrcd = rects(root)[0]
    assert number(line, "x1") < number(mrcd, "x") + number(mrcd, "width") < number(line, "x2")


def test_goals_stand_at_their_values_within_the_axis() -> None:
    root = ElementTree.fromstring(bars.draw(PICTURE))
    near, far = [number(e, "x1") for e in root.iter(f"{SVG}line") if e.get("class") == "goal"]
    peer = rects(root)[1]
    assert near == pytest.approx(bars.LEFT + 30 / 25 * number(peer, "width"), abs=0.2)
    assert near < far <= bars.WIDTH - bars.RIGHT


def test_the_labels_are_drawn() -> None:
    found = [t.text for t in ElementTree.fromstring(bars.draw(PICTURE)).iter(f"{SVG}text")]
    for words in (
        "a title",
        "a <cell>",
        "mrcd: 1.2 × seg6",
        "50 Gbit/s",
        "wanted: 1.2 × seg6",
        "< 1 KB",
        "a note",
        "75 %",
    ):
        assert words in found


def test_every_class_has_a_colour_for_light_and_for_dark() -> None:
    drawn = bars.draw(PICTURE)
    light, dark = drawn[drawn.index("<style>") : drawn.index("</style>")].split("@media (prefers-color-scheme:dark)")
    for name in {word for classes in re.findall(r'class="([^"]+)"', drawn) for word in classes.split()}:
        assert f".{name}{{" in light, name
        assert f".{name}{{" in dark, name


@pytest.mark.parametrize("section", [Section("t", "w", "u", []), Histogram("t", "w", [], []), SECTION])
def test_a_picture_without_measurements_is_valid(section: Section | Histogram) -> None:
    ElementTree.fromstring(bars.draw(Picture("t", "s", [section])))
