# SPDX-License-Identifier: BSD-2-Clause
"""Tests what mrcctl shows of the diagnosis: the beginning of status, the line for monitoring, doctor's check."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import Result

from mrcd.ctl.commands import measure
from mrcd.ctl.documents import diagnosis
from mrcd.ctl.documents.status import status_lines
from mrcd.ctl.examine import command  # registers the checks
from mrcd.ctl.examine.result import CHECKS, Context
from tests.unit.canned_daemon import EVENT, STATUS, Daemon

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
LOSS_SAID = f"loss link:0:2:3: {LOSS['sentence']}"
NUMBERS = "3 of 3 peers reachable, 35 of 36 EVs usable, 1 of 2 planes up"
DATA = " | faults={} peers=3 evs=36 evs_failed=1 evs_denied=0"


def status(*causes: dict[str, Any], **other: Any) -> dict[str, Any]:
    return STATUS | {"diagnosis": list(causes)} | other


def first_lines(*causes: dict[str, Any], width: int | None = None, **other: Any) -> list[str]:
    """Returns what status shows before the facts about the host."""
    lines = status_lines(status(*causes, **other), colour=False, width=width)
    return lines[: next(n for n, line in enumerate(lines) if line.startswith("host "))]


def test_all_is_well() -> None:
    assert first_lines() == [f"all well    {NUMBERS}"]


def test_one_fault_is_named_with_target_time_and_next_step() -> None:
    assert first_lines(T1) == [
        "wrong now   t1 t1:1:2 or link:1:0:2",
        "            t1:1:2, for 12 min: Plane 1: T1 2 lets nothing through: 6 of 6 EVs through it have failed, "
        "to 6 of 6 peers (or link:1:0:2: this host cannot tell)",
        "              Do: `mrcctl trace h3 --ev 6` tells which it is",
    ]


def test_two_faults_are_both_in_the_first_line() -> None:
    lines = first_lines(T1, LOSS)
    assert lines[0] == "wrong now   t1 t1:1:2 or link:1:0:2, loss link:0:2:3"
    assert lines[3].startswith("            link:0:2:3: Plane 0")
    assert lines[3].endswith(" (likely)")


def test_many_faults_are_counted() -> None:
    lines = first_lines(*[T1] * 40)
    assert lines[0].endswith(", and 34 more")
    assert lines[-1].strip() == "and 28 more: `mrcctl status --json`"


def test_denials_are_named_and_no_fault() -> None:
    assert first_lines(DENIED) == [f"all well    {NUMBERS}", "out of use  denied t1:0:0: `mrcctl denials`"]


def test_nothing_is_well_while_mrcd_is_down() -> None:
    down = {"running": False}
    (line,) = first_lines(daemon=down)
    assert line.startswith("wrong now   mrcd is not running: nothing follows")
    (line,) = first_lines(daemon=down, probing={"tick_by": None})
    assert "what follows may be old" in line
    (line,) = first_lines(daemon={"running": True, "uptime_s": None})
    assert line.startswith("wrong now   mrcd starts, stops or hangs: it does not answer on its socket")


def test_an_older_daemon_makes_no_diagnosis() -> None:
    assert status_lines(STATUS, colour=False)[0].startswith("host ")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_diagnosis_fits_the_terminal(width: int) -> None:
    assert max(map(len, first_lines(T1, LOSS, DENIED, width=width))) <= width


def test_the_diagnosis_in_the_brief_line(mrcctl: Mrcctl, daemon: Daemon) -> None:
    daemon.answers["/v1/status"] = (200, status(T1, LOSS, DENIED))
    assert mrcctl("status", "-b").stdout.startswith("h0  WRONG: t1:1:2, link:0:2:3  attached")
    daemon.answers["/v1/status"] = (200, status(DENIED))
    assert mrcctl("status", "-b").stdout.startswith("h0  attached")


@pytest.mark.parametrize(
    ("document", "code", "line"),
    [
        (status(), 0, f"OK - h0: {NUMBERS}{DATA.format(0)}"),
        (status(DENIED), 0, f"OK - h0: denied t1:0:0: Plane 0: T1 0 is denied{DATA.format(0)}"),
        (status(LOSS), 1, f"WARNING - h0: {LOSS_SAID}{DATA.format(1)}"),
        (status(T1, LOSS), 2, f"CRITICAL - h0: t1 t1:1:2 or link:1:0:2: {T1['sentence']}; {LOSS_SAID}{DATA.format(2)}"),
        (status(daemon={"running": False}), 2, f"CRITICAL - h0: mrcd is not running{DATA.format(0)}"),
        (
            status(daemon={"running": True, "uptime_s": None}),
            2,
            f"CRITICAL - h0: mrcd starts, stops or hangs: it does not answer{DATA.format(0)}",
        ),
        (STATUS, 2, f"CRITICAL - h0: this mrcd makes no diagnosis: restart it{DATA.format(0)}"),
    ],
)  # fmt: skip
def test_the_line_for_monitoring(
    mrcctl: Mrcctl, daemon: Daemon, document: dict[str, Any], code: int, line: str
) -> None:
    daemon.answers["/v1/status"] = (200, document)
    result = mrcctl("status", "--check")
    text, _, data = line.rpartition(" | ")
    assert (result.exit_code, result.stderr) == (code, "")
    assert result.stdout == f"{text.replace('|', '/')} | {data}\n"
    shown = json.loads(mrcctl("status", "--check", "--json").stdout)
    assert (shown["exit_code"], shown["diagnosis"]) == (code, document.get("diagnosis", []))
    assert result.stdout == shown["line"] + "\n"


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


def test_a_dead_t0_comes_first_although_links_are_up_and_the_newest_event_is_another_evs_return() -> None:
    planes = [{"plane": 0, "interface": "p0", "up": True, "usable_evs": 0, "evs": 18}]
    healed = EVENT | {"from": "ASSUMED_BAD", "to": "GOOD", "reason": "healed"}
    t0 = T1 | {"cause": "own_cable", "target": "nic:h0:0", "or_targets": ["t0:0:0"]}
    lines = status_lines(status(t0, planes=planes, last_event=healed), colour=False)
    assert lines[0] == "wrong now   own_cable nic:h0:0 or t0:0:0"
    at = next(n for n, line in enumerate(lines) if line.startswith("PLANE"))
    assert lines[at].split()[2:5] == ["LINK", "EVS", "USABLE"]
    assert lines[at + 1].split()[:4] == ["0", "p0", "up", "0/18"]


def test_only_known_severities_are_harmless() -> None:
    """A newer mrcd may have others."""
    assert diagnosis.check(status(T1 | {"severity": "new"}))[0] == 2
