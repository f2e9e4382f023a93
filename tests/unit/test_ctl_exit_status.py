# SPDX-License-Identifier: BSD-2-Clause
"""Tests the exit statuses of status, status --check, doctor and trace, as docs/mrcctl.md has them."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from mrcd.ctl.packets.exchange import Tally
from tests.unit.canned_daemon import BAD_PATH, STATUS, Daemon

Mrcctl = Callable[..., Result]

T1 = {
    "cause": "t1", "target": "t1:1:2", "or_targets": [], "severity": "critical", "confidence": "likely",
    "since_s": 1.0, "sentence": "dead", "do": "look",
}  # fmt: skip
DETACHED = T1 | {"cause": "peer_detached", "target": "peer:h2", "severity": "warning"}


def diagnosed(daemon: Daemon, *causes: dict[str, Any]) -> None:
    """Has the daemon name these causes."""
    daemon.answers["/v1/status"] = (200, STATUS | {"diagnosis": list(causes)})


@pytest.mark.parametrize("command", ["status", "status --check", "doctor", "trace h2"])
def test_where_nothing_runs_the_exit_status_is_2(mrcctl: Mrcctl, command: str) -> None:
    assert mrcctl(*command.split()).exit_code == 2


def test_monitoring_of_a_host_on_which_nothing_runs_is_one_line(mrcctl: Mrcctl) -> None:
    result = mrcctl("status", "--check")
    assert result.stderr == ""
    assert result.stdout.startswith("CRITICAL - mrcd is not running")
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize(("status", "code"), [("PASS", 0), ("WARN", 0), ("SKIP", 0), ("FAIL", 2)])
def test_doctor_ends_with_2_if_a_check_fails(
    mrcctl: Mrcctl, monkeypatch: pytest.MonkeyPatch, status: str, code: int
) -> None:
    found = {
        "command": "doctor", "checks": [{"id": "a.b", "status": status, "evidence": "", "fix": ""}],
        "summary": {"FAIL": 0} | {status: 1},
    }  # fmt: skip
    monkeypatch.setattr("mrcd.ctl.commands.measure.read_documents", lambda options, choose: None)
    monkeypatch.setattr("mrcd.ctl.examine.command.doctor", lambda run_dir, documents, down: found)
    assert mrcctl("doctor").exit_code == code


def traced(*, broken: bool, sent: int = 20) -> dict[str, Any]:
    """Returns the document of a trace."""
    hop = {"name": "T0 0", "hop": 1, "ok": not broken, "slow": False, "segments": []} | Tally(sent).document()
    return {
        "host": "h0", "peer": "h2", "ev": 6, "plane": 1, "t1": 2, "state": "ASSUMED_BAD", "hops": [hop], "checks": [],
        "verdict": "?", "targets": [], "broken": broken,
    }  # fmt: skip


@pytest.mark.parametrize("of", [["--ev", "6"], []], ids=["one EV", "all that have failed"])
@pytest.mark.parametrize(
    ("found", "code"),
    [(traced(broken=False), 0), (traced(broken=True), 1), (traced(broken=False, sent=0), 2)],
    ids=["works", "broken", "nothing sent"],
)
def test_trace_ends_with_1_if_the_path_is_broken_and_2_if_nothing_was_sent(
    mrcctl: Mrcctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, of: list[str], found: dict[str, Any], code: int
) -> None:
    diagnosed(daemon)
    daemon.answers["/v1/paths"] = (200, [BAD_PATH])
    monkeypatch.setattr("mrcd.ctl.packets.trace.run", lambda *given, **options: found)
    assert mrcctl("trace", "h2", *of).exit_code == code


def test_trace_ends_with_1_if_the_peer_as_a_whole_is_named(mrcctl: Mrcctl, daemon: Daemon) -> None:
    daemon.answers["/v1/paths"] = (200, [BAD_PATH | {"state": "GOOD"}])
    for cause, code in ((DETACHED, 1), (DETACHED | {"target": "peer:h3"}, 0), (T1, 0)):
        diagnosed(daemon, cause)
        assert mrcctl("trace", "h2").exit_code == code, cause


def test_probes_that_could_not_be_sent_are_one_error_and_no_table(
    mrcctl: Mrcctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"ev": 6, "plane": 1, "t1": 2, "state": "GOOD", "carrier": "::", **Tally().document()}
    found = {"peer": "h2", "size_bytes": 9101, "sent": 0, "received": 0, "loss_ratio": None}
    found["evs"] = [row | {"ev": n, "send_error": "longer than the MTU of the NIC"} for n in range(16)]
    monkeypatch.setattr("mrcd.ctl.packets.probe.run", lambda *given, **options: found)
    result = mrcctl("probe", "h2", "--size", "9101")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("mrcctl: no probe was sent: longer than the MTU of the NIC\n  hint: ")
