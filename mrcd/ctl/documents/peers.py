# SPDX-License-Identifier: BSD-2-Clause
"""Renders GET /v1/peers as a table."""

from collections.abc import Sequence

from mrcd.ctl.documents.parts import aged, plain_states
from mrcd.ctl.terminal.render import Column, Document, count, duration, microseconds, percent, table, text


def peer_lines(
    docs: Sequence[Document], *, colour: bool, width: int | None = None, age_s: float | None = None
) -> list[str]:
    """Return one line per peer. `age_s`: since when nothing refreshes the states."""
    if not docs:
        return ["no peers"]
    columns = [
        Column("PEER"),
        Column("ID", True, rank=8),
        Column("STATUS"),
        Column(aged("EVS USABLE", age_s), True),
        Column("STATES", rank=4),
        Column("PLANES UP", rank=3),
        Column("TX pkts", True, rank=5),
        Column("RX pkts", True, rank=7),
        Column("LOST pkts", True, rank=2),
        Column("LOSS % ever", True, rank=2),
        Column("RTT µs", True, rank=1),
        Column("LAST HEARD", True, rank=6),
        Column("PREFIXES", rank=9),
    ]
    rows = [
        [
            text(p.get("peer")),
            text(p.get("host_id")),
            text(p.get("status")) if p.get("reachable") else "unreachable",
            f"{text(p.get('usable_evs'))}/{text(p.get('evs'))}",
            plain_states(p.get("states") or {}),
            text(p.get("linked_planes")),
            count(p.get("tx_packets")),
            count(p.get("rx_packets")),
            count(p.get("lost_packets")),
            percent(p.get("loss_ratio")),
            microseconds(p.get("rtt_ns")),
            duration(p.get("heard_s")),
            text(p.get("prefixes")),
        ]
        for p in docs
    ]
    return table(columns, rows, colour=colour, width=width)
