# SPDX-License-Identifier: BSD-2-Clause
"""Measures false demotions under stress: a TCP flow on paths that are equally good. No EV may become ASSUMED_BAD.

busy     every CPU is overcommitted
stall    all CPUs stop for half a second, repeatedly: the receiver, and here all other hosts too
alike    every path loses 1 %
"""

from collections.abc import Callable
from typing import NamedTuple

from labkit.bench import candidates, cpu_load
from labkit.bench.part import Options, Part, requirement
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput
from labkit.traffic.flow import Flow
from mrcd.ctl.terminal.render import percent

STALL_S = 0.5
STALLS_PER_MINUTE = 2
DROP = 0.01
_BETWEEN_STALLS_S = 2.5
_STEP_S = 10.0
_GOOD_WITHIN_S = 60.0
_SHOWN = 10


class _Case(NamedTuple):
    name: str
    requirement: str
    run: Callable[[Lab, Flow, float], Document]  # stresses the flow for so many minutes
    drop: float = 0.0  # loss of every T1, from before the flow begins


def measure(lab: Lab, options: Options) -> Document:
    """Runs a flow per case, and counts every transition in every host."""
    lab.up()
    chosen = [c for c in _CASES if not options.cases or c.name in options.cases]
    cases = [_measure(lab, case, options.minutes) for case in chosen]
    return {"minutes": options.minutes, "cases": cases, "requirements": [required(c) for c in cases]}


def _measure(lab: Lab, case: _Case, minutes: float) -> Document:
    hosts = lab.fabric.hosts
    observe.wait_until_good(lab, hosts, _GOOD_WITHIN_S)
    targets = _every_t1(lab) if case.drop else []
    for target in targets:
        lab.fail(target, drop=case.drop)
    first = {h: (observe.events(lab, h) or [{"id": 0}])[-1]["id"] for h in hosts}
    before = _skips(lab)
    with Flow(lab, candidates.overlay(lab, 4)) as flow:
        facts = case.run(lab, flow, minutes)
        flow.finish()
    dropped = sum(h["dropped_skbs"] for h in lab.heal(*targets)) if targets else 0
    after = _skips(lab)
    found = [e | {"host": h} for h, last in first.items() for e in observe.events(lab, h, last) if e["kind"] == "ev"]
    return {
        "case": case.name,
        "requirement": case.requirement,
        "hosts": len(hosts),
        "bits_per_s": goodput.mean(flow.bins, min(flow.bins), max(flow.bins)) or 0.0,
        "retransmitted_segments": flow.retransmitted_segments,
        "transitions": found,
        "demotions": sum(e["to"] == "ASSUMED_BAD" for e in found),
        "skips": after - before if after is not None and before is not None else None,
        "dropped_skbs": dropped,
        **facts,
    }


def _every_t1(lab: Lab) -> list[str]:
    p = lab.fabric.parameters
    return [f"t1:{plane}:{t1}" for plane in range(p.planes) for t1 in range(p.t1)]


def _skips(lab: Lab) -> int | None:
    """Returns how often EVs were passed over, in all hosts; None if the daemons do not report it."""
    rows = [p for h in lab.fabric.hosts for p in observe.paths(lab, h)]
    return sum(p["skips"] for p in rows) if all("skips" in p for p in rows) else None


def _for(flow: Flow, minutes: float, words: str) -> None:
    left = minutes * 60
    while left > 0:
        progress(f"false demotions: {words}, {left:.0f} s to go")
        flow.poll(min(_STEP_S, left))
        left -= _STEP_S


def _busy(lab: Lab, flow: Flow, minutes: float) -> Document:
    with cpu_load.busy_cpus() as words:
        _for(flow, minutes, words)
    return {"what": f"{minutes:g} minutes beside {words}"}


def _stall(lab: Lab, flow: Flow, minutes: float) -> Document:
    times = max(1, round(minutes * STALLS_PER_MINUTE))
    gaps = []
    for n in range(times):
        if n % 5 == 0:
            left = (times - n) * (STALL_S + _BETWEEN_STALLS_S)
            progress(f"false demotions: {n} of {times} stalls, {left:.0f} s to go")
        flow.poll(_BETWEEN_STALLS_S)
        gaps.append(cpu_load.stall(STALL_S, flow.poll))
    flow.poll(_BETWEEN_STALLS_S)
    gap_ms = max(gaps) / 1e6
    return {
        "what": f"{times} stalls of {STALL_S * 1000:.0f} ms (other processes ran for {gap_ms:.1f} ms at most)",
        "stalls": times,
        "real_time_share": cpu_load.real_time_share(),
        "longest_gap_ms": gap_ms,
    }


def _alike(lab: Lab, flow: Flow, minutes: float) -> Document:
    words = f"every T1 drops {percent(DROP)} %"
    _for(flow, minutes, words)
    return {"what": f"{minutes:g} minutes in which {words}"}


_CASES = (
    _Case("busy", "no EV is ASSUMED_BAD without a fault, while the CPUs are overcommitted", _busy),
    _Case("stall", f"no EV is ASSUMED_BAD when everything stalls for {STALL_S * 1000:.0f} ms", _stall),
    _Case("alike", f"no EV is ASSUMED_BAD when every path loses the same {percent(DROP)} %", _alike, DROP),
)


CASES = tuple(c.name for c in _CASES)


def required(case: Document) -> Document:
    """Returns the requirement that no EV was demoted. Pure."""
    skips = "" if case["skips"] is None else f", {case['skips']} skips"
    return requirement(case["requirement"], not case["demotions"], f"{case['demotions']} demotions{skips}")


def lines(document: Document) -> list[str]:
    """Returns a sentence per case, and the transitions."""
    found = [
        "False demotions under stress: one TCP flow, no path worse than the others; transitions of EVs in every host"
    ]
    for c in document["cases"]:
        skips = "" if c["skips"] is None else f", {c['skips']} skips"
        found.append(
            f"  {c['case']}: {c['what']}{_dropped(c)} at {c['bits_per_s'] / 1e9:.1f} Gbit/s: "
            f"{c['demotions']} demotions, {len(c['transitions'])} transitions{skips} in {c['hosts']} hosts"
        )
        found += [f"    {e['host']} {e['peer']}/{e['ev']} {e['to']} {e['reason']}" for e in c["transitions"][:_SHOWN]]
    return found


def _dropped(case: Document) -> str:
    return f" ({case['dropped_skbs']} skbs)" if case["dropped_skbs"] else ""


PART = Part("calm", measure, lines)
