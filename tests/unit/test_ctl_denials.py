# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrcctl deny, drain, allow, undrain and denials: requests, and output for the answers."""

import json
import os
import pty
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from mrcd import state_dir
from mrcd.denials import record, targets
from mrcd.versions import SCHEMA_VERSION
from tests.unit.canned_daemon import PATH, STATUS, Daemon

Mrcctl = Callable[..., Result]

AFFECTED = {"peer": "h2", "ev": 6, "plane": 1, "t1": 2}
ANSWER: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION,
    "target": "t1:1:2",
    "changed": 1,
    "refused": 0,
    "message": "t1:1:2 is denied: 1 EV to 1 peer",
    "paths": [AFFECTED],
    "saved": True,
    "warning": None,
}
DENIAL: dict[str, Any] = {
    "target": "t1:1:2",
    "action": "drain",
    "reason": "fan tray",
    "uid": 0,
    "since": "2030-01-02T03:04:05+00:00",
    "until": "2030-01-02T03:34:05+00:00",
    "remaining_s": 1700.0,
    "forced": False,
    "evs": 1,
    "in_flight_packets": 0,
    "unreported_evs": 0,
    "empty": True,
    "lost_packets": 0,
}
DENIALS: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION,
    "denials": [DENIAL],
    "pending": False,
    "file": "/var/lib/mrcd/denials.json",
    "saved": True,
    "warning": None,
}


@pytest.fixture(autouse=True)
def _answers(daemon: Daemon) -> None:
    for path in ("/v1/deny", "/v1/allow"):
        daemon.answers[path] = (200, dict(ANSWER))
    daemon.answers["/v1/denials"] = (200, DENIALS)


def test_deny_reports_target_reason_and_paths(mrcctl: Mrcctl, daemon: Daemon) -> None:
    result = mrcctl("deny", "t1:1:2", "--peer", "h2", "--for", "30m", "--reason", "fan tray", "--force")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "t1:1:2 is denied: 1 EV to 1 peer\n  h2 EV 6 (plane 1, T1 2)\n"
    body = {"target": ["t1:1:2"], "peer": "h2", "ev": None, "plane": None, "for": "30m", "reason": "fan tray"}
    assert daemon.requests == [("POST", "/v1/deny", body | {"force": True})]
    assert json.loads(mrcctl("deny", "--plane", "0", "--json").stdout) == ANSWER


def test_many_paths_are_not_all_shown(mrcctl: Mrcctl, daemon: Daemon) -> None:
    daemon.answers["/v1/deny"] = (200, ANSWER | {"paths": [AFFECTED] * 20})
    shown = mrcctl("deny", "--plane", "0").stdout.splitlines()
    assert (len(shown), shown[-1]) == (18, "  and 4 more (all with --json)")


@pytest.mark.parametrize("action", ["allow", "undrain"])
def test_allow_reports_the_paths_that_return(mrcctl: Mrcctl, daemon: Daemon, action: str) -> None:
    assert mrcctl(action, "t1:1:2").exit_code == 0
    body = {"target": ["t1:1:2"], "peer": None, "ev": None, "plane": None, "all": False}
    assert daemon.requests[-1] == ("POST", "/v1/allow", body)
    mrcctl(action, "--all")
    assert daemon.requests[-1][2]["all"] is True
    assert mrcctl(action, "--all", "t1:1:2").exit_code == 1


def test_a_refusal_is_an_error_with_a_remedy(mrcctl: Mrcctl, daemon: Daemon) -> None:
    refused = ANSWER | {"changed": 0, "refused": 4, "message": "too few would be left", "paths": []}
    for action in ("deny", "drain"):
        daemon.answers["/v1/deny"] = (200, refused)
        result = mrcctl(action, "--peer", "h2")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "mrcctl: too few would be left\n  hint: --force denies it nevertheless\n"
        result = mrcctl(action, "--peer", "h2", "--json")
        assert (result.exit_code, json.loads(result.stdout)) == (2, refused)
    daemon.answers["/v1/allow"] = (200, refused)
    assert "mrcctl denials" in mrcctl("allow", "ev:h2:5").stderr
    # A denial was ended, of another target within it.
    daemon.answers["/v1/allow"] = (200, refused | {"ended": ["t1:1:3"]})
    assert mrcctl("allow", "plane:1").exit_code == 0


def test_a_warning_is_not_on_stdout(mrcctl: Mrcctl, daemon: Daemon) -> None:
    daemon.answers["/v1/deny"] = (200, ANSWER | {"saved": False, "warning": "not kept over a restart: ENOSPC"})
    result = mrcctl("deny", "t1:1:2", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["saved"] is False
    assert result.stderr == "mrcctl: warning: not kept over a restart: ENOSPC\n"


def test_drain_waits_until_it_is_empty(mrcctl: Mrcctl, daemon: Daemon) -> None:
    result = mrcctl("drain", "t1:1:2")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith("empty after 0.")
    assert result.stdout.splitlines()[-1].endswith("s, 0 packets lost")
    assert daemon.requests[0][2]["drain"] is True
    document = json.loads(mrcctl("drain", "t1:1:2", "--json").stdout)
    assert (document["empty"], document["denial"]) == (True, DENIAL)


def test_drain_reports_evs_with_packets_in_flight(mrcctl: Mrcctl, daemon: Daemon) -> None:
    busy = DENIAL | {"empty": False, "in_flight_packets": 12, "unreported_evs": 1}
    daemon.answers["/v1/denials"] = (200, DENIALS | {"denials": [busy]})
    result = mrcctl("drain", "t1:1:2", "--wait", "0.05")
    assert result.exit_code == 2
    assert "t1:1:2 is not empty after 0.05 s: 12 packets may be in flight" in result.stderr
    assert len([r for r in daemon.requests if r[1] == "/v1/denials"]) > 1
    daemon.answers["/v1/denials"] = (200, DENIALS | {"denials": []})
    assert "no longer denied" in mrcctl("drain", "t1:1:2").stderr


def test_denials(mrcctl: Mrcctl, daemon: Daemon) -> None:
    assert json.loads(mrcctl("denials", "--json").stdout) == DENIALS | {"source": "daemon"}
    _, line = mrcctl("denials").stdout.splitlines()
    assert " ".join(line.split()) == "t1:1:2 drain 1 0 0 yes 2030-01-02T03:04:05 28 min root fan tray"
    daemon.answers["/v1/denials"] = (200, DENIALS | {"denials": [], "warning": "not kept"})
    result = mrcctl("denials")
    assert (result.stdout, result.stderr) == ("nothing is denied\n", "mrcctl: warning: not kept\n")


def test_without_the_daemon_denials_come_from_the_file(mrcctl: Mrcctl, daemon: Daemon, run_dir: Path) -> None:
    daemon.stop()
    result = mrcctl("denials")
    assert result.exit_code == 2
    assert "there is no" in result.stderr
    record.write(run_dir / state_dir.DENIALS, [record.Denial(targets.parse(["t1:1:2"]), 1.0, reason="fan")])
    result = mrcctl("denials", "--json")
    assert "mrcd is not running; from" in result.stderr
    (denial,) = json.loads(result.stdout)["denials"]
    assert (denial["target"], denial["reason"], denial["remaining_s"]) == ("t1:1:2", "fan", None)
    assert "t1:1:2" in mrcctl("denials").stdout
    (run_dir / state_dir.DENIALS).write_text("{")
    assert mrcctl("denials").exit_code == 2


def test_status_and_paths_say_who_is_denied_and_why(mrcctl: Mrcctl, daemon: Daemon) -> None:
    daemon.answers["/v1/status"] = (200, STATUS | {"denials": [DENIAL]})
    assert "denied      drain t1:1:2 for another 28 min (fan tray)\n" in mrcctl("status").stdout
    daemon.answers["/v1/status"] = (200, STATUS | {"denials": [DENIAL] * 6})
    assert "; and 2 more: see denials\n" in mrcctl("status").stdout
    daemon.answers["/v1/paths"] = (200, [PATH | {"state": "DENIED", "reason": "admin", "denial": DENIAL}])
    assert mrcctl("paths").stdout.splitlines()[1].endswith("drain t1:1:2 for another 28 min (fan tray)")


# ---- completion ----


def complete(monkeypatch: pytest.MonkeyPatch, mrcctl: Mrcctl, *words: str) -> list[str]:
    """Completes as bash does: words broken at colons, joined by line feeds."""
    monkeypatch.setenv("_MRCCTL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    result = mrcctl()
    assert result.stderr == ""
    return [line.split(",", 1)[1] for line in result.stdout.splitlines() if line]


def test_completion_of_targets(mrcctl: Mrcctl, monkeypatch: pytest.MonkeyPatch, daemon: Daemon) -> None:
    daemon.answers["/v1/paths"] = (200, [PATH, PATH | {"ev": 6, "t1": 2}, PATH | {"peer": "h3", "t1": None}])
    assert complete(monkeypatch, mrcctl, "mrcctl", "deny", "t") == ["t1:1:1", "t1:1:2"]
    assert complete(monkeypatch, mrcctl, "mrcctl", "deny", "t1", ":") == ["1:1", "1:2"]
    assert complete(monkeypatch, mrcctl, "mrcctl", "deny", "t1", ":", "1", ":") == ["1", "2"]
    assert complete(monkeypatch, mrcctl, "mrcctl", "drain", "t1", ":", "1", ":", "2") == ["2"]
    assert complete(monkeypatch, mrcctl, "mrcctl", "deny", "t1", ":", "1", ":", "2", "pe") == ["peer:h2", "peer:h3"]
    assert complete(monkeypatch, mrcctl, "mrcctl", "deny", "t1:1:1", "t1:1:") == ["t1:1:1", "t1:1:2"]  # not broken
    assert complete(monkeypatch, mrcctl, "mrcctl", "undrain", "") == ["t1:1:2"]
    assert complete(monkeypatch, mrcctl, "mrcctl", "deny", "ev", ":", "h") == ["h2:5", "h2:6", "h3:5"]


def test_bash_itself_completes_words_with_colons(daemon: Daemon, run_dir: Path) -> None:
    """Uses an interactive bash on a terminal; the text that it completes after TAB comes back as echo."""
    daemon.answers["/v1/paths"] = (200, [PATH, PATH | {"plane": 0, "ev": 1, "t1": 3}])
    child, terminal = pty.fork()
    if child == 0:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        os.environ.update(PATH=path, MRCD_RUN_DIR=str(run_dir), PS1="", TERM="dumb")
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    seen = b""

    def expect(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            ready, _, _ = select.select([terminal], [], [], 10)
            assert ready, seen
            seen += os.read(terminal, 65536)
        seen = b""

    try:
        os.write(terminal, b'source <(mrcctl completion bash); bind "set bell-style none"; echo re"ad"y\n')
        expect(b"ready")
        for typed, completed in ((b"t1:1:", b"t1:1:1 "), (b"t1:0", b"t1:0:3 "), (b"plane:0 pe", b"plane:0 peer:h2 ")):
            os.write(terminal, b"mrcctl deny " + typed + b"\t")
            expect(b"mrcctl deny " + completed)
            os.write(terminal, b"\x15")
    finally:
        os.close(terminal)  # SIGHUP ends it
        os.waitpid(child, 0)
