# SPDX-License-Identifier: BSD-2-Clause
"""Measures the gap that a blackhole leaves in the goodput of a flow, in bins of 10 ms: mrcd and its alternatives.

Each time: a new flow, its usual goodput, then one T1 on its way forwards nothing until the end. A flow that stops
before the fault is restarted, and counted. While the machine itself pauses no flow can continue: machine.py tells
when, and the empty bins of pauses are counted apart.
"""

import time
from collections.abc import Sequence
from statistics import median

from labkit.bench.faults import FLOW
from labkit.cluster import netns, observe
from labkit.cluster.api import Lab
from labkit.cluster.fabric import Parameters, t0_name
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput, machine
from labkit.measure.goodput import Bins
from labkit.measure.statistics import summary
from labkit.traffic import candidates
from labkit.traffic.candidates import KERNEL_ECMP, MPTCP, SOURCE, Candidate
from labkit.traffic.flow import Flow
from mrcd.errors import MachineError

BIN_NS = 10_000_000
MRCD = "hole"
AT_MOST = {MRCD: 20, MPTCP: 20, KERNEL_ECMP: 3}
WATCH_S = {MRCD: 2.0, MPTCP: 2.0, KERNEL_ECMP: 5.0}
GRACE_NS = 20_000_000  # after the first drop: a bin may be empty in this time
STOOD_STILL_NS = BIN_NS // 2  # a longer pause of a CPU in an empty bin makes the bin the machine's
_LAST_BINS = 10  # if these are empty, the flow had stopped at the end
_WARM_UP_S = 1.0
_BEFORE_S = 1.0
_LOOK_S = 0.1
_STANDS_STILL_S = 2.0  # a flow without data for this long, without a fault, is restarted
_LEAST_BYTES = 1_000_000  # in that time; a path with fewer bytes is not the flow's
_GOOD_WITHIN_S = 90.0
_MS = 1_000_000


class FlowStopped(MachineError):
    """Raised for a flow that stops before anything is broken."""


def measure(lab: Lab, name: str, faults: int) -> Document:
    """Measures one way `faults` times."""
    (way,) = candidates.installed(lab, [candidates.MRCD if name == MRCD else name], 4)
    times = min(faults, AT_MOST[name])
    each_s = _WARM_UP_S + _BEFORE_S + WATCH_S[name] + 0.5
    found: list[Document] = []
    failed, restarts = None, 0
    while len(found) < times:
        if len(found) % 5 == 0:
            left_s = (times - len(found)) * each_s
            progress(f"  {name}: {len(found)} of {times} blackholes, {left_s:.0f} s to go")
        try:
            if name == MRCD:
                observe.wait_until_good(lab, FLOW, _GOOD_WITHIN_S)
            found.append(_blackhole(lab, name, way, len(found)))
        except FlowStopped as e:
            restarts += 1
            progress(f"  {e}; restarted")
            if restarts <= times:
                continue
            failed = f"the flow stopped by itself {restarts} times; ended after {len(found)} of {times} blackholes"
        except MachineError as e:
            failed = f"ended after {len(found)} of {times} blackholes: {e}"
        if failed:
            if not found:
                raise MachineError(failed)
            break
    return {
        "name": name,
        "failed": failed,
        "what": way.words,
        "restarts": restarts,
        "still_standing": sum(not f["over"] for f in found),
        "median_bits_per_s": median(f["usual_bits_per_s"] for f in found),
        **{k: summary([f[k] for f in found]) for k in ("longest_zero_ms", "below_half_ms")},
        "before_ms": max(f["before_longest_zero_ms"] for f in found),
        "events": found,
    }


def _blackhole(lab: Lab, name: str, way: Candidate, number: int) -> Document:
    p = lab.fabric.parameters
    with Flow(lab, way.ends, BIN_NS, way.protocol) as flow, machine.PauseWatcher() as watch:
        flow.poll(_WARM_UP_S)
        if way.protocol == "mptcp":
            candidates.check_mptcp(lab, flow)
        before_ns = time.monotonic_ns()
        flow.poll(_BEFORE_S)
        target = _target(lab, flow, way, number, p)
        command_ns = time.monotonic_ns()
        lab.fail(target)
        flow.poll(WATCH_S[name])
        end_ns = time.monotonic_ns()
        healed = lab.heal(target)[0]
        flow.poll(_LOOK_S)  # a bin is reported when the next begins
        paused = watch.finish()
    if healed["first_drop_ns"] is None:
        raise MachineError(f"{way.name}: nothing came through {target}", hint="the flow took another way; run it again")
    found = hole(flow.bins, before_ns, command_ns, healed["first_drop_ns"], end_ns, paused)
    return {"target": target, "unwatched": watch.unwatched} | found


def _target(lab: Lab, flow: Flow, way: Candidate, number: int, p: Parameters) -> str:
    """Returns a T1 on the flow's way: each in turn."""
    if way.name == candidates.MRCD:
        return f"t1:{number % p.planes}:{number // p.planes % p.t1}"
    used: list[tuple[int, int]] = []
    until = time.monotonic() + _STANDS_STILL_S
    while not used and time.monotonic() < until:
        before = _carried(lab)
        flow.poll(_LOOK_S)
        used = sorted(at for at, count in _carried(lab).items() if count - before[at] >= _LEAST_BYTES)
    if not used:
        raise FlowStopped(f"{way.name}: the flow stopped for {_STANDS_STILL_S:g} s without a fault")
    plane, t1 = used[number % len(used)]
    return f"t1:{plane}:{t1}"


def _carried(lab: Lab) -> dict[tuple[int, int], int]:
    """Returns (plane, T1) → bytes that the source's T0 has sent to it."""
    found: dict[tuple[int, int], int] = {}
    for plane in range(lab.fabric.parameters.planes):
        with lab.inside(t0_name(plane, lab.fabric.config.host(SOURCE).t0)):
            sent = netns.sent_bytes()
        found |= {(plane, int(port[3:])): n for port, n in sent.items() if port.startswith("t1-")}
    return found


def hole(
    bins: Bins, before_ns: int, command_ns: int, begin_ns: int, end_ns: int, paused: Sequence[machine.Pause] = ()
) -> Document:
    """Returns the effect of one blackhole on a flow from its first drop to `end_ns`, and the time before. Pure.

    From `command_ns` on this program itself was busy making the fault.
    """
    before_ns, start_ns = before_ns + -before_ns % BIN_NS, begin_ns - begin_ns % BIN_NS
    usual = goodput.regular(bins, before_ns, command_ns, BIN_NS)
    after = goodput.regular(bins, start_ns, end_ns, BIN_NS)
    half = median(usual) / 2 if usual else 0.0
    first = -(-(begin_ns + GRACE_NS - start_ns) // BIN_NS)  # the first bin that begins after GRACE_NS
    late = [start_ns + n * BIN_NS for n in range(first, len(after)) if not after[n]]
    still = sum(machine.stood_still_ns(paused, at, at + BIN_NS) > STOOD_STILL_NS for at in late)
    return {
        "usual_bits_per_s": goodput.bits_per_s(2 * half, BIN_NS),
        "longest_zero_ms": goodput.longest_run(n == 0 for n in after).length * BIN_NS / _MS,
        "below_half_ms": sum(n < half for n in after) * BIN_NS / _MS,
        "late_bins": len(after[first:]),
        "late_zero_bins": len(late),
        "late_still_bins": still,
        "over": any(after[-_LAST_BINS:]),
        "before_longest_zero_ms": goodput.longest_run(n == 0 for n in usual).length * BIN_NS / _MS,
    }


def late_bins(way: Document) -> tuple[int, int, int]:
    """Returns the late empty bins of all events; those in pauses of the machine; all late bins."""
    empty, still, of = (sum(e[f"late_{k}"] for e in way["events"]) for k in ("zero_bins", "still_bins", "bins"))
    return empty, still, of
