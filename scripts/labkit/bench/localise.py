# SPDX-License-Identifier: BSD-2-Clause
"""Finds faults that are drawn at random in fabrics of many sizes, from counts that are drawn, too. Needs no lab."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from labkit.bench.frame import Bench, Bound, Options, Result, Table, check_only
from labkit.cluster import simulated_fabric as simulated
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.cluster.simulated_fabric import Fabric, Simulation, directions
from labkit.entry import progress
from mrcd.fleet_links.search import localise

SIZES = {
    1024: Fabric(8, 16, 16, 64, 16),
    4096: Fabric(8, 32, 32, 128, 32),
    8192: Fabric(16, 16, 32, 64, 16, rails=8),
    16_384: Fabric(8, 64, 64, 256, 32),
    131_072: Fabric(8, 512, 256, 256, 32),
}
"""By the number of NICs: planes, T0s, T1s, hosts of a T0, EVs of a pair in a plane. Of 8192, each host has eight."""

RATIOS = (0.001, 0.005, 0.01, 0.05, 0.2, 1.0)
_TRIALS, _FULL_TRIALS = 4, 20
_MOST_FAULTS = 8
LEAST_RATIO, LEAST_RIGHT, MOST_CPU_S = 0.005, 0.99, 10.0
_SEED = 1


def measure(lab: Lab, options: Options) -> Result:
    """Returns the results of all sizes and loss ratios."""
    rows = []
    only = (str(min(SIZES)),) if options.short else options.only
    check_only(only, [str(n) for n in SIZES])
    number = 1 if options.short else _FULL_TRIALS if options.full else _TRIALS
    for nics, fabric in SIZES.items():
        if only and str(nics) not in only:
            continue
        rng = np.random.default_rng(_SEED)
        simulation = Simulation(fabric, simulated.draw(fabric, rng), rng)
        for ratio in RATIOS:
            trials = [_trial(simulation, ratio, rng) for _ in range(number)]
            rows.append({"nics": nics, "loss_ratio": ratio, "trials": len(trials)} | _summed(trials))
            progress(f"localise: {nics} NICs, {ratio:.1%}: {rows[-1]['precision_ratio']:.1%} precision")
    return _result(rows)


def _trial(simulation: Simulation, ratio: float, rng: np.random.Generator) -> Document:
    faults = simulation.draw_faults(int(rng.integers(1, _MOST_FAULTS + 1)), ratio)
    fleet = simulation.observe(simulation.losses(faults))
    began = time.process_time()
    found = {f.element for f in localise(fleet)}
    cpu_s = time.process_time() - began
    truth = {replace(f.element, direction=d) for f in faults for d in directions(f.element)}
    return {
        "faults": len(faults),
        "named": len(found),
        "right": len(found & truth),
        "true": len(truth),
        "cpu_s": cpu_s,
    }


def _summed(trials: Sequence[Document]) -> Document:
    total = {key: sum(t[key] for t in trials) for key in ("faults", "named", "right", "true")}
    return total | {
        "precision_ratio": _ratio(total["right"], total["named"]),
        "recall_ratio": _ratio(total["right"], total["true"]),
        "cpu_s": max(t["cpu_s"] for t in trials),
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _result(rows: Sequence[Document]) -> Result:
    bounds = []
    for nics in dict.fromkeys(r["nics"] for r in rows):
        mine = [r for r in rows if r["nics"] == nics]
        right, named, true = (
            sum(r[key] for r in mine if r["loss_ratio"] >= LEAST_RATIO) for key in ("right", "named", "true")
        )
        at = f"{nics} NICs, loss of {LEAST_RATIO:.1%} and more, {true} faulty elements"
        bounds += [
            Bound(f"{at}: precision", LEAST_RIGHT, "_ratio", is_least=True).judge(_ratio(right, named)),
            Bound(f"{at}: recall", LEAST_RIGHT, "_ratio", is_least=True).judge(_ratio(right, true)),
            Bound(f"{nics} NICs: CPU", MOST_CPU_S, "_s").judge(max(r["cpu_s"] for r in mine)),
        ]
    title = (
        f"8 planes, or 16 of 8 rails that share T1s (8192 NICs); each host sends {simulated.PACKETS_PER_S:,} packets/s "
        f"to {simulated.PEERS} hosts, {simulated.SECONDS} s; NICs lose {simulated.NOISE:g} on average without a fault, "
        f"{simulated.MOST_NOISE:g} at most; hosts leave lossy EVs. 1 to {_MOST_FAULTS} faults"
    )
    return Result([Table(title, rows)], bounds)


BENCH = Bench("localise", measure)
