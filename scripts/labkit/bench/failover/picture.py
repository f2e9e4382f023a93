# SPDX-License-Identifier: BSD-2-Clause
"""Draws the failover document. Pure."""

from typing import Literal

from labkit import plot
from labkit.bench.failover.kinds import BLACKHOLE
from labkit.bench.failover.stats import duration
from labkit.cluster.observe import Document

_NS, _MS = 1e-9, 1e-3
_LABELS = {
    "t1-blackhole": "T1 black hole",
    "t1-blackhole-killed": "… with mrcd killed",
    "nic-link-killed": "NIC–T0 link, mrcd killed",
    "drop-20-killed": "T1 drops 20 %, mrcd killed",
    "t0-t1-link": "T0–T1 link, silent",
    "nic-link": "NIC–T0 link, silent",
    "nic-down": "NIC–T0 link, carrier lost",
    "one-way-forward": "one way: data lost",
    "one-way-reverse": "one way: ACKs lost",
    "drop-20": "T1 drops 20 %",
    "drop-1": "T1 drops 1 %",
    "drop-0.5": "T1 drops 0.5 %",
    "drop-20-no-dup-acks": "T1 drops 20 %, no ACK copies",
    "flapping": "T1 flaps 13 times a minute",
}
_PEERS = {"mptcp": "MPTCP", "kernel-ecmp": "the kernel's seg6 multipath"}


def picture(document: Document) -> str:
    """Returns the SVG: per kind how long a path was still used, with the requirement and the times of others."""
    shape = document["lab"]
    marks: list[tuple[float, str, Literal["goal", "theirs"]]] = [
        (ns * _NS, f"required for blackholes: {p} {duration(ns)}", "goal") for p, ns in BLACKHOLE
    ]
    marks.append((document["bfd_floor_ns"] * _NS, "BFD detects: 3 × 10 ms (arithmetic)", "theirs"))
    for way in document["holes"]:
        middle = way["longest_zero_ms"]["p50"]
        if way["name"] in _PEERS and middle:
            mostly = 2 * way["still_standing"] > way["blackholes"]
            until = f"until healed, here {way['watch_s']:g} s" if mostly else f"p50 {duration(middle * 1e6)}"
            marks.append((middle * _MS, f"{_PEERS[way['name']]} stops, {until}", "theirs"))
    evs = shape["planes"] * shape["t1"]
    words = (
        "from the first packet lost to the last data packet put on the path, both stamped in the kernel; one "
        f"TCP flow over {evs} EVs ({shape['planes']} planes × {shape['t1']} T1s)"
    )
    notes = ["Red: p50 (thick), p99 (thin). At the left edge: no data was put on the path after the first loss."]
    strips = plot.Strips("A dot per fault", "", [_row(d) for d in document["kinds"]], marks)
    return plot.draw(plot.Picture("Failover: how long a broken path is still used", words, [strips], notes))


def _row(d: Document) -> plot.Strip:
    found = d["leave_ns"]
    p50, p99 = (found[p] * _NS if found[p] is not None else None for p in ("p50", "p99"))
    said = f"p50 {duration(found['p50'])}, p99 {duration(found['p99'])}"
    times = [e["leave_ns"] * _NS if e["leave_ns"] is not None else None for e in d["events"] if e["in_use"]]
    return plot.Strip(_LABELS[d["kind"]], times, p50, p99, said)
