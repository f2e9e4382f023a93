"""The monitor over tables and programs that are played: what it tells, decides and asks for."""

import asyncio
from typing import cast

import numpy as np
import pytest

from mrcd import abi, grey, peerwatch, tables
from mrcd.abi import EvState, Reason
from mrcd.dataplane import Dataplane
from mrcd.monitor import Monitor
from tests.unit.played import MS, Bench

# ---- what the programs tell ----


def test_transitions_are_told_with_their_evidence() -> None:
    b = Bench()
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE, trials=8, silent_ns=1_500_000)
    b.monitor.drain()
    (event,) = b.said()
    assert (event["peer"], event["ev"], event["plane"], event["t1"]) == ("h1", 5, 1, 1)
    assert (event["from"], event["to"], event["reason"]) == ("GOOD", "ASSUMED_BAD", "overdue")
    assert event["evidence"] == {"silent_reports": 8, "silent_ms": 1.5}
    assert event["monotonic_ns"] == b.programs.now


def test_what_happened_before_the_daemon_came_is_told_too() -> None:
    b = Bench()
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.LOSS, lost_packets=3, sent_packets=30)
    dataplane = cast(Dataplane, b.programs)
    again = Monitor(b.plan, cast(tables.Tables, b.arrays), dataplane, b.log, b.changed.append)
    assert [e["evidence"] for e in b.said()] == [{"lost_packets": 3, "sent_packets": 30}]
    b.programs.now += 10**10
    again._tick(b.programs.now)
    assert b.said("daemon") == []


def test_an_event_of_a_path_that_is_not_configured_any_more_is_not_told() -> None:
    b = Bench()
    b.programs.change(3, 7, EvState.GOOD, Reason.PROBED)
    b.programs.change(0, 0, EvState.GOOD, Reason.PROBED)
    b.monitor.drain()
    assert len(b.said()) == 1


def test_a_lost_event_is_noticed_in_the_table() -> None:
    b = Bench()
    b.programs.full = True
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE)
    b.programs.full = False
    b.arrays.ledgers["lag_ns"][1, 5] = 1
    b.tick(100)
    assert b.said("daemon") == []  # it may be on its way
    for _ in range(20):
        b.tick(100)
    assert b.said() == []
    (event,) = b.said("daemon")
    assert (event["reason"], event["evidence"]) == ("events_lost", {"evs": 1})


def test_a_lost_event_is_noticed_by_the_next_one() -> None:
    b = Bench()
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE)
    b.programs.full = True
    b.programs.change(1, 5, EvState.GOOD, Reason.HEALED)
    b.programs.full = False
    b.arrays.evs["state"][1, 5] = EvState.SKIP
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.LOSS)
    b.monitor.drain()
    assert [e["evidence"] for e in b.said("daemon")] == [{"evs": 1}]
    assert len(b.said()) == 2


# ---- what the daemon decides ----


def test_an_ev_returns_with_its_least_weight() -> None:
    b = Bench()
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE)
    b.arrays.evs["relapses"][1, 5] = 1
    seen = []
    for _ in range(30):
        b.tick(100)
        seen.append((EvState(int(b.arrays.evs["state"][1, 5])), int(b.arrays.evs["weight"][1, 5])))
    assert (EvState.GOOD, 1) in seen
    assert (EvState.GOOD, 8) not in seen[: seen.index((EvState.GOOD, 1))]
    assert seen[-1] == (EvState.GOOD, 8)
    healed = b.said()[-1]
    assert (healed["reason"], healed["evidence"]["hold_down_ms"]) == ("healed", 1000)


def test_a_verdict_that_comes_too_late_changes_nothing() -> None:
    b = Bench(EvState.UNKNOWN)
    b.arrays.ledgers["good"] += 1
    b.arrays.evs["state"][1, 5] = EvState.UNKNOWN
    refused = b.programs.steer
    b.programs.steer = lambda *args: False if args[:2] == (1, 5) else refused(*args)  # type: ignore[method-assign]
    b.tick(100)
    assert b.arrays.evs["state"][1, 5] == EvState.UNKNOWN
    assert "h1/5" not in {f"{e['peer']}/{e['ev']}" for e in b.said()}


def test_a_grey_failure_is_left_with_the_evidence_of_the_test() -> None:
    b = Bench()
    for _ in range(200):
        b.arrays.evs["tx_packets"][1] += 100
        b.arrays.ledgers["judged"][1] += 100
        b.arrays.ledgers["deficit"][1, 2] += 1
        b.tick()
        if b.said():
            break
    (event,) = b.said()
    assert (event["peer"], event["ev"], event["to"], event["reason"]) == ("h1", 2, "ASSUMED_BAD", "grey_loss")
    assert event["evidence"].keys() == {"lost_packets", "sent_packets", "window_s", "usual_loss_ratio"}
    assert event["evidence"]["window_s"] <= grey.WINDOWS_S[1] + 1


def test_a_peer_that_answers_nothing_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peerwatch, "_PATIENCE_S", -1.0)
    b = Bench()
    for _ in range(30):
        b.tick(100, answered=False)
    assert [(e["peer"], e["to"], e["reason"]) for e in b.said("peer")][-3:] == [
        (f"h{i}", "unreachable", "no_replies") for i in (1, 2, 3)
    ]
    count = len(b.said("peer"))
    b.tick(100)
    b.tick(100)
    assert {(e["peer"], e["to"]) for e in b.said("peer")[count:]} == {(f"h{i}", "reachable") for i in (1, 2, 3)}
    assert b.said() == []


# ---- sweeps ----


def sweeps(
    b: Bench, ms: int, step: int, row: int, *, answered: bool = True, traffic: bool = False, probes: bool = True
) -> int:
    b.programs.swept.clear()
    for _ in range(ms // step):
        if traffic:
            b.arrays.evs["tx_packets"][row] += 1
            b.arrays.rounds["round"][row] += probes
        b.tick(step, answered=answered)
    return b.programs.swept.count(row)


def test_peers_are_swept_often_where_a_flow_may_have_stalled() -> None:
    b = Bench()
    assert sweeps(b, 2000, 20, 1) == pytest.approx(20, abs=2)
    assert sweeps(b, 1000, 20, 1, traffic=True) == pytest.approx(10, abs=2)  # traffic brings its own probes
    assert sweeps(b, 1000, 20, 1) == pytest.approx(50, abs=2)
    assert b.programs.swept.count(2) == pytest.approx(10, abs=1)
    sweeps(b, 2000, 20, 1)
    assert sweeps(b, 1000, 20, 1) == pytest.approx(10, abs=2)  # it is quiet


def test_traffic_that_carries_no_probes_needs_sweeps() -> None:
    b = Bench()
    assert sweeps(b, 1000, 20, 1, traffic=True, probes=False) == pytest.approx(50, abs=2)


def test_a_flow_that_stops_is_asked_about_at_once_and_once_more() -> None:
    b = Bench()
    stalled = np.zeros(1, abi.EVENT)
    stalled["host_id"], stalled["ev"] = 1, abi.EVENT_STALLED

    async def listen(times: int) -> list[int]:
        again = asyncio.Event()
        at_once = b.programs.sweep

        def sweep(host_id: int) -> int:
            if b.programs.swept:
                again.set()
            return at_once(host_id)

        b.programs.sweep = sweep  # type: ignore[method-assign]
        b.programs.swept.clear()
        for _ in range(times):
            b.programs.ring.append(stalled)
            b.monitor._listen()
        now = len(b.programs.swept)
        await again.wait()
        return [now, *b.programs.swept]

    assert asyncio.run(asyncio.wait_for(listen(3), 5)) == [1, 1, 1]  # not for each alarm, and nobody else
    assert b.said() == []


def test_an_ev_that_may_return_is_tried_often() -> None:
    b = Bench()
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE)
    assert sweeps(b, 1000, 20, 1) == pytest.approx(50, abs=5)


def test_a_missing_reply_makes_sweeps_frequent() -> None:
    b = Bench()
    assert sweeps(b, 200, 5, 1, answered=False) == pytest.approx(20, abs=2)
    assert not b.monitor._hurry  # nobody's traffic waits for it
    sweeps(b, 5, 5, 1, traffic=True)
    assert sweeps(b, 200, 5, 1, answered=False) >= 25
    assert b.monitor._hurry


def test_an_ev_that_has_never_answered_hurries_nobody() -> None:
    b = Bench()
    b.arrays.evs["state"][1, 5] = EvState.UNKNOWN
    for _ in range(100):
        b.tick(20)
        b.arrays.ledgers["reply_seq"][1, 5] = 0
        assert not b.monitor._hurry


def test_a_peer_that_went_by_its_own_word_is_not_chased() -> None:
    b = Bench()
    b.arrays.peers["status"][1] = abi.STATUS_DETACHED
    assert sweeps(b, 1000, 20, 1, answered=False) <= 12
    assert sweeps(b, 1000, 20, 2, answered=False) >= 40  # another one is


def test_replies_that_are_on_their_way_are_not_missing() -> None:
    b = Bench()
    sweeps(b, 200, 20, 1, traffic=True)
    b.arrays.ledgers["reply_seq"] = b.arrays.evs["probe_seq"]
    b.arrays.evs["probe_seq"][1] += 1  # rode on a packet
    b.arrays.ledgers["probe_ns"][1] = b.programs.now + 19 * MS
    b.tick(20, answered=False)
    assert not b.monitor._hurry


def test_an_ev_that_lags_makes_sweeps_frequent() -> None:
    b = Bench()
    b.arrays.ledgers["lag_ns"][1, 2] = b.programs.now
    assert sweeps(b, 200, 5, 1) == pytest.approx(20, abs=2)
    assert sweeps(b, 200, 5, 1, traffic=True) <= 5  # the programs ask with each burst
    assert sweeps(b, 200, 5, 1) >= 25  # it has stalled
