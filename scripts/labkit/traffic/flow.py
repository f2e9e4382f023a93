# SPDX-License-Identifier: BSD-2-Clause
"""Runs a TCP, MPTCP or UDP flow between two hosts of the lab, and measures its goodput at the receiver.

with Flow(lab, Ends("h0", "10.99.0.1", "h2", "10.99.0.3")) as flow:
    while …:
        flow.poll(0.1)              # reads the lines of both ends, for that long
    flow.finish()
flow.bins                           # start of a bin (CLOCK_MONOTONIC ns) → bytes received in it
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from labkit.measure.goodput import BIN_NS
from labkit.places import end_program
from labkit.traffic.child import Child, Children
from mrcd.errors import MachineError

PROGRAM = end_program("tcpend")
PATIENCE_S = patience(10.0)
Protocol = Literal["tcp", "mptcp"]
_UDP_IPV4, _UDP_IPV6 = 28, 48  # bytes of headers


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


class TwoEnds(Children):
    """A flow from `with` to `_finish`, by a program at each end: `PROGRAM NAME receive|send …`, with more arguments.

    Raises MachineError if it cannot begin, or ends by itself.
    """

    def __init__(self, lab: Lab, ends: Ends, program: Path, name: str) -> None:
        super().__init__(lab)
        self._ends, self._program = ends, [sys.executable, "-I", str(program), name]
        self._receiver: tuple[object, ...] = ()  # more arguments
        self._sender: tuple[object, ...] = ()
        self._facts: dict[str, Any] = {}
        self._finishing = False

    def _begin(self) -> None:
        e = self._ends
        self._start(e.target, [*self._program, "receive", e.target_address, *map(str, self._receiver)])
        words = (e.target_address, self._expect("port"), e.source_address, *self._sender)
        self._start(e.source, [*self._program, "send", *map(str, words)])
        self._expect("mss_bytes")

    def _finish(self) -> None:
        """Stops the sender, and reads both ends until they end."""
        self._finishing = True
        self._stop()
        self._wait_for_end(*self._children)

    def _stop(self) -> None:
        self._children[-1].hush()

    def _wait_for_end(self, *children: Child) -> None:
        self._wait(
            PATIENCE_S,
            lambda: all(c.closed for c in children),
            lambda: (
                f"the flow {self._name} did not end: {', '.join(c.node for c in children if not c.closed)} "
                f"still waits after {PATIENCE_S:.0f} s"
            ),
            hint="sent data did not arrive; are all paths broken?",
        )

    @property
    def _name(self) -> str:
        e = self._ends
        return f"{e.source} → {e.target} ({e.source_address} → {e.target_address})"

    def _expect(self, fact: str) -> Any:
        """Waits until an end has printed a fact, and returns it."""
        self._wait(
            PATIENCE_S,
            lambda: fact in self._facts,
            lambda: f"the flow {self._name} does not answer within {PATIENCE_S:.0f} s",
            hint="is the target reachable? try scripts/lab exec HOST -- ping ADDRESS",
        )
        return self._facts[fact]

    def _take(self, child: Child, said: dict[str, Any]) -> None:
        child.end = said.pop("end", child.end)
        self._facts |= said

    def _ended(self, child: Child) -> MachineError | None:
        if self._finishing and child.end is not None:
            return None
        return MachineError(f"the flow {self._name} ended by itself: {child.node}: {child.last_words}")


class OneSided(TwoEnds):
    """Two ends of which the receiver cannot see when the sender has ended: it is told after that."""

    def _stop(self) -> None:
        super()._stop()
        self._wait_for_end(self._children[-1])
        self._children[0].hush()


class Flow(TwoEnds):
    """One TCP flow, from `with` to `finish`.

    `rate` is in bytes per second; 0 is as fast as TCP accepts. `algorithm` is the congestion control; "": the host's.
    """

    def __init__(
        self,
        lab: Lab,
        ends: Ends,
        bin_ns: int = BIN_NS,
        protocol: Protocol = "tcp",
        rate: int = 0,
        algorithm: str = "",
    ) -> None:
        super().__init__(lab, ends, PROGRAM, protocol)
        self._receiver, self._sender = (bin_ns,), (rate, algorithm)
        self.bins: dict[int, int] = {}
        self.samples: list[Sample] = []

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

    def finish(self) -> None:
        """Stops the sender, and reads both ends until they end."""
        self._finish()

    def _take(self, child: Child, said: dict[str, Any]) -> None:
        if "bin_ns" in said:
            self.bins[said["bin_ns"]] = self.bins.get(said["bin_ns"], 0) + said["bytes"]
        elif "sample_ns" in said:
            self.samples.append(Sample(said["sample_ns"], said["retransmitted_segments"], said.get("subflows", 1)))
        else:
            super()._take(child, said)


class Datagrams(Flow):
    """UDP packets of `packet_bytes` each, IP header included, at full speed. `bins` count payload."""

    def __init__(self, lab: Lab, ends: Ends, packet_bytes: int, bin_ns: int = BIN_NS) -> None:
        super().__init__(lab, ends)
        self.payload_bytes = packet_bytes - (_UDP_IPV6 if ":" in ends.target_address else _UDP_IPV4)
        self._program = [*self._program[:2], str(end_program("udpend")), "flood"]
        self._receiver, self._sender = (self.payload_bytes, bin_ns), (self.payload_bytes,)

    @property
    def sent_packets(self) -> int:
        """Returns the packets sent from beginning to end; known after `finish`."""
        return int(self._facts["sent_packets"])

    @property
    def received_packets(self) -> int:
        """Returns the packets received so far."""
        return sum(self.bins.values()) // self.payload_bytes

    def _stop(self) -> None:
        for child in reversed(self._children):  # the receiver cannot see the sender's end
            child.hush()
