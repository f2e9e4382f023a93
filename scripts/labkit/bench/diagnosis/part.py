# SPDX-License-Identifier: BSD-2-Clause
"""Part `diagnosis`: makes the faults one by one, and checks what `mrcctl status` says on the hosts."""

import concurrent.futures
import time
from collections.abc import Sequence

from labkit.bench.diagnosis import judge
from labkit.bench.diagnosis.cases import CASES, HOSTS, LAB, PAIRS, Case, others
from labkit.bench.part import Options, Part, requirement
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.cluster.patience import patience
from labkit.entry import progress
from labkit.traffic.mesh import Mesh
from mrcd.ctl.terminal.render import Column, fold, table
from mrcd.errors import MachineError, MrcdError

RATE = 400  # packets per second from each host to each other one
FIRST_LINES = 3  # of `mrcctl status`, which must name cause and target
_POLL_S = 0.4
_WELL_S = patience(120.0)  # a grey loss is remembered for a minute


def measure(lab: Lab, options: Options) -> Document:
    """Returns the results of all cases."""
    lab.up(**LAB)
    cases = [c for c in (*CASES, *PAIRS) if not options.only or any(word in c.name for word in options.only)]
    found = []
    with Mesh(lab, RATE):
        wait_until_well(lab)
        for case in cases:
            result = run_case(lab, case)
            progress(f"{case.name}: {'right' if result['right'] else 'WRONG: ' + '; '.join(result['errors'])}")
            found.append(result)
    single = [r for r in found if r["case"] in {c.name for c in CASES}]
    pairs = [r for r in found if r not in single]
    requirements = [_required(f"each of {len(single)} faults is named by cause and target", single)] if single else []
    requirements += [_required(f"each of {len(pairs)} pairs of faults is named", pairs)] if pairs else []
    return {"cases": found, "requirements": requirements}


def _required(words: str, results: Sequence[Document]) -> Document:
    right = [r for r in results if r["right"]]
    return requirement(words, len(right) == len(results), f"{len(right)} of {len(results)} right")


def run_case(lab: Lab, case: Case) -> Document:
    """Makes the fault, waits until the hosts name it, mends it, and waits until all is well."""
    hosts = others(*case.dead)
    try:
        case.break_(lab)
        began = time.monotonic()
        found, named_s = _watch(lab, case, hosts, began)
        errors = _errors(case, found)
        errors += [] if named_s is not None else [f"not within {case.within_s:g} s"]
        sure = judge.sure(case.truths, found)
        asker = next(h for h in (*case.truths[0].hosts, *hosts) if h in hosts)
        statuses, said = _ask(lab, case, hosts, asker)
        errors += [
            f"{h}: exit status {got}, expected {wanted}" for h, (got, wanted) in statuses.items() if got != wanted
        ]
        errors += _unsaid(case, found[asker], said, asker)
    finally:
        case.mend(lab)
    try:
        well_s = wait_until_well(lab)
    except MachineError as e:
        errors, well_s = [*errors, str(e)], None
    return {
        "case": case.name,
        "within_s": case.within_s,
        "named_s": named_s,
        "named": _named(found),
        "sure_hosts": sure,
        "naming_hosts": [sum(any(judge.may_be(c, t) for c in found[h]) for h in hosts) for t in case.truths],
        "exit_status": statuses[asker][0],
        "said": said,
        "well_again_s": well_s,
        "errors": errors,
        "right": not errors,
    }


def _watch(lab: Lab, case: Case, hosts: Sequence[str], began: float) -> tuple[judge.Diagnoses, float | None]:
    """Polls the hosts until they name the faults, and nothing else. Returns what they say, and the time until then."""
    while True:
        found = diagnoses(lab, hosts)
        took = time.monotonic() - began
        if not _errors(case, found):
            return found, took
        if took > patience(case.within_s):
            return found, None
        time.sleep(_POLL_S)


def _errors(case: Case, found: judge.Diagnoses) -> list[str]:
    """Returns what is missing or wrong in what the hosts say.

    Of a T1 no host can be sure, since all its EVs also cross its own T0's link to the T1.
    """
    errors = [*judge.unnamed(case.truths, found), *judge.wrong(case.truths, found)]
    for t, hosts in zip(case.truths, judge.sure(case.truths, found), strict=True):
        if not hosts and not any(target.startswith("t1:") for target in t.targets):
            errors.append(f"no host is sure of {min(t.targets)}")
    return errors


def diagnoses(lab: Lab, hosts: Sequence[str]) -> dict[str, list[Document]]:
    """Returns what each host names in `mrcctl status --json`."""
    return {host: observe.client(lab, host).get("/v1/status")["diagnosis"] for host in hosts}


def _ask(lab: Lab, case: Case, hosts: Sequence[str], asker: str) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Runs `mrcctl status --check` on all hosts, and `mrcctl status` on one.

    Returns by host the exit status and the one expected, and the first lines.
    """
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        done = dict(zip(hosts, pool.map(lambda h: lab.exec(h, ["mrcctl", "status", "--check"]), hosts), strict=True))
    statuses = {h: (d.returncode, judge.expected_status(case.truths, h)) for h, d in done.items()}
    asked = {h for t in case.truths for h in t.hosts}
    lines = lab.exec(asker, ["mrcctl", "status", "--wide"], check=True).stdout.splitlines()
    return {h: pair for h, pair in statuses.items() if h in asked}, lines[:FIRST_LINES]


def _unsaid(case: Case, causes: Sequence[Document], said: Sequence[str], asker: str) -> list[str]:
    """Returns the faults that the first lines of `mrcctl status` do not name."""
    words = " ".join(said)
    missing = []
    for t in case.truths:
        mine = [c for c in causes if judge.may_be(c, t)]
        if asker in t.hosts and not any(c["cause"] in words and c["target"] in words for c in mine):
            missing.append(f"the first {FIRST_LINES} lines of `mrcctl status` on {asker} do not name {min(t.targets)}")
    return missing


def _named(found: judge.Diagnoses) -> list[Document]:
    """Returns the causes that hosts name, each once, with its hosts."""
    by_words: dict[tuple[str, ...], Document] = {}
    for host, causes in found.items():
        for c in (c for c in causes if c["severity"] != "ok"):
            key = (c["cause"], c["target"], *c["or_targets"])
            by_words.setdefault(key, {k: c[k] for k in ("cause", "target", "or_targets")} | {"hosts": []})
            by_words[key]["hosts"].append(host)
    return list(by_words.values())


def wait_until_well(lab: Lab) -> float:
    """Waits until no host names anything. Returns the seconds. Raises MachineError."""
    began = time.monotonic()
    while True:
        try:
            found: judge.Diagnoses = diagnoses(lab, HOSTS)
        except MrcdError:  # a daemon that starts
            found = {"": [{"cause": "unknown", "target": "?", "severity": "warning", "or_targets": []}]}
        left = judge.wrong((), found)
        took = time.monotonic() - began
        if not left and all(_is_good(lab, h) for h in HOSTS):
            return took
        if took > _WELL_S:
            raise MachineError(f"not well again after {took:.0f} s: {', '.join(left[:3]) or 'EVs are not GOOD'}")
        time.sleep(_POLL_S)


def _is_good(lab: Lab, host: str) -> bool:
    evs = observe.client(lab, host).get("/v1/status")["evs"]
    return not any(n for state, n in evs.items() if state not in ("GOOD", "SKIP"))


def lines(document: Document) -> list[str]:
    """Returns the table of the cases, and what was wrong."""
    columns = [
        *(Column("FAULT"), Column("NAMED s", True), Column("CAUSE"), Column("TARGET"), Column("OR")),
        *(Column("HOSTS", True), Column("CHECK", True), Column("")),
    ]
    rows = []
    for r in document["cases"]:
        took = f"{r['named_s']:.1f}" if r["named_s"] is not None else "-"
        for i, n in enumerate(r["named"]):
            head = [r["case"], took] if not i else ["", ""]
            tail = [str(r["exit_status"]), "right" if r["right"] else "WRONG"] if not i else ["", ""]
            rows.append([*head, n["cause"], n["target"], " ".join(n["or_targets"]) or "-", str(len(n["hosts"])), *tail])
        if not r["named"]:
            rows.append(
                [r["case"], took, "-", "-", "-", "0", str(r["exit_status"]), "right" if r["right"] else "WRONG"]
            )
    out = [
        *fold(
            f"{LAB['hosts']} hosts, {LAB['hosts_per_t0']} under each T0, {LAB['planes']} planes of {LAB['t1']} T1s; "
            f"{RATE} packets/s between each two hosts. HOSTS: how many name it so. OR: what they cannot tell from it",
            None,
        ),
        *table(columns, rows, colour=False),
    ]
    for r in document["cases"]:
        out += [f"{r['case']}: {error}" for error in r["errors"]]
    return out


PART = Part("diagnosis", measure, lines)
