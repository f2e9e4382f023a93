# SPDX-License-Identifier: BSD-2-Clause
"""Tests how `mrcctl drain` waits, `mrcctl denials` without the daemon, and the completion of targets."""

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
from tests.unit.canned_daemon import PATH, Daemon
from tests.unit.conftest import TestClock

Mrcctl = Callable[..., Result]

ANSWER = {"target": "t1:1:2", "changed": 1, "refused": 0, "message": "denied", "paths": [], "warning": None}
DENIAL: dict[str, Any] = {
    "target": "t1:1:2", "action": "drain", "reason": "fan tray", "uid": 0, "since": "2030-01-02T03:04:05+00:00",
    "remaining_s": 1700.0, "evs": 1, "in_flight_packets": 0, "unreported_evs": 0, "empty": True, "lost_packets": 0,
}  # fmt: skip
DENIALS: dict[str, Any] = {"denials": [DENIAL], "file": "/var/lib/mrcd/denials.json", "warning": None}


@pytest.fixture(autouse=True)
def _answers(daemon: Daemon) -> None:
    for path in ("/v1/deny", "/v1/allow"):
        daemon.answers[path] = (200, dict(ANSWER))
    daemon.answers["/v1/denials"] = (200, DENIALS)


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


# ---- completion ----


def test_completion_of_targets(complete: Callable[..., list[str]], daemon: Daemon) -> None:
    daemon.answers["/v1/paths"] = (200, [PATH, PATH | {"ev": 6, "t1": 2}, PATH | {"peer": "h3", "t1": None}])
    assert complete("mrcctl", "deny", "t") == ["t1:1:1", "t1:1:2"]
    assert complete("mrcctl", "deny", "t1", ":") == ["1:1", "1:2"]
    assert complete("mrcctl", "deny", "t1", ":", "1", ":") == ["1", "2"]
    assert complete("mrcctl", "drain", "t1", ":", "1", ":", "2") == ["2"]
    assert complete("mrcctl", "deny", "t1", ":", "1", ":", "2", "pe") == ["peer:h2", "peer:h3"]
    assert complete("mrcctl", "deny", "t1:1:1", "t1:1:") == ["t1:1:1", "t1:1:2"]  # not broken
    assert complete("mrcctl", "undrain", "") == ["t1:1:2"]
    assert complete("mrcctl", "deny", "ev", ":", "h") == ["h2:5", "h2:6", "h3:5"]


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


def test_drain_waits_until_it_is_empty(mrcctl: Mrcctl, daemon: Daemon, clock: TestClock) -> None:
    """It is empty after the third pause."""
    answers = [DENIALS | {"denials": [DENIAL | {"empty": n == 0}]} for n in range(3)]
    daemon.answers["/v1/denials"] = (200, answers[2])
    clock.asleep = lambda: daemon.answers.update({"/v1/denials": (200, answers.pop())})
    document = json.loads(mrcctl("drain", "t1:1:2", "--json").stdout)
    assert (document["empty"], document["denial"], document["waited_s"]) == (True, DENIAL, 0.06)
