# SPDX-License-Identifier: BSD-2-Clause
"""Draws on the full screen of a terminal, and restores the terminal at the end, also after a signal."""

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType

_ENTER = "\033[?1049h\033[?25l"  # alternate screen, no cursor
_LEAVE = "\033[?25h\033[?1049l"
_QUIT = ("q", "Q", "\x04", "")  # "" is the end of input


class Screen:
    """Full-screen output; use as a context manager. It reads keys if standard input is a terminal."""

    def __init__(self) -> None:
        self._saved: list[object] | None = None
        self._old: dict[int, object] = {}

    def __enter__(self) -> "Screen":
        # These signals must restore the terminal too. SIGINT already raises KeyboardInterrupt.
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._old[number] = signal.signal(number, _exit)
        self._old[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend)
        self._enter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._restore()
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _enter(self) -> None:
        if sys.stdin.isatty():
            self._saved = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        self._write(_ENTER)

    def _restore(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            self._write(_LEAVE)
        if self._saved is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._saved)  # type: ignore[arg-type]
            self._saved = None

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-Z: restore the terminal, stop, and take the terminal again when the shell continues mrcctl."""
        self._restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)
        self._enter()

    @property
    def size(self) -> tuple[int, int]:
        """The present columns and lines."""
        size = shutil.get_terminal_size()
        return size.columns, size.lines

    def draw(self, lines: Sequence[str]) -> None:
        """Draw lines from the top; lines below the bottom edge are dropped."""
        shown = lines[: self.size[1]]
        self._write("\033[H" + "\n".join(f"{line}\033[K" for line in shown) + "\033[J")

    def wait(self, seconds: float) -> bool:
        """Wait for the time, a change of the window's size, or a key. Returns True if the user wants to quit."""
        until, size = time.monotonic() + seconds, self.size
        while (left := until - time.monotonic()) > 0 and size == self.size:
            if not sys.stdin.isatty():
                time.sleep(min(left, 0.2))
                continue
            ready, _, _ = select.select([sys.stdin], [], [], min(left, 0.2))
            if ready and os.read(sys.stdin.fileno(), 1).decode(errors="replace") in _QUIT:
                return True
        return False

    def _write(self, text: str) -> None:
        """Write at once, and not by sys.stdout: its buffer refuses what Ctrl-Z writes in the middle of a write."""
        left = text.encode(sys.stdout.encoding, "replace")
        while left:
            left = left[os.write(sys.stdout.fileno(), left) :]


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
