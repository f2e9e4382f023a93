# SPDX-License-Identifier: BSD-2-Clause
"""Runs the programs at the ends of traffic inside hosts, and reads the JSON lines that they print."""

import contextlib
import fcntl
import json
import os
import selectors
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from labkit.cluster.api import Lab
from mrcd.errors import MachineError

_PIPE_BYTES = 1 << 20  # output of 20 s: nothing reads it while daemons start, and the program must not block


class Child:
    """A running program, and the lines that it has printed. `kw` is passed to Popen."""

    def __init__(self, lab: Lab, node: str, argv: Sequence[str], **kw: Any) -> None:
        pipe = subprocess.PIPE
        self.process = lab.popen(node, argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, **kw)
        self.node = node
        self.end: str | None = None  # why it ended, if it has said so
        self.closed = False
        self.words: list[str] = []  # lines that are not JSON: errors
        self._rest = b""
        os.set_blocking(self.fd, False)
        fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def fd(self) -> int:
        """Returns the descriptor of its output."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def read(self) -> list[dict[str, Any]]:
        """Returns the whole lines that have arrived."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return []
        self.closed = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            try:
                found.append(dict(json.loads(line)))
            except ValueError:
                self.words.append(line.decode(errors="replace"))
        return found

    def write(self, line: str) -> None:
        """Writes a line to its stdin. Raises BrokenPipeError if it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    @property
    def last_words(self) -> str:
        """Returns why it ended, as far as it has said anything."""
        return self.end or (self.words[-1] if self.words else "without a message")

    def hush(self) -> None:
        """Closes its stdin, which ends it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and did not read the last line
            self.process.stdin.close()

    def close(self) -> None:
        """Kills it, if it has not ended."""
        self.hush()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()


class Children(ABC):
    """Programs in hosts, for the length of a block. Subclasses start them, and take the facts that they print."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()

    @abstractmethod
    def _begin(self) -> None:
        """Starts the programs."""

    @abstractmethod
    def _take(self, child: Child, said: dict[str, Any]) -> None:
        """Takes a line that a program has printed."""

    @abstractmethod
    def _ended(self, child: Child) -> MachineError | None:
        """Returns the error if this program should not have ended."""

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for child in self._children:
            child.close()
        self._selector.close()

    def poll(self, seconds: float) -> None:
        """Reads all programs for that long, at least once."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            self._read(max(0.0, left))
            if left <= 0 or not self._selector.get_map():
                return

    def _start(self, node: str, argv: Sequence[str], **kw: Any) -> Child:
        child = Child(self._lab, node, argv, **kw)
        self._children.append(child)
        self._selector.register(child.fd, selectors.EVENT_READ, child)
        return child

    def _read(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            child: Child = key.data
            for said in child.read():
                self._take(child, said)
            if child.closed:
                self._selector.unregister(child.fd)
                if (error := self._ended(child)) is not None:
                    raise error

    def _wait(self, seconds: float, is_so: Callable[[], bool], message: Callable[[], str], hint: str) -> None:
        """Reads all programs until `is_so`. Raises MachineError."""
        until = time.monotonic() + seconds
        while not is_so():
            left = until - time.monotonic()
            if left <= 0:
                raise MachineError(message(), hint=hint)
            self._read(min(left, 0.1))
