# SPDX-License-Identifier: BSD-2-Clause
"""Sends a UDP flow of numbered packets between two hosts of the lab at a fixed rate, and counts lost numbers.

with Stream(lab, Ends("h0", "10.99.0.1", "h2", "10.99.0.3"), rate=50_000) as stream:
    first = stream.mark()       # packets sent so far
    …
    result = stream.finish()
result.lost(first, last)
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from labkit.places import end_program
from labkit.traffic.flow import Ends
from mrcd.errors import MachineError

PROGRAM = end_program("udpend")
PATIENCE_S = patience(15.0)
SIZE = 200  # bytes of UDP payload


@dataclass(frozen=True)
class Result:
    """Packet counts of the whole flow."""

    sent: int
    received: int
    twice: int
    socket_drops: int  # packets that arrived while the receiving socket was full
    missing: tuple[tuple[int, int], ...]  # ranges of numbers, first to last
    seconds: float
    late_ms: float  # the longest time without a send

    def lost(self, first: int = 0, last: int | None = None) -> int:
        """Returns the lost packets of those numbered first to last (exclusive)."""
        end = self.sent if last is None else last
        return sum(max(0, min(b, end - 1) - max(a, first) + 1) for a, b in self.missing)

    @property
    def packets_per_s(self) -> float:
        """Returns the rate that the sender reached."""
        return self.sent / self.seconds


class Stream:
    """One flow, from `with` to `finish`. Raises MachineError if it cannot begin, or ends by itself."""

    def __init__(self, lab: Lab, ends: Ends, *, rate: int, burst: int = 10, size: int = SIZE) -> None:
        self._lab, self._ends, self._rate, self._burst, self._size = lab, ends, rate, burst, size
        self._children: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Stream":
        e = self._ends
        try:
            self._receiver = self._start(e.target, "receive", e.target_address)
            port = self._hear(self._receiver)["port"]
            numbers = (port, e.source_address, self._rate, self._size, self._burst)
            self._sender = self._start(e.source, "send", e.target_address, *map(str, numbers))
            self.mark()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def mark(self) -> int:
        """Returns the packets sent so far."""
        assert self._sender.stdin is not None
        self._sender.stdin.write("\n")
        self._sender.stdin.flush()
        return int(self._hear(self._sender)["sent"])

    def finish(self) -> Result:
        """Stops the sender, waits for packets in flight, and counts."""
        sender, receiver = self._last(self._sender), self._last(self._receiver)
        missing = [(int(a), int(b)) for a, b in receiver["missing"]]
        if receiver["highest"] + 1 < sender["sent"]:
            missing.append((receiver["highest"] + 1, sender["sent"] - 1))
        return Result(
            sent=sender["sent"],
            received=receiver["received"],
            twice=receiver["twice"],
            socket_drops=receiver["socket"],
            missing=tuple(missing),
            seconds=sender["seconds"],
            late_ms=sender["late_ms"],
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for child in self._children:
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()
            if child.poll() is None:
                child.kill()
            child.wait()

    def _start(self, node: str, *arguments: str) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-I", str(PROGRAM), *arguments]
        pipe = subprocess.PIPE
        child = self._lab.popen(node, argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        self._children.append(child)
        return child

    def _hear(self, child: "subprocess.Popen[str]") -> dict[str, Any]:
        assert child.stdout is not None
        return self._fact(child, child.stdout.readline())

    def _last(self, child: "subprocess.Popen[str]") -> dict[str, Any]:
        try:
            out, _ = child.communicate("", PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise MachineError(f"an end of the UDP flow did not end within {PATIENCE_S:.0f} s") from None
        return self._fact(child, out.strip().rpartition("\n")[2])

    def _fact(self, child: "subprocess.Popen[str]", line: str) -> dict[str, Any]:
        try:
            return dict(json.loads(line))
        except ValueError:
            rest = line + (child.stdout.read() if child.stdout and not child.stdout.closed else "")
            raise MachineError(f"the UDP flow ended by itself: {rest.strip() or 'without a message'}") from None
