"""The monitor over tables and programs that are played: what it tells, decides and asks for."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from mrcd import abi, giveway, grey, monitor, peerwatch, tables
from mrcd.abi import EvState, Reason
from mrcd.dataplane import Dataplane
from mrcd.health import Verdict
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


# ---- who needs no visit ----


def visits(b: Bench, ms: int, *, answered: bool = True) -> list[int]:
    """Rows in the order in which they were judged."""
    found: list[int] = []
    judge = b.monitor._judge.judge

    def judged(*known: Any) -> Verdict:
        found.extend(known[0].tolist())
        return judge(*known)

    b.monitor._judge.judge = judged  # type: ignore[method-assign,assignment]
    for _ in range(ms // 20):
        b.tick(20, answered=answered)
    b.monitor._judge.judge = judge  # type: ignore[method-assign]
    return found


def test_a_quiet_peer_that_is_well_is_judged_once_a_second_and_swept_as_often_as_ever() -> None:
    b = Bench()
    for _ in range(100):
        b.tick(20)
    b.programs.swept.clear()
    found = visits(b, 4000)
    assert [found.count(row) for row in (1, 2, 3)] == pytest.approx([4] * 3, abs=1)
    assert [b.programs.swept.count(row) for row in (1, 2, 3)] == pytest.approx([40] * 3, abs=3)


@pytest.mark.parametrize("what", ["traffic", "received", "reply", "lag", "state"])
def test_what_is_new_of_a_quiet_peer_is_judged_at_its_next_turn(what: str) -> None:
    b = Bench()
    for _ in range(100):
        b.tick(20)
    for _ in range(4):  # at whichever of its turns
        visits(b, 1020)
        if what == "traffic":  # of a kind that carries no probes
            b.arrays.evs["tx_packets"][1, 3] += 1
        elif what == "received":
            b.arrays.rxs["packets"][1, 3] += 1
        elif what == "reply":
            b.arrays.evs["probe_seq"][1, 3] += 1
        elif what == "lag":
            b.arrays.ledgers["lag_ns"][1, 3] = b.programs.now
        else:
            b.programs.change(1, 3, EvState.ASSUMED_BAD, Reason.LOSS)
        found = visits(b, 100, answered=what != "reply")  # an idle interval
        assert 1 in found
        b.arrays.ledgers["lag_ns"][:] = 0
        b.tick(2500)


def test_silence_is_told_as_soon_where_nobody_was_judged_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peerwatch, "_PATIENCE_S", -1.0)
    b = Bench()
    for _ in range(120):
        b.tick(20)
    took_ms = 0
    while not [e for e in b.said("peer") if e["reason"] == "no_replies"]:
        b.tick(20, answered=False)
        took_ms += 20
    assert took_ms <= 100 + 20 * (b.plan.config.health.unanswered + 2)


# ---- what peers are told ----


def test_peers_are_told_when_the_paths_are_watched_and_not_before() -> None:
    b = Bench()
    told = os.eventfd(0, os.EFD_NONBLOCK)
    b.programs.events_fd = lambda: told  # type: ignore[attr-defined]

    async def watch() -> None:
        b.monitor.announce()
        assert b.programs.swept == []
        running = asyncio.create_task(b.monitor.run())
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})

    try:
        asyncio.run(asyncio.wait_for(watch(), 10))
    finally:
        os.close(told)
    assert sorted(b.programs.swept[:3]) == [1, 2, 3]


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
    assert sweeps(b, 300, 20, 1) == pytest.approx(15, abs=3)
    assert b.programs.swept.count(2) == pytest.approx(3, abs=1)
    assert sweeps(b, 1000, 20, 1) == pytest.approx(10, abs=2)  # it has ended


@pytest.mark.parametrize("state", [EvState.GOOD, EvState.DENIED])
def test_the_daemon_wakes_once_for_all_that_are_quiet(state: EvState) -> None:
    b = Bench()
    b.live(1000)
    b.arrays.evs["state"][1, 3] = state
    b.programs.swept.clear()
    ticks = b.live(2000)
    assert len(ticks) == pytest.approx(20, abs=1)
    assert max(np.diff(ticks)) <= 110 * MS
    assert [b.programs.swept.count(row) for row in (1, 2, 3)] == pytest.approx([20] * 3, abs=1)


def test_the_daemon_looks_soon_however_seldom_it_probes() -> None:
    b = Bench(settings="[health]\nidle_interval_ms = 5000\n")
    b.live(6000)
    b.programs.swept.clear()
    b.live(10_000)
    assert b.programs.swept.count(1) == pytest.approx(2, abs=1)
    b.programs.swept.clear()
    b.arrays.evs["tx_packets"][1] += 1  # of a kind that carries no probes
    b.arrays.rounds["round"][1] += 1
    b.live(200)
    assert b.programs.swept.count(1) > 2


@pytest.mark.parametrize("interval_ms", [100, 120, 149, 160, 249, 260, 1000])
def test_quiet_peers_are_swept_as_often_as_configured(interval_ms: int) -> None:
    b = Bench(settings=f"[health]\nidle_interval_ms = {interval_ms}\n")
    b.live(3000)
    b.programs.swept.clear()
    b.live(50 * interval_ms)
    assert [b.programs.swept.count(row) for row in (1, 2, 3)] == pytest.approx([50] * 3, abs=2)


def test_quiet_peers_that_there_is_no_time_for_are_swept_in_the_next_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Bench()
    b.live(1000)
    monkeypatch.setattr(giveway, "until", lambda: 0.0)
    monkeypatch.setattr(monitor, "_AT_ONCE", 1)
    b.programs.swept.clear()
    behind = []
    for _ in range(400):
        b.tick(5)
        behind.append(b.monitor._behind)
    assert [b.programs.swept.count(row) for row in (1, 2, 3)] == pytest.approx([20] * 3, abs=2)
    assert any(behind)
    assert not all(behind)


@pytest.mark.parametrize("probes", ["", "idle_probes = 100\n"])  # few peers, and many
@pytest.mark.parametrize("pause_ms", [150, 400, 1000, 1900])
def test_traffic_that_goes_on_after_a_pause_is_looked_at_soon(probes: str, pause_ms: int) -> None:
    b = Bench(settings="[health]\n" + probes)
    b.live(3000)
    sweeps(b, 500, 20, 1, traffic=True)
    b.live(pause_ms)
    b.arrays.evs["tx_packets"][1] += 1
    b.arrays.rounds["round"][1] += 1
    looked = b.monitor._visited_ns[1]
    b.live(200)
    assert b.monitor._visited_ns[1] > looked
    assert b.monitor._who.busy_ns[1] > b.programs.now - 220 * MS


def test_a_flow_that_stops_is_asked_about_several_times_however_seldom_that_is() -> None:
    b = Bench(settings="[health]\nprobe_interval_ms = 500\nidle_interval_ms = 5000\n")
    sweeps(b, 3000, 500, 1, traffic=True)
    assert sweeps(b, 2500, 500, 1) >= 3


def test_traffic_that_carries_no_probes_needs_sweeps() -> None:
    b = Bench()
    sweeps(b, 100, 20, 1, traffic=True, probes=False)  # by then it is noticed
    assert sweeps(b, 1000, 20, 1, traffic=True, probes=False) == pytest.approx(50, abs=2)


def test_a_flow_that_stops_is_asked_about_at_once_and_once_more() -> None:
    b = Bench()
    stalled = np.zeros(1, abi.EVENT)
    stalled["host_id"], stalled["ev"] = 1, abi.EVENT_STALLED

    async def listen(times: int) -> list[int]:
        again = asyncio.Event()
        at_once = b.programs.sweep

        def sweep(host_id: int, first: int = 0, count: int = 0) -> int:
            if b.programs.swept:
                again.set()
            return at_once(host_id)

        b.programs.sweep = sweep  # type: ignore[method-assign]
        b.programs.swept.clear()
        for _ in range(times):
            b.programs.ring.append(stalled)
            b.monitor.listen()
        now = len(b.programs.swept)
        await again.wait()
        return [now, *b.programs.swept]

    assert asyncio.run(asyncio.wait_for(listen(3), 5)) == [1, 1, 1]  # not for each alarm, and nobody else
    assert b.said() == []


def test_who_rests_among_many_quiet_peers_looks_soon_where_a_flow_has_stopped() -> None:
    b = Bench(settings="[health]\nidle_probes = 100")
    stalled = np.zeros(1, abi.EVENT)
    stalled["host_id"], stalled["ev"] = 1, abi.EVENT_STALLED
    told = os.eventfd(0, os.EFD_NONBLOCK)
    b.programs.events_fd = lambda: told  # type: ignore[attr-defined]
    took, watch = b.programs.events, b.monitor

    def events() -> NDArray[np.void]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(told)
        return took()

    b.programs.events = events  # type: ignore[method-assign]

    async def wait(what: Callable[[float], bool]) -> float:
        """Until the next look is, in so many seconds, what is said of it."""
        clock = asyncio.get_running_loop().time
        for _ in range(5_000):
            await asyncio.sleep(0.001)
            if watch._next and what(left_s := watch._next.when() - clock()):
                return left_s
        raise TimeoutError

    async def listen() -> None:
        watch._who.busy_ns[:] = 0  # whatever the clock of this machine says
        running = asyncio.create_task(watch.run())
        await wait(lambda left_s: left_s > 0.06)
        b.programs.swept.clear()
        b.programs.ring.append(stalled)
        os.eventfd_write(told, 1)
        begun = time.monotonic()
        await wait(lambda left_s: bool(b.programs.swept))
        assert (await wait(lambda _: True)) <= 0.02 or time.monotonic() - begun > 0.05  # it has been there meanwhile
        running.cancel()
        await asyncio.wait({running})

    try:
        asyncio.run(asyncio.wait_for(listen(), 10))
    finally:
        os.close(told)


def test_an_ev_that_may_return_is_tried_often() -> None:
    b = Bench()
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE)
    assert sweeps(b, 1000, 20, 1) == pytest.approx(50, abs=5)


def test_a_missing_reply_makes_sweeps_frequent() -> None:
    b = Bench()
    sweeps(b, 100, 20, 1, answered=False)  # by then it is noticed
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
    sweeps(b, 100, 20, 1)  # by then it is noticed
    assert sweeps(b, 200, 5, 1) == pytest.approx(20, abs=2)
    assert sweeps(b, 200, 5, 1, traffic=True) <= 5  # the programs ask with each burst
    assert sweeps(b, 200, 5, 1) >= 25  # it has stalled
