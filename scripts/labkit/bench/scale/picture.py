# SPDX-License-Identifier: BSD-2-Clause
"""Draws the scale document: each measure, by the number of EVs, as a share of its bound. Pure."""

from collections.abc import Callable

from labkit import plot
from labkit.bench.scale.bounds import DAEMON_BYTES, IDLE_RATIO, KERNEL_BYTES, LOOK_S, START_S
from labkit.cluster.observe import Document

_Of = Callable[[Document], float | None]
_PANELS: tuple[tuple[str, str, tuple[tuple[str, float, _Of], ...]], ...] = (
    (
        "Work",
        f"a tick with its check of all peers: {LOOK_S * 1e3:g} ms; CPU when idle: {IDLE_RATIO:.0%} of a core",
        (
            ("tick", LOOK_S, lambda r: r["own"]["tick"]["mean_s"]),
            ("idle CPU", IDLE_RATIO, lambda r: r["idle_cpu_ratio"]),
        ),
    ),
    (
        "Memory",
        f"the daemon's own: {DAEMON_BYTES / 1e6:g} MB; the kernel's tables: {KERNEL_BYTES / 1e6:g} MB",
        (
            ("daemon", DAEMON_BYTES, lambda r: r["memory"]["own_bytes"]),
            ("tables", KERNEL_BYTES, lambda r: r["kernel_bytes"]),
        ),
    ),
    (
        "Time",
        f"the first start, a start with the tables there, a reload that brings 64 hosts: {START_S:g} s",
        (
            ("start", START_S, lambda r: r["start_s"]),
            ("again", START_S, lambda r: r["restart_s"]),
            ("reload", START_S, lambda r: r["reload"]["more"]["s"]),
        ),
    ),
)


def picture(document: Document) -> str:
    """Returns the SVG."""
    runs = sorted(document["runs"], key=lambda r: int(r["evs"]))
    begin, end = runs[0]["evs"], max(runs[-1]["evs"], runs[0]["evs"] * 2)
    ticks = [(r["evs"], f"{r['evs']:,}") for r in runs]
    return plot.draw(
        plot.Picture(
            title="Scale: what a host with many peers costs",
            subtitle="one host among 1 to 4,096 peers of 256 EVs each, all GOOD; a program emulates them",
            legend=("measured, as a share of what is allowed", "", "allowed"),
            panels=[
                plot.Panel(
                    title=title,
                    words=words,
                    x_label="EVs",
                    y_label="share of what is allowed",
                    begin=begin,
                    end=end,
                    series=[_series(runs, *one) for one in series],
                    goals=[plot.Goal(begin, end, 1.0)],
                    ticks=ticks,
                )
                for title, words, series in _PANELS
            ],
        )
    )


def _series(runs: list[Document], label: str, allowed: float, of: _Of) -> plot.Series:
    points = [(float(r["evs"]), value / allowed) for r in runs if (value := of(r)) is not None]
    return plot.Series(points, "ours", "joined", label)
