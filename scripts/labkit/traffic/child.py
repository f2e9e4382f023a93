# SPDX-License-Identifier: BSD-2-Clause
"""Runs one of the programs at the ends of traffic inside a host, and reads the JSON lines that it prints."""

import contextlib
import fcntl
import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from labkit.cluster.api import Lab

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
