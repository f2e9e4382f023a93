# SPDX-License-Identifier: BSD-2-Clause
"""Tests what `mrcctl doctor` makes of the diagnosis, and `status --check` where nothing runs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import Result

from mrcd.ctl.commands import measure
from mrcd.ctl.examine import command  # registers the checks
from mrcd.ctl.examine.result import CHECKS, Context

Mrcctl = Callable[..., Result]
T1 = {
    "cause": "t1", "target": "t1:1:2", "or_targets": ["link:1:0:2"], "severity": "critical", "confidence": "ambiguous",
    "since_s": 720.0, "evs": 6, "of_evs": 6, "peers": 6, "of_peers": 6,
    "sentence": "Plane 1: T1 2 lets nothing through: 6 of 6 EVs through it have failed, to 6 of 6 peers",
    "do": "`mrcctl trace h3 --ev 6` tells which it is",
}  # fmt: skip
LOSS = T1 | {
    "cause": "loss", "target": "link:0:2:3", "or_targets": [], "severity": "warning", "since_s": None,
    "confidence": "likely",
    "sentence": "Plane 0: the link between T0 2 and T1 3 loses packets | 3 of 3 EVs", "do": "look",
}  # fmt: skip
DENIED = LOSS | {"cause": "denied", "target": "t1:0:0", "severity": "ok", "sentence": "Plane 0: T1 0 is denied"}


def test_monitoring_of_a_host_on_which_nothing_runs(mrcctl: Mrcctl) -> None:
    result = mrcctl("status", "--check")
    assert (result.exit_code, result.stderr) == (2, "")
    assert result.stdout.startswith("CRITICAL - mrcd is not running")
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("causes", "outcome", "evidence", "fix"),
    [
        ([], "PASS", "no fault is known", ""),
        ([DENIED], "PASS", "denied: t1:0:0", ""),
        ([LOSS], "WARN", "loss link:0:2:3 (Plane 0", "look"),
        ([T1, LOSS, DENIED], "FAIL", "t1 t1:1:2 or link:1:0:2 (Plane 1: T1 2", T1["do"]),
        (None, "SKIP", "older version", ""),
    ],
)
def test_doctor_shows_the_same(causes: list[Any] | None, outcome: str, evidence: str, fix: str) -> None:
    assert command.EXAMPLE
    (check,) = (c for c in CHECKS if c.id == "paths.diagnosis")
    context = Context(None, status={"diagnosis": causes})  # type: ignore[arg-type]
    found = check.function(context)
    assert (found.status, found.fix) == (outcome, fix)
    assert evidence in found.evidence
    assert check.function(replace(context, status=None)).status == "SKIP"


@pytest.mark.parametrize(("causes", "code"), [([], 0), ([DENIED], 0), ([LOSS], 0), ([T1], 2), ([LOSS, T1], 2)])
def test_doctor_ends_with_2_if_something_is_dead(
    mrcctl: Mrcctl, monkeypatch: pytest.MonkeyPatch, causes: list[Any], code: int
) -> None:
    (check,) = (c for c in CHECKS if c.id == "paths.diagnosis")
    found = check.function(Context(None, status={"diagnosis": causes}))  # type: ignore[arg-type]
    document = {
        "command": "doctor", "checks": [{"id": check.id, "status": found.status, "evidence": "", "fix": ""}],
        "summary": {status: int(found.status == status) for status in ("PASS", "WARN", "FAIL", "SKIP")},
    }  # fmt: skip
    monkeypatch.setattr(measure, "read_documents", lambda options, choose: None)
    monkeypatch.setattr(command, "doctor", lambda run_dir, documents, down: document)
    assert mrcctl("doctor").exit_code == code
