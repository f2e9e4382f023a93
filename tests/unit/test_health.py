"""The judge, look by look on a simulated clock: what comes back and when, what is left for its links."""

import itertools

import numpy as np
import pytest

from mrcd import abi, health
from mrcd.abi import EvState, Reason
from mrcd.config import Health
from tests.unit.network import ALL, MS, Network, Path

# ---- unknown ----


def test_an_ev_is_good_with_its_first_arrival_and_not_before() -> None:
    n = Network(state=EvState.UNKNOWN)
    n.silent = {(0, 3)}
    assert n.look() == []  # nothing was sent yet
    assert len(n.look()) == 7
    assert {(s.leave, s.after, s.reason) for _, s in n.log} == {((EvState.UNKNOWN,), EvState.GOOD, Reason.PROBED)}
    assert set(n.evs["weight"].flat) == {abi.WEIGHT_FULL}
    n.looks(100)
    assert n.state((0, 3)) is EvState.UNKNOWN
    n.silent.clear()
    assert n.until(n.returned((0, 3)), 60) <= 1020


def test_a_bad_way_back_does_not_keep_an_ev_from_being_known() -> None:
    n = Network(state=EvState.UNKNOWN)
    n.mute = {(0, ev) for ev in range(8)}
    n.looks(2)
    assert {s.reason for _, s in n.log} == {Reason.PROBED}


def test_what_came_before_it_was_denied_proves_nothing() -> None:
    """An allowed EV is probed before it carries traffic, whatever it has answered in its former life."""
    n = Network()
    n.looks(5)
    n.set((0, 1), state=EvState.DENIED)
    n.looks(5)
    n.set((0, 1), state=EvState.UNKNOWN, state_since_ns=n.now)
    n.silent = {(0, 1)}
    n.looks(50)
    n.restart()
    n.looks(50)
    assert n.state((0, 1)) is EvState.UNKNOWN
    n.silent.clear()
    n.until(n.returned((0, 1)), 60)


def test_what_is_not_configured_is_not_judged() -> None:
    n = Network(state=EvState.UNKNOWN)
    n.evs["configured"][0, 5] = 0
    n.looks(10)
    n.local = 0
    n.looks(2)
    assert 5 not in {s.ev for _, s in n.log}
    assert len({s.ev for _, s in n.log}) == 7


# ---- links ----


@pytest.mark.parametrize("state", [EvState.GOOD, EvState.SKIP])
def test_a_link_that_is_down_takes_its_evs_out_of_use(state: EvState) -> None:
    n = Network(state=state)
    n.look()
    n.local = ALL & ~0b0010
    assert {(s.ev, s.after, s.reason) for s in n.look()} == {
        (ev, EvState.ASSUMED_BAD, Reason.LINK_DOWN) for ev in (2, 3)
    }
    n.ports[0] = ALL & ~0b1000
    assert {(s.ev, s.after, s.reason) for s in n.look()} == {
        (ev, EvState.ASSUMED_BAD, Reason.PEER_LINK_DOWN) for ev in (6, 7)
    }
    assert {s.leave for _, s in n.log} == {health.IN_USE}
    assert n.looks(20) == []


@pytest.mark.parametrize("state", [EvState.UNKNOWN, EvState.DENIED, EvState.ASSUMED_BAD])
def test_a_link_is_no_news_to_an_ev_that_is_not_in_use(state: EvState) -> None:
    n = Network(state=state)
    n.local = 0
    assert n.looks(20) == []


def test_the_hold_down_begins_when_the_link_is_back() -> None:
    n = Network()
    n.look()
    n.local = ALL & ~1
    n.looks(200)
    n.local = ALL
    assert n.until(n.returned((0, 0)), 200) == pytest.approx(1000, abs=60)


# ---- return ----


@pytest.mark.parametrize(
    ("relapses", "ms"),
    [(0, 1000), (1, 1000), (2, 2000), (3, 4000), (6, 32_000), (7, 60_000), (8, 60_000), (255, 60_000)],
)
def test_the_hold_down_doubles_up_to_its_cap(relapses: int, ms: int) -> None:
    assert health.hold_down_ns(Health(), relapses) == ms * MS
    n = Network()
    n.looks(3)
    n.fall((0, 2), relapses)
    assert n.until(n.returned((0, 2)), 4000) == pytest.approx(ms, abs=60)
    (_, s) = n.log[-1]
    assert (s.leave, s.reason) == ((EvState.ASSUMED_BAD,), Reason.HEALED)
    assert s.evidence["hold_down_ms"] == ms
    assert s.evidence["good_probes"] >= 10


def test_a_loss_begins_the_hold_down_anew() -> None:
    n = Network()
    n.fall((0, 2))
    n.looks(45)
    n.silent = {(0, 2)}
    n.look()
    n.silent.clear()
    assert n.until(n.returned((0, 2)), 80) == pytest.approx(1000, abs=80)


def test_the_hold_down_begins_with_the_first_arrival_not_with_the_last_loss() -> None:
    """Probes are rare by then: the time before the first good one says nothing."""
    n = Network()
    n.fall((0, 2))
    n.silent = {(0, 2)}
    n.looks(500)
    n.silent.clear()
    assert 1000 <= n.until(n.returned((0, 2)), 150) <= 2100
    first = next(at for at, path in n.sent if path == (0, 2) and at > n.log[-1][0] - 2200 * MS)
    assert n.log[-1][0] - first >= 1000 * MS


def test_time_alone_does_not_bring_an_ev_back() -> None:
    n = Network()
    n.restart(good_probes=200)
    n.fall((0, 2))
    assert n.until(n.returned((0, 2)), 400) == pytest.approx(200 * 20, abs=60)


def test_an_ev_that_lags_does_not_return() -> None:
    n = Network()
    n.fall((0, 2))
    n.look()
    n.set((0, 2), lag_ns=n.now)
    n.looks(100)
    assert n.log == []
    n.set((0, 2), lag_ns=0)
    assert n.until(n.returned((0, 2)), 100) == pytest.approx(1000, abs=60)


def test_a_daemon_that_starts_waits_the_whole_hold_down() -> None:
    n = Network()
    n.fall((0, 2))
    n.looks(40)
    n.restart()
    assert n.until(n.returned((0, 2)), 100) == pytest.approx(1000, abs=60)
    n.fall((0, 2))
    n.looks(40)
    n.judge.forget(n.rows)
    assert n.until(n.returned((0, 2)), 100) == pytest.approx(1000, abs=60)


def test_denied_is_for_good() -> None:
    n = Network(state=EvState.DENIED)
    assert n.looks(200) == []


# ---- the ramp ----


def test_an_ev_returns_with_an_eighth_of_its_turns_and_doubles_them() -> None:
    n = Network()
    n.fall((0, 2))
    n.until(n.returned((0, 2)), 100)
    returned = n.log[-1][0]
    weights: dict[int, int] = {}
    while n.now < returned + 600 * MS:
        n.look()
        weights.setdefault(int(n.evs["weight"][0, 2]), (n.now - returned) // MS - 20)
    assert list(weights) == [1, 2, 4, 8]
    assert [weights[w] for w in (2, 4, 8)] == pytest.approx([133, 267, 400], abs=20)


def test_a_daemon_that_starts_finishes_the_ramp() -> None:
    n = Network()
    n.set((0, 2), weight=1, state_since_ns=n.now - 150 * MS)
    n.set((0, 3), weight=2, state_since_ns=n.now - 10**11)
    n.look()
    assert n.evs["weight"][0].tolist() == [8, 8, 2, 8, 8, 8, 8, 8]


def test_without_a_ramp_it_returns_whole() -> None:
    n = Network()
    n.restart(ramp_ms=0)
    assert health.first_weight(n.settings) == abi.WEIGHT_FULL
    n.set((0, 2), weight=1, state_since_ns=n.now)
    n.look()
    assert set(n.evs["weight"].flat) == {8}


# ---- probing ----


def gaps(n: Network, path: Path) -> list[int]:
    times = [at // MS for at, p in n.sent if p == path]
    return [b - a for a, b in itertools.pairwise(times)]


@pytest.mark.parametrize("state", [EvState.ASSUMED_BAD, EvState.UNKNOWN])
def test_probes_of_a_silent_ev_become_rarer_and_never_end(state: EvState) -> None:
    n = Network(state=state)
    n.silent = {(0, 1)}
    n.looks(1000)
    found = gaps(n, (0, 1))
    assert found[:7] == [20, 40, 80, 160, 320, 640, 1000]
    assert set(found[6:]) == {1000}
    assert n.now // MS - n.sent[-1][0] // MS <= 1000


def test_probes_are_as_frequent_as_others_as_soon_as_one_arrives() -> None:
    n = Network()
    n.fall((0, 1))
    n.silent = {(0, 1)}
    n.looks(200)
    n.silent.clear()
    n.looks(100)
    assert gaps(n, (0, 1))[-20:] == [20] * 20


def test_evs_in_use_are_in_every_sweep_and_denied_ones_seldom() -> None:
    n = Network()
    n.silent = {(0, 0)}
    n.set((0, 4), state=EvState.DENIED)
    n.looks(200)
    assert set(gaps(n, (0, 0))) == {20}
    assert set(gaps(n, (0, 4))) == {1000}
    n.set((0, 4), state=EvState.UNKNOWN)
    assert n.until(n.returned((0, 4)), 4) <= 40


# ---- peers that answer nothing ----


def test_a_peer_that_answers_nothing_is_unreachable_and_none_of_its_evs_to_blame() -> None:
    n = Network(peers=2)
    n.looks(5)
    assert (n.verdict.silent, n.verdict.heard) == ([], [0, 1])
    n.silent = {(0, ev) for ev in range(8)}
    n.looks(4)
    assert n.verdict.silent == []
    n.look()
    assert (n.verdict.silent, n.verdict.heard) == ([0], [1])
    n.looks(200)
    assert (n.verdict.silent, n.log) == ([0], [])
    n.silent = set()
    n.looks(2)
    assert (n.verdict.silent, n.verdict.heard) == ([], [0, 1])


def test_one_reply_of_any_ev_is_an_answer() -> None:
    n = Network()
    n.silent = {(0, ev) for ev in range(7)}
    n.looks(50)
    assert (n.verdict.silent, n.verdict.heard) == ([], [0])


def test_who_was_not_asked_need_not_answer() -> None:
    n = Network()
    n.looks(3)
    for _ in range(50):
        n.look(sweep=False)
    assert n.verdict.silent == []
    n.local = 0  # no link: nothing is asked that could be answered
    n.silent = set(n.all)
    n.looks(50)
    assert n.verdict.silent == []


def test_sweeps_in_quick_succession_are_not_silence() -> None:
    n = Network()
    n.looks(3)
    n.silent = set(n.all)
    for _ in range(6):
        n.look()
        n.now -= 17 * MS
    assert n.verdict.silent == []


def test_counts_wrap() -> None:
    n = Network(state=EvState.UNKNOWN)
    n.evs["probe_seq"], n.ledgers["replies"] = 2**32 - 2, 2**32 - 1
    n.looks(3)
    assert len(n.log) == 8
    n.looks(20)
    assert n.verdict.silent == []


def test_rows_of_a_look_are_any_of_the_peers() -> None:
    n = Network(peers=3, state=EvState.UNKNOWN)
    n.rows = np.array([2, 0])
    n.looks(3)
    assert {s.row for _, s in n.log} == {0, 2}
    assert n.verdict.heard == [2, 0]
