# SPDX-License-Identifier: BSD-2-Clause
"""Tests how the bench compares what hosts name with the fault that was made."""

from typing import Any

from labkit.bench.diagnosis import judge
from labkit.bench.diagnosis.cases import CASES, HOSTS, PAIRS
from labkit.bench.diagnosis.judge import truth


def cause(kind: str, target: str, *or_targets: str, severity: str = "critical") -> dict[str, Any]:
    """Returns a cause as in GET /v1/status."""
    return {"cause": kind, "target": target, "or_targets": list(or_targets), "severity": severity}


LINK = truth("link", "link:1:1:2", ["a", "b"])
KEY = truth("wrong_key", "host:a", ["a"])


def test_every_host_must_name_the_fault() -> None:
    found = {"a": [cause("link", "link:1:1:2")], "b": []}
    assert judge.unnamed([LINK], found) == ["b does not name link:1:1:2"]
    found["b"] = [cause("t1", "t1:1:2", "link:1:1:2")]
    assert judge.unnamed([LINK], found) == judge.wrong([LINK], found) == []
    assert judge.sure([LINK], found) == [1]


def test_another_cause_or_target_is_wrong() -> None:
    for c in (
        cause("link", "link:1:1:3"), cause("t1", "t1:1:2"), cause("loss", "link:1:1:2"),
        cause("t1", "t1:1:2", "link:1:0:2"), cause("loss", "link:1:1:2", "t1:1:2"),
    ):  # fmt: skip
        assert judge.wrong([LINK], {"a": [c]}) == [f"a names {c['cause']} {c['target']}"]
        assert judge.unnamed([LINK], {"a": [c], "b": [c]})
    assert judge.wrong([LINK], {"a": [cause("denied", "t1:0:0", severity="ok")]}) == []


def test_two_faults_are_both_named_and_the_worse_one_is_the_exit_status() -> None:
    found = {"a": [cause("wrong_key", "host:a"), cause("link", "link:1:1:2")], "b": [cause("link", "link:1:1:2")]}
    assert judge.unnamed([LINK, KEY], found) == judge.wrong([LINK, KEY], found) == []
    assert judge.unnamed([LINK, KEY], found | {"a": found["b"]}) == ["a does not name host:a"]
    mild = truth("loss", "link:1:1:2", ["a", "b"], 1)
    assert [judge.expected_status([mild, KEY], h) for h in ("a", "b", "c")] == [2, 1, 0]


def test_fifteen_faults_and_two_pairs_of_known_hosts() -> None:
    assert len(CASES) == 15
    assert len(PAIRS) == 2
    for case in (*CASES, *PAIRS):
        assert {h for t in case.truths for h in t.hosts} <= set(HOSTS) - set(case.dead)
