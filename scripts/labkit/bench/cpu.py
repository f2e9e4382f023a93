# SPDX-License-Identifier: BSD-2-Clause
"""Measures how busy the machine is, all processes and interrupts together (/proc/stat, proc(5))."""

import os
from pathlib import Path
from typing import NamedTuple

_BUSY = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq; not idle, iowait, steal
_STEAL = 7


class Usage(NamedTuple):
    """CPU seconds over all CPUs, since boot or between two readings."""

    busy_s: float
    total_s: float
    stolen_s: float  # steal time: taken by the hypervisor

    def since(self, before: "Usage") -> "Usage":
        """Returns the CPU time from `before` to this reading."""
        return Usage(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def busy_ratio(self) -> float:
        """Returns the busy share of all CPUs, 0 to 1."""
        return self.busy_s / self.total_s if self.total_s else 0.0

    @property
    def stolen_ratio(self) -> float:
        """Returns the stolen share of all CPUs, 0 to 1."""
        return self.stolen_s / self.total_s if self.total_s else 0.0


def parse(stat: str) -> Usage:
    """Parses the first line of /proc/stat."""
    ticks = [int(f) for f in stat.splitlines()[0].split()[1:9]]  # guest time is in user time already
    hz = os.sysconf("SC_CLK_TCK")
    return Usage(sum(ticks[i] for i in _BUSY) / hz, sum(ticks) / hz, ticks[_STEAL] / hz)


def read() -> Usage:
    """Returns a reading."""
    return parse(Path("/proc/stat").read_text(encoding="ascii"))
