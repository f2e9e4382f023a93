# SPDX-License-Identifier: BSD-2-Clause
"""Measures a training job: the time of a step of four gloo ranks with mrcd attached and detached, alternately.

With --ablate also with one part of mrcd off at a time (ablate.py). It also prints what mrcd sends and runs in a step.

One rank per host of the lab, two under each T0; a step is an all-reduce. The ranks keep their connections over all
turns: after `detach` these use the kernel's SRv6 routes, one path per flow; after `attach` they are sprayed again. A
pair is a turn of each; every second pair has the other order, so that drift favours neither. Packets are received
with RPS over all CPUs and GRO both ways, on the interfaces that receive them: mrc0, or the planes' NICs.
"""

from pathlib import Path
from statistics import median

from labkit.bench import ablate
from labkit.bench.frame import Bench, Bound, NewEvents, Options, Result, Table, evs_of
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.attachment import ATTACHED, DETACHED
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import machine, progstats
from labkit.measure.statistics import compare, words
from labkit.traffic.job import BYTES, RANKS, Job, require_torch
from mrcd.errors import MachineError

PAIRS = 8
STEPS, WARM_UP_STEPS = 100, 10  # steps of a turn
MOST = 1.05  # most ratio of the median step, attached to detached


def measure(lab: Lab, options: Options) -> Result:
    """Runs one job, with pairs of turns: one attached, one another way. Raises MachineError without PyTorch."""
    require_torch()
    lab.up(hosts=RANKS)
    hosts = lab.fabric.hosts
    observe.wait_until_good(lab, hosts)
    events = NewEvents(lab, hosts)
    others = [way for way in ablate.WAYS if way != ATTACHED] if options.ablate else [DETACHED]
    pairs: dict[str, list[dict[str, Document]]] = {way: [] for way in others}
    number = options.pairs or PAIRS
    with Job(lab, options.versions[0]) as job:
        for n in range(number):
            for way in others:
                both = (ATTACHED, way) if n % 2 == 0 else (way, ATTACHED)
                pairs[way].append(pair := {each: _turn(lab, job, each) for each in both})
                said = ", ".join(f"{each} {turn['median_step_ns'] / 1e6:.1f}" for each, turn in pair.items())
                progress(f"job: round {n + 1} of {number}: median step {said} ms")
        parts = _parts(lab, job)
    return _result(lab, pairs, evs_of(events.read(to="ASSUMED_BAD")), parts)


def _turn(lab: Lab, job: Job, way: str) -> Document:
    with ablate.running(lab, ablate.WAYS[way]), ablate.receiving(lab, ablate.WAYS[way]):
        job.run(WARM_UP_STEPS)
        before, retransmitted, used = _sprayed(lab), _retransmitted(lab), machine.read_cpu()
        steps_ns = [step.ns for step in job.run(STEPS)]
        used = machine.read_cpu().since(used)
        _check(way, _sprayed(lab) - before)
    return {
        "median_step_ns": median(steps_ns),
        "steps_ns": steps_ns,
        "cpu_s_per_step": used.busy_s / STEPS,
        "cpu_busy_ratio": used.busy_ratio,
        "retransmitted_per_step": (_retransmitted(lab) - retransmitted) / STEPS,
    }


def _parts(lab: Lab, job: Job) -> Table:
    """Returns what all hosts send in a step, and the CPU time of their programs, in a turn of its own."""
    with ablate.receiving(lab, ablate.WAYS[ATTACHED]):
        job.run(WARM_UP_STEPS)
        with progstats.counting():
            before = ablate.Counts(lab)
            job.run(STEPS)
            found = ablate.Counts(lab).since(before, STEPS)
    title = "A step, all hosts together: packets by kind, and the CPU time of programs by kind of hook"
    return Table(title, [{"of": name, "per_step": number} for name, number in found.items()])


def _sprayed(lab: Lab) -> int:
    """Returns the data packets that mrcd has sprayed in all hosts."""
    return sum(path["tx_packets"] for h in lab.fabric.hosts for path in observe.paths(lab, h))


def _check(way: str, packets: int) -> None:
    """Checks by mrcd's packet count that the job's data took the measured way. Raises MachineError. Pure."""
    least = STEPS * BYTES / (1 << 16)  # fewer packets than a rank sends
    if (packets < least) if ablate.WAYS[way].attached else (packets >= least / 100):
        raise MachineError(
            f"{way}: mrcd sprayed {packets} packets of the job",
            hint="are the routes right? see ip route in the hosts, mrcctl peers",
        )


def _retransmitted(lab: Lab) -> int:
    """Returns the segments that TCP retransmitted in all hosts."""
    found = 0
    for host in lab.fabric.hosts:
        with lab.inside(host):
            lines = Path("/proc/thread-self/net/snmp").read_text(encoding="ascii").splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        found += int(values[names.index("RetransSegs")])
    return found


def _result(lab: Lab, pairs: dict[str, list[dict[str, Document]]], withdrawals: int, parts: Table) -> Result:
    """Returns medians, the ratios of pairs, and the bound, from all turns."""
    rows = []
    for way, both in pairs.items():
        for name in (ATTACHED, way):
            turns = [pair[name] for pair in both]
            steps = [t["median_step_ns"] for t in turns]
            row = {
                "mrcd": name,
                "turns": len(turns),
                "step_ns": median(steps),
                "min_ns": min(steps),
                "max_ns": max(steps),
            }
            row |= {"cpu_per_step_s": median(t["cpu_s_per_step"] for t in turns)}
            row |= {k: median(t[k] for t in turns) for k in ("cpu_busy_ratio", "retransmitted_per_step")}
            rows.append(
                row | {"attached_by_it": "" if name == ATTACHED else words(_ratio(both, way, "median_step_ns"))}
            )
    ratio = _ratio(pairs[DETACHED], DETACHED, "median_step_ns")
    title = (
        f"Job: {RANKS} gloo ranks, one per host of the lab, MTU {lab.fabric.parameters.mtu}; a step is an all-reduce "
        f"of {BYTES / 1e6:g} MB, a turn {STEPS} steps"
    )
    notes = [f"attached / detached: step {words(ratio)}; EVs withdrawn meanwhile: {withdrawals}"]
    bound = Bound(f"a step of {RANKS} ranks, attached / detached, median", MOST, "").judge(ratio["median"])
    return Result([Table(title, rows, notes), parts], [bound], detail={"pairs": pairs, "step_ratio": ratio})


def _ratio(both: list[dict[str, Document]], way: str, key: str) -> Document:
    """Returns the ratios of pairs, attached to the other way."""
    return compare([pair[ATTACHED][key] / pair[way][key] for pair in both])


BENCH = Bench("job", measure)
