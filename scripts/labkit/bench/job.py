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

from labkit.bench import candidates, machine, probing
from labkit.bench.candidates import EQUAL, KERNEL, MRCD
from labkit.bench.frame import Bench, Bound, NewEvents, Options, Result, Table, judge
from labkit.bench.statistics import compare, words
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.attachment import ATTACHED, DETACHED, switch
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.traffic.job import BYTES, RANKS, Job, require_torch
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


def measure(lab: Lab, options: Options) -> Result:
    """Runs one lab and one job, with turns of all ways. Raises MachineError without PyTorch."""
    require_torch()
    lab.up(hosts=RANKS)
    hosts = lab.fabric.hosts
    observe.wait_until_good(lab, hosts)
    events = NewEvents(lab, hosts)
    runs: dict[str, list[Document]] = {ATTACHED: [], DETACHED: [], UNPROBED: []}
    number = options.pairs or PAIRS
    with Job(lab, options.versions[0]) as job:
        for n in range(number):
            for way in runs if n % 2 == 0 else reversed(runs):
                switch(lab, DETACHED if way == DETACHED else ATTACHED)
                runs[way].append(_turn(lab, job, way))
            said = ", ".join(f"{way} {r[-1]['median_step_ns'] / 1e6:.1f}" for way, r in runs.items())
            progress(f"job: pair {n + 1} of {number}: median step {said} ms")
    return _result(lab, runs, len(events.read(to="ASSUMED_BAD")))


def _turn(lab: Lab, job: Job, way: str) -> Document:
    hosts = lab.fabric.hosts
    with contextlib.ExitStack() as stack:
        stack.enter_context(candidates.receiving(lab, _RECEIVES[way], EQUAL, hosts))
        counters = stack.enter_context(probing.Control(lab, hosts))
        if way == UNPROBED:
            stack.enter_context(probing.Probing(lab, *hosts)).switch(False)
        job.run(WARM_UP_STEPS)
        before, retransmitted, used, begin_ns = (
            counters.read(),
            _retransmitted(lab),
            machine.read_cpu(),
            time.monotonic_ns(),
        )
        steps_ns = [step.ns for step in job.run(STEPS)]
        seconds, used = (time.monotonic_ns() - begin_ns) / 1e9, machine.read_cpu().since(used)
        found = counters.since(before, seconds)
    _check(way, found["data_packets_per_s"] * seconds)
    return {
        "median_step_ns": median(steps_ns),
        "steps_ns": steps_ns,
        "cpu_s_per_step": used.busy_s / STEPS,
        "cpu_busy_ratio": used.busy_ratio,
        "retransmitted_segments_per_step": (_retransmitted(lab) - retransmitted) / STEPS,
        "control": found,
    }


def _check(way: str, packets: float) -> None:
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


def _result(lab: Lab, runs: dict[str, list[Document]], withdrawals: int) -> Result:
    """Returns medians, the ratios of pairs, and the bound, from all turns."""
    medians = {way: [r["median_step_ns"] for r in turns] for way, turns in runs.items()}
    ratios = {
        way: compare([a / d for a, d in zip(medians[way], medians[DETACHED], strict=True)])
        for way in (ATTACHED, UNPROBED)
    }
    rows = []
    for way, turns in runs.items():
        control = probing.mean([r["control"] for r in turns]) if way != DETACHED else None
        row = {"mrcd": way, "turns": len(turns), "step_ns": median(medians[way])}
        row |= {"min_ns": min(medians[way]), "max_ns": max(medians[way])}
        row |= {"cpu_per_step_s": median(r["cpu_s_per_step"] for r in turns)}
        row |= {"cpu_busy_ratio": median(r["cpu_busy_ratio"] for r in turns)}
        row |= {"retransmitted_per_step": median(r["retransmitted_segments_per_step"] for r in turns)}
        row |= {f"control_{k}_ratio": control and control[f"{k}_ratio"] for k in ("packets", "bytes")}
        rows.append(row)
    title = (
        f"Job: {RANKS} gloo ranks, one per host of the lab, MTU {lab.fabric.parameters.mtu}; a step is an all-reduce "
        f"of {BYTES / 1e6:g} MB, a turn {STEPS} steps"
    )
    notes = [f"  {way} / {DETACHED}: step {words(r)}" for way, r in ratios.items()]
    notes += [candidates.RECEIVE_WORDS[EQUAL], f"EVs withdrawn meanwhile: {withdrawals}"]
    bound = Bound(
        f"a step of {RANKS} ranks, attached / detached, median", MOST, "", lambda d: d[ATTACHED]["median"]
    )  # fmt: skip
    return Result([Table(title, rows, notes)], judge([bound], ratios), detail={"turns": runs, "step_ratios": ratios})


BENCH = Bench("job", measure)
