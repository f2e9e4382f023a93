# SPDX-License-Identifier: BSD-2-Clause
"""Samples paths or peers twice, computes their rates, and picks the busiest and the worst."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mrcd.ctl.base import Options
from mrcd.ctl.documents import Found, read, rows_of
from mrcd.ctl.terminal.render import Document, count, text

# Sort order of states; the worst is highest.
_BADNESS = {"ASSUMED_BAD": 3, "DENIED": 2, "UNKNOWN": 2, "SKIP": 1, "GOOD": 0}
_KEPT = ("peer", "ev", "plane", "t1", "label", "state", "reason", "usable", "weight", "since_s", "rtt_ns")
_COUNTED = ("tx_packets", "tx_bytes", "lost_packets")


@dataclass(frozen=True)
class Sample:
    """The paths or the peers at one moment, in seconds of a monotonic clock."""

    at_s: float
    rows: Sequence[Document]


def per_second(before: Sample, after: Sample) -> list[dict[str, Any]]:
    """Return each path or peer of `after` with its rates since `before`.

    The rates are tx_packets_per_s, tx_bits_per_s (inner bytes), lost_packets_per_s, and loss_ratio (lost of sent). They
    are None for a new path, or one whose counters were reset.
    """
    seconds = max(1e-6, after.at_s - before.at_s)
    known = {(p["peer"], p.get("ev")): p for p in before.rows}
    rows = []
    for path in after.rows:
        old = known.get((path["peer"], path.get("ev")))
        moved = {k: path.get(k, 0) - old.get(k, 0) for k in _COUNTED} if old else {}
        fresh = bool(moved) and moved["tx_packets"] >= 0 and moved["tx_bytes"] >= 0
        # The count of lost packets falls when a packet believed lost arrives.
        sent, lost = (moved["tx_packets"], max(0, moved["lost_packets"])) if fresh else (0, 0)
        rows.append(
            {k: path.get(k) for k in _KEPT}
            | {
                "tx_packets_per_s": round(sent / seconds, 3) if fresh else None,
                "tx_bits_per_s": round(moved["tx_bytes"] * 8 / seconds, 3) if fresh else None,
                "lost_packets_per_s": round(lost / seconds, 3) if fresh else None,
                "loss_ratio": min(1.0, lost / sent) if sent else 0.0 if fresh else None,
            }
        )
    return rows


def busiest(rows: Sequence[Document], most: int) -> list[Document]:
    """Return the paths with the most traffic, without idle ones."""
    used = [r for r in rows if r["tx_bits_per_s"]]
    return sorted(used, key=lambda r: -r["tx_bits_per_s"])[:most]


def worst(rows: Sequence[Document], most: int) -> list[Document]:
    """Return the paths that are out of use or lose packets, the worst first by state, loss, delay."""
    wrong = [r for r in rows if _BADNESS.get(r["state"], 3) or r["loss_ratio"] or not r["usable"]]
    return sorted(wrong, key=_badness, reverse=True)[:most]


def _badness(row: Document) -> tuple[int, float, int]:
    return _BADNESS.get(row["state"], 3), row["loss_ratio"] or 0.0, row["rtt_ns"] or 0


def usable_by_plane(rows: Sequence[Document]) -> dict[str, dict[int, tuple[int, int]]]:
    """Return the number of usable paths and of all paths: peer → plane → (usable, all)."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for row in rows:
        planes = found.setdefault(row["peer"], {})
        usable, every = planes.get(row["plane"], (0, 0))
        planes[row["plane"]] = (usable + bool(row["usable"]), every + 1)
    return found


def sampled(options: Options, name: str, interval_s: float, **query: Any) -> tuple[Sample, Sample, Found]:
    """Return two samples of the list `name`, `interval_s` apart, and the second one as it was read."""
    samples = []
    for n in range(2):
        found = read(options, name, **query)
        samples.append(Sample(options.monotonic_s(), rows_of(name, found)))
        if not n:
            options.clock.sleep(interval_s)
    return samples[0], samples[1], found


def megabits(bits: float | None) -> str:
    """Return bits per second as Mbit/s."""
    if bits is None:
        return text(None)
    return f"{bits / 1e6:.0f}" if bits >= 1e8 else f"{bits / 1e6:.3g}"


def per_s(value: float | None) -> str:
    """Return a number per second."""
    return count(None if value is None else round(value) if value >= 10 else round(value, 1))
