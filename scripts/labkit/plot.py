# SPDX-License-Identifier: BSD-2-Clause
"""Draws all pictures of benches and demos with matplotlib: a title, and panels one above the other. Data → SVG."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.tables import shown

_WIDTH, _HEAD, _FOOT, _NOTE = 11.0, 0.8, 0.3, 0.22  # inches
_COLOURS = {"ours": "#1f6fb4", "theirs": "#c07a1c"}
_GOAL, _FAULT = "#b3261e", "#b3261e"
_STATES = {
    "GOOD": "#4c9f70",
    "SKIP": "#e3c14b",
    "ASSUMED_BAD": "#c0392b",
    "DENIED": "#7f6bb0",
    "UNKNOWN": "#bbbbbb",
}
Kind = Literal["ours", "theirs"]


@dataclass(frozen=True)
class Series:
    """Points, x ascending. `steps`: a point holds until the next."""

    points: Sequence[tuple[float, float]]
    kind: Kind = "ours"
    style: Literal["steps", "dots", "joined"] = "joined"
    label: str = ""


@dataclass(frozen=True)
class Goal:
    """The wanted level between two x."""

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
class Panel:
    """Curves. With `ticks` (x, label) the x axis is logarithmic."""

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
    log_y: tuple[float, float] | None = None  # range of a logarithmic y axis
    inches: float = 2.6

    def draw(self, axes: Axes) -> None:
        """Draws curves, faults and goals."""
        for s in self.series:
            x, y = [p[0] for p in s.points], [p[1] for p in s.points]
            colour, label = _COLOURS[s.kind], s.label or None
            if s.style == "steps":
                axes.step(x, y, where="post", color=colour, label=label, linewidth=1.1)
            elif s.style == "dots":
                axes.plot(x, y, ".", color=colour, label=label, markersize=3)
            else:
                axes.plot(x, y, "o-", color=colour, label=label, markersize=3, linewidth=1.1)
            if label and x:
                axes.annotate(label, (x[-1], y[-1]), xytext=(4, 0), textcoords="offset points", fontsize=7)
        for g in self.goals:
            axes.plot([g.begin, g.end], [g.y, g.y], "--", color=_GOAL, linewidth=0.9)
        if self.ticks:
            axes.set_xscale("log")
            axes.set_xticks([x for x, _ in self.ticks], [label for _, label in self.ticks])
            axes.minorticks_off()
        axes.set_xlim(self.begin, self.end)
        if self.log_y:
            axes.set_yscale("log")
            axes.set_ylim(*self.log_y)
        else:
            axes.set_ylim(bottom=0)
        for n, f in enumerate(self.faults):
            axes.axvspan(f.begin, f.end, color=_FAULT, alpha=0.1, linewidth=0)
            at = (f.begin, 0.97 - 0.09 * (n % 5))
            axes.annotate(f.label, at, xycoords=("data", "axes fraction"), va="top", fontsize=7, color=_FAULT)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)


@dataclass(frozen=True)
class Bar:
    """One measured quantity: its median, minimum, maximum, and a text of these."""

    label: str
    value: float
    low: float
    high: float
    said: str
    kind: Kind = "ours"


@dataclass(frozen=True)
class Bars:
    """Horizontal bars of one unit. `goals`: (value, label)."""

    title: str
    words: str
    unit: str
    bars: Sequence[Bar]
    goals: Sequence[tuple[float, str]] = ()

    @property
    def inches(self) -> float:
        """Returns the height of the axes."""
        return 0.3 + 0.24 * len(self.bars)

    def draw(self, axes: Axes) -> None:
        """Draws the bars from top to bottom."""
        for n, b in enumerate(self.bars):
            axes.barh(n, b.value, color=_COLOURS[b.kind], height=0.6)
            axes.plot([b.low, b.high], [n, n], color="black", linewidth=1)
            axes.annotate(b.said, (max(b.value, b.high), n), xytext=(5, 0), textcoords="offset points", va="center")
        for value, label in self.goals:
            axes.axvline(value, linestyle="--", color=_GOAL, linewidth=0.9, label=label)
        if self.goals:
            axes.legend(loc="lower right", fontsize=7)
        axes.set_yticks(range(len(self.bars)), [b.label for b in self.bars])
        axes.invert_yaxis()
        longest = max((max(b.value, b.high) for b in self.bars), default=1.0) or 1.0
        axes.set_xlim(0, 1.6 * longest)
        axes.set_xlabel(self.unit)


def bars(
    title: str,
    unit: str,
    rows: Sequence[Mapping[str, Any]],
    label: str,
    key: str,
    scale: float = 1.0,
    goals: Sequence[tuple[float, str]] = (),
) -> Bars:
    """Returns a bar per row: `median_KEY`, with a line from `min_KEY` to `max_KEY`, all times `scale`.

    A row of what mrcd is compared with has a false `ours`.
    """
    found = [
        Bar(
            r[label],
            scale * r[f"median_{key}"],
            scale * r[f"min_{key}"],
            scale * r[f"max_{key}"],
            shown(f"_{key}", r[f"median_{key}"]),
            "ours" if r.get("ours", True) else "theirs",
        )
        for r in rows
    ]
    return Bars(title, "", unit, found, [(scale * value, words) for value, words in goals])


@dataclass(frozen=True)
class Strip:
    """One distribution, in seconds. None: it never came."""

    label: str
    times_s: Sequence[float | None]
    p50_s: float | None
    p99_s: float | None
    said: str


@dataclass(frozen=True)
class Strips:
    """Times on a logarithmic axis, a dot per measurement, red lines at p50 and p99. `marks`: (time, label, kind)."""

    title: str
    words: str
    rows: Sequence[Strip]
    marks: Sequence[tuple[float, str, Literal["goal", "theirs"]]] = ()
    begin_s: float = 1e-6
    end_s: float = 100.0

    @property
    def inches(self) -> float:
        """Returns the height of the axes."""
        return 0.8 + 0.36 * len(self.rows)

    def draw(self, axes: Axes) -> None:
        """Draws a strip of dots per row."""
        axes.set_xscale("log")
        for n, row in enumerate(self.rows):
            times = [max(t, self.begin_s) for t in row.times_s if t is not None]
            # Multiples of the golden ratio, modulo 1, spread any number of dots evenly.
            axes.plot(times, [n - 0.3 + 0.6 * (i * 0.6180339887 % 1) for i in range(len(times))], ".", markersize=3)
            for at, width in ((row.p50_s, 2.0), (row.p99_s, 0.8)):
                if at is not None:
                    axes.vlines(max(at, self.begin_s), n - 0.4, n + 0.4, color="red", linewidth=width)
            never = sum(t is None for t in row.times_s)
            said = row.said + (f", {never} never" if never else "")
            axes.annotate(said, (self.end_s, n), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)
        for at, label, kind in self.marks:
            axes.axvline(at, linestyle="--", label=label, color=_GOAL if kind == "goal" else _COLOURS["theirs"])
        if self.marks:
            axes.legend(loc="lower right", fontsize=7)
        axes.set_yticks(range(len(self.rows)), [r.label for r in self.rows])
        axes.invert_yaxis()
        axes.set_xlim(self.begin_s, self.end_s)
        axes.set_xlabel("seconds")


@dataclass(frozen=True)
class States:
    """A line per EV, coloured by its state: (label, spans of (begin, end, state))."""

    title: str
    words: str
    end: float
    rows: Sequence[tuple[str, Sequence[tuple[float, float, str]]]]

    @property
    def inches(self) -> float:
        """Returns the height of the axes."""
        return 0.4 + 0.14 * len(self.rows)

    def draw(self, axes: Axes) -> None:
        """Draws the lines from top to bottom."""
        for n, (_, spans) in enumerate(self.rows):
            for begin, end, state in spans:
                axes.broken_barh([(begin, end - begin)], (n - 0.4, 0.8), color=_STATES.get(state, "black"))
        axes.set_yticks(range(len(self.rows)), [label for label, _ in self.rows], fontsize=6)
        axes.invert_yaxis()
        axes.set_xlim(0, self.end)
        axes.set_xlabel("time, s")
        seen = {state for _, spans in self.rows for _, _, state in spans}
        patches = [Patch(color=colour, label=state) for state, colour in _STATES.items() if state in seen]
        axes.legend(handles=patches, loc="lower right", fontsize=6, ncols=max(1, len(patches)))


@dataclass(frozen=True)
class Picture:
    """The contents of a picture. `legend`: what the lines of ours, theirs and the goals mean."""

    title: str
    subtitle: str
    panels: Sequence[Panel | Bars | Strips | States]
    notes: Sequence[str] = ()
    legend: tuple[str, str, str] = ("", "", "")


def draw(picture: Picture) -> str:
    """Returns the SVG of a picture."""
    notes = [*picture.notes]
    heights = [p.inches + 0.95 for p in picture.panels]
    total = _HEAD + sum(heights) + _FOOT + _NOTE * len(notes)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "mrcd", "font.size": 9, "axes.titlesize": 10}):
        figure = Figure(figsize=(_WIDTH, total))
        figure.text(0.02, 1 - 0.12 / total, picture.title, fontsize=14, va="top")
        figure.text(0.02, 1 - 0.38 / total, picture.subtitle, va="top")
        kinds = zip((_COLOURS["ours"], _COLOURS["theirs"], _GOAL), picture.legend, strict=True)
        patches = [Patch(color=colour, label=words) for colour, words in kinds if words]
        if patches:
            at = (0.015, 1 - 0.52 / total)
            figure.legend(handles=patches, loc="upper left", bbox_to_anchor=at, ncols=3, frameon=False, fontsize=8)
        top = total - _HEAD
        for panel, height in zip(picture.panels, heights, strict=True):
            axes = figure.add_axes((0.2, (top - 0.5 - panel.inches) / total, 0.66, panel.inches / total))
            axes.set_title(panel.title, loc="left", pad=18, fontweight="bold")
            axes.annotate(panel.words, (0, 1), xytext=(0, 5), xycoords="axes fraction", textcoords="offset points")
            axes.spines[["top", "right"]].set_visible(False)
            panel.draw(axes)
            top -= height
        for n, note in enumerate(notes):
            figure.text(0.02, (_NOTE * (len(notes) - n)) / total, note, fontsize=8)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
