# SPDX-License-Identifier: BSD-2-Clause
"""Shows a running demo: a board that is redrawn in place on a terminal, otherwise a line per second and per note."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

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
_NOTES = 6
_BLOCKS = " ▁▂▃▄▅▆▇█"


def row(name: str, *words: str | tuple[str, str]) -> Text:
    """Returns a line of the board: a name, and words with their styles."""
    return Text.assemble((f"{name:>12} ", "dim"), *words)


def faults(words: Sequence[str]) -> Text:
    """Returns the line with what is broken."""
    return row("faults", ("; ".join(words), "bold red") if words else ("none", "dim"))


def chart(values: Sequence[float], top: float, labels: dict[int, str], rows: int) -> list[Text]:
    """Returns columns of block characters, `rows` lines high. `labels` by line, from the top."""
    eighths = [round(max(0.0, min(v / top, 1.0)) * rows * 8) for v in values]
    lines = ["".join(_BLOCKS[max(0, min(8, e - 8 * n))] for e in eighths) for n in reversed(range(rows))]
    return [row(labels.get(n, ""), (line, "cyan")) for n, line in enumerate(lines)]


class View:
    """Use as a context manager. `columns` is the width of a chart."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._interval_s = 0.2 if console.is_terminal else 1.0
        self._next_look_s = time.monotonic()
        self._notes = deque([Text()] * _NOTES, _NOTES)
        self._live = Live(console=console, auto_refresh=False)
        self.columns = max(10, min(console.width - 14, 100))

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        else:
            self._say(self._title)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def note(self, at_s: float, words: str, style: str) -> None:
        """Tells of an event; a board shows the newest ones. `style`: a key of STYLES."""
        line = f"{at_s:7.3f} s  {words}"
        if self._console.is_terminal:
            self._notes.append(Text(line, style=STYLES.get(style, "dim")))
        else:
            self._say(line)

    def show(self, now_s: float, line: str, board: Sequence[Text]) -> None:
        """Draws the board, or prints the line."""
        if not self._console.is_terminal:
            self._say(f"{now_s:5.1f} s  {line}")
            return
        head = Text.assemble((self._title, "bold"), (f"   {now_s:4.1f} s", "dim"))
        lines = [head, Text(), *board, *self._notes]
        for text in lines:
            text.no_wrap, text.overflow = True, "ellipsis"
        self._live.update(Group(*lines), refresh=True)

    def until(self, end_s: float, poll: Callable[[float], None], look: Callable[[], None]) -> None:
        """Polls until time.monotonic() is `end_s`, and looks at the interval of the view."""
        while (now := time.monotonic()) < end_s:
            if self._next_look_s <= now:
                look()
                self._next_look_s = max(self._next_look_s + self._interval_s, time.monotonic())
            else:
                poll(min(self._next_look_s, end_s) - now)

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
