# SPDX-License-Identifier: BSD-2-Clause
"""Sends a UDP flow of numbered packets between two hosts of the lab at a fixed rate, and counts lost numbers.

with Stream(lab, Ends("h0", "10.99.0.1", "h2", "10.99.0.3"), rate=50_000) as stream:
    first = stream.mark()       # packets sent so far
    …
    result = stream.finish()
result.lost(first, last)
"""

import sys
from dataclasses import dataclass
from typing import Any

from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from labkit.places import end_program
from labkit.traffic.child import Child, Children
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


class Stream(Children):
    """One flow, from `with` to `finish`. Raises MachineError if it cannot begin, or ends by itself."""

    def __init__(self, lab: Lab, ends: Ends, *, rate: int, burst: int = 10, size: int = SIZE) -> None:
        super().__init__(lab)
        self._ends, self._rate, self._burst, self._size = ends, rate, burst, size
        self._finishing = False
        self._said: dict[Child, dict[str, Any]] = {}  # the newest line of each end

    def _begin(self) -> None:
        e = self._ends
        self._receiver = self._start(e.target, [sys.executable, "-I", str(PROGRAM), "receive", e.target_address])
        port = self._next(self._receiver)["port"]
        numbers = (port, e.source_address, self._rate, self._size, self._burst)
        argv = [sys.executable, "-I", str(PROGRAM), "send", e.target_address, *map(str, numbers)]
        self._sender = self._start(e.source, argv)
        self.mark()

    def mark(self) -> int:
        """Returns the packets sent so far."""
        self._sender.write("")
        return int(self._next(self._sender)["sent"])

    def finish(self) -> Result:
        """Stops the sender, waits for packets in flight, and counts."""
        self._finishing = True
        sender, receiver = (self._last(child) for child in (self._sender, self._receiver))
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

    def _take(self, child: Child, said: dict[str, Any]) -> None:
        self._said[child] = said

    def _ended(self, child: Child) -> MachineError | None:
        if self._finishing and child in self._said:
            return None
        return MachineError(f"the UDP flow ended by itself: {child.last_words}")

    def _next(self, child: Child) -> dict[str, Any]:
        words = f"an end of the UDP flow does not answer within {PATIENCE_S:.0f} s"
        self._wait(PATIENCE_S, lambda: child in self._said, lambda: words, hint="is the target reachable?")
        return self._said.pop(child)

    def _last(self, child: Child) -> dict[str, Any]:
        child.hush()
        words = f"an end of the UDP flow did not end within {PATIENCE_S:.0f} s"
        self._wait(PATIENCE_S, lambda: child.closed, lambda: words, hint="is the machine busy?")
        return self._said.pop(child)
