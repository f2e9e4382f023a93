# SPDX-License-Identifier: BSD-2-Clause
"""Draws the documents of throughput, cost and planes. Pure."""

from typing import Literal

from labkit import plot
from labkit.bench import cells
from labkit.bench.candidates import MRCD, OURS
from labkit.bench.cells import Bound, Cell
from labkit.bench.receive_settings import EQUAL, SETTINGS, WORDS
from labkit.cluster.observe import Document
from labkit.plot import Bar, Bars
from mrcd.ctl.terminal.render import percent

_GBIT = 1e9


def throughput(document: Document) -> str:
    """Returns a section per cell: the goodput of each candidate, and beside its peer's what is required of mrcd."""
    runs = max((len(c["runs"]) for cell in document["cells"] for c in cell["candidates"]), default=0)
    return plot.draw(
        plot.Picture(
            title="Throughput beside what a host has without mrcd",
            subtitle=(
                f"medians of up to {runs} interleaved runs of {document['seconds']:g} s, lines from minimum to "
                "maximum; CPU of all processes and interrupts"
            ),
            panels=[_cell(c) for c in document["cells"]],
            notes=[
                *document["notes"],
                "Bounds are judged by the median of the rounds' own ratios; lines: of the medians.",
                *(f"Receive settings, {settings}: {WORDS[settings]}." for settings in SETTINGS),
            ],
        )
    )


def _cell(cell: Document) -> Bars:
    udp = any("median_packets_per_s" in c for c in cell["candidates"])
    drawn = [
        Bar(
            c["shown"] if c["receive"] == EQUAL else f"{c['shown']}, default",
            c["median_bits_per_s"] / _GBIT,
            c["min_bits_per_s"] / _GBIT,
            c["max_bits_per_s"] / _GBIT,
            f"{c['median_bits_per_s'] / _GBIT:.2f} Gbit/s, {c['median_cpu_s_per_gbit']:.3f} CPU s/Gbit",
            _kind(c["name"] in OURS),
        )
        for c in cell["candidates"]
    ]
    controls = ", ".join(sorted({c["congestion_control"] for c in cell["candidates"]} - {"none"}))
    ratios = ", ".join(
        f"{r['goodput']['median']:.2f} × {r['peer']} ({r['cpu_per_gbit']['median'] or 0:.2f} × its CPU)"
        for r in cell["ratios"]
        if r["goodput"]["median"] is not None
    )
    words = f"{controls + '; ' if controls and not udp else ''}mrcd: {ratios or 'alone'}"
    return Bars(cell["name"], words, "Gbit/s", drawn, _goals(cell))


def _goals(cell: Document) -> list[tuple[float, str]]:
    load = next(x for x in cells.LOADS if x.name == cell["load"])
    shape = cell["where"], cell["mtu_bytes"], cell["granularity"], cell["version"]
    found = Cell(*shape, load, (), glimpse=cell["glimpse"])
    return [g for b in cells.bounds(found) if b.least is not None for g in _goal(cell, b, b.least)]


def _goal(cell: Document, bound: Bound, least: float) -> list[tuple[float, str]]:
    peers = [c for c in cell["candidates"] if c["name"] == bound.peer and c["receive"] == EQUAL]
    return [(least * c["median_bits_per_s"] / _GBIT, f"wanted: {least:g} × {c['shown']}") for c in peers]


def cost(document: Document) -> str:
    """Returns a section per program: ns per run in each case."""
    sections = []
    for program in dict.fromkeys(c["program"] for c in document["cases"]):
        found = [c for c in document["cases"] if c["program"] == program]
        one, first = found[0]["median_ns"], found[0]["case"]
        drawn = [
            Bar(
                c["case"],
                c["median_ns"],
                c["min_ns"],
                c["max_ns"],
                f"{c['median_ns']:.0f} ns, {c['median_ns'] / one:.2f} × {first}",
                "ours",
            )
            for c in found
        ]
        most = document["most_ratio"] if program == "mrc_push" else None
        goals = [(most * one, f"full table: {most:g} × {first} at most")] if most else []
        called: Document = next((c for c in document["calls"] if c["program"] == program and c["case"] == first), {})
        words = ", ".join(f"{w} {n:.3g}" for w, n in called.items() if w not in ("program", "case") and n)
        sections.append(Bars(program, f"calls per packet: {words or 'none'}", "ns per packet", drawn, goals))
    return plot.draw(
        plot.Picture(
            title="What a packet costs in each program",
            subtitle=(
                f"the kernel's run-time statistics, less their own {document['statistics_ns']:.0f} ns; medians of "
                f"{len(document['cases'][0]['rounds'])} rounds, packets of {document['packet_bytes']} bytes"
            ),
            panels=sections,
            notes=[f"full table: {document['hosts']} hosts × {document['evs_per_peer']} EVs"],
        )
    )


def planes(document: Document) -> str:
    """Returns per case the share of the planes' capacity, and the lateness of data."""
    sections: list[Bars] = []
    for c in document["cases"]:
        drawn = [
            Bar(
                w["name"],
                100 * w["median_ratio"],
                100 * w["min_ratio"],
                100 * w["max_ratio"],
                f"{percent(w['median_ratio'])} %, {w['median_bits_per_s'] / 1e6:.0f} Mbit/s",
                _kind(w["name"] == MRCD),
            )
            for w in c["ways"]
        ]
        least = c["required_ratio"]
        goals = [(100 * least, f"wanted: {percent(least)} %")] if least else []
        words = f"{c['sum_bits_per_s'] / 1e6:.0f} Mbit/s together; medians of {len(c['ways'][0]['runs'])} runs"
        sections.append(Bars(c["case"], words, "% of the sum, after headers", drawn, goals))
        late = [(w["name"], 100 * (w["late_ratio"] or 0.0)) for w in c["ways"]]
        sections.append(
            Bars(
                f"{c['case']}: reordering at the receiver",
                "skbs (bursts left whole) that arrived behind data that was sent after them",
                "% of the skbs",
                [Bar(name, x, x, x, f"{x:.2g} %", _kind(name == MRCD)) for name, x in late],
            )
        )
    first = document["cases"][0]["ways"][0]
    return plot.draw(
        plot.Picture(
            title="One TCP flow over four limited planes",
            subtitle=(
                f"{first['congestion_control']}, links of MTU {document['mtu_bytes']}, runs of "
                f"{document['seconds']:g} s"
            ),
            panels=sections,
        )
    )


def _kind(ours: bool) -> Literal["ours", "theirs"]:
    return "ours" if ours else "theirs"
