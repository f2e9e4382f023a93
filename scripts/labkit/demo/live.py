# SPDX-License-Identifier: BSD-2-Clause
"""Draws the live views of the demos: a board that is redrawn in place, or one line per second."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

STYLES = {
    "GOOD": "green",
    "SKIP": "yellow",
    "ASSUMED_BAD": "bold red",
    "DENIED": "magenta",
    "UNKNOWN": "dim",
    "fault": "bold red",
    "heal": "bold green",
}
NOTES = 6
MAX_COLUMNS = 100
_BLOCKS = " ▁▂▃▄▅▆▇█"


def bars(values: Sequence[float], rows: int, top: float) -> list[str]:
    """Returns values as columns of block characters, `rows` lines high, the top line first. Pure."""
    eighths = [round(max(0.0, min(v / top, 1.0)) * rows * 8) if top > 0 else 0 for v in values]
    return ["".join(_BLOCKS[max(0, min(8, e - 8 * row))] for e in eighths) for row in reversed(range(rows))]


def label(words: str) -> tuple[str, str]:
    """Returns the left column of a line."""
    return f"{words:>12} ", "dim"


def faults(words: Sequence[str]) -> Text:
    """Returns the line with what is broken."""
    if not words:
        return Text.assemble(label("faults"), ("none", "dim"))
    return Text.assemble(label("faults"), ("; ".join(words), "bold red"))


class Printer:
    """The view for logs and pipes: one line per second, and one per note."""

    interval_s = 1.0

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, at_s: float, words: str, kind: str) -> None:
        """Prints a line."""
        self.say(f"{at_s:7.3f} s  {words}")

    def say(self, line: str) -> None:
        """Prints a line as it is."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class Board:
    """The view for terminals, redrawn in place. Use as a context manager."""

    interval_s = 0.2

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._notes: list[Text] = []
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> "Board":
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    @property
    def columns(self) -> int:
        """Returns the width of a chart."""
        return max(10, min(self._console.width - 14, MAX_COLUMNS))

    def note(self, at_s: float, words: str, kind: str) -> None:
        """Adds a note; the newest ones are shown."""
        self._notes = [*self._notes, Text(f"{at_s:7.3f} s  {words}", style=STYLES[kind])][-NOTES:]

    def draw(self, clock: str, parts: Sequence[Text]) -> None:
        """Draws title, clock, parts and notes."""
        head = Text.assemble((self._title, "bold"), (f"   {clock}", "dim"))
        lines = [head, Text(), *parts, *self._notes, *([Text()] * (NOTES - len(self._notes)))]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        self._live.update(Group(*lines), refresh=True)


_Lines = TypeVar("_Lines", bound=Printer)
_Terminal = TypeVar("_Terminal", bound=Board)


@contextlib.contextmanager
def view(console: Console, lines: _Lines, terminal: _Terminal) -> Iterator[_Lines | _Terminal]:
    """A block with the view that suits the console."""
    if not console.is_terminal:
        yield lines
        return
    with terminal:
        yield terminal


class Pace:
    """Polls traffic, and updates a view every `interval_s`."""

    def __init__(self, poll: Callable[[float], None], look: Callable[[], None], interval_s: float) -> None:
        self._poll, self._look, self._interval_s = poll, look, interval_s
        self._next_look_s = time.monotonic()

    def until(self, end_s: float) -> None:
        """Goes on until time.monotonic() is `end_s`."""
        while (now := time.monotonic()) < end_s:
            if self._next_look_s <= now:
                self._look()
                self._next_look_s = max(self._next_look_s + self._interval_s, time.monotonic())
            else:
                self._poll(min(self._next_look_s, end_s) - now)
