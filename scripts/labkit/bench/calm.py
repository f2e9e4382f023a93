# SPDX-License-Identifier: BSD-2-Clause
"""Measures false demotions under stress: TCP flows on paths that are equally good. No EV may become ASSUMED_BAD.

busy     every CPU is overcommitted
stall    all CPUs stop for half a second, repeatedly: the receiver, and here all other hosts too
alike    every path loses 1 %
incast   seven hosts send to one over links of 200 Mbit/s, and one CPU, which receives half of it, stops again and again
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from labkit.bench.faults import INCAST, STALLS_S
from labkit.bench.frame import Bench, Bound, NewEvents, Options, Result, Table, check_only, evs_of
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput, machine, probe_windows
from labkit.tables import percent
from labkit.traffic.candidates import TARGET
from labkit.traffic.flow import Ends, Flow

STALL_S = 0.5
STALLS_PER_MINUTE = 2
DROP = 0.01
_BETWEEN_STALLS_S = 2.5
_BETWEEN_SHORT_S = 0.5
_STEP_S = 10.0
_GOOD_WITHIN_S = 60.0
_SHOWN = 10
Poll = Callable[[float], None]  # reads what all flows say for so many seconds


def _keep_going(poll: Poll, minutes: float, words: str) -> None:
    left = minutes * 60
    while left > 0:
        progress(f"calm: {words}, {left:.0f} s to go")
        poll(min(_STEP_S, left))
        left -= _STEP_S


def _busy(poll: Poll, minutes: float) -> str:
    with machine.busy_cpus() as words:
        _keep_going(poll, minutes, words)
    return f"{minutes:g} minutes beside {words}"


def _stall(poll: Poll, minutes: float) -> str:
    times = max(1, round(minutes * STALLS_PER_MINUTE))
    return _stalls(poll, [STALL_S] * times, _BETWEEN_STALLS_S, ())


def _incast(poll: Poll, minutes: float) -> str:
    times = max(1, round(minutes * 60 / (_BETWEEN_SHORT_S * len(STALLS_S))))
    return _stalls(poll, STALLS_S * times, _BETWEEN_SHORT_S, (max(os.sched_getaffinity(0)),))


def _stalls(poll: Poll, lengths_s: Sequence[float], between_s: float, cpus: Collection[int]) -> str:
    """Stops these CPUs, or all, for these times."""
    gaps, times = [], len(lengths_s)
    for n, length_s in enumerate(lengths_s):
        if n % 5 == 0:
            progress(f"calm: {n} of {times} stalls, {sum(lengths_s[n:]) + (times - n) * between_s:.0f} s to go")
        poll(between_s)
        gaps.append(machine.stall(length_s, poll, cpus))
    poll(between_s)
    lengths = ", ".join(f"{length_s * 1000:.0f}" for length_s in sorted(set(lengths_s)))
    of = "one CPU" if cpus else "all CPUs"
    return f"{times} stalls of {of} of {lengths} ms (other processes ran for {max(gaps) / 1e6:.1f} ms at most)"


def _alike(poll: Poll, minutes: float) -> str:
    words = f"every T1 drops {percent(DROP)}"
    _keep_going(poll, minutes, words)
    return f"{minutes:g} minutes in which {words}"


class _Case(NamedTuple):
    name: str
    bound: str
    run: Callable[[Poll, float], str]  # stresses the flows for so many minutes, and says how
    drop: float = 0.0  # loss of every T1, from before the flows begin
    shape: Mapping[str, Any] = {}  # of the lab
    senders: tuple[int, ...] = (0,)  # numbers of the hosts that send to TARGET


CASES = (
    _Case("busy", "no EV is ASSUMED_BAD without a fault, while the CPUs are overcommitted", _busy),
    _Case("stall", f"no EV is ASSUMED_BAD when everything stalls for {STALL_S * 1000:.0f} ms", _stall),
    _Case("alike", f"no EV is ASSUMED_BAD when every path loses the same {percent(DROP)}", _alike, DROP),
    _Case(
        "incast",
        "no EV is ASSUMED_BAD when seven hosts send to one, and one of its CPUs stalls for up to 50 ms",
        _incast,
        shape=INCAST,
        senders=(0, 1, 3, 4, 5, 6, 7),
    ),
)


def measure(lab: Lab, options: Options) -> Result:
    """Runs a flow per case, and counts every transition in every host."""
    only = (CASES[0].name,) if options.short else options.only
    chosen = [c for c in CASES if not only or c.name in only]
    check_only(only, [c.name for c in CASES])
    rows, shown, bounds = [], [], []
    for case in chosen:
        lab.up(**case.shape)
        row, transitions = _run(lab, case, options.minutes)
        rows.append(row)
        shown += [f"  {e['host']} {e['peer']}/{e['ev']} {e['to']} {e['reason']}" for e in transitions[:_SHOWN]]
        bounds.append(Bound(case.bound, 0, "").judge(row["demotions"]))
        words = f"{case.name}: probe requests of a host in {probe_windows.WINDOW_S * 1000:.0f} ms, without suspicions"
        most = probe_windows.most_allowed(lab.fabric.config.health.idle_probes)
        bounds.append(Bound(words, most, "").judge(row["most_probes"]))
    title = "False demotions under stress: TCP flows, no path worse than the others; transitions in every host"
    return Result([Table(title, rows, shown)], bounds, detail={"minutes": options.minutes})


def _run(lab: Lab, case: _Case, minutes: float) -> tuple[Document, list[Document]]:
    hosts, p = lab.fabric.hosts, lab.fabric.parameters
    observe.wait_until_good(lab, hosts, _GOOD_WITHIN_S)
    targets = [f"t1:{plane}:{t1}" for plane in range(p.planes) for t1 in range(p.t1)] if case.drop else []
    for target in targets:
        lab.fail(target, drop=case.drop)
    events, skips = NewEvents(lab, hosts), _skips(lab)
    address = lab.fabric.address
    with probe_windows.watching(lab) as probes, ExitStack() as stack:
        ends = [Ends(f"h{n}", address(f"h{n}"), TARGET, address(TARGET)) for n in case.senders]
        flows = [stack.enter_context(Flow(lab, e)) for e in ends]

        def poll(seconds: float) -> None:
            for flow in flows:
                flow.poll(seconds / len(flows))

        words = case.run(poll, minutes)
        for flow in flows:
            flow.finish()
    dropped = sum(h["dropped_skbs"] for h in lab.heal(*targets)) if targets else 0
    found = events.read()
    return {
        "case": case.name,
        "mean_bits_per_s": sum(goodput.mean(f.bins, min(f.bins), max(f.bins)) or 0.0 for f in flows),
        "retransmitted_segments": sum(f.retransmitted_segments for f in flows),
        "demotions": evs_of(e for e in found if e["to"] == "ASSUMED_BAD"),
        "transitions": len(found),
        "skips": _skips(lab) - skips,
        "most_probes": round(probes.most),
        "dropped_skbs": dropped,
        "hosts": len(hosts),
        "what": words,
    }, found


def _skips(lab: Lab) -> int:
    """Returns how often EVs were passed over, in all hosts."""
    return sum(path["skips"] for h in lab.fabric.hosts for path in observe.paths(lab, h))


BENCH = Bench("calm", measure)
