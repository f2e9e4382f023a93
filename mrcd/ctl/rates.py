"""What moved between two looks at the paths: rates, the busiest, the worst. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]

# How bad a state is, for the order of paths.
_BADNESS = {"ASSUMED_BAD": 3, "DENIED": 2, "UNKNOWN": 2, "SKIP": 1, "GOOD": 0}
_KEPT = ("peer", "ev", "plane", "t1", "label", "state", "reason", "usable", "weight", "since_s", "rtt_ns")
_COUNTED = ("tx_packets", "tx_bytes", "lost_packets")


@dataclass(frozen=True)
class Sample:
    """The paths at one moment, seconds of any clock that does not jump."""

    at_s: float
    paths: Sequence[Document]


def path_rates(before: Sample, after: Sample) -> list[dict[str, Any]]:
    """Each path of `after` with what it moved per second since `before`.

    tx_packets_per_s, tx_bits_per_s (inner bytes), lost_packets_per_s; loss_ratio: lost of sent, in this time;
    None for a path that is new, or whose counters started anew.
    """
    seconds = max(1e-6, after.at_s - before.at_s)
    known = {(p["peer"], p["ev"]): p for p in before.paths}
    rows = []
    for path in after.paths:
        old = known.get((path["peer"], path["ev"]))
        moved = {k: path[k] - old[k] for k in _COUNTED} if old else {}
        fresh = bool(moved) and min(moved.values()) >= 0
        sent, lost = (moved["tx_packets"], moved["lost_packets"]) if fresh else (0, 0)
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
    """The paths that carry most, without those that carry nothing."""
    used = [r for r in rows if r["tx_bits_per_s"]]
    return sorted(used, key=lambda r: -r["tx_bits_per_s"])[:most]


def worst(rows: Sequence[Document], most: int) -> list[Document]:
    """The paths with something wrong: out of use, or losing packets; the worst first, by state, loss, delay."""
    wrong = [r for r in rows if _BADNESS.get(r["state"], 3) or r["loss_ratio"] or not r["usable"]]
    return sorted(wrong, key=_badness, reverse=True)[:most]


def _badness(row: Document) -> tuple[int, float, int]:
    return _BADNESS.get(row["state"], 3), row["loss_ratio"] or 0.0, row["rtt_ns"] or 0


def by_peer(rows: Sequence[Document]) -> dict[str, dict[str, Any]]:
    """What the paths to each peer carry together, and how many of a plane's are usable: plane → (usable, all)."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        peer = found.setdefault(
            row["peer"], {"tx_packets_per_s": 0.0, "tx_bits_per_s": 0.0, "lost_packets_per_s": 0.0, "planes": {}}
        )
        for key in ("tx_packets_per_s", "tx_bits_per_s", "lost_packets_per_s"):
            peer[key] += row[key] or 0.0
        usable, every = peer["planes"].get(row["plane"], (0, 0))
        peer["planes"][row["plane"]] = (usable + bool(row["usable"]), every + 1)
    return found
