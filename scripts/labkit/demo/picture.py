# SPDX-License-Identifier: BSD-2-Clause
"""Draws the demo's document. Pure."""

from labkit import plot
from labkit.cluster.observe import Document
from labkit.demo.text import milliseconds


def picture(document: Document) -> plot.Picture:
    """Returns goodput over time, the faults, and the states of the flow's EVs by plane."""
    flow, bins, end = document["flow"], document["goodput"], document["duration_s"]
    usual = flow["median_bits_per_s"] / 1e9
    goodput = plot.Panel(
        "Goodput at the receiver",
        f"in bins of {bins['bin_s'] * 1000:.0f} ms; median {usual:.1f} Gbit/s",
        "time, s",
        "Gbit/s",
        0.0,
        end,
        [plot.Series([(n * bins["bin_s"], b / 1e9) for n, b in enumerate(bins["bits_per_s"])], style="steps")],
        faults=[plot.Fault(f["begin_s"], f["heal_s"], f"{f['what']} ({f['target']})") for f in document["faults"]],
    )
    rows = sorted(document["states"], key=lambda ev: (ev["plane"], ev["t1"]))
    states = plot.States(
        "State of each EV, by plane and T1",
        "",
        end,
        [
            (f"plane {ev['plane']}, T1 {ev['t1']}", [(s["begin_s"], s["end_s"], s["state"]) for s in ev["spans"]])
            for ev in rows
        ],
    )
    return plot.Picture(
        title=f"One TCP flow {flow['source']} → {flow['target']} over {len(rows)} SRv6 paths",
        subtitle=(
            f"{flow['congestion_control']}, MSS {flow['mss_bytes']} bytes, "
            f"{flow['retransmitted_segments']} segments retransmitted"
        ),
        panels=[goodput, states],
        notes=[_note(f) for f in document["faults"]],
    )


def _note(f: Document) -> str:
    evs = f["flow_evs"]
    return (
        f"{f['target']}: EVs ASSUMED_BAD: {evs['withdrawn']} of {evs['hit']}, after "
        f"{milliseconds(evs['last_withdrawn_after_ms'])}; longest hole in goodput "
        f"{milliseconds(f['longest_hole_ms'])}; GOOD again {milliseconds(evs['last_returned_after_ms'])} after healing"
    )
