# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrcctl as a process of its own: following events over restarts, and a reader that closes the pipe."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tests.unit.canned_daemon import EVENT, PATH, Daemon

VERSIONED = {"schema_version": 2}


def lines(stream: IO[str] | None, n: int) -> list[str]:
    assert stream is not None
    return [stream.readline() for _ in range(n)]


def test_follow_prints_each_event_at_once(daemon: Daemon, spawn: Callable[..., "subprocess.Popen[str]"]) -> None:
    daemon.add(EVENT)
    child = spawn("events", "--follow", "--json")
    assert json.loads(lines(child.stdout, 1)[0]) == VERSIONED | EVENT
    second, third = ({**EVENT, "id": n, "monotonic_ns": 2000} for n in (2, 3))  # two within one tick of the clock
    daemon.add(second)
    assert json.loads(lines(child.stdout, 1)[0]) == VERSIONED | second
    daemon.add(third)
    assert json.loads(lines(child.stdout, 1)[0]) == VERSIONED | third
    child.send_signal(signal.SIGINT)
    rest, errors = child.communicate(timeout=120)
    assert (child.returncode, rest, errors) == (130, "", "")


def test_follow_table_has_one_heading(daemon: Daemon, spawn: Callable[..., "subprocess.Popen[str]"]) -> None:
    daemon.add(EVENT)
    child = spawn("events", "-f")
    head, first = lines(child.stdout, 2)
    daemon.add({**EVENT, "id": 2, "monotonic_ns": 2000, "peer": None, "kind": "plane", "ev": None, "to": "down"})
    second = lines(child.stdout, 1)[0]
    for name, one, other in (
        ("KIND", "ev ", "plane "),
        ("TO", "ASSUMED_BAD", "down"),
        ("REASON", "overdue", "overdue"),
    ):
        assert head.index(name) == first.index(one) == second.index(other)


def test_follow_continues_after_a_daemon_restart(
    daemon: Daemon, run_dir: Path, spawn: Callable[..., "subprocess.Popen[str]"]
) -> None:
    daemon.add(EVENT, {**EVENT, "id": 2, "monotonic_ns": 2000})
    child = spawn("events", "-f", "--json")
    assert [json.loads(line)["id"] for line in lines(child.stdout, 2)] == [1, 2]
    daemon.stop()
    assert "mrcd is not running" in lines(child.stderr, 1)[0]
    (run_dir / "mrcd.sock").unlink()
    again = Daemon(run_dir)
    try:
        # The daemon remembers an old event under a number of its own, and has a new one.
        again.add({**EVENT, "monotonic_ns": 2000}, {**EVENT, "id": 2, "monotonic_ns": 3000})
        assert json.loads(lines(child.stdout, 1)[0])["monotonic_ns"] == 3000
    finally:
        again.stop()


def test_follow_ends_when_its_reader_ends(daemon: Daemon, spawn: Callable[..., "subprocess.Popen[str]"]) -> None:
    """The command ends although it has nothing to write; otherwise it would stay after `| grep -m1`."""
    daemon.add(EVENT)
    child = spawn("events", "--follow")
    lines(child.stdout, 2)
    assert child.stdout is not None
    child.stdout.close()
    assert child.wait(timeout=120) == 141
    assert child.stderr is not None
    assert child.stderr.read() == ""


def test_a_closed_stdout_is_no_error(daemon: Daemon, spawn: Callable[..., "subprocess.Popen[str]"]) -> None:
    daemon.answers["/v1/paths"] = (200, [PATH] * 5000)
    child = spawn("paths")
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == ""
    assert child.wait(120) == 141
