# SPDX-License-Identifier: BSD-2-Clause
"""Renders the demo's document as tables. Pure; numbers are rounded here."""

import re
from collections.abc import Iterator

from labkit.cluster.observe import Document
from mrcd.ctl.terminal.render import Column, count, percent, table

_INKS = {"kept": 32, "BROKEN": 31}  # ANSI green and red


def milliseconds(ms: float | None) -> str:
    """Returns a duration in the unit that suits: 95 ms, 1.02 s; never."""
    if ms is None:
        return "never"
    return f"{ms:.0f} ms" if ms < 999.5 else f"{ms / 1000:.2f} s"


def gbit(bits_per_s: float | None) -> str:
    """Returns Gbit/s, without the unit."""
    return "-" if bits_per_s is None else f"{bits_per_s / 1e9:.1f}"


def summary(document: Document, *, colour: bool) -> list[str]:
    """Returns the measurements, and whether the requirements were met."""
    return [
        *_flow(document),
        "",
        *_faults(document, colour),
        "",
        *_spread(document),
        "",
        *promises(document, colour),
    ]


def _flow(document: Document) -> Iterator[str]:
    f = document["flow"]
    yield (
        f"TCP {f['source']} → {f['target']} for {document['duration_s']:.0f} s ({f['congestion_control']}, MSS "
        f"{f['mss_bytes']} bytes): median {gbit(f['median_bits_per_s'])}, mean {gbit(f['mean_bits_per_s'])} Gbit/s; "
        f"{f['retransmitted_segments']} segments retransmitted"
    )


def _faults(document: Document, colour: bool) -> list[str]:
    columns = [
        Column("FAULT"),
        Column("AT", True),
        Column("HEALED", True),
        Column(f"EVS {document['flow']['source']}→{document['flow']['target']}", True),
        Column("ASSUMED_BAD", True),
        Column("ALL HOSTS", True),
        Column("HOLE", True),
        Column("Gbit/s BEFORE", True),
        Column("DURING", True),
        Column("AFTER", True),
        Column("GOOD AGAIN", True),
        Column("RETRANS", True),
    ]
    rows = []
    for f in document["faults"]:
        flow, everyone = f["flow_evs"], f["all_evs"]
        rows.append(
            [
                f["target"],
                f"{f['begin_s']:.1f} s",
                f"{f['heal_s']:.1f} s",
                f"{flow['withdrawn']}/{flow['hit']}",
                milliseconds(flow["last_withdrawn_after_ms"]),
                f"{everyone['withdrawn']}/{everyone['hit']} {milliseconds(everyone['last_withdrawn_after_ms'])}",
                milliseconds(f["longest_hole_ms"]),
                gbit(f["before_bits_per_s"]),
                gbit(f["during_bits_per_s"]),
                gbit(f["after_bits_per_s"]),
                milliseconds(flow["last_returned_after_ms"]),
                count(f["retransmitted_segments"]),
            ]
        )
    words = [f"{f['target']}: {f['what']}" for f in document["faults"]]
    return [*table(columns, rows, colour=colour), *(f"  {w}" for w in words)]


def _spread(document: Document) -> Iterator[str]:
    s = document["spread"]
    yield (
        f"Spread over {len(s['evs'])} EVs in {s['seconds']:.1f} s without a fault: "
        + "; ".join(_deviation(name, s[key]) for name, key in (("bytes", "tx_bytes"), ("packets", "tx_packets")))
    )


def _deviation(name: str, s: Document) -> str:
    low, high = (s[k] / s["mean"] - 1 if s["mean"] else None for k in ("min", "max"))
    signed = [f"{'-' if x < 0 else '+'}{percent(abs(x))} %" if x is not None else "-" for x in (low, high)]
    return f"{name} {signed[0]} … {signed[1]} of their mean ({count(s['mean'])})"


def promises(document: Document, colour: bool) -> list[str]:
    """Returns the table of a document's requirements."""
    columns = [Column("PROMISED"), Column("FAULT"), Column(""), Column("MEASURED")]
    rows = [
        ["kept" if p["kept"] else "BROKEN", p["target"] or "any", p["promise"], p["measured"]]
        for p in document["promises"]
    ]
    lines = table(columns, rows, colour=False)
    if not colour:
        return lines
    return [re.sub(r"^(kept|BROKEN)\b", lambda m: f"\033[{_INKS[m[0]]}m{m[0]}\033[0m", line) for line in lines]
