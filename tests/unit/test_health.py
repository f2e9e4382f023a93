"""The judge, round by round on a simulated clock: what it withdraws, what it leaves alone, what it takes back."""

import itertools
import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from mrcd import abi, health
from mrcd.abi import EvState, Reason
from mrcd.config import Health
from mrcd.health import Judge, Transition, Verdict

MS = 1_000_000
ALL = 0xFFFF

Path = tuple[int, int]  # (row, ev)


class Network:
    """Peers' EVs, the paths behind them, and a judge. One round is one probe interval: judge what the last
    probes brought, carry out the verdict as the daemon does, send data, send a probe behind it.
    """

    def __init__(self, *, peers: int = 1, evs: int = 8, planes: int = 4, load: int = 100, good: bool = True) -> None:
        self.settings = Health()
        self.evs = np.zeros((peers, evs), abi.EV)
        self.evs["configured"] = 1
        self.evs["plane"] = np.arange(evs) * planes // evs
        self.ports = np.full(peers, ALL, np.uint32)  # as the peers tell
        self.local = ALL
        self.now = 10**9
        self.load = np.full((peers, evs), load)  # packets in a round
        self.loss = np.zeros((peers, evs))  # of data packets
        self.silent: set[Path] = set()  # probes vanish
        self.late: dict[Path, int] = {}  # replies come this many rounds later
        self.in_flight: dict[Path, int] = {}  # packets that the next probe overtakes
        self.rows: NDArray[np.int64] = np.arange(peers)
        self.log: list[tuple[int, Transition]] = []
        self.verdict = Verdict([], [], [])
        self._sent = np.zeros((peers, evs), np.int64)
        self._received = np.zeros((peers, evs))
        self._replies: list[tuple[int, Path, int, int, int]] = []
        self.restart()
        if good:
            self.rounds(2)
            assert self.states() == {EvState.GOOD}
            self.log.clear()

    def restart(self, **settings: float) -> None:
        """A new judge, as of a new daemon, over the tables it finds."""
        self.settings = Health.model_validate(settings)
        self.judge = Judge(self.settings, *self.evs.shape)

    @property
    def interval(self) -> int:
        return self.settings.probe_interval_ms * MS

    @property
    def all(self) -> list[Path]:
        return list(itertools.product(range(self.evs.shape[0]), range(self.evs.shape[1])))

    def states(self, row: int = 0) -> set[EvState]:
        return {EvState(int(s)) for s in self.evs[row]["state"]}

    def state(self, path: Path) -> EvState:
        return EvState(int(self.evs[path]["state"]))

    def round(self, *, send: bool = True) -> list[Transition]:
        """Judge, then send. Returns the transitions."""
        rows = self.rows
        self.verdict = self.judge.judge(rows, self.evs[rows], self.ports[rows], self.local, self.now)
        for t in self.verdict.transitions:
            record = self.evs[t.row, t.ev : t.ev + 1]
            assert record["state"] == t.before
            record["state"], record["reason"], record["relapses"] = t.after, t.reason, t.relapses
            record["state_since_ns"] = self.now
            self.log.append((self.now, t))
        if send:
            for path in self.all:
                self._send(path)
        self.now += self.interval
        self._deliver()
        return self.verdict.transitions

    def _send(self, path: Path) -> None:
        bit = 1 << int(self.evs[path]["plane"])
        if not self.local & bit:
            return
        ev = self.evs[path[0], path[1] : path[1] + 1]
        self._sent[path] += self.load[path]
        self._received[path] += self.load[path] * (1 - self.loss[path])
        ev["tx_packets"] = self._sent[path]
        with np.errstate(over="ignore"):
            ev["probe_seq"] += np.uint32(1)
        ev["probe_ns"] = self.now
        if path not in self.silent and int(self.ports[path[0]]) & bit:
            received = int(self._received[path]) - self.in_flight.pop(path, 0)
            due = self.now + self.late.get(path, 0) * self.interval
            self._replies.append((due, path, int(ev["probe_seq"][0]), int(self._sent[path]), received))

    def _deliver(self) -> None:
        """settle() of bpf/health.h: a reply counts if it is newer than the newest."""
        here = [r for r in self._replies if r[0] < self.now]
        self._replies = [r for r in self._replies if r[0] >= self.now]
        for _, path, seq, sent, received in here:
            ev = self.evs[path[0], path[1] : path[1] + 1]
            if 0 < (seq - int(ev["reply_seq"][0])) & 0xFFFFFFFF < 1 << 31:
                ev["reply_seq"], ev["settled_tx"], ev["settled_rx"] = seq, sent, received
                ev["reply_ns"], ev["rtt_ns"] = self.now - self.interval + 30_000, 30_000
                with np.errstate(over="ignore"):
                    ev["replies"] += np.uint32(1)

    def rounds(self, count: int) -> list[Transition]:
        return [t for _ in range(count) for t in self.round()]

    def until(self, happened: Callable[[], object], limit: int) -> int:
        """Rounds until it has happened."""
        for n in range(limit + 1):
            if happened():
                return n
            self.round()
        raise AssertionError(f"did not happen within {limit} rounds; log: {self.log}")


def demoted(network: Network) -> set[Path]:
    return {(t.row, t.ev) for _, t in network.log if t.after is EvState.ASSUMED_BAD}


# ---- from unknown to good ----


def test_an_ev_is_good_with_its_first_reply_and_not_before() -> None:
    n = Network(good=False)
    assert n.round() == []  # nothing was sent yet
    n.silent = {(0, 3)}
    assert len(n.round()) == 8  # the first probes had gone out before
    assert n.states() == {EvState.GOOD}
    assert {t.reason for _, t in n.log} == {Reason.PROBED}
    assert {t.before for _, t in n.log} == {EvState.UNKNOWN}


def test_an_ev_that_never_answered_is_not_good() -> None:
    n = Network(good=False)
    n.silent = {(0, 3)}
    n.rounds(3)
    assert n.state((0, 3)) is EvState.UNKNOWN
    n.rounds(10)
    assert n.state((0, 3)) is EvState.ASSUMED_BAD
    assert demoted(n) == {(0, 3)}


def test_what_is_not_configured_is_not_judged() -> None:
    n = Network(good=False)
    n.evs["configured"][0, 5] = 0
    n.evs["state"][0, 5] = EvState.GOOD
    n.silent = {(0, 5)}
    n.rounds(20)
    n.local = 0
    n.rounds(2)
    assert 5 not in {t.ev for _, t in n.log}
    assert len({t.ev for _, t in n.log}) == 7


# ---- unanswered probes ----


@pytest.mark.parametrize("unanswered", [2, 4, 7])
def test_a_silent_ev_is_withdrawn_after_just_so_many_probes(unanswered: int) -> None:
    n = Network()
    n.restart(unanswered=unanswered)
    n.rounds(10)
    n.silent = {(0, 2)}
    since = n.now
    assert n.rounds(unanswered) == []  # the verdict on probe k falls in the round after it was sent
    (t,) = n.round()
    assert (t.row, t.ev, t.before, t.after) == (0, 2, EvState.GOOD, EvState.ASSUMED_BAD)
    assert t.reason is Reason.UNANSWERED
    assert t.evidence["probes"] == unanswered
    assert t.evidence["silent_ms"] == pytest.approx((n.log[0][0] - since) / MS + 20, abs=20)


def test_a_blackhole_is_left_within_100_ms_by_default() -> None:
    n = Network()
    n.rounds(5)
    n.silent = {(0, 1), (0, 3), (0, 5), (0, 7)}
    started = n.now
    n.until(lambda: demoted(n) == n.silent, 10)
    assert n.log[-1][0] - started <= 100 * MS
    assert n.rounds(100) == []


def test_single_probes_may_be_lost() -> None:
    n = Network()
    for _ in range(10):
        n.silent = {(0, 6)}
        n.rounds(3)
        n.silent = set()
        n.rounds(2)
    assert n.log == []


def test_a_peer_that_is_silent_on_all_paths_is_unreachable_and_none_of_them_to_blame() -> None:
    n = Network()
    n.rounds(5)
    assert (n.verdict.silent, n.verdict.heard) == ([], [0])
    n.silent = set(n.all)
    n.rounds(4)
    assert n.verdict.silent == []
    n.rounds(1)
    assert (n.verdict.silent, n.verdict.heard) == ([0], [])
    n.rounds(200)
    assert (n.verdict.silent, n.log) == ([0], [])
    n.silent = set()
    n.rounds(2)
    assert (n.verdict.silent, n.verdict.heard) == ([], [0])
    n.rounds(50)
    assert n.log == []
    assert n.states() == {EvState.GOOD}


def test_when_a_peer_returns_its_paths_may_come_one_after_the_other() -> None:
    n = Network()
    n.silent = set(n.all)
    n.rounds(40)
    for path in n.all[:-1]:
        n.silent.discard(path)  # all but one come back at once …
    n.rounds(3)
    n.silent.clear()  # … and the last one 60 ms later
    n.rounds(50)
    assert n.log == []


def test_a_path_that_stays_away_when_its_peer_returns_is_withdrawn() -> None:
    n = Network()
    n.silent = set(n.all)
    n.rounds(40)
    n.silent = {(0, 4)}
    n.until(lambda: demoted(n) == {(0, 4)}, 8)
    n.rounds(50)
    assert demoted(n) == {(0, 4)}


def test_another_peer_s_replies_prove_nothing() -> None:
    n = Network(peers=3)
    n.silent = {(1, ev) for ev in range(8)}
    n.rounds(50)
    assert n.log == []
    assert n.verdict.silent == [1]
    assert n.verdict.heard == [0, 2]


def test_peers_are_judged_when_they_are_due() -> None:
    """The rows of one call are any of the peers, and each is remembered by itself."""
    n = Network(peers=3)
    n.silent = {(2, 0)}
    n.rows = np.array([0, 1])
    n.rounds(20)
    assert n.log == []
    n.rows = np.array([2])
    n.rounds(6)
    assert demoted(n) == {(2, 0)}
    n.silent = {(1, ev) for ev in range(8)} | {(2, 0)}
    n.rows = np.array([1, 2])
    n.rounds(6)
    assert (n.verdict.silent, n.verdict.heard) == ([1], [2])
    n.silent = {(2, 0)}
    n.rows = np.array([0, 1, 2])
    n.rounds(20)
    assert demoted(n) == {(2, 0)}


def test_a_host_that_stood_still_blames_nobody() -> None:
    """No round for half a second, and the replies are all there, or all come in the next round."""
    n = Network()
    for late in (0, 1):
        n.late = dict.fromkeys(n.all, late)
        n.rounds(1)
        n.now += 500 * MS
        n.rounds(10)
    assert n.log == []


def count_from(n: Network, number: int) -> None:
    n.evs["probe_seq"] = n.evs["reply_seq"] = np.uint32(number)
    n.evs["replies"] = np.uint32(2**32 - 2)
    n.restart()


@pytest.mark.parametrize("number", [*range(2**32 - 12, 2**32), 2**31 - 8])
def test_probe_numbers_wrap(number: int) -> None:
    n = Network()
    count_from(n, number)
    n.rounds(30)
    assert n.log == []
    count_from(n, number)
    n.rounds(6)
    n.silent = {(0, 0)}
    n.rounds(4)
    assert n.log == []
    n.round()
    assert demoted(n) == {(0, 0)}
    n.silent = set()
    n.rounds(20)
    count_from(n, number)
    n.until(lambda: n.states() == {EvState.GOOD}, 60)


def test_a_probe_that_is_lost_where_numbers_wrap_is_noticed() -> None:
    n = Network()
    n.silent = {(0, 1)}
    n.until(lambda: demoted(n), 10)
    n.silent = set()
    n.rounds(2)
    count_from(n, 2**32 - 40)
    n.rounds(39)
    n.silent = {(0, 1)}  # number 0 does not come back
    n.round()
    assert n.evs["probe_seq"][0, 1] == 0
    n.silent = set()
    lost = n.now
    n.until(lambda: n.state((0, 1)) is EvState.GOOD, 100)
    assert n.log[-1][0] - lost == pytest.approx(1000 * MS, abs=60 * MS)


# ---- loss ----


@pytest.mark.parametrize("load", [20, 100, 5000])
def test_a_path_that_loses_a_fifth_is_withdrawn_within_the_window(load: int) -> None:
    n = Network(load=load)
    n.rounds(33)
    n.loss[0, 5] = 0.2
    started = n.now
    n.until(lambda: n.log, 50)
    (when, t), *more = n.log
    assert more == []
    assert (t.ev, t.after, t.reason) == (5, EvState.ASSUMED_BAD, Reason.LOSS)
    # At worst the window that was running when it began ends first, diluted, and a whole one follows.
    assert when - started <= 2 * n.settings.loss_window_ms * MS
    assert t.evidence["lost_packets"] >= n.settings.loss_min_packets
    assert t.evidence["lost_packets"] >= 0.05 * t.evidence["sent_packets"]
    assert n.rounds(30) == []


def test_loss_in_the_running_window_is_not_hidden_by_the_good_hours_before() -> None:
    n = Network(load=1000)
    n.rounds(500)
    n.loss[0, 0] = 0.3
    n.until(lambda: demoted(n) == {(0, 0)}, 25)


def test_a_burst_in_flight_is_not_lost() -> None:
    """A probe overtakes a burst: the count is short by it, and the next reply takes it back."""
    n = Network()
    for rounds in (1, 2):
        for path in n.all:
            for _ in range(rounds):
                n.in_flight[path] = 60
                n.round()
            n.rounds(3)
    assert n.log == []


def test_a_little_loss_is_no_reason() -> None:
    n = Network(load=1000)
    n.loss[0, 3] = 0.03
    n.rounds(200)
    assert n.log == []


def test_a_few_packets_prove_nothing() -> None:
    n = Network(load=0)
    n.load[0, 3], n.loss[0, 3] = 1, 0.4  # 8 of 20 in a window
    n.rounds(200)
    assert n.log == []


def test_just_enough_packets_are_enough() -> None:
    """The tenth packet is missed as the window ends: it stays open until the loss is confirmed or taken back."""
    n = Network(load=3)
    n.loss[0, 3] = 0.165
    n.until(lambda: demoted(n) == {(0, 3)}, 100)


@pytest.mark.parametrize("settings", [{"loss_ratio": 0.5}, {"loss_min_packets": 100_000}, {"loss_ratio": 1}])
def test_the_loss_rule_is_the_configuration_s(settings: dict[str, float]) -> None:
    n = Network()
    n.restart(**settings)
    n.loss[0, 3] = 0.3
    n.rounds(100)
    assert n.log == []
    n.restart(loss_ratio=0.25)
    n.until(lambda: demoted(n) == {(0, 3)}, 40)


@pytest.mark.parametrize("ratio", [0.05, 0.1, 0.2, 0.6])
def test_loss_that_all_paths_share_is_not_the_paths(ratio: float) -> None:
    n = Network()
    n.loss[:] = ratio
    n.rounds(300)
    assert n.log == []


def test_uneven_loss_on_all_paths_is_still_shared() -> None:
    n = Network()
    n.loss[0] = [0.08, 0.1, 0.12, 0.14, 0.1, 0.09, 0.2, 0.06]
    n.rounds(300)
    assert n.log == []


def test_a_bad_path_stands_out_from_shared_loss() -> None:
    n = Network()
    n.loss[:] = 0.05
    n.loss[0, 6] = 0.5
    n.until(lambda: demoted(n) == {(0, 6)}, 50)
    n.rounds(100)
    assert demoted(n) == {(0, 6)}


def test_receivers_that_count_ahead_lose_nothing() -> None:
    """settled_rx is written before settled_tx: a snapshot in between has more received than sent."""
    n = Network()
    n.loss[:] = -0.2
    n.rounds(100)
    assert n.log == []


def test_counters_that_begin_anew_are_no_loss() -> None:
    n = Network()
    n.rounds(50)
    n._sent[:], n._received[:] = 0, 0
    n.evs["settled_tx"] = n.evs["settled_rx"] = 0
    n.rounds(100)
    assert n.log == []


def test_counters_are_64_bits_wide() -> None:
    n = Network()
    n._sent[:], n._received[:] = 2**53, 2**53
    n.rounds(2)
    n.restart()
    n.rounds(60)
    assert n.log == []
    assert int(n.evs["settled_tx"].min()) > 2**53


# ---- links ----


@pytest.mark.parametrize("there", [False, True])
def test_evs_of_a_plane_without_a_link_leave_at_once(there: bool) -> None:
    n = Network(peers=2)
    if there:
        n.ports[0] = ALL & ~(1 << 2)
    else:
        n.local = ALL & ~(1 << 2)
    left = n.round()
    rows = {0} if there else {0, 1}
    assert {(t.row, t.ev) for t in left} == {(row, ev) for row in rows for ev in (4, 5)}
    assert {t.reason for t in left} == {Reason.PEER_LINK_DOWN if there else Reason.LINK_DOWN}
    assert n.rounds(50) == []  # no second verdict on them, and none on the others


def test_this_host_s_link_goes_before_the_peer_s() -> None:
    n = Network()
    n.local = ALL & ~1
    n.ports[0] = ALL & ~1
    assert {t.reason for t in n.round()} == {Reason.LINK_DOWN}


def test_unknown_evs_without_a_link_stay_unknown() -> None:
    n = Network(good=False)
    n.local = ALL & ~0b0010
    n.rounds(20)
    assert n.state((0, 2)) is n.state((0, 3)) is EvState.UNKNOWN
    assert len([t for _, t in n.log if t.after is EvState.GOOD]) == 6
    n.local = ALL
    n.rounds(3)
    assert n.states() == {EvState.GOOD}


def test_a_silent_peer_is_silent_whatever_its_links_are() -> None:
    n = Network()
    n.ports[0] = ALL & ~1
    n.silent = set(n.all)
    n.rounds(10)
    assert n.verdict.silent == [0]
    assert demoted(n) == {(0, 0), (0, 1)}


def test_without_any_link_nobody_can_be_asked() -> None:
    n = Network()
    n.local = 0
    n.rounds(10)
    assert (n.verdict.silent, n.verdict.heard) == ([], [])
    assert {t.reason for _, t in n.log} == {Reason.LINK_DOWN}


def test_evs_come_back_after_their_link_did() -> None:
    n = Network()
    n.local = ALL & ~1
    n.rounds(500)
    assert n.states() == {EvState.GOOD, EvState.ASSUMED_BAD}
    n.local = ALL
    took = n.until(lambda: n.states() == {EvState.GOOD}, 100)
    assert took >= 10  # good_probes, though the hold-down is long over


# ---- coming back ----


def cut(n: Network, path: Path) -> int:
    """Blackhole a path until it is withdrawn, then heal it. Returns the time from the first good probe
    to its return, in ns."""
    n.silent = {path}
    n.until(lambda: n.state(path) is EvState.ASSUMED_BAD, 10)
    n.rounds(5)
    n.silent = set()
    healed = n.now
    n.until(lambda: n.state(path) is EvState.GOOD, 5000)
    when, t = n.log[-1]
    assert (t.ev, t.reason, t.before) == (path[1], Reason.HEALED, EvState.ASSUMED_BAD)
    assert t.evidence["good_probes"] >= n.settings.good_probes
    return when - healed


def test_a_healed_ev_returns_after_its_hold_down() -> None:
    n = Network()
    n.restart(hold_down_ms=1000)
    n.rounds(2)
    assert cut(n, (0, 1)) == pytest.approx(1000 * MS, abs=40 * MS)
    assert n.log[-1][1].evidence["hold_down_ms"] == 1000
    assert n.rounds(100) == []


def test_a_healed_ev_returns_after_enough_good_probes() -> None:
    n = Network()
    n.restart(hold_down_ms=1, hold_down_max_ms=1, good_probes=25)
    n.rounds(2)
    assert cut(n, (0, 1)) == pytest.approx(25 * 20 * MS, abs=40 * MS)


def test_an_ev_that_was_allowed_again_has_no_past() -> None:
    n = Network()
    n.evs["relapses"][0, 1], n.evs["state"][0, 1] = 5, EvState.DENIED
    n.silent = {(0, 1)}
    n.rounds(2)
    n.evs["state"][0, 1] = EvState.UNKNOWN
    n.until(lambda: demoted(n), 10)
    assert n.log[-1][1].before is EvState.UNKNOWN
    assert n.evs["relapses"][0, 1] == 1


def test_the_hold_down_doubles_with_each_relapse_up_to_its_limit() -> None:
    n = Network()
    n.restart(hold_down_ms=300, hold_down_max_ms=2000)
    n.rounds(2)
    held = [cut(n, (0, 1)) for _ in range(5)]
    assert held == [pytest.approx(ms * MS, abs=40 * MS) for ms in (300, 600, 1200, 2000, 2000)]
    assert [t.relapses for _, t in n.log if t.after is EvState.ASSUMED_BAD] == [1, 2, 3, 4, 5]
    assert cut(n, (0, 2)) == pytest.approx(300 * MS, abs=40 * MS)  # another path's past is not its own


def test_relapses_are_forgotten_after_long_health() -> None:
    n = Network()
    n.restart(hold_down_ms=300, hold_down_max_ms=2000)
    n.rounds(2)
    for _ in range(4):
        cut(n, (0, 1))
    n.rounds(95)  # 1.9 s
    assert cut(n, (0, 1)) == pytest.approx(2000 * MS, abs=40 * MS)
    n.rounds(105)  # 2.1 s
    assert cut(n, (0, 1)) == pytest.approx(300 * MS, abs=40 * MS)


def test_hold_downs_of_all_relapses() -> None:
    judge = Judge(Health(hold_down_ms=1000, hold_down_max_ms=60_000), 1, 1)
    assert (judge.hold_down_ns(np.arange(9)) // (1000 * MS)).tolist() == [1, 1, 2, 4, 8, 16, 32, 60, 60]
    assert int(judge.hold_down_ns(255)) == 60_000 * MS
    longest = Judge(Health(hold_down_ms=1, hold_down_max_ms=86_400_000), 1, 1)
    assert int(longest.hold_down_ns(255)) == 86_400_000 * MS


def test_a_probe_that_is_lost_during_the_hold_down_starts_it_again() -> None:
    n = Network()
    n.restart(hold_down_ms=1000)
    n.rounds(2)
    n.silent = {(0, 1)}
    n.until(lambda: demoted(n), 10)
    for _ in range(5):
        n.silent = set()
        n.rounds(45)  # 900 ms
        n.silent = {(0, 1)}
        n.rounds(1)
    assert n.state((0, 1)) is EvState.ASSUMED_BAD
    n.silent = set()
    started = n.now
    n.until(lambda: n.state((0, 1)) is EvState.GOOD, 100)
    assert n.log[-1][0] - started == pytest.approx(1000 * MS, abs=60 * MS)


def test_a_lossy_ev_returns_when_it_has_healed_and_leaves_again_if_it_has_not() -> None:
    n = Network()
    n.loss[0, 2] = 0.2
    n.until(lambda: demoted(n), 50)
    n.load[0, 2] = 0  # what is withdrawn carries no data
    n.until(lambda: n.state((0, 2)) is EvState.GOOD, 100)
    n.load[0, 2] = 100
    n.until(lambda: n.state((0, 2)) is EvState.ASSUMED_BAD, 50)
    n.load[0, 2] = 0
    n.until(lambda: n.state((0, 2)) is EvState.GOOD, 200)
    n.load[0, 2], n.loss[0, 2] = 100, 0
    n.rounds(200)
    assert n.state((0, 2)) is EvState.GOOD
    assert [t.reason for _, t in n.log] == [Reason.LOSS, Reason.HEALED, Reason.LOSS, Reason.HEALED]


# ---- restarts, administrators ----


def test_a_new_daemon_judges_nobody_by_what_it_has_not_seen() -> None:
    n = Network()
    n.silent = set(n.all[:2])
    n.loss[0, 4] = 0.5
    n.rounds(1)
    n.restart()
    n.silent, n.loss[0, 4] = set(), 0
    n.evs["probe_seq"] += np.uint32(3)  # asked by the daemon before, which then died
    assert n.rounds(100) == []


def test_a_new_daemon_keeps_what_is_withdrawn_until_it_has_proven_itself() -> None:
    n = Network()
    n.silent = {(0, 1)}
    n.until(lambda: demoted(n), 10)
    n.silent = set()
    n.rounds(30)
    n.restart()
    started = n.now
    n.until(lambda: n.state((0, 1)) is EvState.GOOD, 100)
    assert n.log[-1][0] - started == pytest.approx(1000 * MS, abs=40 * MS)


def test_forgotten_rows_begin_anew_and_only_these() -> None:
    n = Network(peers=2)
    n.silent = {(0, 1), (1, 1)}
    n.until(lambda: len(demoted(n)) == 2, 10)
    n.silent = set()
    n.rounds(40)
    n.judge.forget(np.array([0]))
    n.until(lambda: n.state((1, 1)) is EvState.GOOD, 20)
    assert n.state((0, 1)) is EvState.ASSUMED_BAD
    n.until(lambda: n.state((0, 1)) is EvState.GOOD, 60)


def test_denied_evs_are_left_alone() -> None:
    n = Network()
    n.evs["state"][0, :2] = EvState.DENIED
    n.silent = {(0, 0)}
    n.loss[0, 1] = 0.9
    n.rounds(100)
    n.local = ALL & ~1
    n.rounds(10)
    n.local = ALL
    n.silent = set()
    n.rounds(200)
    assert n.log == []
    assert n.state((0, 0)) is n.state((0, 1)) is EvState.DENIED


def test_denied_evs_are_no_witnesses() -> None:
    """A peer that answers on denied paths only does not answer on those that count."""
    n = Network()
    n.evs["state"][0, :4] = EvState.DENIED
    n.silent = {(0, ev) for ev in range(4, 8)}
    n.rounds(20)
    assert n.log == []
    assert n.verdict.silent == [0]


def test_an_ev_that_is_allowed_again_is_judged_by_its_probes() -> None:
    n = Network()
    n.evs["state"][0, 3:5] = EvState.DENIED
    n.silent = {(0, 3)}
    n.rounds(10)
    n.evs["state"][0, 3:5] = EvState.UNKNOWN
    n.round()
    assert n.state((0, 3)) is EvState.ASSUMED_BAD  # its silence while it was denied counts
    assert n.state((0, 4)) is EvState.GOOD
    n.silent = set()
    n.until(lambda: n.states() == {EvState.GOOD}, 100)


# ---- no false alarms ----


@pytest.mark.parametrize("seed", range(3))
def test_no_ev_leaves_good_without_a_fault_on_a_busy_machine(seed: int) -> None:
    """Half a minute of rounds that come late, replies that come late, probes that overtake bursts."""
    chance = random.Random(seed)
    n = Network(load=500)
    overtaken: dict[Path, int] = {}
    for _ in range(1500):
        n.late = {p: chance.choice((0, 0, 1, 2)) for p in n.all} if chance.random() < 0.2 else {}
        for path in n.all:
            overtaken[path] = overtaken.get(path, 0) + 1 if chance.random() < 0.3 else 0
            if 0 < overtaken[path] < 3:  # a third time in a row it is lost
                n.in_flight[path] = 45
        if chance.random() < 0.05:
            n.now += chance.randrange(500) * MS
        n.round()
    assert n.log == []


# ---- which EVs carry traffic ----


def records(*states: EvState, planes: int = 1) -> NDArray[np.void]:
    evs = np.zeros(len(states), abi.EV)
    evs["configured"] = 1
    evs["state"] = states
    evs["plane"] = np.arange(len(states)) * planes // len(states)
    return evs


def used(evs: NDArray[np.void], floor: int, linked: Iterable[bool] | None = None) -> list[int]:
    links = np.ones(len(evs), bool) if linked is None else np.array(list(linked), bool)
    return np.flatnonzero(health.usable_evs(evs, floor, links)).tolist()


GOOD, SKIP, BAD, DENIED, UNKNOWN = (
    EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD, EvState.DENIED, EvState.UNKNOWN
)  # fmt: skip


def test_good_evs_carry_traffic() -> None:
    assert used(records(GOOD, SKIP, BAD, DENIED, UNKNOWN, GOOD), 1) == [0, 1, 5]


def test_below_the_floor_the_least_bad_help_out() -> None:
    evs = records(GOOD, BAD, UNKNOWN, BAD, DENIED, BAD)
    evs["probe_seq"] = [10, 90, 95, 12, 10, 40]
    evs["reply_seq"] = 10
    assert [used(evs, floor) for floor in range(1, 6)] == [
        [0], [0, 2], [0, 2, 3], [0, 2, 3, 5], [0, 1, 2, 3, 5],
    ]  # fmt: skip


def test_the_floor_never_asks_for_denied_evs_or_dead_links_or_what_is_not_there() -> None:
    evs = records(GOOD, BAD, DENIED, UNKNOWN)
    assert used(evs, 100) == [0, 1, 3]
    assert used(evs, 100, [False, True, True, False]) == [1]
    assert used(evs, 100, [False] * 4) == []
    evs["configured"][1] = 0
    assert used(evs, 100) == [0, 3]
    assert used(records(DENIED, DENIED), 2) == []


def test_probe_numbers_that_wrapped_are_compared_by_what_is_missing() -> None:
    evs = records(BAD, BAD)
    evs["probe_seq"], evs["reply_seq"] = [2, 500], [2**32 - 3, 490]  # 5 and 10 are missing
    assert used(evs, 1) == [0]


def test_usable_evs_do_not_change_the_table() -> None:
    evs = records(GOOD, BAD, UNKNOWN)
    before = evs.copy()
    used(evs, 3)
    assert np.array_equal(evs, before)


@pytest.mark.parametrize(("configured", "floor"), [(256, 64), (16, 4), (4, 1), (3, 1), (1, 1), (0, 1)])
def test_the_floor_is_a_quarter_unless_configured(configured: int, floor: int) -> None:
    assert health.default_floor(configured) == floor


@pytest.mark.parametrize(("planes", "evs_per_peer"), [(4, 256), (1, 256), (8, 256), (3, 256), (2, 6), (1, 65), (5, 5)])
def test_the_bitmap_has_a_bit_per_slot_as_spray_h_reads_it(planes: int, evs_per_peer: int) -> None:
    """next_slot() of bpf/arith.h: bit (slot % 64) of usable[plane][slot / 64], host byte order."""
    width = evs_per_peer // planes
    chance = random.Random(planes * 1000 + evs_per_peer)
    usable = np.array([chance.random() < 0.5 for _ in range(evs_per_peer)])
    usable[0] = usable[planes * width - 1] = True
    words = health.bitmap(usable, planes, width, abi.MAX_PLANES, abi.EV_WORDS)
    assert words.shape == abi.PEER["usable"].shape
    assert words.dtype == np.uint64
    for plane in range(abi.MAX_PLANES):
        for slot in range(64 * abi.EV_WORDS):
            expected = plane < planes and slot < width and bool(usable[plane * width + slot])
            assert bool(int(words[plane][slot // 64]) >> (slot % 64) & 1) == expected


def test_loss_on_one_of_two_paths_is_that_path_s() -> None:
    n = Network(evs=2, planes=2)
    n.loss[0, 1] = 0.5
    n.until(lambda: demoted(n) == {(0, 1)}, 50)


def test_loss_on_one_plane_of_two_is_that_plane_s() -> None:
    n = Network(evs=8, planes=2)
    n.loss[0, 4:] = 0.5
    n.until(lambda: demoted(n) == {(0, e) for e in range(4, 8)}, 50)


def test_below_the_floor_those_that_lose_least_are_used() -> None:
    evs = records(BAD, BAD, BAD)
    evs["settled_tx"], evs["settled_rx"] = 1000, [100, 950, 800]
    assert used(evs, 1) == [1]


def test_a_reply_newer_than_the_probe_that_was_read_is_no_silence() -> None:
    evs = records(BAD)
    evs["probe_seq"], evs["reply_seq"] = 6, 7
    assert health.pending_probes(evs).tolist() == [0]


def test_bad_ways_back_do_not_hide_the_dead_paths() -> None:
    """Of four EVs three are dead both ways, and the peer does not know: one reply in four comes back."""
    judge, fallen = Judge(Health(), 1, 4), set()
    evs = np.zeros((1, 4), abi.EV)
    evs["configured"], evs["state"], evs["replies"] = 1, EvState.GOOD, 100
    evs["probe_seq"] = evs["reply_seq"] = 100
    for step in range(60):
        evs["probe_seq"] += 1
        if step % 4 == 3:
            evs["reply_seq"][0, 0] = evs["probe_seq"][0, 0]
            evs["replies"][0, 0] += 1
        verdict = judge.judge(np.array([0]), evs.copy(), np.array([1]), 1, step * 20_000_000)
        fallen |= {t.ev for t in verdict.transitions}
        for t in verdict.transitions:
            evs["state"][0, t.ev] = t.after
    assert fallen == {1, 2, 3}
