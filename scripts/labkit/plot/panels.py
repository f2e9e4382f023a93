# SPDX-License-Identifier: BSD-2-Clause
"""Draws several panels, one above the other: our courses as lines, others' points as dots. Pure: data → SVG.

title, subtitle
─ ours   ● theirs   - - goal         legend
panel's title
     text
     ├ fault ┤          faults during the course
100 %┤▔▔▔▔▔●●●●●●       our line, their dots, a goal
     └──────────────
     0    5    10  s
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape

from labkit.plot import svg
from labkit.plot.chart import lanes, nice_step
from labkit.plot.svg import text, text_width

WIDTH = 1080
LEFT, RIGHT = 84, 118
HEAD, PANEL_HEAD, LANE, PLOT, FOOT = 104, 50, 22, 200, 62
DOT = 2.2
_STROKE = {"ours": "stroke", "theirs": "beside"}  # classes of svg.py
_FILL = {"ours": "line", "theirs": "peer"}


@dataclass(frozen=True)
class Series:
    """Points, x ascending. `steps`: a point holds until the next, the last one as long as the one before."""

    points: Sequence[tuple[float, float]]
    kind: Literal["ours", "theirs"]
    style: Literal["steps", "dots", "joined"]
    label: str = ""  # drawn at its end


@dataclass(frozen=True)
class Goal:
    """The wanted level of the line between two x."""

    begin: float
    end: float
    y: float


@dataclass(frozen=True)
class Fault:
    """A fault from one x to another."""

    begin: float
    end: float
    label: str


@dataclass(frozen=True)
class Axis:
    """The range of y, and its ticks: (y, label). Values outside are drawn at its ends."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_logarithmic: bool = False

    def share(self, y: float) -> float:
        """Returns 0 for the low end, 1 for the high end."""
        y = min(max(y, self.low), self.high)
        if self.is_logarithmic:
            return math.log(y / self.low) / math.log(self.high / self.low)
        return (y - self.low) / (self.high - self.low)


SHARES = Axis(0.0, 1.25, [(i / 4, f"{25 * i} %") for i in range(6)])


@dataclass(frozen=True)
class Panel:
    """One plot. `ticks`: (x, label); with them x is logarithmic."""

    title: str
    words: str
    x_label: str
    y_label: str
    begin: float
    end: float
    series: Sequence[Series]
    goals: Sequence[Goal] = ()
    faults: Sequence[Fault] = ()
    ticks: Sequence[tuple[float, str]] = ()
    y_axis: Axis = SHARES


@dataclass(frozen=True)
class Picture:
    """The contents of a picture. `legend`: our lines, their dots, a goal; an empty text omits the dots."""

    title: str
    subtitle: str
    legend: tuple[str, str, str]
    panels: Sequence[Panel]


def draw(picture: Picture) -> str:
    """Returns the SVG document."""
    return "\n".join(_document(picture)) + "\n"


def _document(p: Picture) -> Iterator[str]:
    plots, y = [], float(HEAD)
    for panel in p.panels:
        plots.append(_Plot(panel, y))
        y = plots[-1].foot
    description = "; ".join([p.subtitle, *(f"{panel.title}: {panel.words}" for panel in p.panels)])
    yield from svg.head(WIDTH, round(y) + 8, p.title, description)
    yield text(24, 36, p.title, "ink", 19, weight=600)
    yield text(24, 60, p.subtitle, "faint", 13)
    yield from _legend(p.legend)
    for plot in plots:
        yield from plot.lines()
    yield "</svg>"


def _legend(words: tuple[str, str, str]) -> Iterator[str]:
    ours, theirs, goal = words
    x, y = 24.0, 84
    yield f'<line class="stroke" stroke-width="2" x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}"/>'
    yield text(x + 28, y, ours, "faint", 12)
    x += 28 + text_width(ours, 12) + 24
    if theirs:
        for i in range(3):
            yield f'<circle class="peer" cx="{x + 3 + 8 * i:.1f}" cy="{y - 4}" r="{DOT}"/>'
        yield text(x + 28, y, theirs, "faint", 12)
        x += 28 + text_width(theirs, 12) + 24
    yield _goal(x, x + 22, y - 4)
    yield text(x + 28, y, goal, "faint", 12)


def _goal(x1: float, x2: float, y: float) -> str:
    return (
        f'<line class="goal" stroke-width="1.6" stroke-dasharray="5 3" x1="{x1:.1f}" x2="{x2:.1f}" '
        f'y1="{y:.1f}" y2="{y:.1f}"/>'
    )


class _Plot:
    """The geometry of one panel, and its parts from back to front."""

    def __init__(self, panel: Panel, top: float) -> None:
        self.p, self.begin_y = panel, top
        self.extents = [self._extent(f) for f in panel.faults]
        self.lane_of = lanes(self.extents)
        self.lanes_top = top + PANEL_HEAD
        self.top = self.lanes_top + LANE * (max(self.lane_of, default=-1) + 1) + 6
        self.bottom = self.top + PLOT
        self.foot = self.bottom + FOOT

    def x(self, value: float) -> float:
        """Returns pixels from the left."""
        begin, end = self.p.begin, self.p.end
        if self.p.ticks:
            share = math.log(max(value, begin) / begin) / math.log(end / begin)
        else:
            share = (value - begin) / (end - begin)
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(share, 0.0), 1.0)

    def y(self, value: float) -> float:
        """Returns pixels from the top."""
        return self.bottom - PLOT * self.p.y_axis.share(value)

    def lines(self) -> Iterator[str]:
        """Yields the panel."""
        yield text(24, self.begin_y + 18, self.p.title, "ink", 15, weight=600)
        yield text(24, self.begin_y + 38, self.p.words, "faint", 12)
        yield from self._bands()
        yield from self._grid()
        for goal in self.p.goals:
            yield _goal(self.x(goal.begin), self.x(goal.end), self.y(goal.y))
        for series in sorted(self.p.series, key=lambda s: s.kind == "theirs"):
            yield from self._series(series)
        yield from self._ends()
        yield from self._faults()

    def _extent(self, fault: Fault) -> tuple[float, float]:
        wide = text_width(fault.label, 12) + 8
        left = max(LEFT, min(self.x(fault.begin), WIDTH - RIGHT - wide))
        return left, max(self.x(fault.end), left + wide)

    def _bands(self) -> Iterator[str]:
        for f in self.p.faults:
            x, width = self.x(f.begin), self.x(f.end) - self.x(f.begin)
            yield (
                f'<rect class="fault" fill-opacity="0.06" x="{x:.1f}" y="{self.top:.1f}" width="{width:.1f}" '
                f'height="{PLOT}"/>'
            )

    def _grid(self) -> Iterator[str]:
        for value, words in self.p.y_axis.ticks:
            y = self.y(value)
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield text(LEFT - 8, y + 4, words, "faint", 12, anchor="end")
        middle = (self.top + self.bottom) / 2
        yield (
            f'<text class="faint" transform="translate(30 {middle:.0f}) rotate(-90)" text-anchor="middle" '
            f'font-size="12">{escape(self.p.y_label)}</text>'
        )
        for value, words in self.p.ticks or self._times():
            x = self.x(value)
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{self.bottom:.1f}" y2="{self.bottom + 5:.1f}"/>'
            yield text(x, self.bottom + 19, words, "faint", 12, anchor="middle")
        yield text((LEFT + WIDTH - RIGHT) / 2, self.bottom + 38, self.p.x_label, "faint", 12, anchor="middle")

    def _times(self) -> list[tuple[float, str]]:
        step = nice_step(self.p.end - self.p.begin, 12)
        first, last = math.ceil(self.p.begin / step - 1e-9), math.floor(self.p.end / step + 1e-9)
        return [(i * step, f"{i * step:g}") for i in range(first, last + 1)]

    def _series(self, s: Series) -> Iterator[str]:
        inside = [(x, y) for x, y in s.points if self.p.begin <= x <= self.p.end]
        if s.style != "dots" and inside:
            corners = list(_steps(inside)) if s.style == "steps" else inside
            drawn = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in corners)
            wide = 1.2 if s.style == "steps" else 1.8
            yield f'<polyline class="{_STROKE[s.kind]}" fill="none" stroke-width="{wide}" points="{drawn}"/>'
        if s.style != "steps":
            for x, y in inside:
                yield f'<circle class="{_FILL[s.kind]}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{DOT}"/>'

    def _ends(self) -> Iterator[str]:
        """Yields labels beside the last points, moved down in the order of the points so that none overlap."""
        found = sorted(
            ((self.x(s.points[-1][0]), self.y(s.points[-1][1]) + 4, s) for s in self.p.series if s.label and s.points),
            key=lambda e: e[1],
        )
        below = -math.inf
        for x, y, s in found:
            below = max(y, below + 14)
            yield text(x + 7, below, s.label, _FILL[s.kind], 12, weight=600, halo=True)

    def _faults(self) -> Iterator[str]:
        for f, (left, _), lane in zip(self.p.faults, self.extents, self.lane_of, strict=True):
            y = self.lanes_top + LANE * lane + 15
            x1, x2 = self.x(f.begin), self.x(f.end)
            yield f'<line class="edge" stroke-width="2" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield text(left + 1, y - 4, f.label, "fault", 12, weight=600, halo=True)


def _steps(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yields the corners of the line on which each point holds until the next."""
    wide = points[-1][0] - points[-2][0] if len(points) > 1 else 0.0
    ends = [x for x, _ in points[1:]] + [points[-1][0] + wide]
    for (x, y), end in zip(points, ends, strict=True):
        yield x, y
        yield end, y
