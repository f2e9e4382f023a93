# SPDX-License-Identifier: BSD-2-Clause
"""Shows the running demo: redrawn in place on a terminal, otherwise one line per second."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from labkit.cluster.observe import Document
from labkit.demo.scenario import Fault
from labkit.measure.goodput import BIN_NS, WIDE_NS, bits_per_s, regular

_STYLES = {
    "GOOD": "green",
    "SKIP": "yellow",
    "ASSUMED_BAD": "bold red",
    "DENIED": "magenta",
    "UNKNOWN": "dim",
    "fault": "bold red",
    "heal": "bold green",
}
_SHORT = {"ASSUMED_BAD": "BAD"}
_LETTERS = {"GOOD": "G", "SKIP": "s", "ASSUMED_BAD": "X", "DENIED": "D", "UNKNOWN": "?"}
_BLOCKS = " ▁▂▃▄▅▆▇█"
# With these the screen has 23 lines; a terminal has 24.
_ROWS = 6
_NOTES = 6
_MAX_COLUMNS = 100


@dataclass(frozen=True)
class Moment:
    """The state to show. Times are seconds since the recording began."""

    now_s: float
    seconds: float
    begin_ns: int
    bins: Mapping[int, int]
    paths: Sequence[Document]
    broken: Sequence[Fault]
    retransmitted_segments: int

    def goodput(self, width_ns: int = WIDE_NS) -> list[float]:
        """Returns bit/s per bin, up to now."""
        end_ns = self.begin_ns + int(self.now_s * 1e9)
        return [bits_per_s(n, width_ns) for n in regular(self.bins, self.begin_ns, end_ns, width_ns)]


class Screen(Protocol):
    """A view of the demo. `interval_s`: the time between two updates."""

    interval_s: float

    def show(self, moment: Moment) -> None:
        """Shows the state."""

    def note(self, at_s: float, words: str, kind: str) -> None:
        """Shows an action of the demo."""

    def events(self, at_s: float, events: Sequence[Document]) -> None:
        """Shows one event of the source's mrcd, or several of one kind."""


def kind(event: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the key by which successive events are joined into one sentence."""
    return tuple(event[k] for k in ("kind", "peer", "plane", "to", "reason"))


def sentence(events: Sequence[Mapping[str, Any]]) -> str:
    """Returns a sentence for events of one kind; the evidence is that of the first."""
    e = events[0]
    evidence = ", ".join(f"{k} {v}" for k, v in e["evidence"].items())
    why = e["reason"] + (f" ({evidence})" if evidence else "")
    if e["kind"] == "ev":
        numbers = ", ".join(str(x["ev"]) for x in events)
        t1s = ", ".join(str(x["t1"]) for x in events if x["t1"] is not None)
        place = f"plane {e['plane']}" + (f", T1 {t1s}" if t1s else "")
        many = len(events) > 1
        return f"EV{'s' * many} {numbers} to {e['peer']} ({place}) {'are' if many else 'is'} {e['to']}: {why}"
    place = f"plane {e['plane']}" if e["plane"] is not None else f"peer {e['peer']}"
    return f"{place} is {e['to'] or 'changed'}: {why}"


def bars(values: Sequence[float], rows: int, top: float) -> list[str]:
    """Returns values as columns of block characters, `rows` lines high, the top line first. Pure."""
    eighths = [round(max(0.0, min(v / top, 1.0)) * rows * 8) if top > 0 else 0 for v in values]
    return ["".join(_BLOCKS[max(0, min(8, e - 8 * row))] for e in eighths) for row in reversed(range(rows))]


class Lines:
    """The view for logs and pipes: one line per second, and one per event."""

    interval_s = 1.0

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, moment: Moment) -> None:
        """Prints the goodput of the last second, and a letter per EV."""
        last = moment.goodput()[-10:]
        planes: dict[int, str] = {}
        for p in moment.paths:
            planes[p["plane"]] = planes.get(p["plane"], "") + _LETTERS[p["state"]]
        states = "  ".join(f"plane {n} {letters}" for n, letters in sorted(planes.items()))
        mean = sum(last) / len(last) / 1e9 if last else 0.0
        self._say(f"{moment.now_s:5.1f} s  {mean:5.1f} Gbit/s  {states}")

    def note(self, at_s: float, words: str, kind: str) -> None:
        """Prints a line."""
        self._say(f"{at_s:7.3f} s  {words}")

    def events(self, at_s: float, events: Sequence[Document]) -> None:
        """Prints a line."""
        self._say(f"{at_s:7.3f} s  {sentence(events)}")

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class Terminal:
    """The view for terminals, redrawn in place. Use as a context manager."""

    interval_s = 0.2

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._notes: list[Text] = []
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> "Terminal":
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def note(self, at_s: float, words: str, kind: str) -> None:
        """Adds a note; the newest ones are shown."""
        self._notes = [*self._notes, Text(f"{at_s:7.3f} s  {words}", style=_STYLES[kind])][-_NOTES:]

    def events(self, at_s: float, events: Sequence[Document]) -> None:
        """Adds a note in the colour of the state."""
        state = events[0]["to"]
        self.note(at_s, sentence(events), state if state in _STYLES else "UNKNOWN")

    def show(self, moment: Moment) -> None:
        """Draws the state."""
        parts = [self._head(moment), Text(), *self._goodput(moment), Text(), *_grid(moment), Text()]
        parts += [_faults(moment)]
        parts += [*self._notes, *([Text()] * (_NOTES - len(self._notes)))]
        for part in parts:
            part.no_wrap, part.overflow = True, "ellipsis"
        self._live.update(Group(*parts), refresh=True)

    def _head(self, moment: Moment) -> Text:
        clock = f"   {min(moment.now_s, moment.seconds):4.1f} of {moment.seconds:.0f} s"
        return Text.assemble((self._title, "bold"), (clock, "dim"))

    def _goodput(self, moment: Moment) -> list[Text]:
        """Returns the chart of the whole recording; the part that is still to come is empty."""
        columns = max(10, min(self._console.width - 14, _MAX_COLUMNS))
        # A whole number of bins per column, so that all columns cover the same time.
        values = moment.goodput(math.ceil(moment.seconds / columns * 1e9 / BIN_NS) * BIN_NS)
        recent = moment.goodput()
        top = max([*values, 1.0])
        lines = []
        for i, line in enumerate(bars(values, _ROWS, top)):
            label = f"{top / 1e9:5.1f} Gbit/s" if i == 0 else ""
            lines.append(Text.assemble(_label(label), (line, "cyan")))
        current = f"{recent[-1] / 1e9 if recent else 0.0:.1f} Gbit/s"
        retransmitted = f"   {moment.retransmitted_segments} segments retransmitted"
        return [*lines, Text.assemble(_label("now"), (current, "bold"), (retransmitted, "dim"))]


def _label(words: str) -> tuple[str, str]:
    return f"{words:>12} ", "dim"


def _grid(moment: Moment) -> list[Text]:
    """Returns a line per plane with a cell per T1; an empty square carries no traffic."""
    planes: dict[int, list[Document]] = {}
    for p in moment.paths:
        planes.setdefault(p["plane"], []).append(p)
    width = max((len(paths) for paths in planes.values()), default=0)
    lines = [Text.assemble(_label(""), ("".join(f"T1 {n:<10}" for n in range(width)), "dim"))]
    for plane, paths in sorted(planes.items()):
        cells = [(f"{'■' if p['usable'] else '□'} {_SHORT.get(p['state'], p['state']):<11}", p["state"]) for p in paths]
        lines.append(Text.assemble(_label(f"plane {plane}"), *((cell, _STYLES[state]) for cell, state in cells)))
    return lines


def _faults(moment: Moment) -> Text:
    if not moment.broken:
        return Text.assemble(_label("faults"), ("none", "dim"))
    return Text.assemble(_label("faults"), ("; ".join(f"{f.words} ({f.target})" for f in moment.broken), "bold red"))
