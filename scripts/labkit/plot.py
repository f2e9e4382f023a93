# SPDX-License-Identifier: BSD-2-Clause
"""Draws all pictures of benches and demos with matplotlib: a title, and panels one above the other. Data → SVG."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.tables import shown

_COLOURS = {"ours": "#1f6fb4", "theirs": "#c07a1c", "goal": "#b3261e"}
_FAULT = "#b3261e"
_STATES = {
    "GOOD": "#4c9f70",
    "SKIP": "#e3c14b",
    "ASSUMED_BAD": "#c0392b",
    "DENIED": "#7f6bb0",
    "UNKNOWN": "#bbbbbb",
}
_STYLES: dict[str, dict[str, Any]] = {
    "steps": {"drawstyle": "steps-post"},
    "dots": {"linestyle": "", "marker": "."},
    "joined": {"marker": "o"},
}


class Series(NamedTuple):
    """Points, x ascending. `steps`: a point holds until the next."""

    points: Sequence[tuple[float, float]]
    kind: Literal["ours", "theirs"] = "ours"
    style: Literal["steps", "dots", "joined"] = "joined"
    label: str = ""


class Goal(NamedTuple):
    """The wanted level between two x."""

    begin: float
    end: float
    y: float


class Fault(NamedTuple):
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
        for s in filter(lambda s: s.points, self.series):
            axes.plot(
                *zip(*s.points, strict=True), color=_COLOURS[s.kind], markersize=3, linewidth=1.1, **_STYLES[s.style]
            )
            axes.annotate(s.label, s.points[-1], xytext=(4, 0), textcoords="offset points", fontsize=7)
        for g in self.goals:
            axes.plot([g.begin, g.end], [g.y, g.y], "--", color=_COLOURS["goal"], linewidth=0.9)
        if self.ticks:
            axes.set_xscale("log")
            axes.set_xticks([x for x, _ in self.ticks], [label for _, label in self.ticks])
            axes.minorticks_off()
        if self.log_y:
            axes.set(yscale="log", ylim=self.log_y)
        else:
            axes.set_ylim(bottom=0)
        for n, f in enumerate(self.faults):
            axes.axvspan(f.begin, f.end, color=_FAULT, alpha=0.1, linewidth=0)
            at = (f.begin, 0.97 - 0.09 * (n % 5))
            axes.annotate(f.label, at, xycoords=("data", "axes fraction"), va="top", fontsize=7, color=_FAULT)
        axes.set(xlabel=self.x_label, ylabel=self.y_label, xlim=(self.begin, self.end))


def _rows(axes: Axes, labels: Sequence[str], **style: Any) -> None:
    """Labels the rows of a panel, from top to bottom."""
    axes.set_yticks(range(len(labels)), labels, **style)
    axes.invert_yaxis()


@dataclass(frozen=True)
class Bars:
    """A bar per row: `median_KEY`, with a line from `min_KEY` to `max_KEY`, all times `scale`. `goals`: (value, label).

    A row of what mrcd is compared with has a false `ours`.
    """

    title: str
    unit: str
    rows: Sequence[Mapping[str, Any]]
    label: str
    key: str
    scale: float = 1.0
    goals: Sequence[tuple[float, str]] = ()
    words: str = ""

    row_inches: ClassVar = 0.24

    def draw(self, axes: Axes) -> None:
        """Draws the bars from top to bottom."""
        for n, row in enumerate(self.rows):
            value, low, high = (self.scale * row[f"{which}_{self.key}"] for which in ("median", "min", "max"))
            axes.barh(n, value, color=_COLOURS["ours" if row.get("ours", True) else "theirs"], height=0.6)
            axes.plot([low, high], [n, n], color="black", linewidth=1)
            said = shown(f"_{self.key}", row[f"median_{self.key}"])
            axes.annotate(said, (max(value, high), n), xytext=(5, 0), textcoords="offset points", va="center")
        for value, label in self.goals:
            axes.axvline(self.scale * value, linestyle="--", color=_COLOURS["goal"], linewidth=0.9, label=label)
        if self.goals:
            axes.legend(loc="lower right", fontsize=7)
        _rows(axes, [row[self.label] for row in self.rows])
        axes.margins(x=0.6)
        axes.set(xlabel=self.unit)
        axes.set_xlim(left=0)


class Strip(NamedTuple):
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

    row_inches: ClassVar = 0.36

    def draw(self, axes: Axes) -> None:
        """Draws a strip of dots per row."""
        for n, row in enumerate(self.rows):
            times = [max(t, self.begin_s) for t in row.times_s if t is not None]
            # Multiples of the golden ratio, modulo 1, spread any number of dots evenly.
            axes.plot(times, [n - 0.3 + 0.6 * (i * 0.6180339887 % 1) for i in range(len(times))], ".", markersize=3)
            for at, width in ((row.p50_s, 2.0), (row.p99_s, 0.8)):
                if at is not None:
                    axes.vlines(max(at, self.begin_s), n - 0.4, n + 0.4, color="red", linewidth=width)
            never = row.times_s.count(None)
            said = row.said + (f", {never} never" if never else "")
            axes.annotate(said, (self.end_s, n), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)
        for at, label, kind in self.marks:
            axes.axvline(at, linestyle="--", label=label, color=_COLOURS[kind])
        if self.marks:
            axes.legend(loc="lower right", fontsize=7)
        _rows(axes, [r.label for r in self.rows])
        axes.set(xscale="log", xlim=(self.begin_s, self.end_s), xlabel="seconds")


@dataclass(frozen=True)
class States:
    """A line per EV, coloured by its state: (label, spans of (begin, end, state))."""

    title: str
    words: str
    end: float
    rows: Sequence[tuple[str, Sequence[tuple[float, float, str]]]]

    row_inches: ClassVar = 0.14

    def draw(self, axes: Axes) -> None:
        """Draws the lines from top to bottom."""
        for n, (_, spans) in enumerate(self.rows):
            for begin, end, state in spans:
                axes.broken_barh([(begin, end - begin)], (n - 0.4, 0.8), color=_STATES.get(state, "black"))
        _rows(axes, [label for label, _ in self.rows], fontsize=6)
        axes.set(xlim=(0, self.end), xlabel="time, s")
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
    heights = [p.inches if isinstance(p, Panel) else 0.5 + p.row_inches * len(p.rows) for p in picture.panels]
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "mrcd", "font.size": 9, "axes.titlesize": 9}
    with mpl.rc_context(style | {"axes.spines.top": False, "axes.spines.right": False}):
        inches = 1.0 + sum(h + 0.95 for h in heights) + 0.2 * len(picture.notes)
        figure = Figure(figsize=(11.0, inches), layout="constrained")
        figure.suptitle(f"{picture.title}\n", x=0.01, ha="left", fontsize=14)
        figure.text(0.01, 1 - 0.4 / inches, picture.subtitle, va="top")
        kinds = zip(_COLOURS.values(), picture.legend, strict=True)
        if patches := [Patch(color=colour, label=words) for colour, words in kinds if words]:
            figure.legend(handles=patches, loc="outside lower right", ncols=3, frameon=False, fontsize=8)
        all_axes = figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0]
        for panel, axes in zip(picture.panels, all_axes, strict=True):
            axes.set_title(f"{panel.title}\n", loc="left", fontweight="bold")
            axes.annotate(panel.words, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points")
            panel.draw(axes)
        figure.supxlabel("\n".join(picture.notes), x=0.01, ha="left", fontsize=8)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
