# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.plot.panels: courses → SVG."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from labkit.plot import panels
from labkit.plot.panels import Fault, Goal, Panel, Picture, Series
from tests.unit.drawings import SVG, assert_coloured

COURSE = Panel(
    "a <panel>",
    "words",
    "time, s",
    "share",
    0.0,
    4.0,
    [
        Series([(0.0, 1.0), (1.0, 0.0), (2.0, 1.2), (3.0, 0.5)], "ours", "steps"),
        Series([(0.5, 1.0), (3.5, 0.6), (9.0, 0.1)], "theirs", "dots"),
    ],
    [Goal(1.0, 3.0, 0.5)],
    [Fault(1.0, 2.0, "one"), Fault(1.5, 3.0, "two")],
)
SIZES = Panel(
    "sizes",
    "",
    "bytes",
    "share",
    1.0,
    100.0,
    [Series([(1.0, 0.1), (100.0, 0.5)], k, "joined", k) for k in ("ours", "theirs")],
    ticks=[(1.0, "1"), (10.0, "10"), (100.0, "100")],
)
PICTURE = Picture("a title & more", "s", ("mine", "yours", "goal"), [COURSE, SIZES])


def drawn() -> ElementTree.Element:
    return ElementTree.fromstring(panels.draw(PICTURE))


def test_everything_is_inside() -> None:
    root = drawn()
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    spots = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in root.iter(f"{SVG}circle")]
    for line in root.iter(f"{SVG}polyline"):
        spots += [(float(x), float(y)) for x, y in (p.split(",") for p in line.get("points", "").split())]
    assert len(spots) > 20
    assert all(0 < x < width and 0 < y < height for x, y in spots)


def test_a_bin_is_a_step() -> None:
    line = next(drawn().iter(f"{SVG}polyline")).get("points", "").split()
    xs, ys = zip(*((float(x), float(y)) for x, y in (p.split(",") for p in line)), strict=True)
    assert len(line) == 8
    assert ys[0] == ys[1] != ys[2]
    assert xs[1] == xs[2]
    assert xs[-1] == panels.WIDTH - panels.RIGHT


def test_values_outside_are_left_out() -> None:
    dots = [c for c in drawn().iter(f"{SVG}circle") if c.get("class") == "peer"]
    assert len(dots) == 3 + 2 + 2  # legend, course, sizes


def test_axes_legend_and_faults_have_labels() -> None:
    found = [t.text for t in drawn().iter(f"{SVG}text")]
    for words in (
        "a title & more",
        "mine",
        "yours",
        "goal",
        "a <panel>",
        "time, s",
        "share",
        "0 %",
        "100 %",
        "one",
        "two",
    ):
        assert words in found


def test_labels_and_faults_do_not_cover_each_other() -> None:
    texts = {t.text: float(t.get("y", 0)) for t in drawn().iter(f"{SVG}text")}
    assert abs(texts["ours"] - texts["theirs"]) >= 12
    assert abs(texts["one"] - texts["two"]) >= 12


def test_a_logarithmic_axis() -> None:
    at = {t.text: float(t.get("x", 0)) for t in drawn().iter(f"{SVG}text") if t.text in ("1", "10", "100")}
    assert at["10"] - at["1"] == pytest.approx(at["100"] - at["10"], abs=0.2)


def test_every_class_has_a_colour_for_light_and_for_dark() -> None:
    assert_coloured(panels.draw(PICTURE))


def test_a_picture_without_measurements_is_valid() -> None:
    empty = Panel("t", "w", "x", "y", 0.0, 1.0, [Series([], "ours", "steps"), Series([], "theirs", "joined", "l")])
    ElementTree.fromstring(panels.draw(Picture("t", "s", ("a", "b", "c"), [empty])))


def test_a_logarithmic_axis_of_y() -> None:
    axis = panels.Axis(10.0, 1000.0, [(10.0, "low"), (100.0, "middle"), (1000.0, "high")], is_logarithmic=True)
    assert [axis.share(y) for y in (1.0, 10.0, 100.0, 5000.0)] == pytest.approx([0, 0, 0.5, 1])
    root = ElementTree.fromstring(panels.draw(Picture("t", "s", ("a", "", "c"), [replace(COURSE, y_axis=axis)])))
    at = {t.text: float(t.get("y", 0)) for t in root.iter(f"{SVG}text") if t.text in ("low", "middle", "high")}
    assert at["low"] - at["middle"] == pytest.approx(at["middle"] - at["high"], abs=0.2)
