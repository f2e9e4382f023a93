# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl links`."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from mrcd.ctl.base import Options, command, show
from mrcd.ctl.documents import list_of, read
from mrcd.ctl.options import SECONDS, plane_option, wide_option
from mrcd.ctl.phrases import stale_lines
from mrcd.ctl.rates import sampled
from mrcd.ctl.terminal.render import Document, count, duration, field, fold, microseconds, percent, table_of

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
    fields = (
        field("LINK", "link"),
        field("STATE", "state"),
        field("IN STATE", "since_s", duration, rank=4),
        field("LOSS % now", "recent_loss_ratio", percent, rank=1),
        field("LOST", "direction", rank=2),
        field("LOSS % ever", "loss_ratio", percent, rank=3),
        field("PROBES", "probes", count, rank=7),
        field("LOST probes", "lost_probes", count, rank=6),
        field("RTT µs", "rtt_ns", microseconds, rank=5),
        field("LAST RX", "last_rx_s", duration, rank=8),
        field("CARRIER", "carrier", rank=9),
    )
    out = [f"over {duration(document['interval_s'])}"] if "interval_s" in document else []
    out += [*table_of(fields, docs, colour=colour, width=width), *_notes(docs, width)]
    return [*out, *stale_lines(document.get("tick_age_s"), width)]


def _notes(docs: Sequence[Document], width: int | None) -> list[str]:
    notes = []
    if not any(r["last_rx_s"] is not None for r in docs):
        notes.append("no link probe has come back: do the switches send packets back to the port that they came from?")
    if any(r["state"] == "dead" and r["t1"] is not None for r in docs):
        notes.append("a dead link to a T1 may be the T1: compare with `mrcctl links` of a host under another T0")
    return [line for note in notes for line in ("", *fold(note, width))]


@command("List this host's links to T0s and T1s: state, loss.")
@plane_option
@click.option("--interval", "-i", type=SECONDS, metavar="SECONDS", help="Probes and loss over this time only.")
@wide_option
def links(options: Options, plane: int | None, interval: float | None, wide: bool) -> None:
    """List the links from this host's NICs to its T0s, and from there to the T1s, as link probes see them.

    The switch at the far end of a link sends a link probe back. A dead link to a T1 may also be a dead T1: one host
    cannot tell. LOST says in which direction a bad link loses packets, where EVs tell: up is away from this host.

    Exit status 1 if a link is dead or lossy.
    """

    if interval is None:
        document = list_of("links", read(options, "links"))
    else:
        before, after, found = sampled(options, "links", interval)
        document = list_of("links", found, after.at_s - before.at_s)
        document["links"] = over_interval(before.rows, after.rows)
    document["links"] = [r for r in document["links"] if plane in (None, r["plane"])]
    show(options, document, link_lines, wide)
    if any(r["state"] in BAD for r in document["links"]):
        sys.exit(1)
