# SPDX-License-Identifier: BSD-2-Clause
"""Sends requests between two hosts of the lab, each over a new TCP connection or over open ones, and times the answers.

with Requests(lab, Ends("h0", "10.99.0.1", "h2", "10.99.0.3"), OpenConnections(100, 0.02)) as requests:
    requests.poll(1.0)          # reads what both ends say, for that long
    requests.finish()
requests.took                   # known then: (when it was asked, how long the answer took), CLOCK_MONOTONIC ns
"""

from typing import Any, NamedTuple

from labkit.cluster.api import Lab
from labkit.places import end_program
from labkit.traffic.child import Child
from labkit.traffic.flow import Ends, OneSided, Protocol


class OpenConnections(NamedTuple):
    """Requests over so many connections, `gap_s` after the last answer on each."""

    connections: int
    gap_s: float


class NewConnections(NamedTuple):
    """A request on each of so many new connections per second."""

    per_s: int


class Requests(OneSided):
    """Requests, from `with` to `finish`. Raises MachineError if they cannot begin, or end by themselves."""

    def __init__(self, lab: Lab, ends: Ends, how: OpenConnections | NewConnections, protocol: Protocol = "tcp") -> None:
        super().__init__(lab, ends, end_program("askend"), protocol)
        self._sender = ("open" if isinstance(how, OpenConnections) else "new", *how)
        self.took: list[tuple[int, int]] = []

    def finish(self) -> None:
        """Ends the connections, and waits some seconds for the last answers."""
        self._finish()

    @property
    def broken(self) -> int:
        """Returns how many connections broke; known after `finish`."""
        return int(self._facts["broken"])

    @property
    def unanswered(self) -> int:
        """Returns how many requests had no answer at the end; known after `finish`."""
        return int(self._facts["unanswered"])

    def _take(self, child: Child, said: dict[str, Any]) -> None:
        self.took += [(asked_ns, took_ns) for asked_ns, took_ns in said.pop("took", ())]
        super()._take(child, said)
