# SPDX-License-Identifier: BSD-2-Clause
"""Runs a TCP flow at a fixed rate between the two machines, and measures its pauses.

A flow at full speed takes all of an emulated CPU, and pauses by itself for half a second.
"""

import itertools
import json
from types import TracebackType

from labkit.kernels.pair import ADDRESSES, Pair
from labkit.measure import goodput
from labkit.measure.goodput import BIN_NS
from labkit.traffic.flow import PROGRAM

RATE = 500_000  # bytes per second; a bin holds seven segments
_numbers = itertools.count(1)
# A standard input that never ends and holds no data.
_NEVER = "mkfifo -m 600 /run/never 2>/dev/null; exec python3 -IS {} 0<>/run/never"


class PacedFlow:
    """A flow for the length of a block. Times are the receiver's CLOCK_MONOTONIC, in ns."""

    def __init__(self, pair: Pair, source: str, target: str) -> None:
        self._pair, self.source, self.target = pair, source, target
        name = f"flow-{next(_numbers)}"  # a new name each time: the machines cache file attributes
        self._file = pair.hosts[target].directory / name

    def __enter__(self) -> "PacedFlow":
        sender, receiver = self._pair.hosts[self.source], self._pair.hosts[self.target]
        there = ADDRESSES[4][self.target]
        receive = _NEVER.format(f"{PROGRAM} tcp receive {there} {BIN_NS}")
        self._receiver = receiver.start(["sh", "-c", receive], self._file.name)
        port = self._pair.wait(lambda: self._said("port"), f"the receiver of {self._file.name} listens")[0]
        send = _NEVER.format(f"{PROGRAM} tcp send {there} {port} {ADDRESSES[4][self.source]} {RATE}")
        self._sender = sender.start(["sh", "-c", send], f"{self._file.name}-sent")
        self._pair.wait(lambda: len(self.bins) > 10, f"the flow {self} begins")
        return self

    def __str__(self) -> str:
        return f"{self.source} → {self.target}"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._pair.hosts[self.source].run(["kill", str(self._sender)])
        self._pair.hosts[self.target].run(["kill", str(self._receiver)])

    def _said(self, fact: str) -> list[int]:
        found = []
        lines = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        for line in lines[: lines.rfind("\n") + 1].splitlines():  # whole lines only
            if fact in (said := json.loads(line)):
                found.append(int(said[fact]))
        return found

    @property
    def bins(self) -> dict[int, int]:
        """Returns bytes by bin."""
        return dict(zip(self._said("bin_ns"), self._said("bytes"), strict=False))

    @property
    def newest(self) -> int:
        """Returns the newest bin with data: about the present time while the flow runs."""
        return max(self._said("bin_ns"))

    def hole_ms(self, begin_ns: int, end_ns: int) -> int:
        """Returns the longest time without data in [begin, end)."""
        return goodput.longest_hole(self.bins, begin_ns, end_ns, 0.0001).length_ns // 1_000_000
