# SPDX-License-Identifier: BSD-2-Clause
"""Shows the running job: its step times, redrawn in place on a terminal, otherwise one line per second."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.text import Text

from labkit.demo import live
from labkit.demo.live import bars, label
from labkit.demo.text import milliseconds
from labkit.traffic.job import Step

LOW_MS, HIGH_MS = 10.0, 10_000.0  # of the chart, which is logarithmic
_ROWS = 8
_COLUMN_NS = 500_000_000
_S, _MS = 1_000_000_000, 1_000_000


@dataclass(frozen=True)
class Moment:
    """The state to show. Times are CLOCK_MONOTONIC ns."""

    begin_ns: int  # of the run
    now_ns: int
    steps: Sequence[Step]  # all that have ended
    broken: str | None

    @property
    def now_s(self) -> float:
        """Returns seconds since the run began."""
        return (self.now_ns - self.begin_ns) / _S

    @property
    def running_ms(self) -> float:
        """Returns for how long the current step has run."""
        return (self.now_ns - self.steps[-1].end_ns) / _MS

    def longest_ms(self, width_ns: int, number: int) -> list[float]:
        """Returns the longest step that ran in each of the last intervals, the current step included; 0 without one."""
        end_ns = self.now_ns - self.now_ns % width_ns + width_ns
        found = [0.0] * number
        for step in self._late(end_ns - number * width_ns):
            first = max(0, number - 1 - (end_ns - 1 - step.begin_ns) // width_ns)
            for column in range(first, number - (end_ns - step.end_ns) // width_ns):
                found[column] = max(found[column], step.ns / _MS)
        return found

    def recent(self) -> list[Step]:
        """Returns the steps that ended in the last second."""
        return [s for s in self._late(self.now_ns - _S) if s.end_ns < self.now_ns]

    def _late(self, since_ns: int) -> Iterator[Step]:
        """Yields the current step, and those that ended after that time, the last one first."""
        yield Step(self.steps[-1].end_ns, self.now_ns)
        for step in reversed(self.steps):
            if step.end_ns <= since_ns:
                return
            yield step


class Screen(Protocol):
    """A view of the job. `interval_s`: the time between two updates."""

    interval_s: float

    def show(self, moment: Moment) -> None:
        """Shows the state."""

    def note(self, at_s: float, words: str, kind: str) -> None:
        """Shows an action of the demo."""


class Lines(live.Printer):
    """The view for logs and pipes."""

    def show(self, moment: Moment) -> None:
        """Prints the steps of the last second."""
        recent = [s.ns / _MS for s in moment.recent()]
        words = f"{len(recent):3} steps, the longest {milliseconds(max(recent))}" if recent else _waiting(moment)
        self.say(f"{moment.now_s:5.1f} s  {words}" + (f"   ({moment.broken})" if moment.broken else ""))


class Terminal(live.Board):
    """The view for terminals, redrawn in place. Use as a context manager."""

    def show(self, moment: Moment) -> None:
        """Draws the longest step of each half second."""
        decades = math.log10(HIGH_MS / LOW_MS)
        heights = [
            math.log10(max(ms, LOW_MS) / LOW_MS) if ms else 0.0 for ms in moment.longest_ms(_COLUMN_NS, self.columns)
        ]
        chart = [
            Text.assemble(label({0: "step  10 s", _ROWS - 1: "10 ms"}.get(i, "")), (line, "cyan"))
            for i, line in enumerate(bars(heights, _ROWS, decades))
        ]
        recent = moment.recent()
        now = f"{milliseconds(recent[0].ns / _MS)}   {len(recent)} steps/s" if recent else _waiting(moment)
        broken = live.faults([moment.broken] if moment.broken else [])
        self.draw(f"{moment.now_s:5.1f} s", [*chart, Text.assemble(label("now"), (now, "bold")), Text(), broken])


def _waiting(moment: Moment) -> str:
    return f"a step has run for {milliseconds(moment.running_ms)}"
