# SPDX-License-Identifier: BSD-2-Clause
"""Tests the diagnosis in a lab: hosts name a fault, and nothing else; one event per cause; trace and doctor use it.

By default: a fault for each source of facts (EVs, refused packets, probes of full size, and two at once of EVs and
interfaces).
`pytest --all-faults` makes all.
"""

import concurrent.futures
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.cluster.patience import wait_for
from labkit.traffic.mesh import Mesh
from mrcd.errors import MachineError
from tests.lab import fault_table
from tests.lab.conftest import a_lab, mrcctl, wait_until
from tests.lab.fault_table import CASES, LAB, POLL_S, RATE, Case, Diagnoses, diagnoses, others, wait_until_well

BY_NAME = {case.name: case for case in CASES}
FIRST_LINES = 3  # of `mrcctl status`, which must name cause and target
QUICK = (
    "cables of a host swapped",
    "wrong key on a host",
    "small MTU of a T0",
    "T1 dead, own NIC of another plane down",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    fault_table.parameters(metafunc, QUICK, [c for c in CASES if c.truths])


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The lab of the bench, with traffic on every path: more of it for faults that lose 1 %."""
    rate = RATE if request.config.getoption("--all-faults") else RATE // 4
    with a_lab("diagnosis", **LAB) as made, Mesh(made, rate):
        wait_until_well(made)
        yield made


def fault_events(lab: Lab, host: str, seen: int) -> list[tuple[Any, Any, Any]]:
    """Returns the events of causes after the first `seen` events: cause, target, and what has become of it."""
    events = mrcctl(lab, host, "events")[seen:]
    return [(e["reason"], e["evidence"]["target"], e["to"]) for e in events if e["kind"] == "fault"]


def all_gone(events: list[tuple[Any, Any, Any]]) -> bool:
    """Returns whether the newest event of each cause is its end."""
    newest = {(cause, target): after for cause, target, after in events}
    return all(after == "gone" for after in newest.values())


def _watch(lab: Lab, case: Case, hosts: Sequence[str]) -> tuple[Diagnoses, list[str]]:
    """Polls the hosts until they name the faults, and nothing else. Returns what they say, and what is wrong in it."""
    found: dict[str, Sequence[Document]] = {}

    def is_named() -> bool:
        found.update(diagnoses(lab, hosts))
        return not _errors(case, found)

    try:
        wait_for("the faults are named", is_named, case.within_s, POLL_S)
    except MachineError as e:
        return found, [*_errors(case, found), e.args[0]]
    return found, []


def _errors(case: Case, found: Diagnoses) -> list[str]:
    """Returns what is missing or wrong in what the hosts say.

    Of a T1 no host can be sure, since all its EVs also cross its own T0's link to the T1.
    """
    errors = [*fault_table.unnamed(case.truths, found), *fault_table.wrong(case.truths, found)]
    for t, hosts in zip(case.truths, fault_table.sure(case.truths, found), strict=True):
        if not hosts and not any(target.startswith("t1:") for target in t.targets):
            errors.append(f"no host is sure of {min(t.targets)}")
    return errors


def _ask(lab: Lab, case: Case, hosts: Sequence[str], asker: str) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Runs `mrcctl status --check` on all hosts, and `mrcctl status` on one.

    Returns by host the exit status and the one expected, and the first lines.
    """
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        done = dict(zip(hosts, pool.map(lambda h: lab.exec(h, ["mrcctl", "status", "--check"]), hosts), strict=True))
    statuses = {h: (d.returncode, fault_table.expected_status(case.truths, h)) for h, d in done.items()}
    asked = {h for t in case.truths for h in t.hosts}
    lines = lab.exec(asker, ["mrcctl", "status", "--wide"], check=True).stdout.splitlines()
    return {h: pair for h, pair in statuses.items() if h in asked}, lines[:FIRST_LINES]


def _unsaid(case: Case, causes: Sequence[Document], said: Sequence[str], asker: str) -> list[str]:
    """Returns the faults that the first lines of `mrcctl status` do not name."""
    words = " ".join(said)
    missing = []
    for t in case.truths:
        mine = [c for c in causes if fault_table.may_be(c, t)]
        if asker in t.hosts and not any(c["cause"] in words and c["target"] in words for c in mine):
            missing.append(f"the first {FIRST_LINES} lines of `mrcctl status` on {asker} do not name {min(t.targets)}")
    return missing


def test_hosts_name_the_fault_and_nothing_else(lab: Lab, case: Case) -> None:
    hosts = others(*case.dead)
    try:
        case.break_(lab)
        found, errors = _watch(lab, case, hosts)
        asker = next(h for h in (*case.truths[0].hosts, *hosts) if h in hosts)
        statuses, said = _ask(lab, case, hosts, asker)
        errors += [
            f"{h}: exit status {got}, expected {wanted}" for h, (got, wanted) in statuses.items() if got != wanted
        ]
        errors += _unsaid(case, found[asker], said, asker)
    finally:
        case.mend(lab)
    try:
        wait_until_well(lab)
    except MachineError as e:
        errors.append(str(e))
    assert not errors, errors


def test_a_dead_t1_is_one_event_when_it_begins_and_one_when_it_ends(lab: Lab) -> None:
    wait_until("h0 has told the end of the faults before", lambda: all_gone(fault_events(lab, "h0", 0)))
    seen = len(mrcctl(lab, "h0", "events"))
    lab.fail("t1:0:1")
    wait_until("h0 tells of it", lambda: fault_events(lab, "h0", seen))
    failed = [e for e in mrcctl(lab, "h0", "events")[seen:] if e["kind"] == "ev" and e["to"] == "ASSUMED_BAD"]
    lab.heal()
    wait_until("h0 tells of its end", lambda: fault_events(lab, "h0", seen)[-1][2] == "gone")
    assert len(failed) > 1
    assert fault_events(lab, "h0", seen) == [("t1", "t1:0:1", "present"), ("t1", "t1:0:1", "gone")]
    wait_until_well(lab)


def test_trace_and_doctor_say_what_the_diagnosis_knows(lab: Lab) -> None:
    case: Case = BY_NAME["peer detached"]
    case.break_(lab)
    try:
        wait_until("h0 knows it", lambda: mrcctl(lab, "h0", "status")["diagnosis"])
        traced = lab.exec("h0", ["mrcctl", "trace", "h2"])
        assert (traced.returncode, traced.stdout.splitlines()[0].split(":")[:2]) == (1, ["peer", "h2"]), traced
        checks = mrcctl(lab, "h0", "status")["diagnosis"]
        assert [(c["cause"], c["target"]) for c in checks] == [("peer_detached", "peer:h2")]
        examined = json.loads(lab.exec("h0", ["mrcctl", "doctor", "--json"]).stdout)["checks"]
        (found,) = (c for c in examined if c["id"] == "paths.diagnosis")
        assert (found["status"], found["evidence"].split(" (")[0]) == ("WARN", "peer_detached peer:h2")
    finally:
        case.mend(lab)
    wait_until_well(lab)
