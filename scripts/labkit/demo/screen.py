# SPDX-License-Identifier: BSD-2-Clause
"""Shows the running demo: redrawn in place on a terminal, otherwise one line per second."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.text import Text

from labkit.cluster.observe import Document
from labkit.demo import live
from labkit.demo.live import STYLES, bars, label
from labkit.demo.scenario import Fault
from labkit.measure.goodput import BIN_NS, WIDE_NS, bits_per_s, regular

_SHORT = {"ASSUMED_BAD": "BAD"}
_LETTERS = {"GOOD": "G", "SKIP": "s", "ASSUMED_BAD": "X", "DENIED": "D", "UNKNOWN": "?"}
_ROWS = 6  # the screen has 23 lines; a terminal has 24


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


class Lines(live.Printer):
    """The view for logs and pipes: one line per second, and one per event."""

    def show(self, moment: Moment) -> None:
        """Prints the goodput of the last second, and a letter per EV."""
        last = moment.goodput()[-10:]
        planes: dict[int, str] = {}
        for p in moment.paths:
            planes[p["plane"]] = planes.get(p["plane"], "") + _LETTERS[p["state"]]
        states = "  ".join(f"plane {n} {letters}" for n, letters in sorted(planes.items()))
        mean = sum(last) / len(last) / 1e9 if last else 0.0
        self.say(f"{moment.now_s:5.1f} s  {mean:5.1f} Gbit/s  {states}")

    def events(self, at_s: float, events: Sequence[Document]) -> None:
        """Prints a line."""
        self.say(f"{at_s:7.3f} s  {sentence(events)}")


class Terminal(live.Board):
    """The view for terminals, redrawn in place. Use as a context manager."""

    def events(self, at_s: float, events: Sequence[Document]) -> None:
        """Adds a note in the colour of the state."""
        state = events[0]["to"]
        self.note(at_s, sentence(events), state if state in STYLES else "UNKNOWN")

    def show(self, moment: Moment) -> None:
        """Draws the state."""
        clock = f"{min(moment.now_s, moment.seconds):4.1f} of {moment.seconds:.0f} s"
        broken = live.faults([f"{f.words} ({f.target})" for f in moment.broken])
        self.draw(clock, [*self._goodput(moment), Text(), *_grid(moment), Text(), broken])

    def _goodput(self, moment: Moment) -> list[Text]:
        """Returns the chart of the whole recording; the part that is still to come is empty."""
        # A whole number of bins per column, so that all columns cover the same time.
        values = moment.goodput(math.ceil(moment.seconds / self.columns * 1e9 / BIN_NS) * BIN_NS)
        recent = moment.goodput()
        top = max([*values, 1.0])
        lines = []
        for i, line in enumerate(bars(values, _ROWS, top)):
            lines.append(Text.assemble(label(f"{top / 1e9:5.1f} Gbit/s" if i == 0 else ""), (line, "cyan")))
        current = f"{recent[-1] / 1e9 if recent else 0.0:.1f} Gbit/s"
        retransmitted = f"   {moment.retransmitted_segments} segments retransmitted"
        return [*lines, Text.assemble(label("now"), (current, "bold"), (retransmitted, "dim"))]


def _grid(moment: Moment) -> list[Text]:
    """Returns a line per plane with a cell per T1; an empty square carries no traffic."""
    planes: dict[int, list[Document]] = {}
    for p in moment.paths:
        planes.setdefault(p["plane"], []).append(p)
    width = max((len(paths) for paths in planes.values()), default=0)
    lines = [Text.assemble(label(""), ("".join(f"T1 {n:<10}" for n in range(width)), "dim"))]
    for plane, paths in sorted(planes.items()):
        cells = [(f"{'■' if p['usable'] else '□'} {_SHORT.get(p['state'], p['state']):<11}", p["state"]) for p in paths]
        lines.append(Text.assemble(label(f"plane {plane}"), *((cell, STYLES[state]) for cell, state in cells)))
    return lines
