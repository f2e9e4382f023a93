# SPDX-License-Identifier: BSD-2-Clause
"""Draws times on a logarithmic axis: a strip of dots per row, one per measurement. Pure: data → SVG.

 title, subtitle
            goal   peer
 row        ·:¦    |            dots: measurements; short lines at p50 (thick) and p99
 its text  ¦ ···  |   ··  ×3   ×3: three that never came
 ├────┼─────┼────┼─────┼────┤
1 µs  10   100  1 ms  10  100
 notes
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape

from labkit.plot import svg
from labkit.plot.svg import text, text_width

WIDTH = 1080
LEFT, RIGHT = 250, 120
MARKS_TOP, LANE = 84, 17
ROW, BAND = 48, 26  # heights of a row and of the dots in it
LINE = 20
DOT = 1.9
_STROKES = {"target": "goal", "peer": "beside"}  # classes of svg.py
_GOLDEN = 0.6180339887  # its multiples modulo 1 are evenly spread for any number of dots


@dataclass(frozen=True)
class Row:
    """One distribution, in seconds. None: it never came."""

    label: str
    words: str
    times_s: Sequence[float | None]
    p50_s: float | None
    p99_s: float | None
    said: str  # text of its percentiles


@dataclass(frozen=True)
class Mark:
    """A vertical line at a time: a requirement, or the time of another system."""

    at_s: float
    label: str
    kind: Literal["target", "peer"]


@dataclass(frozen=True)
class Picture:
    """The contents of a picture. Times below `low_s` are drawn there."""

    title: str
    subtitle: str
    rows: Sequence[Row]
    marks: Sequence[Mark] = ()
    notes: Sequence[str] = ()
    low_s: float = 1e-6
    high_s: float = 10.0


def draw(picture: Picture) -> str:
    """Returns the SVG document."""
    return "\n".join(_Drawing(picture).lines()) + "\n"


class _Drawing:
    """The geometry of one picture, and its parts from top to bottom."""

    def __init__(self, picture: Picture) -> None:
        self.p = picture
        self.marks = sorted(picture.marks, key=lambda m: m.at_s)
        self.top = MARKS_TOP + LANE * len(self.marks) + 10
        self.bottom = self.top + ROW * len(picture.rows)
        self.notes_top = self.bottom + 56
        self.height = self.notes_top + LINE * len(picture.notes) + 4

    def x(self, seconds: float) -> float:
        """Returns pixels from the left."""
        p = self.p
        share = math.log(max(seconds, p.low_s) / p.low_s) / math.log(p.high_s / p.low_s)
        return LEFT + (WIDTH - LEFT - RIGHT) * min(share, 1.0)

    def lines(self) -> Iterator[str]:
        """Yields the document, line by line."""
        p = self.p
        words = "; ".join([p.subtitle, *(f"{r.label}: {r.said}" for r in p.rows), *p.notes])
        yield from svg.head(WIDTH, self.height, p.title, words)
        yield text(24, 36, p.title, "ink", 19, weight=600)
        yield text(24, 60, p.subtitle, "faint", 13)
        yield from self._grid()
        yield from self._marks()
        for i, row in enumerate(p.rows):
            yield from self._row(row, self.top + ROW * i)
        for i, note in enumerate(p.notes):
            yield text(24, self.notes_top + LINE * i, note, "faint", 13)
        yield "</svg>"

    def _grid(self) -> Iterator[str]:
        first, last = round(math.log10(self.p.low_s)), math.floor(math.log10(self.p.high_s) + 1e-9)
        for power in range(first, last + 1):
            x = self.x(10.0**power)
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{self.top}" y2="{self.bottom + 5}"/>'
            yield text(x, self.bottom + 20, _tick(power), "faint", 12, anchor="middle")
        for i in range(len(self.p.rows) + 1):
            y = self.top + ROW * i
            yield f'<line class="grid" x1="24" x2="{WIDTH - 24}" y1="{y}" y2="{y}"/>'

    def _marks(self) -> Iterator[str]:
        """Yields labels in a lane each, so that none overlap; above the lines, which they may cross."""
        lanes = [(mark, self.x(mark.at_s), MARKS_TOP + LANE * lane + 12) for lane, mark in enumerate(self.marks)]
        for mark, x, y in lanes:
            yield (
                f'<line class="{_STROKES[mark.kind]}" stroke-width="1.4" stroke-dasharray="5 3" x1="{x:.1f}" '
                f'x2="{x:.1f}" y1="{y + 4}" y2="{self.bottom}"/>'
            )
        for mark, x, y in lanes:
            left = x + text_width(mark.label, 12) > WIDTH - 12
            x, anchor = (x + 4, "end") if left else (x - 4, "start")
            yield text(x, y, mark.label, mark.kind, 12, weight=600, anchor=anchor, halo=True)

    def _row(self, row: Row, y: float) -> Iterator[str]:
        yield text(24, y + 19, row.label, "ink", 13, weight=600)
        yield text(24, y + 36, row.words, "faint", 11)
        top = y + (ROW - BAND) / 2
        for seconds, wide in ((row.p50_s, 3.2), (row.p99_s, 1.4)):
            if seconds is not None:
                x = self.x(seconds)
                yield (
                    f'<line class="edge" stroke-width="{wide}" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 5:.1f}" '
                    f'y2="{top + BAND + 5:.1f}"><title>{escape(row.said)}</title></line>'
                )
        came = [t for t in row.times_s if t is not None]
        for i, at in enumerate(came):
            dot_y = top + BAND * (i * _GOLDEN % 1)
            yield f'<circle class="line" fill-opacity="0.5" cx="{self.x(at):.1f}" cy="{dot_y:.1f}" r="{DOT}"/>'
        never = len(row.times_s) - len(came)
        yield text(WIDTH - RIGHT + 12, y + 19, f"{len(row.times_s)} faults", "faint", 11)
        if never:
            yield text(WIDTH - RIGHT + 12, y + 36, f"{never} not found", "fault", 11, weight=600)


def _tick(power: int) -> str:
    """Returns the label of 10 ** power seconds: `1 µs`, `100 µs`, `10 ms`, `1 s`."""
    unit, name = next((u, n) for u, n in ((0, "s"), (-3, "ms"), (-6, "µs"), (-9, "ns")) if power >= u or u == -9)
    return f"{10 ** (power - unit)} {name}"
