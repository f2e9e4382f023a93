# SPDX-License-Identifier: BSD-2-Clause
"""Draws the paper document. Pure."""

from labkit import plot
from labkit.bench.paper.text import gone
from labkit.cluster.observe import Document
from labkit.plot import Fault, Goal, Panel, Series

_TIME = "time, s"
_SHARE = "goodput, of fault-free"


def picture(document: Document) -> str:
    """Returns the SVG: a panel per experiment."""
    lab, flows = document["lab"], document["flows"]
    ours = "one TCP flow" if flows == 1 else f"{flows} TCP flows"
    rate = f"{lab['planes']} planes of {lab['rate_bits_per_s'] / 1e6:g} Mbit/s"
    return plot.draw(
        plot.Picture(
            title="The failure experiments of the MRC paper, with TCP over mrcd",
            subtitle=(
                f"{ours}, {lab['planes'] * lab['t1']} EVs, {rate}, each bin {document['bin_ms']:g} ms; each side as a "
                "share of its own goodput without faults"
            ),
            legend=(f"mrcd, {ours}", "the paper's points (arXiv 2605.04333; MRC in hardware)", "ideal"),
            panels=[_messages(d) if "runs" in d else _course(d) for d in document["experiments"]],
        )
    )


def _course(d: Document) -> Panel:
    """Returns the panel of a course over time."""
    usual = d["usual_bits_per_s"] or 1.0
    series = [Series([(i * d["bin_s"], v / usual) for i, v in enumerate(d["bits_per_s"])], "ours", "steps")]
    words = gone(d)
    if d["paper"]:
        series.append(Series(d["paper"]["points"], "theirs", "dots"))
        if d["name"].startswith("19b"):
            words += "; its plateaus are cut short"
    return Panel(
        title=f"Figure {d['figure']}: {d['what']}",
        words=words,
        x_label=_TIME,
        y_label=_SHARE,
        begin=0.0,
        end=d["seconds"],
        series=series,
        goals=[Goal(s["begin_s"], s["end_s"], s["ideal_ratio"]) for s in d["steps"]],
        faults=[Fault(f["begin_s"], f["end_s"], f["label"]) for f in d["faults"]],
    )


def _messages(d: Document) -> Panel:
    """Returns the panel of goodput by message size."""
    series = []
    for run in d["runs"]:
        loss = f"{run['drop_ratio'] * 100:g} %"
        series.append(Series(run["messages"], "ours", "joined", f"{loss} mrcd"))
        series.append(Series(run["paper"]["points"], "theirs", "joined", f"{loss} paper"))
    sizes = [size for s in series for size, _ in s.points]
    ticks = [(size, f"{size / 1e6:g}" if size < 1e9 else f"{size / 1e9:.0f} G") for size, _ in series[1].points]
    return Panel(
        title=f"Figure {d['figure']}: {d['what']}",
        words=gone(d),
        x_label="size of a message, MB (the paper's: a ring all-reduce of it)",
        y_label=_SHARE,
        begin=min(sizes),
        end=max(sizes),
        series=series,
        ticks=ticks,
    )
