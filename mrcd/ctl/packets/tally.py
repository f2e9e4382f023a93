"""Probes sent and answered: loss and round trips, as ping counts them. Pure."""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """Of one way there and back. Times in ns."""

    sent: int = 0
    duplicates: int = 0
    refused: str | None = None  # why the kernel did not send, the last time it did not
    rtts: list[int] = field(default_factory=list)

    @property
    def received(self) -> int:
        """Answers, each once."""
        return len(self.rtts)

    @property
    def lost(self) -> int:
        """Probes without an answer."""
        return self.sent - self.received

    @property
    def loss_ratio(self) -> float | None:
        """0 to 1; None if nothing was sent."""
        return self.lost / self.sent if self.sent else None

    def document(self) -> dict[str, Any]:
        """As printed by --json. mdev is the standard deviation, as ping's."""
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
            "not_sent": self.refused,
        }
