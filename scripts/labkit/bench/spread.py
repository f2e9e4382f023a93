# SPDX-License-Identifier: BSD-2-Clause
"""Measures how evenly one TCP flow fills the EVs: bytes per EV in burst granularity, packets in packet granularity."""

import time

from labkit.bench import candidates, pictures
from labkit.bench.part import SOURCE, TARGET, Options, Part, requirement
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import evspread, goodput
from labkit.traffic.flow import Flow
from mrcd.ctl.terminal.render import Column, count, percent, table

SECONDS = 5.0
# granularity → (counter, largest allowed deviation from the mean)
BOUNDS = {"burst": ("tx_bytes", 0.05), "packet": ("tx_packets", 0.02)}
_WORDS = {"tx_bytes": "bytes", "tx_packets": "packets"}


def measure(lab: Lab, options: Options) -> Document:
    """Runs a flow in each granularity; each takes a lab of its own."""
    runs = []
    for granularity in BOUNDS:
        lab.up(granularity=granularity)
        observe.wait_until_good(lab, lab.fabric.hosts)
        runs.append(_run(lab, granularity, options.versions[0], options))
    return {"seconds": SECONDS, "runs": runs, "requirements": [required(r) for r in runs]}


def _run(lab: Lab, granularity: str, version: int, options: Options) -> Document:
    progress(f"spread: {granularity} granularity, {SECONDS:g} s")
    with Flow(lab, candidates.overlay(lab, version)) as flow:
        flow.poll(options.warm_up_s)
        begin_ns, before = time.monotonic_ns(), evspread.count(lab, SOURCE, TARGET)
        flow.poll(SECONDS)
        end_ns, after = time.monotonic_ns(), evspread.count(lab, SOURCE, TARGET)
        flow.finish()
    return {
        "granularity": granularity,
        "version": version,
        "bits_per_s": goodput.mean(flow.bins, begin_ns, end_ns) or 0.0,
        "congestion_control": flow.congestion_control,
        **evspread.spread(before, after),
    }


def required(run: Document) -> Document:
    """Returns the requirement on a run's deviation."""
    counter, bound = BOUNDS[run["granularity"]]
    worst = run[counter]["worst_deviation_ratio"]
    return requirement(
        f"{_WORDS[counter]} per EV within {bound:.0%} of their mean in {run['granularity']} granularity",
        worst is not None and worst <= bound,
        f"worst deviation {percent(worst)} %",
    )


def lines(document: Document) -> list[str]:
    """Returns a table."""
    headings = ("EVS", "Gbit/s", "BYTES/EV", "WORST %", "PACKETS/EV", "WORST %")
    rows = [
        [
            r["granularity"],
            str(len(r["evs"])),
            f"{r['bits_per_s'] / 1e9:.1f}",
            *(x for k in ("tx_bytes", "tx_packets") for x in (count(r[k]["mean"]), _worst(r[k]))),
        ]
        for r in document["runs"]
    ]
    return [
        f"Spread of one TCP flow over its EVs in {document['seconds']:g} s; worst deviation from the mean",
        *table([Column("GRANULARITY"), *(Column(h, True) for h in headings)], rows, colour=False),
    ]


def _worst(s: Document) -> str:
    return percent(s["worst_deviation_ratio"])


PART = Part("spread", measure, lines, pictures.spread)
