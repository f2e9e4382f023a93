# SPDX-License-Identifier: BSD-2-Clause
"""Measures how evenly a flow's traffic is spread over the EVs, by the EVs' own counters."""

import time

from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document


def count(lab: Lab, source: str, target: str) -> Document:
    """Returns the current counters of one host's EVs to another: {"monotonic_ns", "paths"}."""
    found = observe.paths(lab, source, target)
    return {"monotonic_ns": time.monotonic_ns(), "paths": found}


def spread(before: Document, after: Document) -> Document:
    """Returns the spread over the EVs between two readings. Deviations are from the mean."""
    first = {p["ev"]: p for p in before["paths"]}
    evs = [
        {
            "ev": p["ev"],
            "plane": p["plane"],
            "t1": p["t1"],
            "tx_packets": p["tx_packets"] - first[p["ev"]]["tx_packets"],
            "tx_bytes": p["tx_bytes"] - first[p["ev"]]["tx_bytes"],
        }
        for p in after["paths"]
    ]
    document: Document = {"seconds": (after["monotonic_ns"] - before["monotonic_ns"]) / 1e9, "evs": evs}
    for what in ("tx_packets", "tx_bytes"):
        counts = [e[what] for e in evs]
        mean = sum(counts) / len(counts)
        worst = max(abs(n - mean) for n in counts) / mean if mean else None
        document[what] = {"mean": mean, "min": min(counts), "max": max(counts), "worst_deviation_ratio": worst}
    return document
