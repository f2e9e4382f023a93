# SPDX-License-Identifier: BSD-2-Clause
"""Measures how long a broken path is still used, and how much a flow loses by it, with and without living daemons.

Stages: hundreds of faults of each kind with short hold-downs; then, with the defaults, the loss of a flow over a
lossy path, and the gap in a flow's goodput (gaps.py).
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Literal

from labkit import plot
from labkit.bench import faults, gaps
from labkit.bench.faults import BLACKHOLE, BY_NAME, FLOW, KINDS, STALLS_S, Event, Kind, Stage, strip
from labkit.bench.frame import Bench, Bound, Options, Result, Table, unmeasured
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.fabric import Parameters
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput, machine
from labkit.measure.host_tables import Cluster
from labkit.measure.statistics import spread, summary
from labkit.tables import duration
from labkit.traffic import candidates
from labkit.traffic.candidates import KERNEL_ECMP, MPTCP, SOURCE, TARGET
from labkit.traffic.flow import Ends, Flow
from mrcd.errors import MachineError

# The lowest setting of FRR's bfdd: intervals of 10 ms, of which three must be missing (docs.frrouting.org, BFD).
BFD_NS = 3 * 10_000_000
LEAST_BITS_PER_S = 5e9
BACK_NS = 5_000_000_000  # return by the programs without a daemon
LOSS_RATIO = 0.0007
# Paths return soon after each fault, so that hundreds of faults take minutes.
HEALTH: dict[str, float] = {"hold_down_ms": 100, "hold_down_max_ms": 100, "good_probes": 3}
LOSS = "loss"
STAGES = (*(k.name for k in KINDS), LOSS, gaps.MRCD, MPTCP, KERNEL_ECMP)

_FINE_NS = 1_000_000  # bins of the flow
_WARM_UP_S = 1.0
_STALLS_APART_S = 0.2
_GOOD_WITHIN_S = 90.0  # hold-downs of the previous stage may have doubled several times
_STILL_WITHIN_NS = 40_000_000  # after a fault; later gaps may come from its healing
_GIVE_UP = 5  # ends after that many undetected faults in a row
_BUDGET_S = 600.0  # for a kind of fault: detecting a small loss takes a second or two
_SAY_S = 5.0
_LOSSY_S = 10.0
_LOSSY = (
    ("one T1, an EV of the flow, drops 20 %", "t1:1:2", 0.2),
    ("the sender's NIC–T0 link of plane 0 drops 5 %", f"nic:{SOURCE}:0", 0.05),
)


def measure(lab: Lab, options: Options) -> Result:
    """Runs the chosen stages. A stage that fails does not discard the others' results."""
    chosen = [s for s in STAGES if not options.kinds or s in options.kinds]
    d: Document = {"kinds": [], "loss": [], "holes": [], "notes": [], "failed": []}
    for number, stage in enumerate(chosen):
        progress(f"failover: {stage}, stage {number + 1} of {len(chosen)}")
        try:
            kind = BY_NAME.get(stage)
            _up(lab, **({"health": HEALTH} | kind.shape if kind else {}))
            _run_stage(lab, stage, options.faults, d)
        except MachineError as e:
            progress(f"  {stage} failed: {e}")
            d["failed"].append({"stage": stage, "why": str(e)})
    d["lab"] = lab.fabric.parameters.as_json()
    return Result(_tables(d), _bounds(d), _picture(d), d)


def _run_stage(lab: Lab, stage: str, number: int, d: Document) -> None:
    if kind := BY_NAME.get(stage):
        d["kinds"].append(_record(lab, kind, number))
    elif stage == LOSS:
        d["loss"] = [_lose(lab, *case) for case in _LOSSY]
    elif stage == MPTCP and (why := candidates.mptcp_missing()):
        d["notes"].append(why)
    else:
        d["holes"].append(gaps.measure(lab, stage, number))
        if failed := d["holes"][-1]["failed"]:
            raise MachineError(failed)


def _up(lab: Lab, **shape: Any) -> None:
    """Brings up a lab of this shape, all daemons alive and all paths GOOD."""
    known = lab.state.read()
    if known is None or known != (Parameters(**shape), "up"):
        lab.up(**shape)
    else:
        lab.heal()
        Lab(lab.state.name, say=lambda _: None).up(**shape)
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)


def _record(lab: Lab, kind: Kind, wanted: int) -> Document:
    """Makes faults under a flow. Percentiles are of those that met a path in use."""
    with Cluster(lab) as cluster:
        quiet = faults.missing(cluster, FLOW, FLOW[::-1])
        lost, sent = cluster.missing(FLOW), int(cluster.sent(FLOW).sum())
        with contextlib.ExitStack() as stack:
            flow = stack.enter_context(Flow(lab, candidates.overlay(lab, 4), _FINE_NS))
            flows = [flow]
            if kind.stressed:
                flows += [stack.enter_context(Flow(lab, e)) for e in _others(lab)]
                stack.enter_context(machine.stalls(STALLS_S, _STALLS_APART_S))
            stage = Stage(lab, cluster, flows, quiet)
            flow.poll(_WARM_UP_S)
            begin_ns = time.monotonic_ns()
            found = list(_make_faults(stage, kind, wanted))
            end_ns = time.monotonic_ns()
            for each in flows:
                each.finish()
        found = [replace(e, still_ns=_still_ns(flow.bins, e.begin_ns)) for e in found]
        time.sleep(faults.QUIET_WITHIN_S)
        lost, sent = cluster.missing(FLOW) - lost, int(cluster.sent(FLOW).sum()) - sent
    used = [e for e in found if e.in_use]
    return {
        "kind": kind.name,
        "what": kind.words,
        "leave": summary([e.leave_ns for e in used]),
        "detected": summary([e.detected_ns for e in used]),
        "lost": summary([e.lost_packets for e in used]),
        "still": summary([e.still_ns for e in used]),
        "back": summary([e.back_ns for e in used if e.back_ns is not None]),
        "wrong_demotions": stage.wrong,
        "median_bits_per_s": goodput.usual(flow.bins, begin_ns, end_ns),
        "sent_packets": sent,
        "lost_packets": lost,
        "events": [asdict(e) for e in found],
    }


def _others(lab: Lab) -> Iterator[Ends]:
    """Yields the ends of flows to h2 of all hosts but h0."""
    address = lab.fabric.address
    for host in lab.fabric.hosts:
        if host not in FLOW:
            yield Ends(host, address(host), TARGET, address(TARGET))


def _still_ns(bins: goodput.Bins, begin_ns: int) -> int:
    """Returns the longest run of empty bins in the time after a fault. Pure."""
    first = begin_ns + -begin_ns % _FINE_NS
    starts = range(first, first + _STILL_WITHIN_NS, _FINE_NS)
    return goodput.longest_run(not bins.get(at) for at in starts).length * _FINE_NS


def _make_faults(stage: Stage, kind: Kind, wanted: int) -> Iterator[Event]:
    """Yields faults one after the other, in rounds: the paths are GOOD before each. Ends early after many misses."""
    p = stage.lab.fabric.parameters
    rotation = faults.places(p.planes, p.t1)
    began = said = time.monotonic()
    misses = 0
    stage.wait_until_good()
    with faults.without_daemons(stage) if kind.killed else contextlib.nullcontext():
        for number in range(1, wanted + 1):
            event = stage.back(kind, stage.fault(kind, next(rotation)))
            yield event
            misses = 0 if event.leave_ns is not None else misses + 1
            now = time.monotonic()
            spent = now - began
            if number < wanted and (misses >= _GIVE_UP or spent > _BUDGET_S):
                why = (
                    f"none of the last {_GIVE_UP} was detected" if misses >= _GIVE_UP else f"{_BUDGET_S:.0f} s are over"
                )
                progress(f"  {kind.name}: ends after {number} of {wanted} faults: {why}")
                return
            if now - said > _SAY_S:
                said = now
                left = min(spent / number * (wanted - number), _BUDGET_S - spent)
                progress(f"  {kind.name}: {number} of {wanted} faults, {left:.0f} s to go")


def _lose(lab: Lab, words: str, target: str, drop: float) -> Document:
    """Runs a flow; the fault begins with it, and stays. Loss is by both ends' counters."""
    progress(f"  loss: {words}, {_LOSSY_S:g} s")
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)
    with Cluster(lab) as cluster:
        sent, missing = int(cluster.sent(FLOW).sum()), cluster.missing(FLOW)
        with Flow(lab, candidates.overlay(lab, 4)) as flow:
            fault = lab.fail(target, drop=drop)
            flow.poll(_LOSSY_S)
            flow.finish()
        time.sleep(2 * faults.QUIET_WITHIN_S)
        sent, missing = int(cluster.sent(FLOW).sum()) - sent, cluster.missing(FLOW) - missing
    lab.heal(target)
    return {
        "fault": words,
        "loss_ratio": missing / sent if sent else None,
        "lost_packets": missing,
        "sent_packets": sent,
        "median_bits_per_s": goodput.usual(flow.bins, fault["monotonic_ns"], max(flow.bins)),
    }


# ---- bounds ----


def _bounds(d: Document) -> list[Document]:
    """Returns the bounds of the stages that ran."""
    found = [unmeasured(f["stage"], f["why"]) for f in d["failed"]]
    for k in d["kinds"]:
        kind = BY_NAME[k["kind"]]
        for p, limit in kind.bounds:
            found.append(Bound(f"{kind.name}: out of use after the first drop, {p}", limit, "_ns").judge(k["leave"][p]))
        if kind.killed:
            found.append(Bound(f"{kind.name}: back after healing, max", BACK_NS, "_ns").judge(k["back"]["max"]))
        if kind.name == "one-way-reverse":
            words = "if only the reverse direction loses packets, none is lost forward, and no EV is demoted"
            found.append(Bound(words, 0, "").judge(k["lost_packets"] + len(k["wrong_demotions"])))
    if d["kinds"]:
        wrong = sum(len(k["wrong_demotions"]) for k in d["kinds"])
        found.append(Bound("EVs demoted that no fault has hit", 0, "").judge(wrong))
        alone = [k["median_bits_per_s"] for k in d["kinds"] if not BY_NAME[k["kind"]].stressed]
        if alone:
            words = "the flow's goodput, faults included"
            found.append(Bound(words, LEAST_BITS_PER_S, "_bits_per_s", is_least=True).judge(min(alone)))
    for run in d["loss"]:
        words = f"loss of a flow of {_LOSSY_S:g} s where {run['fault']}"
        found.append(Bound(words, LOSS_RATIO, "_ratio").judge(run["loss_ratio"]))
    for way in (w for w in d["holes"] if w["name"] == gaps.MRCD):
        empty, still, of = gaps.late_bins(way)
        words = (
            f"empty bins of {gaps.BIN_NS / 1e6:g} ms later than {gaps.GRACE_NS / 1e6:.0f} ms after a blackhole begins, "
            f"of {of}, without {still} in which the hypervisor stopped a CPU for {gaps.STOOD_STILL_NS / 1e6:g} ms"
        )
        found.append(Bound(words, 0, "").judge(empty - still))
    return found


# ---- tables, picture ----


def _tables(d: Document) -> list[Table]:
    found = []
    if d["kinds"]:
        rows = [
            {
                "kind": k["kind"],
                "faults": k["leave"]["count"],
                "unfound": k["leave"]["never"],
                **spread("leave", k["leave"]),
                **spread("bad", k["detected"]),
                "lost_p50": k["lost"]["p50"],
                "lost_max": k["lost"]["max"],
                **spread("still", k["still"]),
                **spread("back", k["back"]),
                "wrong": len(k["wrong_demotions"]),
                "median_bits_per_s": k["median_bits_per_s"],
                "what": k["what"],
            }
            for k in d["kinds"]
        ]
        notes = [
            "LEAVE: first drop to the last data packet on the path; BAD: to ASSUMED_BAD; LOST: packets of the flow",
            "STILL: the longest time without data for the receiver's application, within 40 ms of the fault",
            "BACK: from healing until the paths are GOOD again, with hold-downs of 100 ms; WRONG: other EVs demoted",
        ]
        notes += [
            f"{k['kind']}: {w} was demoted without being hit" for k in d["kinds"] for w in k["wrong_demotions"][:5]
        ]
        found.append(Table("Failover of one TCP flow h0 → h2", rows, notes))
    if d["loss"]:
        found.append(Table(f"Loss in {_LOSSY_S:g} s", d["loss"]))
    if d["holes"]:
        names = {gaps.MRCD: candidates.MRCD}
        notes = [
            "AT ZERO: longest run of empty bins, BEFORE: without a fault; BELOW HALF: total below half of usual; LATE: "
            f"empty bins from {gaps.GRACE_NS / 1e6:g} ms after the first drop on, of them in which the hypervisor "
            f"stopped a CPU for more than {gaps.STOOD_STILL_NS / 1e6:g} ms, all bins; STANDING: still empty at the end",
            *sorted(
                {f"pauses are unknown: {e['unwatched']}" for w in d["holes"] for e in w["events"] if e["unwatched"]}
            ),
        ]
        rows = [
            {
                "way": names.get(w["name"], w["name"]),
                "times": len(w["events"]),
                "median_bits_per_s": w["median_bits_per_s"],
            }
            | {f"at_zero_{p}_ms": w["longest_zero_ms"][p] for p in ("p50", "max")}
            | {f"below_half_{p}_ms": w["below_half_ms"][p] for p in ("p50", "max")}
            | {"before_ms": w["before_ms"], "standing": w["still_standing"], "late": gaps.late_bins(w)}
            | {"restarts": w["restarts"], "what": w["what"]}
            for w in d["holes"]
        ]
        title = "The gap in goodput when a T1 on the flow's way forwards nothing, in bins of 10 ms"
        found.append(Table(title, rows, notes))
    found += [Table(note, []) for note in d["notes"]]
    return found


def _picture(d: Document) -> plot.Picture | None:
    """Returns a strip per kind: how long a path was still used, beside the bound and the times of others."""
    if not d["kinds"]:
        return None
    marks: list[tuple[float, str, Literal["goal", "theirs"]]] = [
        (ns / 1e9, f"required for blackholes: {p} {duration(ns)}", "goal") for p, ns in BLACKHOLE
    ]
    marks.append((BFD_NS / 1e9, "BFD detects: 3 × 10 ms (arithmetic)", "theirs"))
    for way in d["holes"]:
        middle = way["longest_zero_ms"]["p50"]
        if way["name"] != gaps.MRCD and middle:
            marks.append((middle / 1e3, f"{way['name']} stops for {duration(middle * 1e6)} (p50)", "theirs"))
    p = d["lab"]
    words = (
        "from the first packet lost to the last data packet put on the path, both stamped in the kernel; one "
        f"TCP flow over {p['planes'] * p['t1']} EVs ({p['planes']} planes × {p['t1']} T1s)"
    )
    notes = ["Red: p50 (thick), p99 (thin). At the left edge: no data was put on the path after the first loss."]
    rows = [strip(k["kind"], [e["leave_ns"] for e in k["events"] if e["in_use"]]) for k in d["kinds"]]
    strips = plot.Strips("A dot per fault", "", rows, marks)
    return plot.Picture("Failover: how long a broken path is still used", words, [strips], notes)


BENCH = Bench("failover", measure)
