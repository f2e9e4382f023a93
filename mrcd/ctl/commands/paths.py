# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl paths`: the health of each EV, its hops, or its rates."""

from collections.abc import Sequence
from typing import Any

import click

from mrcd.ctl.base import Options, command
from mrcd.ctl.documents import list_of, read, show_list
from mrcd.ctl.options import (
    BAD_STATES,
    STATES,
    StateType,
    interval_option,
    peer_argument,
    plane_option,
    wide_option,
)
from mrcd.ctl.phrases import aged, denial, share
from mrcd.ctl.rates import megabits, per_s, per_second, sampled
from mrcd.ctl.terminal.render import Document, count, duration, field, microseconds, percent, table_of, text
from mrcd.errors import UsageError


def path_lines(
    docs: Sequence[Document], *, colour: bool, width: int | None = None, age_s: float | None = None
) -> list[str]:
    """Return one line per EV with its state, traffic and loss. `age_s`: since when nothing refreshes the states."""
    fields = (
        field("PEER", "peer"),
        field("EV", "ev", right=True),
        field("PLANE", "plane", right=True),
        field("T1", _t1, right=True, rank=1),
        field(aged("STATE", age_s), "state"),
        field("USABLE", _share, rank=2),
        field("IN STATE", "since_s", duration, rank=3),
        field("TX pkts", "tx_packets", count, rank=8),
        field("TX bytes", "tx_bytes", count, rank=13),
        field("LOST pkts", "lost_packets", count, rank=7),
        field("LOSS % ever", "loss_ratio", percent, rank=5),
        field("CE pkts", "ce_packets", count, rank=12),
        field("SKIPS", "skips", count, rank=11),
        field("FLAPS", "flaps", count, rank=8),
        field("RTT µs", "rtt_ns", microseconds, rank=5),
        field("NEXT PROBE", "next_probe_s", duration, rank=9),
        field("HOLD-DOWN", "hold_down_s", duration, rank=6),
        field("CARRIER", "carrier", rank=10),
        field("REASON", lambda p: denial(p["denial"]) if p.get("denial") else p.get("reason"), rank=4),
    )
    return table_of(fields, docs, colour=colour, width=width)


def _t1(path: Document) -> object:
    return path.get("label") if path.get("t1") is None else path["t1"]


def _share(path: Document) -> str:
    return share(path.get("usable"), path.get("weight"))


def hop_lines(
    docs: Sequence[Document], *, colour: bool, width: int | None = None, age_s: float | None = None
) -> list[str]:
    """Return one line per EV with the meaning of each uSID of its carrier (GET /v1/paths?decode=1)."""
    fields = (
        field("PEER", "peer"),
        field("EV", "ev", right=True),
        field("PLANE", "plane", right=True, rank=3),
        field(aged("STATE", age_s), "state", rank=2),
        field("HOPS", lambda p: " → ".join(hop(h, p.get("plane")) for h in p.get("hops") or []), str),
        field("CARRIER", "segments", rank=1),
    )
    return table_of(fields, docs, colour=colour, width=width)


def hop(doc: Document, plane: object) -> str:
    """Return one hop: T0 3. The hop's plane is named only where it differs from `plane`, the path's."""
    kind, number = doc.get("kind"), text(doc.get("number"))
    if kind == "address":
        return f"any way to {text(doc.get('destination'))}"
    if kind not in ("t0", "t1", "host"):
        return f"uSID {text(doc.get('usid'))}"
    words = f"host port {number}" if kind == "host" else f"{str(kind).upper()} {number}"
    return words if doc.get("plane") == plane else f"{words} (of plane {text(doc.get('plane'))})"


def rate_lines(docs: Sequence[Document], *, age_s: float | None = None, **style: Any) -> list[str]:
    """Return one line per EV with its rates. `age_s`: since when nothing refreshes the states."""
    fields = (
        field("PEER", "peer"),
        field("EV", "ev", right=True),
        field("PLANE", "plane", right=True, rank=2),
        field("T1", _t1, right=True, rank=3),
        field(aged("STATE", age_s), "state"),
        field("USABLE", _share, rank=4),
        field("IN STATE", "since_s", duration, rank=5),
        field("TX Mbit/s", "tx_bits_per_s", megabits, right=True, rank=7),
        field("TX pkts/s", "tx_packets_per_s", per_s, right=True, rank=9),
        field("LOST pkts/s", "lost_packets_per_s", per_s, right=True, rank=8),
        field("LOSS % now", "loss_ratio", percent, rank=1),
        field("RTT µs", "rtt_ns", microseconds, rank=6),
        field("REASON", "reason"),
    )
    return table_of(fields, docs, **style)


@command("List EVs: state, traffic, loss, round-trip time.")
@peer_argument()
@plane_option
@click.option("--state", type=StateType(STATES), help="Only EVs in this state.")
@click.option("--bad", is_flag=True, help="Only EVs that are not GOOD, the worst first.")
@interval_option
@click.option("--decode", is_flag=True, help="Show the meaning of each uSID of the carriers.")
@wide_option
def paths(
    options: Options,
    peer: str | None,
    plane: int | None,
    state: str | None,
    bad: bool,
    interval: float | None,
    decode: bool,
    wide: bool,
) -> None:
    """List EVs: state, time in that state, traffic, loss, round-trip time.

    USABLE 1/8 is an EV that has returned, and takes one of eight of its turns for now. LOSS % ever counts all packets
    since the tables were made; with --interval SECONDS, rates and loss are those of that time. An EV that has failed
    has no RTT.

    --decode shows the hops of the carrier: T0 3 → T1 2 → T0 7 → host port 1. Hops of paths that the cluster file
    lists in [[paths]] may be wrong, because their uSIDs need not follow mrcd's numbering.
    """
    for first, second, both in (("--bad", "--state", bad and state), ("--decode", "--interval", decode and interval)):
        if both:
            raise UsageError(f"{first} and {second} exclude each other", hint="see `mrcctl paths --help`")
    query: dict[str, Any] = {"peer": peer, "plane": plane, "decode": int(decode) or None}
    # One by one: all EVs of a large cluster are more than an answer may have.
    query["each"] = [{"state": s} for s in BAD_STATES] if bad else [{"state": state}]
    if interval is None:
        document = list_of("paths", read(options, "paths", **query))
        show_list(options, document, hop_lines if decode else path_lines, wide)
        return
    before, after, found = sampled(options, "paths", interval, **query)
    document = list_of("paths", found, after.at_s - before.at_s) | {"paths": per_second(before, after)}
    show_list(options, document, rate_lines, wide)
