# SPDX-License-Identifier: BSD-2-Clause
"""Tests the event log: numbers, limits, waiting, and the sentence in the log."""

import asyncio
import json
import logging
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mrcd.health import events
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
