# SPDX-License-Identifier: BSD-2-Clause
"""Draws goodput over time, with faults marked and a strip of the EVs' states below. Pure: data → SVG.

      title, subtitle
      ├─ fault ──────┤        one lane per fault, without overlaps
    30┤▆▆▆▁▇▇▇▇▇▇▇▇▇▇▇▇▇      goodput
      ┤
     0┼─────────────────
plane 0 ━━━━━━━━━━━━━━━━━     one line per EV, coloured by state
      0    5    10   15  s
      legend, notes
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from labkit.plot import svg
from labkit.plot.svg import text, text_width

WIDTH = 1080
LEFT, RIGHT = 92, 28
PLOT_HEIGHT = 250
LANES_TOP, LANE = 82, 26
ROW, ROW_GAP, GROUP_GAP = 9, 2, 9
LINE = 20

STATES = ("GOOD", "SKIP", "ASSUMED_BAD", "DENIED", "UNKNOWN")


@dataclass(frozen=True)
class Span:
    """A state, and the interval in which it lasts."""

    begin_s: float
    end_s: float
    state: str


@dataclass(frozen=True)
class Row:
    """One line of the strip."""

    label: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Group:
    """Rows with a common label."""

    label: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Fault:
    """A fault, and its interval."""

    begin_s: float
    end_s: float
    label: str


@dataclass(frozen=True)
class Picture:
    """The contents of a picture. `bits_per_s` are means over consecutive bins of `bin_s`, from 0 on."""

    title: str
    subtitle: str
    seconds: float
    bin_s: float
    bits_per_s: Sequence[float]
    faults: Sequence[Fault] = ()
    groups: Sequence[Group] = ()
    strip_title: str = ""
    row_title: str = ""  # title of the rows' labels
    notes: Sequence[str] = ()


def nice_step(top: float, ticks: int = 5) -> float:
    """Returns a step of 1, 2 or 5 times a power of ten that divides 0 … top into at most `ticks` parts."""
    if top <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(top / ticks))
    return next(m * power for m in (1, 2, 5, 10, 20) if top / (m * power) <= ticks)


def unit(top_bits_per_s: float) -> tuple[float, str]:
    """Returns the unit for a goodput of that size, as (bit/s per unit, name)."""
    for size, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if top_bits_per_s >= size:
            return size, name
    return 1.0, "bit/s"


def lanes(extents: Sequence[tuple[float, float]]) -> list[int]:
    """Returns for each (left, right) the first lane without an overlap with an earlier one."""
    ends: list[list[tuple[float, float]]] = []
    chosen = []
    for left, right in extents:
        free = (n for n, lane in enumerate(ends) if all(right < a or left > b for a, b in lane))
        number = next(free, len(ends))
        if number == len(ends):
            ends.append([])
        ends[number].append((left, right))
        chosen.append(number)
    return chosen


def draw(picture: Picture) -> str:
    """Returns the SVG document."""
    return "\n".join(_Drawing(picture).lines()) + "\n"


class _Drawing:
    """The geometry of one picture, and its parts from top to bottom."""

    def __init__(self, picture: Picture) -> None:
        self.p = picture
        self.extents = [self._extent(f) for f in picture.faults]
        self.lane_of = lanes(self.extents)
        self.top = LANES_TOP + LANE * (max(self.lane_of, default=-1) + 1) + 6
        self.bottom = self.top + PLOT_HEIGHT
        self.strip_top = self.bottom + (46 if picture.groups else 0)
        heights = [len(g.rows) * (ROW + ROW_GAP) + GROUP_GAP for g in picture.groups]
        self.strip_bottom = self.strip_top + sum(heights)
        self.axis = self.strip_bottom if picture.groups else self.bottom
        self.notes_top = self.axis + (74 if picture.groups else 52)
        self.height = self.notes_top + LINE * len(picture.notes) + 8
        highest = max(picture.bits_per_s, default=0.0) or 1.0
        self.scale, self.unit = unit(highest)
        self.step = nice_step(highest / self.scale)
        self.ceiling = math.ceil(highest / self.scale / self.step) * self.step

    def x(self, seconds: float) -> float:
        """Returns pixels from the left."""
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(seconds / self.p.seconds, 0), 1)

    def y(self, bits_per_s: float) -> float:
        """Returns pixels from the top, in the plot."""
        return self.bottom - PLOT_HEIGHT * bits_per_s / self.scale / self.ceiling

    def lines(self) -> Iterator[str]:
        """Yields the document, line by line."""
        p = self.p
        words = "; ".join([p.subtitle, *(f.label for f in p.faults), *p.notes])
        yield from svg.head(WIDTH, self.height, p.title, words)
        yield text(LEFT, 36, p.title, "ink", 19, weight=600)
        yield text(LEFT, 60, p.subtitle, "faint", 13)
        yield from self._bands()
        yield from self._grid()
        yield from self._goodput()
        yield from self._lanes()
        if p.groups:
            yield from self._strip()
            yield from self._legend()
        for i, note in enumerate(p.notes):
            yield text(LEFT, self.notes_top + LINE * i, note, "faint", 13)
        yield "</svg>"

    def _extent(self, fault: Fault) -> tuple[float, float]:
        """Returns the left and right edge of a fault's lane with its label; labels stay inside the picture."""
        wide = text_width(fault.label, 12) + 8
        left = max(LEFT, min(self.x(fault.begin_s), WIDTH - RIGHT - wide))
        return left, max(self.x(fault.end_s), left + wide)

    @property
    def _parts(self) -> list[tuple[int, int]]:
        """Returns top and bottom of the plot, and of the strip; the gap between is for the strip's title."""
        return [(self.top, self.bottom), *([(self.strip_top, self.strip_bottom)] if self.p.groups else [])]

    def _bands(self) -> Iterator[str]:
        for f in self.p.faults:
            x, width = self.x(f.begin_s), self.x(f.end_s) - self.x(f.begin_s)
            for top, bottom in self._parts:
                yield (
                    f'<rect class="fault" fill-opacity="0.08" x="{x:.1f}" y="{top}" width="{width:.1f}" '
                    f'height="{bottom - top}"/>'
                )

    def _grid(self) -> Iterator[str]:
        steps = round(self.ceiling / self.step)
        for i in range(steps + 1):
            value = i * self.step
            y = self.bottom - PLOT_HEIGHT * i / steps
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield text(LEFT - 10, y + 4, f"{value:g}", "faint", 12, anchor="end")
        middle = (self.top + self.bottom) / 2
        yield (
            f'<text class="faint" transform="translate(30 {middle:.0f}) rotate(-90)" text-anchor="middle" '
            f'font-size="13">goodput, {self.unit}</text>'
        )
        step = nice_step(self.p.seconds, 12)
        for i in range(int(self.p.seconds / step + 1e-9) + 1):
            x = self.x(i * step)
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{self.axis}" y2="{self.axis + 5}"/>'
            words = f"{i * step:g} s" if i == 0 else f"{i * step:g}"
            yield text(x, self.axis + 20, words, "faint", 12, anchor="middle")

    def _goodput(self) -> Iterator[str]:
        """Yields steps, so that each bin is visible."""
        points = []
        for i, value in enumerate(self.p.bits_per_s):
            y = self.y(value)
            points += [f"{self.x(i * self.p.bin_s):.1f},{y:.1f}", f"{self.x((i + 1) * self.p.bin_s):.1f},{y:.1f}"]
        if not points:
            return
        end = self.x(len(self.p.bits_per_s) * self.p.bin_s)
        area = f"M{LEFT},{self.bottom} L{' '.join(points)} L{end:.1f},{self.bottom} Z"
        yield f'<path class="line" fill-opacity="0.16" d="{area}"/>'
        yield f'<polyline class="stroke" fill="none" stroke-width="1.6" points="{" ".join(points)}"/>'

    def _lanes(self) -> Iterator[str]:
        for f, lane in zip(self.p.faults, self.lane_of, strict=True):
            y = LANES_TOP + LANE * lane + 16
            x1, x2 = self.x(f.begin_s), self.x(f.end_s)
            yield f'<line class="edge" stroke-width="2" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y}" y2="{y}"/>'
            for x in (x1, x2):
                for top, bottom in [(y, self.bottom), *self._parts[1:]]:
                    yield (
                        f'<line class="edge" stroke-width="1" stroke-dasharray="3 3" x1="{x:.1f}" x2="{x:.1f}" '
                        f'y1="{top}" y2="{bottom}"/>'
                    )
        for f, (left, _), lane in zip(self.p.faults, self.extents, self.lane_of, strict=True):
            yield text(left + 1, LANES_TOP + LANE * lane + 10, f.label, "fault", 12, weight=600, halo=True)

    def _strip(self) -> Iterator[str]:
        yield text(LEFT, self.strip_top - 12, self.p.strip_title, "ink", 13, weight=600)
        yield text(LEFT - 8, self.strip_top - 12, self.p.row_title, "faint", 9, anchor="end")
        y = float(self.strip_top)
        for group in self.p.groups:
            height = len(group.rows) * (ROW + ROW_GAP)
            yield text(LEFT - 24, y + height / 2 + 3, group.label, "faint", 12, anchor="end")
            for row in group.rows:
                yield text(LEFT - 8, y + ROW - 1, row.label, "faint", 9, anchor="end")
                for span in row.spans:
                    x = self.x(span.begin_s)
                    width = max(self.x(span.end_s) - x, 1.0)
                    yield (
                        f'<rect class="{span.state}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{ROW}">'
                        f"<title>{escape(f'{group.label} {row.label}: {span.state}, ')}"
                        f"{span.begin_s:.2f}–{span.end_s:.2f} s</title></rect>"
                    )
                y += ROW + ROW_GAP
            y += GROUP_GAP

    def _legend(self) -> Iterator[str]:
        used = {s.state for g in self.p.groups for r in g.rows for s in r.spans}
        x, y = float(LEFT), self.axis + 44
        for state in STATES:
            if state in used:
                yield f'<rect class="{state}" x="{x:.1f}" y="{y - 10}" width="18" height="11" rx="2"/>'
                yield text(x + 25, y, state, "faint", 12)
                x += 25 + text_width(state, 12) * 1.25 + 22  # capitals are wider than the mean
