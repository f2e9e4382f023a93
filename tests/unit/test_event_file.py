# SPDX-License-Identifier: BSD-2-Clause
"""Tests that events survive restarts, crashes, upgrades, reboots and full disks, in a bounded file."""

import asyncio
import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from mrcd.health import event_file
from mrcd.health.event_file import EventFile
from mrcd.health.events import EventLog
from mrcd.kernel.enums import Reason


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / event_file.FILE


def told(log: EventLog) -> list[tuple[int, str]]:
    return [(e["id"], e["reason"]) for e in asyncio.run(log.after(0, 0))]


def started(path: Path, *reasons: str) -> EventLog:
    """Returns the log of a daemon that starts, and adds events."""
    log = EventLog(EventFile(path))
    for reason in reasons:
        log.add("daemon", reason=reason, evidence={"path": "é → ü"})
    return log


def test_a_restart_continues_the_events_and_their_numbers(path: Path) -> None:
    before = asyncio.run(started(path, "started", "reloaded").after(0, 0))
    log = started(path, "again")
    assert told(log) == [(1, "started"), (2, "reloaded"), (3, "again")]
    assert asyncio.run(log.after(0, 0))[:2] == before
    assert log.last_id == 3
    assert told(EventLog(EventFile(path.with_name("other")))) == []


def test_probes_of_new_evs_are_not_kept(path: Path) -> None:
    log = started(path, Reason.PROBED.text, "reloaded")
    assert told(log) == [(1, Reason.PROBED.text), (2, "reloaded")]
    assert told(started(path)) == [(2, "reloaded")]


@pytest.mark.parametrize(
    "rest",
    [b'{"id": 3, "time": "2030-', b"\xff\xfe\n", b"[]\n", b'{"id": "x"}\n', b"[" * 100_000 + b"\n", b"\n\n"],
)
def test_a_line_that_is_no_event_is_skipped(path: Path, rest: bytes) -> None:
    started(path, "a", "b")
    with path.open("ab") as file:
        file.write(rest)
    assert told(started(path, "c")) == [(1, "a"), (2, "b"), (3, "c")]
    assert told(started(path)) == [(1, "a"), (2, "b"), (3, "c")]


def test_another_version_may_have_other_keys(path: Path) -> None:
    log = started(path, "a")
    event = json.loads(path.read_text())
    path.write_text(json.dumps(event | {"new": 1}) + "\n" + json.dumps({**event, "id": 2, "evidence": None}) + "\n")
    assert told(started(path)) == [(1, "a")]
    assert asyncio.run(EventLog(EventFile(path)).after(0, 0))[0].keys() == asyncio.run(log.after(0, 0))[0].keys()


def test_events_before_the_last_boot_have_no_monotonic_time(path: Path) -> None:
    started(path, "a", "b")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["boot_id"] = "another"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = asyncio.run(started(path).after(0, 0))
    assert (first["monotonic_ns"], first["time"]) == (0, lines[0]["time"])
    assert second["monotonic_ns"] == lines[1]["monotonic_ns"]


def test_numbers_rise_although_an_earlier_daemon_could_not_read_the_file(path: Path) -> None:
    started(path, "a", "b", "c")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line, number in zip(lines, (8, 9, 3), strict=True):
        line["id"] = number
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert told(started(path)) == [(1, "a"), (2, "b"), (3, "c")]


def test_the_files_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "MOST_BYTES", 2000)
    log = started(path, *(f"r{i}" for i in range(100)))
    files = list(path.parent.iterdir())
    assert sorted(f.name for f in files) == ["events.jsonl", "events.jsonl.1"]
    assert all(f.stat().st_size <= 2000 for f in files)
    again = told(EventLog(EventFile(path)))
    assert 6 <= len(again) < 20
    assert again == told(log)[-len(again) :]
    monkeypatch.setattr(event_file, "MOST", 2)
    assert [e["id"] for e in event_file.read(path, 2)] == [99, 100]


def test_a_deleted_file_is_made_again(path: Path) -> None:
    log = started(path, "a")
    path.unlink()
    log.add("daemon", reason="b")
    assert told(started(path)) == [(2, "b")]


def test_a_full_disk_is_said_once_and_later_events_are_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    log = EventLog(EventFile(path, lambda: now[0]))
    log.add("daemon", reason="a")
    write, tries = os.write, list[int]()

    def full(descriptor: int, line: bytes) -> int:
        tries.append(1)
        if len(tries) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, line[:20])

    with monkeypatch.context() as patched, caplog.at_level(logging.INFO, logger="mrcd.health.event_file"):
        patched.setattr(os, "write", full)
        for _ in range(5):
            log.add("daemon", reason="b")
        now[0] += 11
        log.add("daemon", reason="c")
    assert len(tries) == 2
    assert caplog.messages == [
        f"{path}: no space for a whole line: a restart of mrcd will lose the events from here on"
    ]
    now[0] += 11
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="mrcd.health.event_file"):
        log.add("daemon", reason="d")
    assert caplog.messages == [f"{path}: events are kept again"]
    assert [reason for _, reason in told(log)] == ["a", *"bbbbb", "c", "d"]  # the memory has all
    assert [reason for _, reason in told(started(path))] == ["a", "d"]


def test_an_unreadable_file_is_no_obstacle(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.mkdir(parents=True)
    log = started(path, "a")
    assert told(log) == [(1, "a")]
    assert "earlier events are not shown" in caplog.messages[0]


def test_reading_follows_no_link(path: Path, tmp_path: Path) -> None:
    started(tmp_path / "elsewhere", "a")
    path.parent.mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        event_file.read(path, 10)


def test_the_file_is_not_for_everybody(path: Path) -> None:
    started(path, "a")
    mode: Any = path.stat().st_mode & 0o777
    assert mode & 0o007 == 0
