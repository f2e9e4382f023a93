# SPDX-License-Identifier: BSD-2-Clause
"""Part `alerts`: makes faults one by one, and checks the alerts that a Prometheus sends by an Alertmanager."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from labkit.bench.alerts import judge
from labkit.bench.alerts.cases import CASES, LAB, Case
from labkit.bench.diagnosis.part import RATE, wait_until_well
from labkit.bench.part import Options, Part, requirement
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.cluster.patience import wait_for
from labkit.entry import progress
from labkit.monitoring.rules import Pace
from labkit.monitoring.watched_lab import WatchedLab, watched
from labkit.traffic.mesh import Mesh
from mrcd.ctl.terminal.render import Column, fold, table
from mrcd.errors import MachineError

# On busy CPUs a daemon takes 5 s to restart. A loss of 1 % is found EV by EV, within half a minute. MrcReplaceCable is
# due for longer (15 minutes) than the range that it sums up (5 minutes): a short loss fills that range.
PACE = Pace(factor=10, least_for_s=10, most_for_s=90, least_range_s=4, scrape_s=0.5)
_WITHIN_S = 120.0
_OVER_S = 60.0


def measure(lab: Lab, options: Options) -> Document:
    """Returns the results of all cases."""
    lab.up(**LAB)
    cases = [c for c in CASES if not options.only or any(word in c.name for word in options.only)]
    found = []
    with tempfile.TemporaryDirectory() as directory, Mesh(lab, RATE), watched(lab, Path(directory), PACE) as site:
        wait_until_over(site)
        for case in cases:
            result = run_case(site, case)
            progress(f"{case.name}: {'right' if result['right'] else 'WRONG: ' + '; '.join(result['errors'])}")
            found.append(result)
    return {"cases": found, "requirements": [_required(found)] if found else []}


def _required(results: Sequence[Document]) -> Document:
    right = sum(r["right"] for r in results)
    words = f"each of {len(results)} faults fires its alerts, no others, and they end"
    return requirement(words, right == len(results), f"{right} of {len(results)} right")


def run_case(site: WatchedLab, case: Case, within_s: float = _WITHIN_S) -> Document:
    """Makes the fault, waits for its alerts, mends it, and waits until they are over."""
    first = len(site.alertmanager.inbox.fired)
    fired_s, over_s, errors = None, None, list[str]()
    try:
        case.break_(site.lab)
        try:
            fired_s = wait_until_settled(site, case, within_s)
        except MachineError as e:
            errors.append(e.args[0])
        fired = site.fired(first)
    finally:
        case.mend(site.lab)
    try:
        over_s = wait_until_over(site)
    except MachineError as e:
        errors.append(f"{e.args[0]}: {', '.join(sorted({*site.firing(), *site.pending()})) or 'over now'}")
    after = site.fired(first).keys() - fired.keys()
    errors += judge.errors(case.alerts, fired, after)
    return {
        "case": case.name,
        "expected": list(case.alerts),
        "fired": sorted(fired),
        "fired_after": sorted(after),
        "fired_s": fired_s,
        "over_s": over_s,
        "errors": errors,
        "right": not errors,
    }


def wait_until_settled(site: WatchedLab, case: Case, within_s: float) -> float:
    """Waits until the alerts of a case fire, then until no other one is pending.

    Returns the seconds until they fired. Raises MachineError.
    """
    fired_s = wait_for("the alerts fire", lambda: case.alerts.keys() <= site.firing(), within_s)
    wait_for("no other alerts are pending", lambda: not site.pending(), within_s)
    return fired_s


def wait_until_over(site: WatchedLab) -> float:
    """Waits until the hosts name no fault, and no alert fires. Returns the seconds. Raises MachineError."""
    well_s = wait_until_well(site.lab)
    return well_s + wait_for("no alert fires", lambda: not site.firing() and not site.pending(), _OVER_S)


def lines(document: Document) -> list[str]:
    """Returns the table of the cases, and what was wrong."""
    columns = [
        *(Column("FAULT"), Column("EXPECTED ALERTS"), Column("FIRED"), Column("AFTER s", True)),
        *(Column("OVER s", True), Column("")),
    ]
    rows = []
    for r in document["cases"]:
        took = [f"{r[key]:.0f}" if r[key] is not None else "-" for key in ("fired_s", "over_s")]
        names = sorted({*r["expected"], *r["fired"], *r["fired_after"]})
        for i, name in enumerate(names):
            when = "yes" if name in r["fired"] else "after the end" if name in r["fired_after"] else "no"
            said = [name, when] if name in r["expected"] else ["-", f"{name} {when}".removesuffix(" yes")]
            tail = [*took, "right" if r["right"] else "WRONG"] if not i else ["", "", ""]
            rows.append(["" if i else r["case"], *said, *tail])
    out = [
        *fold(
            f"{LAB['hosts']} hosts, {LAB['hosts_per_t0']} under each T0, {LAB['planes']} planes of {LAB['t1']} T1s; "
            f"{RATE} packets/s between each two hosts. Durations in the rules are {PACE.factor:g} times shorter, "
            f"`for` from {PACE.least_for_s:g} s to {PACE.most_for_s:g} s. AFTER: seconds until the alerts fired; "
            "OVER: from the end of the fault until no alert fired",
            None,
        ),
        *table(columns, rows, colour=False),
    ]
    for r in document["cases"]:
        out += [f"{r['case']}: {error}" for error in r["errors"]]
    return out


PART = Part("alerts", measure, lines)
