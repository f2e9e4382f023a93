# SPDX-License-Identifier: BSD-2-Clause
"""Sends a UDP flow of numbered packets between two hosts of the lab at a fixed rate, and counts lost numbers.

with Stream(lab, Ends("h0", "10.99.0.1", "h2", "10.99.0.3"), rate=50_000) as stream:
    first = stream.mark()       # packets sent so far
    …
    result = stream.finish()
result.lost(first, last)
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labkit.cluster.api import Lab
from labkit.cluster.patience import wait_for
from labkit.places import end_program
from labkit.traffic.flow import Ends, OneSided

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


class Stream(OneSided):
    """One flow, from `with` to `finish`. Raises MachineError if it cannot begin, or ends by itself."""

    def __init__(self, lab: Lab, ends: Ends, *, rate: int, burst: int = 10, size: int = SIZE) -> None:
        super().__init__(lab, ends, end_program("udpend"), "numbers")
        self._sender = (rate, size, burst)

    def mark(self) -> int:
        """Returns the packets sent so far."""
        self._facts.pop("sent", None)
        self._children[-1].write("")
        return int(self._expect("sent"))

    def finish(self) -> Result:
        """Stops the sender, waits for packets in flight, and counts."""
        self._finish()
        found = self._facts
        missing = [(int(a), int(b)) for a, b in found["missing"]]
        if found["highest"] + 1 < found["sent"]:
            missing.append((found["highest"] + 1, found["sent"] - 1))
        return Result(
            sent=found["sent"],
            received=found["received"],
            twice=found["twice"],
            socket_drops=found["socket"],
            missing=tuple(missing),
            seconds=found["seconds"],
            late_ms=found["late_ms"],
        )


class Streams:
    """Several flows at once, from `streams` on."""

    def __init__(self, flows: Sequence[Stream], rate: int) -> None:
        self._flows, self._rate = flows, rate

    def go_on(self, seconds: float = 0.2) -> None:
        """Waits until each flow has sent for some time more. Raises MachineError if one has stopped."""
        wanted = [flow.mark() + seconds * self._rate for flow in self._flows]
        words = "all UDP flows send"
        wait_for(words, lambda: all(f.mark() >= n for f, n in zip(self._flows, wanted, strict=True)), seconds + 15.0)

    def finish(self) -> tuple[int, int]:
        """Ends the flows. Returns the packets sent and the packets lost, on the way or at a full socket."""
        results = [flow.finish() for flow in self._flows]
        return sum(r.sent for r in results), sum(r.lost() + r.socket_drops for r in results)


@contextlib.contextmanager
def streams(lab: Lab, rate: int) -> Iterator[Streams]:
    """A block with a flow from each host of the first half to one of the second: h0 to the last, and so on."""
    hosts, address = lab.fabric.hosts, lab.fabric.address
    pairs = list(zip(hosts, reversed(hosts), strict=True))[: len(hosts) // 2]
    with contextlib.ExitStack() as stack:
        flows = [Stream(lab, Ends(a, address(a), b, address(b)), rate=rate) for a, b in pairs]
        found = Streams([stack.enter_context(flow) for flow in flows], rate)
        found.go_on()
        yield found
