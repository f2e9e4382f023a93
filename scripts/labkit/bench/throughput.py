# SPDX-License-Identifier: BSD-2-Clause
"""Measures goodput and CPU per Gbit of mrcd beside what a host has without it, in the same lab, alternately.

A round measures the candidates of a cell right after each other; every second round has the other order, so that
drift favours none. The ratio of two in one round is a pair. Every candidate is measured with the same receive
settings, which the bounds use, and with its own defaults. Context and defaults are measured in the first
rounds only, unless the command line sets the number of pairs.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from labkit.bench import candidates, cells, control, pictures, receive_settings
from labkit.bench.candidates import KERNEL, MPTCP, MRCD, PLAIN, Candidate
from labkit.bench.cells import Cell
from labkit.bench.failover import mptcp
from labkit.bench.part import Options, Part
from labkit.bench.receive_settings import DEFAULT, EQUAL
from labkit.bench.run import run
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from mrcd.ctl.terminal.render import Column, count, percent, table
from mrcd.net.netlink import set_offload

PAIRS = 8  # takes seven minutes; with 6 pairs, medians within an hour were 1.01 and 1.06
FULL_PAIRS = 5
CONTEXT_ROUNDS, GLIMPSE_ROUNDS = 2, 1
FULL_S, SHORT_S = 1.0, 0.7  # lengths of a run
_SEGMENTATION = (
    *("tx-generic-segmentation", "tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp6-segmentation"),
    "tx-tcp-mangleid-segmentation",
)


def measure(lab: Lab, options: Options) -> Document:
    """Measures all cells, those of one lab in a row."""
    every = cells.full(options.mtu) if options.full else cells.default(options.mtu)
    wanted = cells.chosen(every, options.versions, options.only)
    found, notes = [], []
    options = replace(options, seconds=options.seconds or (FULL_S if options.full else SHORT_S))
    built: tuple[object, ...] = ()
    for number, cell in enumerate(wanted):
        rounds = options.pairs or (FULL_PAIRS if options.full else GLIMPSE_ROUNDS if cell.glimpse else PAIRS)
        progress(f"throughput: {cell.name}; cell {number + 1} of {len(wanted)}, {rounds} rounds")
        if (cell.where, cell.mtu, cell.granularity) != built:
            built = _up(lab, cell)
        document, missing = _cell(lab, cell, rounds, options)
        found.append(document)
        notes += [n for n in missing if n not in notes]
    return {
        "seconds": options.seconds,
        "cells": found,
        "notes": notes,
        "requirements": [
            r for c, d in zip(wanted, found, strict=True) for r in cells.requirements(c, d["ratios"], d["bare"])
        ],
    }


def _up(lab: Lab, cell: Cell) -> tuple[object, ...]:
    """Brings up a lab for a cell and those after it.

    In packet granularity the NICs of both ends segment nothing, so the kernel's own ways, too, send single packets.
    Nor do the ports at the far ends of the links, so that the NICs can merge what they receive: a veth has GRO only
    if its peer has no TSO.
    """
    lab.up(granularity=cell.granularity, mtu=cell.mtu, direct=cell.where == "direct")
    observe.wait_until_good(lab, lab.fabric.hosts)
    if cell.granularity == "packet":
        for link in lab.fabric.links:
            if {link.upper.node, link.lower.node} & set(candidates.pair(lab)):
                for end in (link.upper, link.lower):
                    with lab.inside(end.node):
                        set_offload(end.port, dict.fromkeys(_SEGMENTATION, False))
    return cell.where, cell.mtu, cell.granularity


def _cell(lab: Lab, cell: Cell, rounds: int, options: Options) -> tuple[Document, list[str]]:
    found, notes = _candidates(lab, cell)
    seen = {h: max((e["id"] for e in observe.events(lab, h)), default=0) for h in lab.fabric.hosts}
    ways = [(c, settings) for settings in receive_settings.SETTINGS for c in found]
    runs: dict[tuple[str, str], list[Document]] = {(c.name, settings): [] for c, settings in ways}
    for number in range(rounds):
        turn = [w for w in ways if options.pairs or number < CONTEXT_ROUNDS or in_every_round(cell, *w)]
        for c, settings in turn if number % 2 == 0 else reversed(turn):
            with receive_settings.in_force(lab, c.name, settings), c.in_force(lab):
                runs[c.name, settings].append(run(lab, c, cell.load, options))
        measured = {way: r[-1]["bits_per_s"] / 1e9 for way, r in runs.items() if len(r) > number}
        for s in receive_settings.SETTINGS:
            if said := ", ".join(f"{name} {rate:.2f}" for (name, settings), rate in measured.items() if settings == s):
                progress(f"  {number + 1}, {s}: {said} Gbit/s")
    withdrawn = [e for h in seen for e in observe.events(lab, h, seen[h]) if e["to"] == "ASSUMED_BAD"]
    ratios = {
        settings: [
            cells.compared(c.name, runs[MRCD, settings], runs[c.name, settings])
            for c in found
            if c.name != MRCD and len(runs[c.name, settings]) == len(runs[MRCD, settings])
        ]
        for settings in receive_settings.SETTINGS
    }
    both = {KERNEL, PLAIN} <= {r["peer"] for r in ratios[EQUAL]}
    return {
        "where": cell.where,
        "mtu_bytes": cell.mtu,
        "granularity": cell.granularity,
        "version": cell.version,
        "load": cell.load.name,
        "flows": cell.load.flows,
        "name": cell.name,
        "glimpse": cell.glimpse,
        "candidates": [_summary(cell, c, s, runs[c.name, s]) for c in found for s in receive_settings.SETTINGS],
        "ratios": ratios[EQUAL],
        "default_ratios": ratios[DEFAULT],
        "bare": cells.compared(KERNEL, runs[PLAIN, EQUAL], runs[KERNEL, EQUAL]) if both else None,
        "withdrawals_without_a_fault": len(withdrawn),
    }, notes


def in_every_round(cell: Cell, c: Candidate, settings: str) -> bool:
    """Returns whether a candidate runs in every round: others give context only."""
    return c.name in cell.compared and settings == EQUAL


def _candidates(lab: Lab, cell: Cell) -> tuple[list[Candidate], list[str]]:
    """Returns the installed candidates of a cell, and why others are missing."""
    names, notes = (*cell.compared, *cell.context), []
    found = [c for c in candidates.all_of(lab, cell.version) if c.name in names]
    found.sort(key=lambda c: c.name not in cell.compared)  # the compared ones right after each other
    for c in found:
        c.install(lab)
    if MPTCP in names:
        if why := mptcp.missing():
            notes.append(why)
        else:
            ends = mptcp.install(lab)
            words = "MPTCP, one subflow per plane, plain addresses"
            found.append(Candidate(MPTCP, cell.version, words, ends, sprayed=None, protocol="mptcp"))
    return found, notes


def _summary(cell: Cell, c: Candidate, settings: str, runs: Sequence[Document]) -> Document:
    goodputs = [r["bits_per_s"] for r in runs]
    medians = {
        f"median_{key}": median(r[key] for r in runs if r[key] is not None)
        for key in ("packets_per_s", "lost_ratio")
        if any(r.get(key) is not None for r in runs)
    }
    return {
        "name": c.name,
        "shown": cells.name_of(cell, c.name),
        "receive": settings,
        "what": c.words,
        "congestion_control": runs[0]["congestion_control"],
        "mss_bytes": runs[0]["mss_bytes"],
        "median_bits_per_s": median(goodputs),
        "min_bits_per_s": min(goodputs),
        "max_bits_per_s": max(goodputs),
        "median_cpu_s_per_gbit": median(r["cpu_s_per_gbit"] or 0.0 for r in runs),
        "median_cpu_busy_ratio": median(r["cpu_busy_ratio"] for r in runs),
        "median_retransmitted_segments": median(r["retransmitted_segments"] for r in runs),
        **medians,
        "control": control.mean([r["control"] for r in runs if r["control"]]),
        "runs": list(runs),
    }


def lines(document: Document) -> list[str]:
    """Returns a table per cell, and the ratios."""
    found = [
        f"Throughput: goodput and CPU of all processes and interrupts, {document['seconds']:g} s per run, interleaved",
        *(f"  RECEIVE {settings}: {receive_settings.WORDS[settings]}" for settings in receive_settings.SETTINGS),
    ]
    for cell in document["cells"]:
        controls = sorted({c["congestion_control"] for c in cell["candidates"]} - {"none"})
        found += ["", f"{cell['name']}" + (f", {', '.join(controls)}" if controls else ""), *_table(cell)]
        for settings, ratios in ((EQUAL, cell["ratios"]), (DEFAULT, cell["default_ratios"])):
            for r in ratios:
                shown = next(c["shown"] for c in cell["candidates"] if c["name"] == r["peer"])
                said = f"  {settings}: mrcd / {shown}: "
                found.append(f"{said}goodput {cells.said_of(r['goodput'])}")
                found.append(f"{'':{len(said)}}CPU per Gbit {cells.said_of(r['cpu_per_gbit'])}")
        if cell["bare"]:
            found.append(f"  equal: plain / kernel: goodput {cells.said_of(cell['bare']['goodput'])}")
        for c in cell["candidates"]:
            if c["control"]:
                found.append(f"  {c['receive']}: {c['shown']}: {control.words(c['control'])}")
        if cell["withdrawals_without_a_fault"]:
            found.append(f"  EVs withdrawn meanwhile: {cell['withdrawals_without_a_fault']}")
    return [*found, *document["notes"]]


def _table(cell: Document) -> list[str]:
    udp = any("median_packets_per_s" in c for c in cell["candidates"])
    last = ("PACKETS/s", "LOST %") if udp else ("RETRANS", "MSS")
    shares = ("CONTROL % PACKETS", "BYTES")
    headings = ("RUNS", "Gbit/s MEDIAN", "MIN", "MAX", "CPU s/Gbit", "CPU BUSY %", *last, *shares)
    rows = [
        [
            f"  {c['shown']}",
            c["receive"],
            str(len(c["runs"])),
            *(f"{c[f'{k}_bits_per_s'] / 1e9:.2f}" for k in ("median", "min", "max")),
            f"{c['median_cpu_s_per_gbit']:.4f}",
            percent(c["median_cpu_busy_ratio"]),
            *_last(c, udp),
            *(percent(c["control"] and c["control"][f"{k}_ratio"]) for k in ("packets", "bytes")),
            c["what"],
        ]
        for c in cell["candidates"]
    ]
    names = Column("  CANDIDATE"), Column("RECEIVE")
    return table([*names, *(Column(h, True) for h in headings), Column("WHAT")], rows, colour=False)


def _last(c: Document, udp: bool) -> list[str]:
    if udp:
        return [count(c["median_packets_per_s"]), percent(c.get("median_lost_ratio"))]
    return [count(c["median_retransmitted_segments"]), str(c["mss_bytes"])]


PART = Part("throughput", measure, lines, pictures.throughput)
