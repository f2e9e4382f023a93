# SPDX-License-Identifier: BSD-2-Clause
"""Draws the document: the time of each step, with the kernel's SRv6 and with mrcd, one above the other. Pure."""

from labkit import plot
from labkit.cluster.attachment import ATTACHED, DETACHED
from labkit.cluster.observe import Document
from labkit.demo.text import milliseconds
from labkit.demo.training.report import MOST, of

_TITLES = {ATTACHED: "With mrcd", DETACHED: "Over the kernel's own SRv6, with mrcd detached and stopped"}


def picture(document: Document) -> plot.Picture:
    """Returns a panel per run, both with the same axes."""
    seconds = max(w["duration_s"] for w in document["ways"])
    return plot.Picture(
        title=f"Steps of a training job of {document['ranks']} ranks through five faults",
        subtitle=f"a step is a gloo all-reduce of {document['step_bytes'] / 1e6:g} MB over TCP, in the lab",
        legend=("a step takes", "", f"{MOST:g} times the longest step with mrcd and without a fault"),
        panels=[_panel(document, way, seconds) for way in (DETACHED, ATTACHED)],
    )


def _panel(document: Document, way: str, seconds: float) -> plot.Panel:
    run, longest_ms = of(document, way), of(document, ATTACHED)["without_a_fault"]["longest_ms"]
    points = [(s["begin_s"], s["ms"]) for s in run["steps"]]
    if points:
        points.append((run["duration_s"], points[-1][1]))
    without = run["without_a_fault"]
    return plot.Panel(
        title=_TITLES[way],
        words=f"without a fault: median {milliseconds(without['median_ms'])}, longest "
        f"{milliseconds(without['longest_ms'])}; with the faults: longest "
        f"{milliseconds(max(f['longest_ms'] for f in run['faults']))}",
        x_label="time, s",
        y_label="step, ms",
        begin=0.0,
        end=seconds,
        series=[plot.Series(points, "ours", "steps")],
        goals=[] if longest_ms is None else [plot.Goal(0.0, seconds, MOST * longest_ms)],
        faults=[
            plot.Fault(f["begin_s"], f["heal_s"], f["what"] + (": stuck" if f["stuck"] else "")) for f in run["faults"]
        ],
        log_y=(10.0, 20_000.0),
    )
