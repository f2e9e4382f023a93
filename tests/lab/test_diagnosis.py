# SPDX-License-Identifier: BSD-2-Clause
"""Tests the diagnosis in a lab: hosts name a fault, and nothing else; one event per cause; trace and doctor use it.

`scripts/bench diagnosis` runs all faults. Here are those that need each source of facts: EVs, interfaces, refused
packets, and two at once.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from labkit.bench.diagnosis.cases import CASES, LAB, PAIRS, Case
from labkit.bench.diagnosis.part import RATE, run_case, wait_until_well
from labkit.cluster.api import Lab
from labkit.traffic.mesh import Mesh
from tests.lab.conftest import a_lab, mrcctl, wait_until

BY_NAME = {case.name: case for case in (*CASES, *PAIRS)}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """The lab of the bench, with traffic on every path."""
    with a_lab("diagnosis", **LAB) as made, Mesh(made, RATE):
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


@pytest.mark.parametrize(
    "name",
    [
        *("T1 dead", "own NIC down", "cables of a host swapped", "wrong key on a host"),
        *("wrong file on a host: fewer EVs", PAIRS[0].name),
    ],
)
def test_hosts_name_the_fault_and_nothing_else(lab: Lab, name: str) -> None:
    result = run_case(lab, BY_NAME[name])
    assert result["right"], result


def test_a_dead_t1_is_one_event_when_it_begins_and_one_when_it_ends(lab: Lab) -> None:
    wait_until("h0 has told the end of the faults before", lambda: all_gone(fault_events(lab, "h0", 0)))
    seen = len(mrcctl(lab, "h0", "events"))
    lab.fail("t1:0:1")
    wait_until("h0 tells of it", lambda: fault_events(lab, "h0", seen))
    failed = [e for e in mrcctl(lab, "h0", "events")[seen:] if e["kind"] == "ev" and e["to"] == "ASSUMED_BAD"]
    lab.heal()
    wait_until("h0 tells of its end", lambda: fault_events(lab, "h0", seen)[-1][2] == "gone", 30)
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
