# SPDX-License-Identifier: BSD-2-Clause
"""Runs a TCP (or MPTCP) flow between two hosts of the lab, and measures its goodput at the receiver.

with Flow(lab, Ends("h0", "10.99.0.1", "h2", "10.99.0.3")) as flow:
    while …:
        flow.poll(0.1)              # reads the lines of both ends, for that long
    flow.finish()
flow.bins                           # start of a bin (CLOCK_MONOTONIC ns) → bytes received in it
"""

import selectors
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple

from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from labkit.measure.goodput import BIN_NS
from labkit.places import end_program
from labkit.traffic.child import Child
from mrcd.errors import MachineError

PROGRAM = end_program("tcpend")
PATIENCE_S = patience(10.0)
Protocol = Literal["tcp", "mptcp"]


class Ends(NamedTuple):
    """The ends of a flow: nodes and their addresses."""

    source: str
    source_address: str
    target: str
    target_address: str


@dataclass(frozen=True)
class Sample:
    """The sender's TCP_INFO at one moment."""

    monotonic_ns: int
    retransmitted_segments: int  # since the flow began
    subflows: int = 1  # MPTCP's


class Flow:
    """One flow, from `with` to `finish`. Raises MachineError if it cannot begin, or ends by itself."""

    program = PROGRAM

    def __init__(self, lab: Lab, ends: Ends, bin_ns: int = BIN_NS, protocol: Protocol = "tcp") -> None:
        self._lab, self._ends, self._bin_ns = lab, ends, bin_ns
        self._prefix: str = protocol
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._facts: dict[str, Any] = {}
        self._finishing = False
        self.bins: dict[int, int] = {}
        self.samples: list[Sample] = []

    def __enter__(self) -> "Flow":
        try:
            self._start(self._ends.target, ["receive", self._ends.target_address, str(self._bin_ns)])
            port = self._expect("port")
            e = self._ends
            self._start(e.source, ["send", e.target_address, str(port), e.source_address])
            self._expect("mss_bytes")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    @property
    def congestion_control(self) -> str:
        """Returns the name of the sender's algorithm."""
        return str(self._facts["congestion_control"])

    @property
    def mss_bytes(self) -> int:
        """Returns the sender's segment size at the beginning."""
        return int(self._facts["mss_bytes"])

    @property
    def retransmitted_segments(self) -> int:
        """Returns the retransmissions since the beginning, by the newest sample."""
        return self.samples[-1].retransmitted_segments if self.samples else 0

    @property
    def subflows(self) -> int:
        """Returns MPTCP's subflows, by the newest sample; 0 before there is one."""
        return self.samples[-1].subflows if self.samples else 0

    def poll(self, seconds: float) -> None:
        """Reads both ends for that long, at least once."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            for key, _ in self._selector.select(max(0.0, left)):
                self._hear(key.data)
            if left <= 0 or not self._selector.get_map():
                return

    def finish(self) -> None:
        """Stops the sender, and reads both ends until they end."""
        self._finishing = True
        self._stop()
        until = time.monotonic() + PATIENCE_S
        while self._selector.get_map() and time.monotonic() < until:
            self.poll(0.05)
        stuck = [c.node for c in self._children if not c.closed]
        if stuck:
            raise MachineError(
                f"the flow {self._name} did not end: {', '.join(stuck)} still waits after {PATIENCE_S:.0f} s",
                hint="sent data did not arrive; are all paths broken?",
            )

    def _stop(self) -> None:
        self._children[-1].hush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for child in self._children:
            child.close()
        self._selector.close()

    @property
    def _name(self) -> str:
        e = self._ends
        return f"{e.source} → {e.target} ({e.source_address} → {e.target_address})"

    def _start(self, node: str, arguments: list[str]) -> None:
        argv = [sys.executable, "-I", str(self.program), self._prefix, *arguments]
        child = Child(self._lab, node, argv)
        self._children.append(child)
        self._selector.register(child.fd, selectors.EVENT_READ, child)

    def _expect(self, fact: str) -> Any:
        until = time.monotonic() + PATIENCE_S
        while fact not in self._facts:
            if time.monotonic() > until:
                raise MachineError(
                    f"the flow {self._name} did not begin within {PATIENCE_S:.0f} s",
                    hint="is the target reachable? try scripts/lab exec HOST -- ping ADDRESS",
                )
            for key, _ in self._selector.select(0.1):
                self._hear(key.data)
        return self._facts[fact]

    def _hear(self, child: Child) -> None:
        for said in child.read():
            if "bin_ns" in said:
                self.bins[said["bin_ns"]] = self.bins.get(said["bin_ns"], 0) + said["bytes"]
            elif "sample_ns" in said:
                self.samples.append(Sample(said["sample_ns"], said["retransmitted_segments"], said.get("subflows", 1)))
            elif "end" in said:
                child.end = said["end"]
            else:
                self._facts |= said
        if child.closed:
            self._selector.unregister(child.fd)
            if not self._finishing or child.end is None:
                raise MachineError(f"the flow {self._name} ended by itself: {child.node}: {child.last_words}")
