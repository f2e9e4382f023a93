# SPDX-License-Identifier: BSD-2-Clause
"""Runs the part in a lab of the default shape: with short hold-downs for many faults, then with the defaults."""

from labkit.bench.failover import events, flapping, holes, loss, mptcp, report, stats
from labkit.bench.failover.kinds import BY_NAME, KINDS
from labkit.bench.part import Options, Part, requirement
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from mrcd.errors import MachineError

# The lowest setting of FRR's bfdd: intervals of 10 ms, of which three must be missing (docs.frrouting.org, BFD).
BFD_NS = 3 * 10_000_000
LEAST_BITS_PER_S = 5e9
BACK_NS = 5_000_000_000  # return by the programs without a daemon
# Paths return soon after each fault, so that hundreds of faults take minutes.
_GOOD_WITHIN_S = 90.0  # hold-downs of the previous stage may have doubled several times
HEALTH: dict[str, float] = {"hold_down_ms": 100, "hold_down_max_ms": 100, "good_probes": 3}

LOSS = "loss"
STAGES = (*(k.name for k in KINDS), flapping.KIND.name, LOSS, holes.MRCD, holes.MPTCP, holes.ECMP)


def measure(lab: Lab, options: Options) -> Document:
    """Runs the chosen stages. A stage that fails does not discard the others' results."""
    chosen = [s for s in STAGES if not options.kinds or s in options.kinds]
    document: Document = {"kinds": [], "loss": [], "holes": [], "notes": [_bfd()], "failed": [], "bfd_floor_ns": BFD_NS}
    for number, stage in enumerate(chosen):
        progress(f"failover: {stage}, stage {number + 1} of {len(chosen)}")
        try:
            kind = BY_NAME.get(stage)
            _up(lab, HEALTH if kind else {}, kind.overlay if kind else {})
            _stage(lab, stage, options.faults, document)
        except MachineError as e:
            progress(f"  {stage} failed: {e}")
            document["failed"].append({"stage": stage, "why": str(e)})
    document["lab"] = lab.fabric.parameters.as_json()
    return document | {"health_of_kinds": HEALTH, "requirements": requirements(document)}


def _stage(lab: Lab, stage: str, faults: int, document: Document) -> None:
    if stage in BY_NAME:
        document["kinds"].append(events.measure(lab, BY_NAME[stage], faults))
    elif stage == flapping.KIND.name:
        document["kinds"].append(flapping.measure(lab, faults))
    elif stage == LOSS:
        document["loss"] = loss.measure(lab)
    elif stage == holes.MPTCP and (why := mptcp.missing()):
        document["notes"].append(why)
    else:
        measured = holes.measure(lab, stage, faults)
        document["holes"].append(measured)
        if measured["failed"]:
            raise MachineError(measured["failed"])


def _up(lab: Lab, health: dict[str, float], overlay: dict[str, float]) -> None:
    """Brings up the lab with these settings, all daemons alive and all paths GOOD."""
    known = lab.state.read()
    if known is None or known[1] != "up" or (known[0].health, known[0].overlay) != (health, overlay):
        lab.up(health=health, overlay=overlay)
    else:
        lab.heal()
        Lab(lab.state.name, say=lambda _: None).up(health=health, overlay=overlay)
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)


def _bfd() -> str:
    return (
        f"Beside it: BFD at its fastest (FRR: 3 × 10 ms) needs {stats.duration(BFD_NS)} to detect a failure; "
        "arithmetic, not measured"
    )


def requirements(document: Document) -> list[Document]:
    """Returns the requirements of the stages that ran. Pure."""
    kinds: list[Document] = document["kinds"]
    found = [requirement(f"{f['stage']} can be measured", False, f["why"]) for f in document["failed"]]
    for d in kinds:
        kind = BY_NAME.get(d["kind"])
        if kind and kind.bounds:
            found.append(stats.within(f"out of use after the first drop, {d['kind']}", d["leave_ns"], kind.bounds))
        if kind and kind.killed:
            words = f"back within {BACK_NS / 1e9:g} s of healing, {d['kind']}"
            found.append(stats.within(words, d["back_ns"], (("max", BACK_NS),)))
        if d["kind"] == "one-way-reverse":
            lost = d["flow"]["lost_packets"]
            words = "if only the reverse direction loses packets, none is lost forward, and no EV is demoted"
            said = f"{lost} packets lost, {len(d['wrong_demotions'])} demotions"
            found.append(requirement(words, lost == 0 and not d["wrong_demotions"], said))
    if kinds:
        wrong = sum(len(d["wrong_demotions"]) for d in kinds)
        faults = sum(len(d["events"]) for d in kinds)
        found.append(requirement("no EV is demoted that no fault has hit", not wrong, f"{wrong} in {faults} faults"))
        least = min(kinds, key=lambda d: float(d["flow"]["median_bits_per_s"]))
        rate = least["flow"]["median_bits_per_s"]
        words = f"the flow's goodput is {LEAST_BITS_PER_S / 1e9:g} Gbit/s or more, faults included"
        found.append(requirement(words, rate >= LEAST_BITS_PER_S, f"least {rate / 1e9:.1f}, {least['kind']}"))
    found += [loss.required(r) for r in document["loss"]]
    found += [holes.required(w) for w in document["holes"] if w["name"] == holes.MRCD]
    return found


PART = Part("failover", measure, report.lines, report.picture)
