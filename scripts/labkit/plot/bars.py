# SPDX-License-Identifier: BSD-2-Clause
"""Draws sections of bars, each with an axis of its own, and histograms. Pure: data → SVG.

title, subtitle
section's title
    words
label  ▆▆▆▆▆▆▆├──┤  said      the bar ends at the median; the line is from minimum to maximum
label  ▆▆▆▆┊               ┊  a goal
       └───┴───┴───
histogram's title
   ▂▅▇▃▁                      one column per bucket and row, side by side
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape

from labkit.plot import svg
from labkit.plot.chart import nice_step
from labkit.plot.svg import text, text_width

WIDTH = 1080
LEFT, RIGHT = 230, 250  # room left of the bars for names, right of them for values
HEAD, SECTION_HEAD, ROW, BAR, FOOT = 84, 48, 22, 12, 44
COLUMNS, COLUMNS_FOOT = 80, 52  # heights in a histogram
LINE = 20
_FILL = {"ours": "line", "theirs": "peer"}  # classes of svg.py


@dataclass(frozen=True)
class Bar:
    """One measured quantity: its median, minimum, maximum, and a text of these."""

    label: str
    value: float
    low: float
    high: float
    said: str
    kind: Literal["ours", "theirs"]


@dataclass(frozen=True)
class Goal:
    """A value that the bar of a label should reach, or not exceed."""

    value: float
    label: str


@dataclass(frozen=True)
class Section:
    """Bars of one unit. The axis begins at 0."""

    title: str
    words: str
    unit: str
    bars: Sequence[Bar]
    goals: Sequence[Goal] = ()


@dataclass(frozen=True)
class Histogram:
    """Shares by bucket, for one or several rows. `ticks`: a label per bucket, or none."""

    title: str
    words: str
    ticks: Sequence[str]
    rows: Sequence[tuple[str, Literal["ours", "theirs"], Sequence[float]]]  # name, shares


@dataclass(frozen=True)
class Picture:
    """The contents of a picture."""

    title: str
    subtitle: str
    sections: Sequence[Section | Histogram]
    notes: Sequence[str] = ()


def draw(picture: Picture) -> str:
    """Returns the SVG document."""
    return "\n".join(_document(picture)) + "\n"


def _document(p: Picture) -> Iterator[str]:
    drawn: list[str] = []
    y = float(HEAD)
    for section in p.sections:
        part = _histogram(section, y) if isinstance(section, Histogram) else _section(section, y)
        drawn += part
        y += _height(section)
    description = "; ".join([p.subtitle, *(f"{s.title}: {_read(s)}" for s in p.sections), *p.notes])
    yield from svg.head(WIDTH, round(y) + LINE * len(p.notes) + 8, p.title, description)
    yield text(24, 36, p.title, "ink", 19, weight=600)
    yield text(24, 60, p.subtitle, "faint", 13)
    yield from drawn
    for i, note in enumerate(p.notes):
        yield text(24, y + LINE * i + 6, note, "faint", 13)
    yield "</svg>"


def _height(section: Section | Histogram) -> float:
    if isinstance(section, Histogram):
        return SECTION_HEAD + COLUMNS + COLUMNS_FOOT
    return SECTION_HEAD + _goal_lanes(section) + ROW * len(section.bars) + FOOT


def _goal_lanes(section: Section) -> float:
    return 16.0 * len(section.goals)


def _read(section: Section | Histogram) -> str:
    if isinstance(section, Histogram):
        return section.words
    return ", ".join(f"{b.label} {b.said}" for b in section.bars)


def _section(s: Section, y: float) -> Iterator[str]:
    highest = max([b.high for b in s.bars] + [b.value for b in s.bars] + [g.value for g in s.goals], default=1.0) or 1.0
    step = nice_step(highest, 6)
    ceiling = math.ceil(highest / step - 1e-9) * step
    top = y + SECTION_HEAD + _goal_lanes(s)
    bottom = top + ROW * len(s.bars)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(value / ceiling, 0.0), 1.0)

    yield text(24, y + 18, s.title, "ink", 15, weight=600)
    yield text(24, y + 37, s.words, "faint", 12)
    for i in range(round(ceiling / step) + 1):
        at = x(i * step)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top:.1f}" y2="{bottom + 4:.1f}"/>'
        yield text(at, bottom + 18, f"{i * step:g}", "faint", 11, anchor="middle")
    yield text(x(ceiling) + 14, bottom + 18, s.unit, "faint", 11)
    for i, bar in enumerate(s.bars):
        yield from _bar(bar, top + ROW * i, x)
    for i, goal in enumerate(s.goals):
        at, lane = x(goal.value), y + SECTION_HEAD + 16 * i + 10
        yield (
            f'<line class="goal" stroke-width="1.6" stroke-dasharray="5 3" x1="{at:.1f}" x2="{at:.1f}" '
            f'y1="{lane - 8:.1f}" y2="{bottom:.1f}"/>'
        )
        yield text(at + 5, lane, goal.label, "target", 11, weight=600, halo=True)


def _bar(bar: Bar, y: float, x: Callable[[float], float]) -> Iterator[str]:
    middle, end = y + ROW / 2, x(bar.value)
    yield text(LEFT - 8, middle + 4, bar.label, "ink" if bar.kind == "ours" else "faint", 12, anchor="end")
    yield (
        f'<rect class="{_FILL[bar.kind]}" fill-opacity="0.75" x="{LEFT}" y="{middle - BAR / 2:.1f}" '
        f'width="{max(end - LEFT, 0.5):.1f}" height="{BAR}"><title>{escape(f"{bar.label}: {bar.said}")}</title></rect>'
    )
    low, high = x(bar.low), x(bar.high)
    if high - low > 1:
        yield f'<line class="range" stroke-width="1.4" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
        for at in (low, high):
            yield (
                f'<line class="range" stroke-width="1.4" x1="{at:.1f}" x2="{at:.1f}" y1="{middle - 4}" '
                f'y2="{middle + 4}"/>'
            )
    yield text(WIDTH - RIGHT + 14, middle + 4, bar.said, "ink" if bar.kind == "ours" else "faint", 12)


def _histogram(h: Histogram, y: float) -> Iterator[str]:
    top = y + SECTION_HEAD
    bottom = top + COLUMNS
    buckets = max((len(shares) for _, _, shares in h.rows), default=0) or 1
    highest = max((v for _, _, shares in h.rows for v in shares), default=0.0) or 1.0
    wide = (WIDTH - LEFT - 40) / buckets
    each = wide * 0.8 / max(1, len(h.rows))
    yield text(24, y + 18, h.title, "ink", 15, weight=600)
    yield text(24, y + 37, h.words, "faint", 12)
    for share in (0.0, highest / 2, highest):
        at = bottom - COLUMNS * share / highest
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 40}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield text(LEFT - 8, at + 4, f"{100 * share:.3g} %", "faint", 11, anchor="end")
    for n, (name, kind, shares) in enumerate(h.rows):
        yield f'<rect class="{_FILL[kind]}" fill-opacity="0.75" x="24" y="{top + 18 * n}" width="12" height="10"/>'
        yield text(42, top + 18 * n + 9, name, "faint", 12)
        for i, share in enumerate(shares):
            high = COLUMNS * share / highest
            if high > 0:
                yield (
                    f'<rect class="{_FILL[kind]}" fill-opacity="0.75" x="{LEFT + wide * i + each * n:.1f}" '
                    f'y="{bottom - max(high, 0.8):.1f}" width="{each:.1f}" height="{max(high, 0.8):.1f}">'
                    f"<title>{escape(name)}: {100 * share:.3g} %</title></rect>"
                )
    spare = max(1, math.ceil(max((text_width(t, 11) for t in h.ticks), default=1.0) / wide))
    for i, tick in enumerate(h.ticks):
        if i % spare == 0:
            yield text(LEFT + wide * (i + 0.4), bottom + 16, tick, "faint", 11, anchor="middle")
