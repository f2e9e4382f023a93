# SPDX-License-Identifier: BSD-2-Clause
"""Runs the part: rounds of faults with the daemons, then kills both, and runs rounds until the time is over."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

from labkit.bench import candidates
from labkit.bench.failover import pauses
from labkit.bench.failover.events import FLOW, WARM_UP_S, kill_daemons
from labkit.bench.failover.tables import Cluster
from labkit.bench.part import Options, Part
from labkit.bench.without_daemons import judge, report
from labkit.bench.without_daemons.faults import WAYS, Fault, Run
from labkit.bench.without_daemons.judge import ROUND_S, steps
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput
from labkit.traffic.flow import Ends, Flow
from mrcd.errors import MachineError

REFERENCE = 8  # rounds without daemons per round with them; at least one round with them
_GOOD_WITHIN_S = 90.0
_S = 1e9


class Flows:
    """Two flows, one each way."""

    def __init__(self, lab: Lab, stack: contextlib.ExitStack) -> None:
        there = candidates.overlay(lab, 4)
        back = Ends(there.target, there.target_address, there.source, there.source_address)
        self.both = [stack.enter_context(Flow(lab, ends)) for ends in (there, back)]

    def poll(self, seconds: float) -> None:
        """Reads both flows."""
        for flow in self.both:
            flow.poll(seconds / len(self.both))

    def finish(self) -> None:
        """Ends both flows."""
        for flow in self.both:
            flow.finish()


def measure(lab: Lab, options: Options) -> Document:
    """Measures with the default hold-downs."""
    lab.up(health={}, overlay={})
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)
    health = lab.fabric.config.health
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(lab))
        flows = Flows(lab, stack)
        watch = stack.enter_context(pauses.PauseWatcher())
        flows.poll(WARM_UP_S)
        begin_ns = time.monotonic_ns()
        course = _course(lab, Run(lab, cluster, flows), options.minutes * 60)
        end_ns = time.monotonic_ns()
        flows.finish()
        cpu_pauses, unwatched = pauses.paused(watch)
    document = {
        "minutes": options.minutes,
        "lab": lab.fabric.parameters.as_json(),
        "hold_down_ms": health.hold_down_ms,
        "hold_down_max_ms": health.hold_down_max_ms,
        "probe_backoff_ns": health.probe_backoff_ms * 1_000_000,
        **course,
        "faults": [_with_pauses(f, cpu_pauses).as_json() for f in course["faults"]],
        "notes": [f"pauses of the machine are unknown: {unwatched}"] if unwatched else [],
        "flows": [
            {
                "source": way[0],
                "peer": way[1],
                "median_bits_per_s": goodput.usual(flow.bins, begin_ns, end_ns),
                "retransmitted_segments": flow.retransmitted_segments,
            }
            for way, flow in zip(WAYS, flows.both, strict=True)
        ],
    }
    return document | {"requirements": judge.requirements(document)}


def _course(lab: Lab, run: Run, seconds: float) -> Document:
    """Runs rounds with the daemons, then, for `seconds`, rounds without."""
    p = lab.fabric.parameters
    begun = time.monotonic()
    found: list[Fault] = []
    before = max(1, round(seconds / ROUND_S / REFERENCE))
    for number in range(before):
        progress(f"alone: with mrcd, round {number + 1} of {before}")
        for fault in _round(run, number, p.planes, p.t1, killed=False, until=float("inf")):
            found.append(fault)
    kill_daemons(run)
    killed, ticks = time.monotonic(), {h: run.cluster.ticks(h) for h in FLOW}
    failed = None
    until, number = killed + seconds, before
    try:
        while (left := until - time.monotonic()) > 0:
            progress(f"alone: both daemons are dead, round {number - before + 1}, {left:.0f} s to go")
            for fault in _round(run, number, p.planes, p.t1, killed=True, until=until):
                found.append(fault)  # before the next fault, which may raise
            number += 1
    except MachineError as e:
        failed = str(e)
        progress(f"  ended early: {failed}")
    now = {h: run.cluster.ticks(h) for h in FLOW}
    return {
        "faults": found,
        "failed": failed,
        "wrong_demotions": run.wrong,
        "killed_s": killed - begun,
        "dead_s": time.monotonic() - killed,
        "alive": [h for h in FLOW if lab.daemon_pid(h) is not None],
        "ticks": {h: {"by_daemon": now[h][0] - ticks[h][0], "by_packet": now[h][1] - ticks[h][1]} for h in FLOW},
    }


def _round(run: Run, number: int, planes: int, t1s: int, *, killed: bool, until: float) -> Iterator[Fault]:
    """Yields the faults of a round one after the other, then waits for the rest of its time."""
    end = min(time.monotonic() + ROUND_S, until)
    for step in steps(number, planes, t1s):
        if time.monotonic() > until:
            return
        fault = run.fault(step, number, killed)
        progress(f"  {report.said(fault.as_json())}")
        yield fault
    run.rest(end - time.monotonic())


def _with_pauses(fault: Fault, cpu_pauses: list[pauses.Pause]) -> Fault:
    """Returns the fault with the pauses of the machine while its paths were still used."""
    ways = [
        replace(w, stood_still_ns=pauses.stood_still_ns(cpu_pauses, w.begin_ns, w.begin_ns + (w.leave_ns or 0)))
        for w in fault.ways
    ]
    return replace(fault, ways=ways)


PART = Part("alone", measure, report.lines, report.picture)
