# SPDX-License-Identifier: BSD-2-Clause
"""Samples counters, and keeps the rates of the last five minutes for the web page.

Bytes are those of the plane NICs as the kernel counts them: all packets, with their headers. Losses are those of data
packets that the peers have reported on.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mrcd.fabric.topology import Plan
from mrcd.health.snapshot import Snapshot
from mrcd.kernel.pinned import Tables

INTERVAL_S = 2.0
KEPT_S = 300.0
MOST_EVS = 65_536
"""With more EVs losses are not sampled: that would take a tenth of a second."""

_NET_DEV = Path("/proc/self/net/dev")
_RX_BYTES, _TX_BYTES, _COLUMNS = 0, 8, 16  # columns of /proc/net/dev

Document = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """The counters at one moment, by plane. None: the plane has no NIC, or losses are not sampled."""

    at_s: float  # of CLOCK_MONOTONIC
    tx_bytes: Sequence[int | None]
    rx_bytes: Sequence[int | None]
    sent_packets: Sequence[int | None]  # judged: known to have arrived, or lost
    lost_packets: Sequence[int | None]


def take_sample(tables: Tables, plan: Plan, at_s: float) -> Sample:
    """Return the counters of this moment. Raises OSError if the kernel's cannot be read."""
    found = read_interfaces(_NET_DEV.read_text(encoding="utf-8"))
    nics = [found.get(name, (None, None)) for name in plan.interfaces]
    sent, lost = _losses(tables, plan)
    return Sample(at_s, [tx for _, tx in nics], [rx for rx, _ in nics], sent, lost)


def read_interfaces(text: str) -> dict[str, tuple[int | None, int | None]]:
    """Return received and sent bytes by the interface's name, from the text of /proc/net/dev (proc_pid_net(5))."""
    found: dict[str, tuple[int | None, int | None]] = {}
    for line in text.splitlines():
        name, colon, counters = line.rpartition(":")
        numbers = counters.split()
        if colon and len(numbers) >= _COLUMNS:
            found[name.strip()] = int(numbers[_RX_BYTES]), int(numbers[_TX_BYTES])
    return found


def _losses(tables: Tables, plan: Plan) -> tuple[Sequence[int | None], Sequence[int | None]]:
    """Return per plane the data packets that peers have reported on, and the lost ones among them."""
    if plan.ev_count > MOST_EVS:
        return [None] * len(plan.interfaces), [None] * len(plan.interfaces)
    s = Snapshot(tables, plan)
    sent, lost = (s.per_plane(n).sum(axis=0).tolist() for n in s.judged_and_lost)
    return sent, lost


class Rates:
    """The samples of the last KEPT_S seconds. Another number of planes begins anew."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=int(KEPT_S / INTERVAL_S) + 1)

    def add(self, sample: Sample) -> None:
        """Keep a sample, which is newer than the others."""
        if self._samples and len(self._samples[-1].tx_bytes) != len(sample.tx_bytes):
            self._samples.clear()
        self._samples.append(sample)

    def document(self) -> Document:
        """Return rates between successive samples, the oldest first: per plane a list with a value per interval.

        `at_s` are the ends of the intervals (CLOCK_MONOTONIC). A rate is None where a counter is missing or went back.
        """
        samples = list(self._samples)
        pairs = list(pairwise(samples))
        planes = range(len(samples[-1].tx_bytes)) if samples else range(0)
        return {
            "interval_s": INTERVAL_S,
            "kept_s": KEPT_S,
            "at_s": [round(after.at_s, 1) for _, after in pairs],
            "planes": [
                {
                    "plane": plane,
                    "tx_bits_per_s": [_bits(b, a, b.tx_bytes[plane], a.tx_bytes[plane]) for b, a in pairs],
                    "rx_bits_per_s": [_bits(b, a, b.rx_bytes[plane], a.rx_bytes[plane]) for b, a in pairs],
                    "loss_ratio": [_loss(b, a, plane) for b, a in pairs],
                }
                for plane in planes
            ],
        }


def _bits(before: Sample, after: Sample, old: int | None, new: int | None) -> int | None:
    moved, seconds = _moved(old, new), after.at_s - before.at_s
    return None if moved is None or seconds <= 0 else round(moved * 8 / seconds)


def _loss(before: Sample, after: Sample, plane: int) -> float | None:
    """Return the share of lost packets; 0 if none was sent. Packets believed lost that arrive count as no loss."""
    sent = _moved(before.sent_packets[plane], after.sent_packets[plane])
    old, new = before.lost_packets[plane], after.lost_packets[plane]
    if sent is None or old is None or new is None:
        return None
    return round(min(1.0, max(0, new - old) / sent), 6) if sent else 0.0


def _moved(old: int | None, new: int | None) -> int | None:
    return None if old is None or new is None or new < old else new - old
