# SPDX-License-Identifier: BSD-2-Clause
"""Tests the probes that tell a small MTU from loss: which EVs, when, and what their answers say."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import pytest

from mrcd.errors import MachineError
from mrcd.health.diagnosis.facts import Facts, Verdict
from mrcd.health.diagnosis.memory import HELD_NS, Answers, Memory, Sizes
from mrcd.health.diagnosis.sizes import COUNT, SMALL, Round, SizeWatch, choose, passes
from mrcd.health.snapshot import Snapshot
from mrcd.kernel.enums import EvState, Reason
from mrcd.probes.exchange import Exchange, Route, Tally
from tests.unit.diagnosed_host import GONE, LOST, Host, S, text

PINS = Path("pins")


def suspect(h: Host, target: str, ago_s: float = 60, reason: Reason = Reason.LOSS) -> Host:
    """Has the EVs that cross a target fail, and packets arrive on them a moment ago."""
    h.set(target, LOST | {"reason": reason}, ago_s)
    h.path_stats["arrived_ns"][h.where(target)] = h.now
    return h


class Watched:
    """A watch of a host."""

    def __init__(self, host: Host) -> None:
        self.host, self.memory = host, Memory()
        self.watch = SizeWatch(self.memory)

    def look(self, later_s: float = 0) -> Round | None:
        self.host.now += round(later_s * S)
        with mock.patch("time.monotonic_ns", return_value=self.host.now):
            return self.watch.next_round(self.host.shown, self.host.plan, PINS)

    def begin(self, later_s: float = 0) -> Round:
        found = self.look(later_s)
        assert found
        return found

    def answer(self, found: Round, *, full_size: bool | None) -> None:
        self.watch.take(found, dict.fromkeys(found.places, Answers(self.host.now, full_size)))


def places(host: Host, target: str) -> set[tuple[int, int]]:
    rows, evs = host.where(target)
    return {(int(row) - 1, int(ev)) for row, ev in zip(rows, evs, strict=True)}


@pytest.mark.parametrize(
    ("small", "full", "found"),
    [(COUNT, 0, False), (COUNT, 1, True), (COUNT - 1, 0, None), (0, 0, None), (0, 1, True)],
)
def test_only_small_packets_pass_if_all_of_them_are_answered_and_no_other(
    small: int, full: int, found: bool | None
) -> None:
    assert passes(Tally(COUNT, rtts=[1] * small), Tally(COUNT, rtts=[1] * full)) is found


def test_failed_evs_on_which_packets_arrive_are_probed_and_others_of_their_plane() -> None:
    assert choose(Snapshot(Host().shown, Host().plan)) == []
    h = suspect(Host().set("t1:0:1", GONE), "nic:h4:1")  # nothing arrives through that T1
    assert set(choose(Snapshot(h.shown, h.plan))) == places(h, "plane:1")


def test_of_many_evs_those_that_tell_most_are_probed() -> None:
    h = suspect(Host(text(t0s=8, hosts=8, t1s=8, evs=16)), "link:1:2:3")
    chosen = set(choose(Snapshot(h.shown, h.plan), 32))
    assert len(chosen) == 32
    assert places(h, "link:1:2:3") <= chosen  # eight
    assert len(chosen & places(h, "t1:1:3")) > 8
    assert len(chosen & places(h, "t0:1:2")) > 8


def test_new_suspicions_are_probed_at_once_and_old_ones_each_ten_seconds() -> None:
    w = Watched(suspect(Host(), "t1:1:2", ago_s=0.01))
    found = w.begin(0.1)
    w.answer(found, full_size=False)
    assert w.look(0.1) is None
    suspect(w.host, "t1:1:1", ago_s=0.01)
    found = w.begin(0.1)
    w.answer(found, full_size=None)
    assert w.look(9.8) is None
    assert w.look(0.2)


def test_answers_are_forgotten_when_no_ev_is_suspected_and_with_another_plan() -> None:
    w = Watched(suspect(Host(), "t1:1:2"))
    found = w.begin()
    w.answer(found, full_size=False)
    assert w.memory.sizes.of(w.host.plan)
    assert not w.memory.sizes.of(Host().plan)
    w.host.set("t1:1:2", {"state": EvState.GOOD})
    assert w.look() is None
    assert not w.memory.sizes.answers
    assert w.look() is None  # without reading EVs


def test_a_mended_mtu_is_no_loss_while_its_evs_return() -> None:
    w = Watched(suspect(Host(), "t1:1:2", ago_s=5, reason=Reason.GREY_LOSS))
    found = w.begin()
    assert not found.small
    w.answer(found, full_size=False)
    w.host.memory = w.memory
    assert w.host.found() == ["small_mtu nic:h0:1 or t0:1:0"]
    found = w.begin(11)
    assert found.small == places(w.host, "t1:1:2")
    mended = {p: Answers(w.host.now, True, p in found.small) for p in found.places}
    w.watch.take(found, mended)
    assert w.host.found() == []
    w.host.set("t1:1:2", {"state": EvState.GOOD}, ago_s=0)
    assert w.host.found() == []
    w.host.now += S
    suspect(w.host, "t1:1:2", ago_s=0.01)
    assert not w.begin(11).small


def test_an_mtu_of_any_link_is_not_probed() -> None:
    h = suspect(Host(text(more="mtu = 1500")), "t1:1:2")
    assert Watched(h).look()
    with mock.patch("mrcd.health.diagnosis.sizes.SMALL", 1500):
        assert Watched(h).look() is None


class Network:
    """Answers what is not too long on EVs across a T1 of 1500 bytes."""

    def __init__(self, local: Any, planes: Sequence[int]) -> None:
        assert (local.nics.keys(), set(planes)) == ({0, 1}, {1})

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        pass

    def run(self, routes: Sequence[Route], count: int, interval_s: float, wait_s: float) -> dict[Any, Tally]:
        tallies = {r.key: Tally() for r in routes}
        for r in [*routes] * count:
            assert r.size in (SMALL, 9100)
            tallies[r.key].sent += 1
            if r.size == SMALL or r.ev != 6:
                tallies[r.key].rtts.append(1)
        return tallies


def test_a_round_tells_the_evs_on_which_only_small_packets_pass() -> None:
    w = Watched(suspect(Host(), "t1:1:2"))
    found = w.begin()

    def network(*args: Any) -> Exchange:
        return Network(*args)  # type: ignore[return-value]

    w.watch.take(found, found.probe(network))
    assert {p for p, a in w.memory.sizes.answers.items() if a.passes is False} == places(w.host, "t1:1:2")
    assert {a.passes for a in w.memory.sizes.answers.values()} == {False, True}
    w.host.memory = w.memory
    assert w.host.found() == ["small_mtu t1:1:2 or link:1:0:2"]


def test_an_error_is_told_and_ends_nothing() -> None:
    told: list[str] = []

    async def look() -> None:
        if len(told) == 2:
            raise asyncio.CancelledError
        raise MachineError("no socket")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(SizeWatch(Memory()).run(look, told.append, pause_s=0))
    assert told == 2 * ["no probes tell a small MTU from loss: MachineError: no socket"]


@pytest.mark.parametrize("reason", [Reason.LOSS, Reason.GREY_LOSS, Reason.ICMP_ERROR])
def test_a_loss_is_not_blamed_before_the_probes_are_over(reason: Reason) -> None:
    h = suspect(Host(), "link:1:2:3", ago_s=1, reason=reason)
    assert h.found()  # without a daemon that probes
    h.memory = Memory()
    assert h.found() == []
    h.memory.sizes = Sizes(h.plan, dict.fromkeys(places(h, "link:1:2:3"), Answers(h.now, True)))
    assert h.found()
    h.memory.sizes = Sizes(h.plan, dict.fromkeys(places(h, "link:1:2:3"), Answers(h.now - 2 * S, True)))
    assert h.found() == []  # they were over before it failed
    h.now += HELD_NS
    assert h.found()


def test_what_is_dead_is_not_waited_for() -> None:
    h = Host().set("link:1:2:3", GONE, ago_s=1)
    h.memory = Memory()
    assert h.found() == ["link link:1:2:3"]
    assert (Facts(h.shown, h.plan, h.memory).verdicts == Verdict.FAILED).any()
