# SPDX-License-Identifier: BSD-2-Clause
"""Part `localise`: are the faults named that were drawn, and nothing else? Needs no lab."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from labkit.bench.localise import traffic
from labkit.bench.localise.simulate import MOST_NOISE, NOISE, Simulation, directions
from labkit.bench.localise.traffic import Fabric
from labkit.bench.localise.voting import SHARES, vote
from labkit.bench.part import Options, Part, requirement
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from mrcd.ctl.terminal.render import Column, fold, table
from mrcd.fleet_links.counts import Element, Kind
from mrcd.fleet_links.search import localise

SIZES = {
    1024: Fabric(8, 16, 16, 64, 16),
    4096: Fabric(8, 32, 32, 128, 32),
    16_384: Fabric(8, 64, 64, 256, 32),
    131_072: Fabric(8, 512, 256, 256, 32),
}
"""By the number of NICs: planes, T0s, T1s, hosts of a T0, EVs of a pair in a plane."""

RATIOS = (0.001, 0.005, 0.01, 0.05, 0.2, 1.0)
_TRIALS, _FULL_TRIALS = 4, 20
_MOST_FAULTS = 8
LEAST_RATIO, LEAST_RIGHT, MOST_CPU_S = 0.005, 0.99, 10.0
_SEED = 1


def measure(lab: Lab, options: Options) -> Document:
    """Returns the results of all sizes and loss ratios."""
    rows = []
    only = (str(min(SIZES)),) if options.short else options.only
    number = 1 if options.short else _FULL_TRIALS if options.full else _TRIALS
    for nics, fabric in SIZES.items():
        if only and str(nics) not in only:
            continue
        rng = np.random.default_rng(_SEED)
        simulation = Simulation(fabric, traffic.draw(fabric, rng), rng)
        for ratio in RATIOS:
            trials = [_trial(simulation, ratio, rng) for _ in range(number)]
            rows.append({"nics": nics, "loss_ratio": ratio, "trials": len(trials)} | _summed(trials))
            progress(
                f"{nics} NICs, {ratio:.1%}: {rows[-1]['precision']:.1%} precision, {rows[-1]['recall']:.1%} recall"
            )
    return {"rows": rows, "requirements": _requirements(rows)}


def _trial(simulation: Simulation, ratio: float, rng: np.random.Generator) -> Document:
    faults = simulation.draw_faults(int(rng.integers(1, _MOST_FAULTS + 1)), ratio)
    losses = simulation.losses(faults)
    fleet = simulation.observe(losses)
    began = time.process_time()
    found = {f.element for f in localise(fleet)}
    cpu_s = time.process_time() - began
    truth = {replace(f.element, direction=d) for f in faults for d in directions(f.element)}
    noise = simulation.noise()
    return {
        "faults": len(faults),
        "named": len(found),
        "right": len(found & truth),
        "true": len(truth),
        "cpu_s": cpu_s,
        "votes": [_voted(vote(simulation, losses, noise, share), truth) for share in SHARES],
    }


def _voted(votes: set[Element], truth: set[Element]) -> Document:
    return {
        "named": len(votes),
        "right": sum(any(is_of(e, t) for t in truth) for e in votes),
        "true": sum(any(is_of(e, t) for e in votes) for t in truth),
    }


def is_of(link: Element, part: Element) -> bool:
    """Returns whether a link in a direction is a part that loses packets, or belongs to a switch that does."""
    if link == part:
        return True
    is_t0 = part.kind is Kind.T0 and link.t0 == part.t0 and link.direction is part.direction
    return link.plane == part.plane and (is_t0 or (part.kind is Kind.T1 and link.t1 == part.t1))


def _summed(trials: Sequence[Document]) -> Document:
    total = {key: sum(t[key] for t in trials) for key in ("faults", "named", "right", "true")}
    votes = []
    for i, share in enumerate(SHARES):
        named, right, true = (sum(t["votes"][i][key] for t in trials) for key in ("named", "right", "true"))
        votes.append({
            "least_share": share, "precision": _ratio(right, named), "recall": _ratio(true, total["true"])
        })  # fmt: skip
    return total | {
        "precision": _ratio(total["right"], total["named"]),
        "recall": _ratio(total["right"], total["true"]),
        "cpu_s": max(t["cpu_s"] for t in trials),
        "votes": votes,
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _requirements(rows: Sequence[Document]) -> list[Document]:
    found = []
    for nics in dict.fromkeys(r["nics"] for r in rows):
        mine = [r for r in rows if r["nics"] == nics]
        enough = [r for r in mine if r["loss_ratio"] >= LEAST_RATIO]
        right, named, true = (sum(r[key] for r in enough) for key in ("right", "named", "true"))
        precision, recall = _ratio(right, named), _ratio(right, true)
        words = f"{nics} NICs, loss of {LEAST_RATIO:.1%} and more: precision and recall of {LEAST_RIGHT:.0%}"
        measured = f"{precision:.1%} and {recall:.1%} of {true}"
        found.append(requirement(words, min(precision, recall) >= LEAST_RIGHT, measured))
        cpu_s = max(r["cpu_s"] for r in mine)
        found.append(requirement(f"{nics} NICs: {MOST_CPU_S:g} s of CPU", cpu_s < MOST_CPU_S, f"{cpu_s:.1f} s"))
    return found


def lines(document: Document) -> list[str]:
    """Returns the table."""
    columns = [
        *(Column("NICS", True), Column("LOSS %", True), Column("FABRICS", True), Column("FAULTS", True)),
        *(Column("PRECISION %", True), Column("RECALL %", True), Column("CPU s", True)),
        *(c for v in SHARES for c in (Column(f"VOTING {v:.1%}: PRECISION %", True), Column("RECALL %", True))),
    ]
    rows = [
        [
            *(f"{r['nics']:,}", f"{100 * r['loss_ratio']:g}", str(r["trials"]), str(r["faults"])),
            *(f"{100 * r['precision']:.1f}", f"{100 * r['recall']:.1f}", f"{r['cpu_s']:.1f}"),
            *(f"{100 * v[key]:.1f}" for v in r["votes"] for key in ("precision", "recall")),
        ]
        for r in document["rows"]
    ]
    assumed = (
        f"8 planes; each host sends {traffic.PACKETS_PER_S:,} packets/s to {traffic.PEERS} hosts, {traffic.SECONDS} s; "
        f"NICs lose {NOISE:g} on average without a fault, {MOST_NOISE:g} at most; hosts leave lossy EVs. 1 to "
        f"{_MOST_FAULTS} faults. VOTING: 007's idea, with the losses of each EV, "
        "until no link has so many of the votes left"
    )
    return [*fold(assumed, None), *table(columns, rows, colour=False)]


PART = Part("localise", measure, lines)
