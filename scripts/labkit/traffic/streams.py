# SPDX-License-Identifier: BSD-2-Clause
"""Sends UDP flows between several pairs of hosts at once, and counts the lost packets of all."""

import time
from contextlib import ExitStack
from types import TracebackType

from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from labkit.traffic.flow import Ends
from labkit.traffic.stream import Stream
from mrcd.errors import MachineError

_PATIENCE_S = patience(15.0)
_POLL_S = 0.02


class Streams:
    """A flow from each host of the first half to one of the second: h0 to the last, and so on. Use with `with`."""

    def __init__(self, lab: Lab, rate: int) -> None:
        hosts = lab.fabric.hosts
        pairs = list(zip(hosts, reversed(hosts), strict=True))[: len(hosts) // 2]
        self._rate, self._stack = rate, ExitStack()
        ends = [Ends(a, _address(lab, a), b, _address(lab, b)) for a, b in pairs]
        self._streams = [Stream(lab, e, rate=rate) for e in ends]

    def __enter__(self) -> "Streams":
        with ExitStack() as stack:
            for stream in self._streams:
                stack.enter_context(stream)
            self._stack = stack.pop_all()
        self.go_on()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def go_on(self, seconds: float = 0.2) -> None:
        """Waits until each flow has sent for some time more. Raises MachineError if one has stopped."""
        wanted = [stream.mark() + seconds * self._rate for stream in self._streams]
        until = time.monotonic() + seconds + _PATIENCE_S
        while any(stream.mark() < n for stream, n in zip(self._streams, wanted, strict=True)):
            if time.monotonic() > until:
                raise MachineError("a UDP flow has stopped")
            time.sleep(_POLL_S)

    def finish(self) -> tuple[int, int]:
        """Ends the flows. Returns the packets sent and the packets lost, on the way or at a full socket."""
        results = [stream.finish() for stream in self._streams]
        return sum(r.sent for r in results), sum(r.lost() + r.socket_drops for r in results)


def _address(lab: Lab, host: str) -> str:
    prefixes = lab.fabric.config.host(host).prefixes
    return str(next(p.network_address for p in prefixes if p.version == 4))
