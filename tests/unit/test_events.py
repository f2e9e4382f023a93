# SPDX-License-Identifier: BSD-2-Clause
"""Tests the event log: numbers, limits, waiting, and the sentence in the log."""

import asyncio
import json
import logging
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import pytest

from mrcd.health import events
from mrcd.health.events import EventLog, log_line
from mrcd.kernel import abi
from mrcd.kernel.enums import Reason

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(5):
            return await work

    return asyncio.run(bounded())


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
    assert ids(run(log.after(0, 0))) == [1, 2]
    assert ids(run(log.after(1, 0))) == [2]
    assert run(log.after(2, 0)) == []


def test_an_event_says_what_happened_when_and_why() -> None:
    log = EventLog()
    log.add(
        "ev", peer="h2", ev=67, plane=1, t1=3, before="GOOD", after="ASSUMED_BAD", reason="overdue",
        evidence={"silent_reports": 4},
    )  # fmt: skip
    (event,) = run(log.after(0, 0))
    moment = datetime.fromisoformat(event.pop("time"))
    assert moment.utcoffset() is not None  # a time without its zone means nothing on another host
    assert event.pop("monotonic_ns") > 0
    assert event == {
        "id": 1,
        "kind": "ev",
        "peer": "h2",
        "ev": 67,
        "plane": 1,
        "t1": 3,
        "from": "GOOD",
        "to": "ASSUMED_BAD",
        "reason": "overdue",
        "evidence": {"silent_reports": 4},
    }


def test_an_event_may_have_been_earlier() -> None:
    log = EventLog()
    log.add("ev", reason="overdue", monotonic_ns=time.monotonic_ns() - 3_600_000_000_000)
    (event,) = run(log.after(0, 0))
    ago = datetime.now(UTC) - datetime.fromisoformat(event["time"])
    assert ago.total_seconds() == pytest.approx(3600, abs=1)
    assert time.monotonic_ns() - event["monotonic_ns"] >= 3_600_000_000_000


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


def test_a_path_without_arrivals_has_no_silent_time() -> None:
    record = np.zeros(1, abi.EVENT)
    record["reason"], record["reports"] = Reason.OVERDUE, 8
    assert events.evidence(record[0]) == {"silent_reports": 8}


def test_every_event_has_the_same_keys() -> None:
    log = filled(1)
    log.add("ev", peer="h2", ev=1, plane=1, t1=1, before="GOOD", after="SKIP", reason="x", evidence={"a": 1})
    few, many = run(log.after(0, 0))
    assert few.keys() == many.keys()
    assert few["peer"] is few["ev"] is few["from"] is None
    assert few["evidence"] == {}


def test_old_events_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT", 5)
    log = filled(12)
    assert ids(run(log.after(0, 0))) == [8, 9, 10, 11, 12]
    assert ids(run(log.after(3, 0))) == [8, 9, 10, 11, 12]  # 4 to 7 are lost, and their numbers show it
    assert ids(run(log.after(10, 0))) == [11, 12]
    assert log.last_id == 12


def test_the_log_is_bounded() -> None:
    assert 1000 <= events.KEPT <= 100_000


def test_a_waiting_client_gets_the_next_event_at_once() -> None:
    async def work() -> list[dict[str, Any]]:
        log = filled(3)
        waiting = asyncio.create_task(log.after(3, 60))
        await asyncio.sleep(0)
        assert not waiting.done()
        log.add("daemon", reason="next")
        return await waiting

    assert [(e["id"], e["reason"]) for e in run(work())] == [(4, "next")]


def test_all_waiting_clients_are_woken() -> None:
    async def work() -> list[list[int]]:
        log = filled(1)
        waiting = [asyncio.create_task(log.after(1, 60)) for _ in range(3)]
        await asyncio.sleep(0)
        log.add("daemon", reason="a")
        log.add("daemon", reason="b")
        return [ids(await w) for w in waiting]

    assert run(work()) == [[2, 3]] * 3


def test_a_client_that_follows_misses_nothing() -> None:
    async def work() -> list[int]:
        log = EventLog()
        seen: list[int] = []

        async def follow() -> None:
            while len(seen) < 100:
                seen.extend(ids(await log.after(seen[-1] if seen else 0, 60)))

        follower = asyncio.create_task(follow())
        for i in range(100):
            log.add("daemon", reason=str(i))
            if i % 7 == 0:
                await asyncio.sleep(0)
        await follower
        return seen

    assert run(work()) == list(range(1, 101))


def test_waiting_ends_with_nothing_when_nothing_happens() -> None:
    assert run(filled(3).after(3, 0.01)) == []
    assert run(EventLog().after(0, 0.01)) == []


def test_a_client_that_is_behind_does_not_wait() -> None:
    assert ids(run(filled(3).after(1, 60))) == [2, 3]


def test_an_event_number_of_an_earlier_daemon_returns_all_events() -> None:
    assert ids(run(filled(3).after(500, 60))) == [1, 2, 3]

    async def waiting() -> list[int]:
        log = EventLog()
        client = asyncio.create_task(log.after(500, 60))
        await asyncio.sleep(0)
        log.add("daemon", reason="started")
        return ids(await client)

    assert run(waiting()) == [1]


def test_a_client_that_goes_away_leaves_the_log_working() -> None:
    async def work() -> list[int]:
        log = filled(1)
        client = asyncio.create_task(log.after(1, 60))
        await asyncio.sleep(0)
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        log.add("daemon", reason="x")
        return ids(await log.after(1, 60))

    assert run(work()) == [2]


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
NOTHING: dict[str, Any] = dict.fromkeys(EV)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (EV, "ev h2/67 plane 1 T1 3: GOOD → ASSUMED_BAD: loss (lost_packets 12, sent_packets 60)"),
        ({**EV, "t1": None, "evidence": {}}, "ev h2/67 plane 1: GOOD → ASSUMED_BAD: loss"),
        ({**EV, "ev": 0, "plane": 0, "t1": 0, "evidence": {}}, "ev h2/0 plane 0 T1 0: GOOD → ASSUMED_BAD: loss"),
        ({**NOTHING, "kind": "daemon", "reason": "started", "evidence": {}}, "daemon: started"),
    ],
)
def test_sentence(event: dict[str, Any], text: str) -> None:
    assert log_line(event) == text


def test_a_sentence_about_a_plane_or_a_peer() -> None:
    plane = {**NOTHING, "kind": "plane", "plane": 0, "from": "up", "to": "down", "reason": "link_down", "evidence": {}}
    assert log_line(plane).endswith("plane 0: up → down: link_down")
    peer = {**NOTHING, "kind": "peer", "peer": "h1", "to": "detached", "reason": "port_status", "evidence": {}}
    assert log_line(peer) == "peer h1: detached: port_status"


def test_an_event_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mrcd.health.events"):
        EventLog().add("ev", peer="h2", ev=5, plane=1, before="GOOD", after="DENIED", reason="admin")
    assert caplog.messages == ["ev h2/5 plane 1: GOOD → DENIED: admin"]


def test_sentence_about_a_plane() -> None:
    event = dict.fromkeys(("peer", "ev", "t1")) | {"kind": "plane", "plane": 0, "from": "up", "to": "down"}
    assert log_line(event | {"reason": "link_down", "evidence": {}}) == "plane 0: up → down: link_down"
