# SPDX-License-Identifier: BSD-2-Clause
"""Counts probes sent and answered, and computes loss and round-trip times as ping does. Pure."""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """The counts of one route. Times are ns."""

    sent: int = 0
    duplicates: int = 0
    send_error: str | None = None  # the last error of a send that failed
    rtts: list[int] = field(default_factory=list)

    @property
    def received(self) -> int:
        """The number of probes answered."""
        return len(self.rtts)

    @property
    def lost(self) -> int:
        """The number of probes without an answer."""
        return self.sent - self.received

    @property
    def loss_ratio(self) -> float | None:
        """The loss from 0 to 1; None if nothing was sent."""
        return self.lost / self.sent if self.sent else None

    def document(self) -> dict[str, Any]:
        """Return the document of --json. mdev is the standard deviation, as ping names it."""
        n = self.received
        mean = sum(self.rtts) / n if n else 0.0
        variance = sum((r - mean) ** 2 for r in self.rtts) / n if n else 0.0
        return {
            "sent": self.sent,
            "received": n,
            "lost": self.lost,
            "duplicates": self.duplicates,
            "loss_ratio": self.loss_ratio,
            "rtt_min_ns": min(self.rtts) if n else None,
            "rtt_avg_ns": round(mean) if n else None,
            "rtt_max_ns": max(self.rtts) if n else None,
            "rtt_mdev_ns": round(math.sqrt(variance)) if n else None,
            "send_error": self.send_error,
        }
