# SPDX-License-Identifier: BSD-2-Clause
"""Draws the documents of throughput, cost, spread and planes. Pure."""

from collections.abc import Sequence
from typing import Literal

from labkit.bench import cells
from labkit.bench.candidates import MRCD, OURS
from labkit.bench.cells import Bound, Cell
from labkit.bench.receive_settings import EQUAL, SETTINGS, WORDS
from labkit.cluster.observe import Document
from labkit.plot import bars
from labkit.plot.bars import Bar, Goal, Histogram, Section
from mrcd.ctl.terminal.render import percent

_GBIT = 1e9


def throughput(document: Document) -> str:
    """Returns a section per cell: the goodput of each candidate, and beside its peer's what is required of mrcd."""
    runs = max((len(c["runs"]) for cell in document["cells"] for c in cell["candidates"]), default=0)
    return bars.draw(
        bars.Picture(
            title="Throughput beside what a host has without mrcd",
            subtitle=(
                f"medians of up to {runs} interleaved runs of {document['seconds']:g} s, lines from minimum to "
                "maximum; CPU of all processes and interrupts"
            ),
            sections=[_cell(c) for c in document["cells"]],
            notes=[
                *document["notes"],
                "Bounds are judged by the median of the rounds' own ratios; lines: of the medians.",
                *(f"Receive settings, {settings}: {WORDS[settings]}." for settings in SETTINGS),
            ],
        )
    )


def _cell(cell: Document) -> Section:
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
    return Section(cell["name"], words, "Gbit/s", drawn, _goals(cell))


def _goals(cell: Document) -> list[Goal]:
    load = next(x for x in cells.LOADS if x.name == cell["load"])
    shape = cell["where"], cell["mtu_bytes"], cell["granularity"], cell["version"]
    found = Cell(*shape, load, (), glimpse=cell["glimpse"])
    return [g for b in cells.bounds(found) if b.least is not None for g in _goal(cell, b, b.least)]


def _goal(cell: Document, bound: Bound, least: float) -> list[Goal]:
    peers = [c for c in cell["candidates"] if c["name"] == bound.peer and c["receive"] == EQUAL]
    return [Goal(least * c["median_bits_per_s"] / _GBIT, f"wanted: {least:g} × {c['shown']}") for c in peers]


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
        goals = [Goal(most * one, f"full table: {most:g} × {first} at most")] if most else []
        called: Document = next((c for c in document["calls"] if c["program"] == program and c["case"] == first), {})
        words = ", ".join(f"{w} {n:.3g}" for w, n in called.items() if w not in ("program", "case") and n)
        sections.append(Section(program, f"calls per packet: {words or 'none'}", "ns per packet", drawn, goals))
    return bars.draw(
        bars.Picture(
            title="What a packet costs in each program",
            subtitle=(
                f"the kernel's run-time statistics, less their own {document['statistics_ns']:.0f} ns; medians of "
                f"{len(document['cases'][0]['rounds'])} rounds, packets of {document['packet_bytes']} bytes"
            ),
            sections=sections,
            notes=[f"full table: {document['hosts']} hosts × {document['evs_per_peer']} EVs"],
        )
    )


def spread(document: Document) -> str:
    """Returns per granularity the deviation of the EVs' bytes and packets from their mean."""
    sections = [
        Section(
            f"{r['granularity']} granularity, {len(r['evs'])} EVs",
            f"{r['bits_per_s'] / _GBIT:.1f} Gbit/s",
            "% from the mean, the worst EV",
            [
                Bar(
                    words, worst := 100 * (r[key]["worst_deviation_ratio"] or 0), worst, worst, f"{worst:.2g} %", "ours"
                )
                for key, words in (("tx_bytes", "bytes"), ("tx_packets", "packets"))
            ],
        )
        for r in document["runs"]
    ]
    return bars.draw(
        bars.Picture("How evenly one flow fills its EVs", f"in {document['seconds']:g} s of one TCP flow", sections)
    )


_LEAST_BYTES = 10  # exponent of 2, bytes: smaller lateness is in the first column


def planes(document: Document) -> str:
    """Returns per case the share of the planes' capacity, and the lateness of data."""
    sections: list[Section | Histogram] = []
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
        goals = [Goal(100 * least, f"wanted: {percent(least)} %")] if least else []
        words = f"{c['sum_bits_per_s'] / 1e6:.0f} Mbit/s together; medians of {len(c['ways'][0]['runs'])} runs"
        sections.append(Section(c["case"], words, "% of the sum, after headers", drawn, goals))
        sections.append(
            Histogram(
                f"{c['case']}: reordering at the receiver",
                "share of skbs (bursts left whole) by their lateness: bytes sent after them that arrived before them",
                _buckets(len(c["ways"][0]["late_skbs"])),
                [
                    (w["name"], _kind(w["name"] == MRCD), _shares(w["late_skbs"]))
                    for w in c["ways"]
                    if any(w["late_skbs"])
                ],
            )
        )
    first = document["cases"][0]["ways"][0]
    return bars.draw(
        bars.Picture(
            title="One TCP flow over four limited planes",
            subtitle=(
                f"{first['congestion_control']}, links of MTU {document['mtu_bytes']}, runs of "
                f"{document['seconds']:g} s"
            ),
            sections=sections,
        )
    )


def _shares(late: Sequence[int]) -> list[float]:
    """Returns the shares in order; late by less than 2 ** _LEAST_BYTES bytes; by less than twice that; …"""
    total = sum(late) or 1
    return [late[0] / total, sum(late[1 : _LEAST_BYTES + 1]) / total, *(n / total for n in late[_LEAST_BYTES + 1 : -8])]


def _buckets(count: int) -> list[str]:
    tops = [1 << n for n in range(_LEAST_BYTES, count - 8)]
    return ["in order", *(f"< {t >> 10} KB" if t < 1 << 20 else f"< {t >> 20} MB" for t in tops)]


def _kind(ours: bool) -> Literal["ours", "theirs"]:
    return "ours" if ours else "theirs"
