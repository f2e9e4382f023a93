# SPDX-License-Identifier: BSD-2-Clause
"""Draws the demo's document. Pure."""

from labkit.cluster.observe import Document
from labkit.demo.text import milliseconds
from labkit.plot import chart


def picture(document: Document) -> chart.Picture:
    """Returns goodput over time, the faults, and the states of the flow's EVs by plane."""
    flow, bins = document["flow"], document["goodput"]
    scale, unit = chart.unit(flow["median_bits_per_s"])
    planes: dict[int, list[chart.Row]] = {}
    for ev in document["states"]:
        spans = tuple(chart.Span(s["begin_s"], s["end_s"], s["state"]) for s in ev["spans"])
        planes.setdefault(ev["plane"], []).append(chart.Row(str(ev["t1"]), spans))
    return chart.Picture(
        title=f"One TCP flow {flow['source']} → {flow['target']} over {len(document['states'])} SRv6 paths",
        subtitle=(
            f"goodput at the receiver in bins of {bins['bin_s'] * 1000:.0f} ms; median "
            f"{flow['median_bits_per_s'] / scale:.1f} {unit}; {flow['congestion_control']}, "
            f"MSS {flow['mss_bytes']} bytes, {flow['retransmitted_segments']} segments retransmitted"
        ),
        seconds=document["duration_s"],
        bin_s=bins["bin_s"],
        bits_per_s=bins["bits_per_s"],
        faults=[chart.Fault(f["begin_s"], f["heal_s"], f"{f['what']} ({f['target']})") for f in document["faults"]],
        groups=[chart.Group(f"plane {n}", tuple(rows)) for n, rows in sorted(planes.items())],
        strip_title="state of each EV, by plane and T1",
        row_title="T1",
        notes=[_note(f) for f in document["faults"]],
    )


def _note(f: Document) -> str:
    evs = f["flow_evs"]
    return (
        f"{f['target']}: EVs ASSUMED_BAD: {evs['withdrawn']} of {evs['hit']}, after "
        f"{milliseconds(evs['last_withdrawn_after_ms'])}; longest hole in goodput "
        f"{milliseconds(f['longest_hole_ms'])}; GOOD again {milliseconds(evs['last_returned_after_ms'])} after healing"
    )
