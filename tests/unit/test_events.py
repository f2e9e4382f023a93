# SPDX-License-Identifier: BSD-2-Clause
"""Tests the event log: numbers, limits, waiting, the sentence in the log, and the file that survives restarts."""

import asyncio
import errno
import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mrcd.health import event_file, events
from mrcd.health.event_file import EventFile
from mrcd.health.events import EventLog, log_line
from mrcd.kernel import abi
from mrcd.kernel.enums import Reason
from tests.unit import simulated_time


def filled(count: int) -> EventLog:
    log = EventLog()
    for i in range(count):
        log.add("daemon", reason=f"r{i + 1}")
    return log


def ids(found: list[dict[str, Any]]) -> list[int]:
    return [e["id"] for e in found]


def test_events_are_numbered_from_one() -> None:
    log = EventLog()
    assert (log.last, log.last_id) == (None, 0)
    log.add("daemon", reason="started")
    log.add("plane", reason="link_down", plane=2)
    assert log.last_id == 2
    assert log.last is not None
    assert log.last["id"] == 2
    assert ids(simulated_time.run(log.after(0, 0))) == [1, 2]
    assert ids(simulated_time.run(log.after(1, 0))) == [2]
    assert simulated_time.run(log.after(2, 0)) == []


@pytest.mark.parametrize("ago_s", [0, 3600])
def test_an_event_says_what_happened_when_and_why(monkeypatch: pytest.MonkeyPatch, ago_s: int) -> None:
    now_ns = 10**15
    monkeypatch.setattr("mrcd.health.events.time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    log, then_ns = EventLog(), now_ns - ago_s * 10**9
    log.add(
        "ev", peer="h2", ev=67, plane=1, t1=3, before="GOOD", after="ASSUMED_BAD", reason="overdue",
        evidence={"silent_reports": 4}, monotonic_ns=then_ns if ago_s else None,
    )  # fmt: skip
    (event,) = simulated_time.run(log.after(0, 0))
    # It has a zone: a time without it means nothing on another host.
    ago = datetime.now(UTC) - datetime.fromisoformat(event.pop("time"))
    assert ago_s <= ago.total_seconds() < ago_s + 600
    assert event.pop("monotonic_ns") == then_ns
    assert event == {
        "id": 1, "kind": "ev", "peer": "h2", "ev": 67, "plane": 1, "t1": 3, "from": "GOOD", "to": "ASSUMED_BAD",
        "reason": "overdue", "evidence": {"silent_reports": 4},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (Reason.OVERDUE, {"silent_reports": 3, "silent_ms": 1.234}),
        (Reason.LOSS, {"lost_packets": 7, "sent_packets": 90}),
        (Reason.ICMP_ERROR, {"icmp": "destination unreachable", "icmp_type": 1, "icmp_code": 5, "silent_ms": 1.234}),
        (Reason.GREY_LOSS, {}),
        (Reason.LINK_DOWN, {}),
        (Reason.HEALED, {"good_probes": 3}),
        (Reason.ADMIN, {}),
    ],
)
def test_an_event_has_the_evidence_of_its_reason(reason: Reason, said: dict[str, object]) -> None:
    record = np.zeros(1, abi.EVENT)
    record["reason"], record["reports"], record["silent_ns"] = reason, 3, 1_234_000
    record["icmp_type"], record["icmp_code"], record["lost_packets"], record["sent_packets"] = 1, 5, 7, 90
    found = events.evidence(record[0])
    assert found == said
    json.dumps(found)
    record["silent_ns"] = 0  # nothing has arrived yet
    assert "silent_ms" not in events.evidence(record[0])


def test_old_events_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT", 5)
    log = filled(12)
    assert ids(simulated_time.run(log.after(0, 0))) == [8, 9, 10, 11, 12]
    assert ids(simulated_time.run(log.after(3, 0))) == [8, 9, 10, 11, 12]  # 4 to 7 are lost, and their numbers show it
    assert ids(simulated_time.run(log.after(10, 0))) == [11, 12]
    assert log.last_id == 12


@pytest.mark.parametrize(("events_before", "behind"), [(1, 1), (0, 500)], ids=["", "an earlier daemon's number"])
def test_all_waiting_clients_are_woken_at_once(events_before: int, behind: int) -> None:
    async def work() -> list[list[int]]:
        log = filled(events_before)
        gone, *waiting = (asyncio.create_task(log.after(behind, 60)) for _ in range(4))
        await asyncio.sleep(0)
        assert not any(w.done() for w in waiting)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        log.add("daemon", reason="a")
        log.add("daemon", reason="b")
        return [ids(await w) for w in waiting]

    assert simulated_time.run(work()) == [[events_before + 1, events_before + 2]] * 3


@pytest.mark.parametrize(
    ("count", "seen", "found"),
    [(3, 3, []), (0, 0, []), (3, 1, [2, 3]), (3, 500, [1, 2, 3])],
    ids=["nothing happens", "empty", "behind", "a number of an earlier daemon"],
)
def test_a_client_waits_only_for_what_it_has_not_seen(count: int, seen: int, found: list[int]) -> None:
    async def work() -> tuple[list[int], float]:
        began = asyncio.get_running_loop().time()
        got = ids(await filled(count).after(seen, 60))
        return got, asyncio.get_running_loop().time() - began

    got, waited_s = simulated_time.run(work())
    assert (got, round(waited_s)) == (found, 0 if found else 60)


EV: dict[str, Any] = {
    "kind": "ev",
    "peer": "h2",
    "ev": 67,
    "plane": 1,
    "t1": 3,
    "from": "GOOD",
    "to": "ASSUMED_BAD",
    "reason": "loss",
    "evidence": {"lost_packets": 12, "sent_packets": 60},
}
NOTHING: dict[str, Any] = dict.fromkeys(EV) | {"evidence": {}}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (EV, "ev h2/67 plane 1 T1 3: GOOD → ASSUMED_BAD: loss (lost_packets 12, sent_packets 60)"),
        ({**EV, "t1": None, "evidence": {}}, "ev h2/67 plane 1: GOOD → ASSUMED_BAD: loss"),
        ({**EV, "ev": 0, "plane": 0, "t1": 0, "evidence": {}}, "ev h2/0 plane 0 T1 0: GOOD → ASSUMED_BAD: loss"),
        ({**NOTHING, "kind": "daemon", "reason": "started"}, "daemon: started"),
        (
            {**NOTHING, "kind": "plane", "plane": 0, "from": "up", "to": "down", "reason": "link_down"},
            "plane 0: up → down: link_down",
        ),
        (
            {**NOTHING, "kind": "peer", "peer": "h1", "to": "detached", "reason": "port_status"},
            "peer h1: detached: port_status",
        ),
    ],
)
def test_sentence(event: dict[str, Any], text: str) -> None:
    assert log_line(event) == text


def test_an_event_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mrcd.health.events"):
        EventLog().add("ev", peer="h2", ev=5, plane=1, before="GOOD", after="DENIED", reason="admin")
    assert caplog.messages == ["ev h2/5 plane 1: GOOD → DENIED: admin"]


# ---- the file ----


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
