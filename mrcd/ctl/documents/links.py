# SPDX-License-Identifier: BSD-2-Clause
"""Renders GET /v1/links as a table. Pure."""

from collections.abc import Sequence
from typing import Any

from mrcd.ctl.documents.parts import stale_lines
from mrcd.ctl.terminal.render import Column, Document, count, duration, fold, microseconds, percent, table, text

BAD = ("dead", "lossy")


def over_interval(before: Sequence[Document], after: Sequence[Document]) -> list[dict[str, Any]]:
    """Return the rows of `after` with what was probed and lost since `before`, instead of the last seconds.

    The loss is of all probes of a link: those to a T1 also cross the link to the T0.
    """
    earlier = {r["link"]: r for r in before}
    rows = []
    for r in after:
        was = earlier.get(r["link"], {"probes": 0, "lost_probes": 0})
        probes = max(0, r["probes"] - was["probes"])
        lost = min(probes, max(0, r["lost_probes"] - was["lost_probes"]))
        recent = {"recent_probes": probes, "recent_lost_probes": lost}
        rows.append({**r, **recent, "recent_loss_ratio": lost / probes if probes else None})
    return rows


def link_lines(document: Document, *, colour: bool, width: int | None = None) -> list[str]:
    """Return one line per link, with what the links that are shown cannot tell."""
    docs = document["links"]
    if not docs:
        return fold("no links: with encapsulation srh or ecmp, no packet is sent that a switch sends back", width)
    columns = [
        Column("LINK"),
        Column("STATE"),
        Column("IN STATE", True, rank=4),
        Column("LOSS % now", True, rank=1),
        Column("LOST", rank=2),
        Column("LOSS % ever", True, rank=3),
        Column("PROBES", True, rank=7),
        Column("LOST probes", True, rank=6),
        Column("RTT µs", True, rank=5),
        Column("LAST RX", True, rank=8),
        Column("CARRIER", rank=9),
    ]
    rows = [
        [
            text(r["link"]),
            text(r["state"]),
            duration(r["since_s"]),
            percent(r["recent_loss_ratio"]),
            text(r["direction"]),
            percent(r["loss_ratio"]),
            count(r["probes"]),
            count(r["lost_probes"]),
            microseconds(r["rtt_ns"]),
            duration(r["last_rx_s"]),
            text(r["carrier"]),
        ]
        for r in docs
    ]
    out = [f"over {duration(document['interval_s'])}"] if "interval_s" in document else []
    out += [*table(columns, rows, colour=colour, width=width), *_notes(docs, width)]
    return [*out, *stale_lines(document.get("tick_age_s"), width)]


def _notes(docs: Sequence[Document], width: int | None) -> list[str]:
    notes = []
    if not any(r["last_rx_s"] is not None for r in docs):
        notes.append("no link probe has come back: do the switches send packets back to the port that they came from?")
    if any(r["state"] == "dead" and r["t1"] is not None for r in docs):
        notes.append("a dead link to a T1 may be the T1: compare with `mrcctl links` of a host under another T0")
    return [line for note in notes for line in ("", *fold(note, width))]
