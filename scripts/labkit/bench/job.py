# SPDX-License-Identifier: BSD-2-Clause
"""Measures a training job: the time of a step of four gloo ranks with mrcd attached and detached, alternately.

One rank per host of the lab, two under each T0; a step is an all-reduce. The ranks keep their connections over all
turns: after `detach` these use the kernel's SRv6 routes, one path per flow; after `attach` they are sprayed again. A
pair is a turn of each; every second pair has the other order, so that drift favours neither. Packets are received
with RPS over all CPUs and GRO both ways, on the interfaces that receive them: mrc0, or the planes' NICs.

The third case is attached without piggybacked probes and without ACK copies (probing.py). Its difference to the
attached case is their cost.
"""

import contextlib
import time
from pathlib import Path
from statistics import median

from labkit.bench import control, cpu, pairs, receive_settings
from labkit.bench.candidates import KERNEL, MRCD
from labkit.bench.control import Control
from labkit.bench.part import Options, Part, requirement
from labkit.bench.probing import Probing
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.attachment import ATTACHED, DETACHED, switch
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.traffic.job import BYTES, RANKS, Job, require_torch
from mrcd.ctl.terminal.render import Column, count, percent, table
from mrcd.errors import MachineError

PAIRS = 8
STEPS, WARM_UP_STEPS = 100, 10  # steps of a turn
MOST = 1.1  # most ratio of the median step, attached to detached
UNPROBED = "attached, no piggybacked probes"
_RECEIVES = {
    ATTACHED: MRCD,
    DETACHED: KERNEL,
    UNPROBED: MRCD,
}  # the receive settings are those of this candidate of throughput


def measure(lab: Lab, options: Options) -> Document:
    """Runs one lab and one job, with turns of all ways. Raises MachineError without PyTorch."""
    require_torch()
    lab.up(hosts=RANKS)
    hosts = lab.fabric.hosts
    observe.wait_until_good(lab, hosts)
    seen = {h: max((e["id"] for e in observe.events(lab, h)), default=0) for h in hosts}
    runs: dict[str, list[Document]] = {ATTACHED: [], DETACHED: [], UNPROBED: []}
    number = options.pairs or PAIRS
    with Job(lab, options.versions[0]) as job:
        for n in range(number):
            for way in runs if n % 2 == 0 else reversed(runs):
                switch(lab, DETACHED if way == DETACHED else ATTACHED)
                runs[way].append(_turn(lab, job, way))
            said = ", ".join(f"{way} {r[-1]['median_step_ns'] / 1e6:.1f}" for way, r in runs.items())
            progress(f"job: pair {n + 1} of {number}: median step {said} ms")
    withdrawn = [e for h in seen for e in observe.events(lab, h, seen[h]) if e["to"] == "ASSUMED_BAD"]
    return summary(lab.fabric.parameters.mtu, runs) | {"withdrawals_without_a_fault": len(withdrawn)}


def _turn(lab: Lab, job: Job, way: str) -> Document:
    hosts = lab.fabric.hosts
    with contextlib.ExitStack() as stack:
        stack.enter_context(receive_settings.in_force(lab, _RECEIVES[way], receive_settings.EQUAL, hosts))
        counters = stack.enter_context(Control(lab, hosts))
        if way == UNPROBED:
            stack.enter_context(Probing(lab, *hosts)).switch(False)
        job.run(WARM_UP_STEPS)
        before, retransmitted, used, begin_ns = counters.read(), _retransmitted(lab), cpu.read(), time.monotonic_ns()
        steps_ns = [step.ns for step in job.run(STEPS)]
        seconds, used = (time.monotonic_ns() - begin_ns) / 1e9, cpu.read().since(used)
        found = counters.since(before, seconds)
    check(way, found["data_packets_per_s"] * seconds)
    return {
        "median_step_ns": median(steps_ns),
        "steps_ns": steps_ns,
        "cpu_s_per_step": used.busy_s / STEPS,
        "cpu_busy_ratio": used.busy_ratio,
        "retransmitted_segments_per_step": (_retransmitted(lab) - retransmitted) / STEPS,
        "control": found,
    }


def check(way: str, packets: float) -> None:
    """Checks by mrcd's packet count that the job's data took the measured way. Raises MachineError. Pure."""
    least = STEPS * BYTES / (1 << 16)  # fewer packets than a rank sends
    if (packets >= least / 100) if way == DETACHED else (packets < least):
        raise MachineError(
            f"while mrcd was {way} it sprayed {packets:.0f} packets of the job",
            hint="are the routes right? see ip route in the hosts, mrcctl peers",
        )


def _retransmitted(lab: Lab) -> int:
    """Returns the segments that TCP retransmitted in all hosts."""
    return sum(_retransmitted_in(lab, host) for host in lab.fabric.hosts)


def _retransmitted_in(lab: Lab, host: str) -> int:
    with lab.inside(host):
        lines = Path("/proc/thread-self/net/snmp").read_text(encoding="ascii").splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def summary(mtu: int, runs: dict[str, list[Document]]) -> Document:
    """Returns medians, the ratio of pairs, and the bound, from all turns. Pure."""
    medians = {way: [r["median_step_ns"] for r in turns] for way, turns in runs.items()}
    ratio, unprobed = (
        pairs.compare([a / d for a, d in zip(medians[way], medians[DETACHED], strict=True)])
        for way in (ATTACHED, UNPROBED)
    )
    return {
        "ranks": RANKS,
        "steps": STEPS,
        "step_bytes": BYTES,
        "mtu_bytes": mtu,
        "ways": [
            {
                "way": way,
                "median_step_ns": median(medians[way]),
                "min_step_ns": min(medians[way]),
                "max_step_ns": max(medians[way]),
                "median_cpu_s_per_step": median(r["cpu_s_per_step"] for r in turns),
                "median_cpu_busy_ratio": median(r["cpu_busy_ratio"] for r in turns),
                "median_retransmitted_segments_per_step": median(r["retransmitted_segments_per_step"] for r in turns),
                "control": control.mean([r["control"] for r in turns]) if way != DETACHED else None,
                "turns": turns,
            }
            for way, turns in runs.items()
        ],
        "step_ratio": ratio,
        "unprobed_step_ratio": unprobed,
        "requirements": [
            requirement(
                f"a step of {RANKS} ranks takes at most {MOST:g} times as long attached as detached",
                ratio["median"] is not None and ratio["median"] <= MOST,
                _said(ratio),
            )
        ],
    }


def _said(ratio: Document) -> str:
    if ratio["low"] is None and ratio["median"] is not None:
        return f"median {ratio['median']:.3f} ({ratio['min']:.2f}–{ratio['max']:.2f}), {pairs.words(ratio)}"
    return pairs.words(ratio)


def lines(document: Document) -> list[str]:
    """Returns a table of all ways, and the ratios."""
    headings = ("TURNS", "STEP ms MEDIAN", "MIN", "MAX", "CPU s/STEP", "CPU BUSY %", "RETRANS/STEP")
    rows = [
        [
            w["way"],
            str(len(w["turns"])),
            *(f"{w[f'{k}_step_ns'] / 1e6:.1f}" for k in ("median", "min", "max")),
            f"{w['median_cpu_s_per_step']:.4f}",
            percent(w["median_cpu_busy_ratio"]),
            count(round(w["median_retransmitted_segments_per_step"], 1)),
        ]
        for w in document["ways"]
    ]
    return [
        f"Job: {document['ranks']} gloo ranks, one per host of the lab, MTU {document['mtu_bytes']}; a step "
        f"is an all-reduce of {document['step_bytes'] / 1e6:g} MB, a turn {document['steps']} steps",
        f"  {receive_settings.WORDS[receive_settings.EQUAL]}",
        *table([Column("MRCD"), *(Column(h, True) for h in headings)], rows, colour=False),
        f"median step attached / detached: {_said(document['step_ratio'])}",
        f"{UNPROBED} / detached: {_said(document['unprobed_step_ratio'])}",
        *(f"{w['way']}: {control.words(w['control'])}" for w in document["ways"] if w["control"]),
        f"EVs withdrawn meanwhile: {document['withdrawals_without_a_fault']}",
    ]


PART = Part("job", measure, lines)
