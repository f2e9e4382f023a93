# SPDX-License-Identifier: BSD-2-Clause
"""Measures false demotions under stress: a TCP flow on paths that are equally good. No EV may become ASSUMED_BAD.

busy     every CPU is overcommitted
stall    all CPUs stop for half a second, repeatedly: the receiver, and here all other hosts too
alike    every path loses 1 %
"""

from collections.abc import Callable
from typing import NamedTuple

from labkit.bench.frame import Bench, Bound, NewEvents, Options, Result, Table, check_only
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput, machine
from labkit.tables import percent
from labkit.traffic import candidates
from labkit.traffic.flow import Flow

STALL_S = 0.5
STALLS_PER_MINUTE = 2
DROP = 0.01
_BETWEEN_STALLS_S = 2.5
_STEP_S = 10.0
_GOOD_WITHIN_S = 60.0
_SHOWN = 10


def _keep_going(flow: Flow, minutes: float, words: str) -> None:
    left = minutes * 60
    while left > 0:
        progress(f"calm: {words}, {left:.0f} s to go")
        flow.poll(min(_STEP_S, left))
        left -= _STEP_S


def _busy(flow: Flow, minutes: float) -> str:
    with machine.busy_cpus() as words:
        _keep_going(flow, minutes, words)
    return f"{minutes:g} minutes beside {words}"


def _stall(flow: Flow, minutes: float) -> str:
    times = max(1, round(minutes * STALLS_PER_MINUTE))
    gaps = []
    for n in range(times):
        if n % 5 == 0:
            progress(f"calm: {n} of {times} stalls, {(times - n) * (STALL_S + _BETWEEN_STALLS_S):.0f} s to go")
        flow.poll(_BETWEEN_STALLS_S)
        gaps.append(machine.stall(STALL_S, flow.poll))
    flow.poll(_BETWEEN_STALLS_S)
    return f"{times} stalls of {STALL_S * 1000:.0f} ms (other processes ran for {max(gaps) / 1e6:.1f} ms at most)"


def _alike(flow: Flow, minutes: float) -> str:
    words = f"every T1 drops {percent(DROP)}"
    _keep_going(flow, minutes, words)
    return f"{minutes:g} minutes in which {words}"


class _Case(NamedTuple):
    name: str
    bound: str
    run: Callable[[Flow, float], str]  # stresses the flow for so many minutes, and says how
    drop: float = 0.0  # loss of every T1, from before the flow begins


CASES = (
    _Case("busy", "no EV is ASSUMED_BAD without a fault, while the CPUs are overcommitted", _busy),
    _Case("stall", f"no EV is ASSUMED_BAD when everything stalls for {STALL_S * 1000:.0f} ms", _stall),
    _Case("alike", f"no EV is ASSUMED_BAD when every path loses the same {percent(DROP)}", _alike, DROP),
)


def measure(lab: Lab, options: Options) -> Result:
    """Runs a flow per case, and counts every transition in every host."""
    only = (CASES[0].name,) if options.short else options.only
    chosen = [c for c in CASES if not only or c.name in only]
    check_only(only, [c.name for c in CASES])
    lab.up()
    rows, shown, bounds = [], [], []
    for case in chosen:
        row, transitions = _run(lab, case, options.minutes)
        rows.append(row)
        shown += [f"  {e['host']} {e['peer']}/{e['ev']} {e['to']} {e['reason']}" for e in transitions[:_SHOWN]]
        bounds.append(Bound(case.bound, 0, "").judge(row["demotions"]))
    title = "False demotions under stress: one TCP flow, no path worse than the others; transitions in every host"
    return Result([Table(title, rows, shown)], bounds, detail={"minutes": options.minutes})


def _run(lab: Lab, case: _Case, minutes: float) -> tuple[Document, list[Document]]:
    hosts, p = lab.fabric.hosts, lab.fabric.parameters
    observe.wait_until_good(lab, hosts, _GOOD_WITHIN_S)
    targets = [f"t1:{plane}:{t1}" for plane in range(p.planes) for t1 in range(p.t1)] if case.drop else []
    for target in targets:
        lab.fail(target, drop=case.drop)
    events, skips = NewEvents(lab, hosts), _skips(lab)
    with Flow(lab, candidates.overlay(lab, 4)) as flow:
        words = case.run(flow, minutes)
        flow.finish()
    dropped = sum(h["dropped_skbs"] for h in lab.heal(*targets)) if targets else 0
    found = events.read()
    return {
        "case": case.name,
        "mean_bits_per_s": goodput.mean(flow.bins, min(flow.bins), max(flow.bins)) or 0.0,
        "retransmitted_segments": flow.retransmitted_segments,
        "demotions": sum(e["to"] == "ASSUMED_BAD" for e in found),
        "transitions": len(found),
        "skips": _skips(lab) - skips,
        "dropped_skbs": dropped,
        "hosts": len(hosts),
        "what": words,
    }, found


def _skips(lab: Lab) -> int:
    """Returns how often EVs were passed over, in all hosts."""
    return sum(path["skips"] for h in lab.fabric.hosts for path in observe.paths(lab, h))


BENCH = Bench("calm", measure)
