# SPDX-License-Identifier: BSD-2-Clause
"""Draws the document as panels: the traffic of the paths that a fault hit, over time, a line per fault. Pure."""

from statistics import median

from labkit import plot
from labkit.bench.failover.stats import duration
from labkit.bench.without_daemons.judge import rows
from labkit.cluster.observe import Document
from labkit.plot import Fault, Goal, Panel, Series

_END_S = 9.0


def picture(document: Document) -> str:
    """Returns the SVG: a panel per kind of fault."""
    faults = [f for f in document["faults"] if f["killed"]]
    return plot.draw(
        plot.Picture(
            title="Paths that fail and heal, with mrcd killed at both ends",
            subtitle=(
                "packets on the paths that a fault hits, beside the mean of the others; a TCP flow each way; "
                f"no daemon for {document['dead_s'] / 60:.1f} minutes"
            ),
            legend=("one fault each", "", "full share"),
            panels=[_panel(row, [f for f in faults if f["name"] == row["name"]]) for row in rows(faults)],
        )
    )


def _panel(row: Document, faults: list[Document]) -> Panel:
    broken = median(f["broken_s"] for f in faults)
    left, back = row["leave_ns"], row["back_ns"]
    return Panel(
        title=f"{row['name']}: {row['what']}",
        words=(
            f"{row['faults']} faults; left after p50 {duration(left['p50'])}, at most {duration(left['max'])}; back "
            f"{duration(back['p50'])} after healing, at most {duration(back['max'])}; "
            f"hold-downs up to {duration(row['due_ns']['max'])}"
        ),
        x_label="s after the fault",
        y_label="share of a path",
        begin=-0.5,
        end=_END_S,
        series=[Series([(x, y) for x, y in f["course"]], "ours", "steps") for f in faults],
        goals=[Goal(-0.5, _END_S, 1.0)],
        faults=[Fault(0.0, broken, "broken")],
    )
