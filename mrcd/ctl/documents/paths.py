# SPDX-License-Identifier: BSD-2-Clause
"""Renders GET /v1/paths as a table: one line per EV, either its health or its hops."""

from collections.abc import Sequence

from mrcd.ctl.documents.parts import aged, denial, share
from mrcd.ctl.terminal.render import Column, Document, count, duration, microseconds, percent, table, text


def path_lines(
    docs: Sequence[Document], *, colour: bool, width: int | None = None, age_s: float | None = None
) -> list[str]:
    """Return one line per EV with its state, traffic and loss. `age_s`: since when nothing refreshes the states."""
    if not docs:
        return ["no paths"]
    columns = [
        Column("PEER"),
        Column("EV", True),
        Column("PLANE", True),
        Column("T1", True, rank=1),
        Column(aged("STATE", age_s)),
        Column("USABLE", rank=2),
        Column("IN STATE", True, rank=3),
        Column("TX pkts", True, rank=8),
        Column("TX bytes", True, rank=13),
        Column("LOST pkts", True, rank=7),
        Column("LOSS % ever", True, rank=5),
        Column("CE pkts", True, rank=12),
        Column("SKIPS", True, rank=11),
        Column("FLAPS", True, rank=8),
        Column("RTT µs", True, rank=5),
        Column("NEXT PROBE", True, rank=9),
        Column("HOLD-DOWN", True, rank=6),
        Column("CARRIER", rank=10),
        Column("REASON", rank=4),
    ]
    rows = [
        [
            text(p.get("peer")),
            text(p.get("ev")),
            text(p.get("plane")),
            text(p.get("label") if p.get("t1") is None else p["t1"]),
            text(p.get("state")),
            share(p.get("usable"), p.get("weight")),
            duration(p.get("since_s")),
            count(p.get("tx_packets")),
            count(p.get("tx_bytes")),
            count(p.get("lost_packets")),
            percent(p.get("loss_ratio")),
            count(p.get("ce_packets")),
            count(p.get("skips")),
            count(p.get("flaps")),
            microseconds(p.get("rtt_ns")),
            duration(p.get("next_probe_s")),
            duration(p.get("hold_down_s")),
            text(p.get("carrier")),
            _reason(p),
        ]
        for p in docs
    ]
    return table(columns, rows, colour=colour, width=width)


def hop_lines(
    docs: Sequence[Document], *, colour: bool, width: int | None = None, age_s: float | None = None
) -> list[str]:
    """Return one line per EV with the meaning of each uSID of its carrier (GET /v1/paths?decode=1)."""
    if not docs:
        return ["no paths"]
    columns = [
        Column("PEER"),
        Column("EV", True),
        Column("PLANE", True, rank=3),
        Column(aged("STATE", age_s), rank=2),
        Column("HOPS"),
        Column("CARRIER", rank=1),
    ]
    rows = [
        [
            *(text(p.get(k)) for k in ("peer", "ev", "plane", "state")),
            " → ".join(hop(h, p.get("plane")) for h in p.get("hops") or []),
            text(p.get("segments")),
        ]
        for p in docs
    ]
    return table(columns, rows, colour=colour, width=width)


def hop(doc: Document, plane: object) -> str:
    """Return one hop: T0 3. The hop's plane is named only where it differs from `plane`, the path's."""
    kind, number = doc.get("kind"), text(doc.get("number"))
    if kind == "address":
        return f"any way to {text(doc.get('destination'))}"
    if kind not in ("t0", "t1", "host"):
        return f"uSID {text(doc.get('usid'))}"
    words = f"host port {number}" if kind == "host" else f"{str(kind).upper()} {number}"
    return words if doc.get("plane") == plane else f"{words} (of plane {text(doc.get('plane'))})"


def _reason(path: Document) -> str:
    return denial(path["denial"]) if path.get("denial") else text(path.get("reason"))
