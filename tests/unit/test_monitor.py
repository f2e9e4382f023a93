# SPDX-License-Identifier: BSD-2-Clause
"""Tests the monitor over emulated tables and programs: what it logs, when it runs the tick, and requested changes."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import cast
from unittest.mock import Mock

import pytest

from mrcd.ctl.phrases import sentence
from mrcd.errors import KernelError, MachineError
from mrcd.health import grey_loss, monitor, peers
from mrcd.health.events import KEPT
from mrcd.kernel.enums import EvState, Reason
from tests.unit import simulated_time
from tests.unit.emulated_programs import Bench

# ---- events of the programs ----


def test_transitions_are_logged_with_their_evidence() -> None:
    b = Bench()
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE, reports=8, silent_ns=1_500_000)
    b.programs.change(1, 5, EvState.GOOD, Reason.HEALED, reports=23, flaps=3)
    b.programs.change(3, 7, EvState.GOOD, Reason.PROBED)
    b.programs.change(0, 0, EvState.GOOD, Reason.PROBED)  # of a removed path
    b.monitor.log_events()
    failed, healed, _ = b.said()
    assert (failed["peer"], failed["ev"], failed["plane"], failed["t1"]) == ("h1", 5, 1, 1)
    assert (failed["from"], failed["to"], failed["reason"]) == ("GOOD", "ASSUMED_BAD", "overdue")
    assert failed["evidence"] == {"silent_reports": 8, "silent_ms": 1.5}
    assert failed["monotonic_ns"] == b.programs.now
    assert (healed["from"], healed["to"], healed["reason"]) == ("ASSUMED_BAD", "GOOD", "healed")
    assert healed["evidence"] == {"good_probes": 23, "hold_down_ms": 4000}


def test_transitions_before_the_start_are_logged() -> None:
    b = Bench()
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.LOSS, lost_packets=3, sent_packets=30)
    b.monitor = b.another()
    assert [e["evidence"] for e in b.said()] == [{"lost_packets": 3, "sent_packets": 30}]
    b.look(10_000)
    assert b.said("daemon") == []


def test_changes_of_many_evs_are_summed_by_place_and_reason() -> None:
    b = Bench()
    for _ in range(300):  # of a start: no news, and summed by plane
        b.programs.change(3, 7, EvState.GOOD, Reason.PROBED)
    for _ in range(100):
        for row, ev in ((1, 5), (3, 5), (1, 2)):
            b.programs.change(row, ev, EvState.ASSUMED_BAD, Reason.OVERDUE)
        b.programs.change(1, 2, EvState.GOOD, Reason.HEALED)
    b.monitor.read_events()
    assert len(b.said()) == 256 + 256
    b.look(1000)
    b.look(1000)
    sums = b.said()[512:]
    assert [(e["peer"], e["ev"], e["plane"], e["t1"], e["to"], e["evidence"]) for e in sums] == [
        (None, None, 1, None, "GOOD", {"evs": 44, "peers": 1}),
        (None, None, 1, 1, "ASSUMED_BAD", {"evs": 72, "peers": 2}),
        (None, None, 0, 2, "ASSUMED_BAD", {"evs": 36, "peers": 1}),
        (None, None, 0, 2, "GOOD", {"evs": 36, "peers": 1}),
    ]
    assert sentence(sums[1]).endswith(" UTC 72 EVs to 2 peers, plane 1, T1 1: ASSUMED_BAD → ASSUMED_BAD, overdue")
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE)  # 2 s later
    b.monitor.log_events()
    assert (b.said()[-1]["peer"], b.said()[-1]["ev"]) == ("h1", 5)


def test_lost_events_are_counted_once() -> None:
    b = Bench()
    b.programs.full = True
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE)
    b.programs.change(1, 5, EvState.GOOD, Reason.HEALED)
    b.programs.full = False
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.LOSS)
    b.monitor.log_events()
    b.look(1000)
    b.look(1000)
    assert len(b.said()) == 1
    assert [(e["reason"], e["evidence"]) for e in b.said("daemon")] == [("events_lost", {"evs": 2})]


def test_events_lost_before_the_start_are_not_logged() -> None:
    b = Bench()
    b.programs.full = True
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE)
    b.monitor = b.another()
    b.look(1000)
    assert b.said("daemon") == []


# ---- decisions of the daemon ----


def lose_on(b: Bench, ev: int) -> None:
    """Sends a second of traffic to h1 that loses 1 % on one EV, with checks."""
    for _ in range(20):
        b.arrays.path_stats["judged"][1] += 100
        b.arrays.path_stats["deficit"][1, ev] += 1
        b.arrays.reports["judged"][1] += 800
        b.arrays.reports["lossy"][1] += 1
        b.look(50)


def test_a_grey_failure_is_left_with_the_evidence_of_the_test() -> None:
    b = Bench()
    for _ in range(4):
        lose_on(b, 2)
    b.monitor.log_events()
    (event,) = b.said()
    assert (event["peer"], event["ev"], event["to"], event["reason"]) == ("h1", 2, "ASSUMED_BAD", "grey_loss")
    assert event["evidence"].keys() == {"lost_packets", "sent_packets", "window_s", "usual_loss_ratio"}
    assert event["evidence"]["window_s"] <= grey_loss.WINDOWS_S[1] + 1


def test_a_grey_failure_that_a_program_left_first_keeps_the_program_s_reason() -> None:
    b = Bench()
    set_state = b.programs.set_state

    def left_first(host_id: int, ev: int, *args: object) -> bool:
        if b.arrays.evs["state"][host_id, ev] == EvState.GOOD:
            b.programs.change(host_id, ev, EvState.ASSUMED_BAD, Reason.LOSS)
        return set_state(host_id, ev, *args)  # type: ignore[arg-type]

    b.programs.set_state = left_first  # type: ignore[method-assign,assignment]
    for _ in range(4):
        lose_on(b, 2)
    b.monitor.log_events()
    assert [(e["to"], e["reason"]) for e in b.said()] == [("ASSUMED_BAD", "loss")]


def test_a_silent_peer_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "GRACE_S", -1.0)
    b = Bench()
    count = len(b.said("peer"))
    b.arrays.watches["silent"][[1, 3]] = 1
    b.look()
    b.look()
    b.arrays.watches["silent"][3] = 0
    b.look()
    b.look()
    assert [(e["peer"], e["to"], e["reason"]) for e in b.said("peer")[count:]] == [
        ("h1", "unreachable", "no_replies"),
        ("h3", "unreachable", "no_replies"),
        ("h3", "reachable", "replies"),
    ]
    assert b.monitor.peerwatch.silent == {1}


# ---- when the tick runs ----


async def until(true: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError


def play(b: Bench, work: Callable[["asyncio.Task[None]"], Coroutine[None, None, None]]) -> None:
    """Runs the monitor while `work` does something; its parameter is the monitor's task."""

    async def both() -> None:
        running = asyncio.create_task(b.monitor.run())
        try:
            await work(running)
        finally:
            running.cancel()
            await asyncio.wait({running})

    with b.programs.awake():
        simulated_time.run(both())


def note_waits(b: Bench) -> list[float]:
    """Returns a list to which the running event loop adds each wait, in seconds, that the monitor asks of it."""
    loop, waits = asyncio.get_running_loop(), list[float]()
    call_later = loop.call_later

    def noted(delay: float, callback: Callable[..., object], *args: object, **context: object) -> asyncio.TimerHandle:
        if getattr(callback, "__self__", None) is b.monitor:
            waits.append(delay)
        return call_later(delay, callback, *args, **context)  # type: ignore[arg-type]

    loop.call_later = noted  # type: ignore[method-assign]
    return waits


def test_the_tick_runs_at_the_time_that_it_returns() -> None:
    b = Bench()
    b.programs.tick_wait_s = 0.001

    async def work(running: "asyncio.Task[None]") -> None:
        waits = note_waits(b)
        await until(lambda: b.programs.ticks >= 5)
        b.programs.tick_wait_s = 3600.0
        await until(lambda: waits[-1] == 3600.0)

    play(b, work)
    assert b.monitor.ticks.cumulative()[-1][1] == b.programs.ticks


def test_a_tick_due_at_once_still_yields_to_other_tasks() -> None:
    b = Bench()
    b.programs.tick_wait_s = 0.0
    waits: list[float] = []

    async def work(running: "asyncio.Task[None]") -> None:
        nonlocal waits
        waits = note_waits(b)
        await until(lambda: len(waits) >= 3)

    play(b, work)
    assert set(waits) == {monitor.MIN_WAIT_S}


def test_a_flow_that_stops_runs_the_tick_at_once() -> None:
    b = Bench()
    b.programs.tick_wait_s = 3600.0

    async def work(running: "asyncio.Task[None]") -> None:
        await until(lambda: b.programs.ticks == 1)
        b.programs.add_idle_timeout(1)
        await until(lambda: b.programs.ticks == 2)

    play(b, work)
    assert b.said() == []


@pytest.mark.parametrize("is_calm", [False, True], ids=["busy", "calm"])
def test_a_transition_is_logged_at_once_and_runs_the_tick_in_calm_weather_only(
    monkeypatch: pytest.MonkeyPatch, is_calm: bool
) -> None:
    b = Bench()
    b.programs.tick_wait_s = 3600.0
    monkeypatch.setattr(monitor, "_CALM_S", 0.05 if is_calm else 3600.0)

    async def work(running: "asyncio.Task[None]") -> None:
        await until(lambda: b.programs.ticks == 1)
        b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.LOSS)
        await until(lambda: any(e["kind"] == "ev" for e in b.log.newest(KEPT)))

    play(b, work)
    assert b.programs.ticks == 1 + is_calm


@pytest.mark.parametrize(("waits", "calm"), [((0.25, 0.001), True), ((0.25, 0.02), False), ((0.02, 0.001), False)])
def test_a_tick_that_goes_on_at_once_does_not_end_calm_weather(waits: tuple[float, float], calm: bool) -> None:
    """It had no time for all peers: thousands are swept."""
    b = Bench()
    b.monitor._loop = cast(asyncio.AbstractEventLoop, Mock())  # noqa: SLF001 - no time passes
    for b.programs.tick_wait_s in waits:
        b.monitor._work()  # noqa: SLF001
    assert b.monitor.is_calm is calm


def test_a_shared_failure_runs_the_tick_before_all_events_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Bench()
    b.programs.tick_wait_s = 3600.0
    monkeypatch.setattr(monitor, "_CALM_S", 3600.0)
    logged: list[int] = []
    tick = b.programs.tick

    def note() -> float:
        logged.append(b.log.last_id)
        return tick()

    b.programs.tick = note  # type: ignore[method-assign]

    async def work(running: "asyncio.Task[None]") -> None:
        await until(lambda: len(logged) == 1)
        for _ in range(200):  # not so many that they are summed
            b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE)
        await until(lambda: b.log.last_id >= logged[0] + 200)

    play(b, work)
    assert len(logged) == 2
    assert logged[1] < logged[0] + 200


def test_an_error_of_the_tick_is_logged_and_the_monitor_continues(caplog: pytest.LogCaptureFixture) -> None:
    b = Bench()
    tick, failures = b.programs.tick, iter([True])

    def fail_once() -> float:
        if next(failures, False):
            raise KernelError("run mrc_tick", 12)
        return tick()

    b.programs.tick = fail_once  # type: ignore[method-assign]

    async def work(running: "asyncio.Task[None]") -> None:
        await until(lambda: b.programs.ticks >= 2)

    with caplog.at_level(logging.ERROR, logger="mrcd.health.monitor"):
        play(b, work)
    (message,) = caplog.messages
    assert "run mrc_tick" in message
    assert message.endswith("; mrcd continues to watch paths")


def test_an_unexpected_exception_ends_the_monitor() -> None:
    b = Bench()

    def fail() -> float:
        raise ZeroDivisionError

    b.programs.tick = fail  # type: ignore[method-assign]

    async def work(running: "asyncio.Task[None]") -> None:
        with pytest.raises(ZeroDivisionError):
            await running

    play(b, work)
    b.monitor.announce()  # schedules nothing: the event loop is closed, and would raise RuntimeError


def test_the_monitor_lets_go_of_the_ring_buffer_when_it_is_cancelled() -> None:
    b = Bench()

    async def work(running: "asyncio.Task[None]") -> None:
        await until(lambda: b.programs.ticks >= 1)
        running.cancel()
        await asyncio.wait({running})
        assert not asyncio.get_running_loop().remove_reader(b.programs.events_fd())

    play(b, work)
    ticks = b.programs.ticks
    b.monitor.announce()
    assert b.programs.ticks == ticks


# ---- announcements to peers ----


def test_announcements_go_out_with_the_next_tick() -> None:
    b = Bench()
    b.programs.tick_wait_s = 3600.0
    b.arrays.watches["due_ns"] = 7

    async def work(running: "asyncio.Task[None]") -> None:
        await until(lambda: b.programs.ticks == 1)
        b.monitor.announce()
        await until(lambda: b.programs.ticks == 2)

    play(b, work)
    assert b.arrays.watches["announce"].tolist() == [0, 1, 1, 1]  # row 0 is this host's
    assert b.arrays.watches["due_ns"].tolist() == [7, 0, 0, 0]


def test_an_announcement_in_a_check_makes_one_more_tick() -> None:
    """As where the check of keys has found others: two chains of ticks would never become one again."""
    b = Bench()
    b.programs.tick_wait_s = 3600.0
    found = iter([b.monitor.announce])
    b.monitor._use_keys = lambda: next(found, lambda: None)()  # noqa: SLF001 - the daemon's announces other keys

    async def work(running: "asyncio.Task[None]") -> None:
        await until(lambda: b.programs.ticks == 2)
        loop = asyncio.get_running_loop()
        due = [h for h in loop._scheduled if not h.cancelled()]  # type: ignore[attr-defined]  # noqa: SLF001
        assert sum(getattr(h._callback, "__func__", None) is type(b.monitor)._work for h in due) == 1  # noqa: SLF001

    play(b, work)


def test_keys_are_checked_in_each_tick_of_calm_weather() -> None:
    """A secret that another replaces waits for the end of a third: its peers must hear of it within a second."""
    b = Bench()
    checks: list[None] = []
    b.monitor.is_calm = True
    b.monitor._use_keys = lambda: checks.append(None)  # noqa: SLF001
    for ms in (1000, 1100, 1200):
        b.monitor.check(ms * 1_000_000)
    assert len(checks) == 3


def test_an_announcement_before_the_work_begins_waits_for_the_first_tick() -> None:
    b = Bench()
    b.monitor.announce()
    assert b.programs.ticks == 0
    assert b.arrays.watches["announce"].tolist() == [0, 1, 1, 1]


# ---- another plan ----


def test_a_new_plan_keeps_the_state_of_peers() -> None:
    b = Bench()
    b.monitor.peerwatch.silent = {1, 2}
    before, b.monitor = b.monitor, b.another()
    b.monitor.take_over(before, {2})
    assert b.monitor.peerwatch.silent == {1}


def test_each_check_has_its_own_interval() -> None:
    b = Bench()
    b.arrays.peers["plane_mask"][1] = 0b01
    b.look(50)
    count = len(b.said("peer"))
    b.look(50)
    assert len(b.said("peer")) == count + 1
    b.programs.full = True
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE)
    b.look(900 - 1)
    assert b.said("daemon") == []
    b.look(1)
    assert len(b.said("daemon")) == 1


# ---- requested changes ----


def test_an_ev_is_denied_and_allowed() -> None:
    b = Bench()
    assert b.monitor.set_denied(1, 5, True, {"target": "t1:1:1", "denial_reason": "fan"})
    assert b.changed == [1]  # its routes
    b.monitor.log_events()
    assert [(e["to"], e["reason"], e["evidence"]) for e in b.said()] == [
        ("DENIED", "admin", {"target": "t1:1:1", "denial_reason": "fan"})
    ]
    assert not b.monitor.set_denied(1, 5, True, {})
    assert b.monitor.set_denied(1, 5, False, {})
    assert not b.monitor.set_denied(1, 5, False, {})
    b.monitor.log_events()
    assert (b.said()[-1]["to"], b.said()[-1]["evidence"]) == ("UNKNOWN", {})


def test_a_concurrent_change_does_not_prevent_a_denial(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Bench()
    once, set_state = iter([False]), b.programs.set_state
    monkeypatch.setattr(b.programs, "set_state", lambda *args: next(once, True) and set_state(*args))
    assert b.monitor.set_denied(1, 5, True, {})
    monkeypatch.setattr(b.programs, "set_state", lambda *args: False)
    with pytest.raises(MachineError, match="h1 EV 6"):
        b.monitor.set_denied(1, 6, True, {})
