"""Many peers: how many probes the quiet ones get, that all get their turn, and that no tick takes long."""

import mmap
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from mrcd import abi, config, install, lazy, pacing, tables, topology
from mrcd.abi import EvState, Reason
from mrcd.config import Health
from mrcd.dataplane import Dataplane
from mrcd.events import EventLog
from mrcd.monitor import Monitor
from mrcd.selfwatch import Durations
from tests.cluster_files import host
from tests.unit.arrays import Arrays
from tests.unit.played import MS, Programs

EVS, PEERS, ALLOWED = 64, 100, 2000


class Some(Programs):
    """mrc_sweep as it is: of some EVs, round after the last; and peers that answer, but for `mute`."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self.probes: list[tuple[int, int]] = []  # (ms, how many)
        self.mute: set[int] = set()
        self.takes_s = 0.0
        self.clock = 0.0  # s

    def sweep(self, host_id: int, first: int = 0, count: int = 0) -> int:
        numbers = (first + np.arange(count or EVS)) % EVS
        evs, ledgers = self.arrays.evs[host_id], self.arrays.ledgers[host_id]
        numbers = numbers[(evs["configured"][numbers] != 0) & (ledgers["probe_after_ns"][numbers] <= self.now)]
        evs["probe_seq"][numbers] += 1
        ledgers["probe_ns"][numbers] = self.now
        if host_id not in self.mute:
            ledgers["reply_seq"][numbers] = evs["probe_seq"][numbers]
            ledgers["replies"][numbers] += 1
            ledgers["good"][numbers] += 1
            self.arrays.peers["heard_ns"][host_id] = self.now + 1
        self.swept.append(host_id)
        self.probes.append((self.now // MS, len(numbers) + 1))
        self.clock += self.takes_s
        return len(numbers) + 1


class Many:
    """A monitor of h0 among many peers."""

    def __init__(self, state: EvState = EvState.GOOD) -> None:
        hosts = "".join(host(i, t0=i % 2 if i else 2) for i in range(PEERS + 1))
        shape = f"[cluster]\nt0s = 3\nt1s = 16\nplanes = 4\nevs_per_peer = {EVS}\n"
        parsed = config.parse(f"{shape}[health]\nidle_probes = {ALLOWED}\n{hosts}")
        self.arrays = Arrays(PEERS + 1, EVS)
        plan = topology.plan(parsed, "h0")
        assert plan.ev_count == PEERS * EVS
        shown = cast(tables.Tables, self.arrays)
        install.write_peers(shown, plan, lambda row: None)
        self.arrays.evs["state"][self.arrays.evs["configured"] != 0] = state
        self.arrays.node["ports"] = 0b1111
        self.programs = Some(self.arrays)
        self.arrays.peers["heard_ns"][1:] = self.programs.now
        self.log = EventLog()
        self.monitor = Monitor(plan, shown, cast(Dataplane, self.programs), self.log, lambda row: None)

    def run(self, ms: int) -> None:
        for _ in range(ms // 20):
            self.programs.now += 20 * MS
            self.monitor._tick(self.programs.now)

    def per_second(self) -> list[int]:
        """Probes of each second."""
        begin = self.programs.probes[0][0]
        found = np.zeros((self.programs.probes[-1][0] - begin) // 1000 + 1, int)
        for at, count in self.programs.probes:
            found[(at - begin) // 1000] += count
        return [int(n) for n in found[:-1]]


# ---- the pace ----


@pytest.mark.parametrize(("peers", "evs"), [(1, 256), (3, 48), (3, 384), (15, 360)])
def test_small_clusters_probe_all_evs_in_every_idle_interval(peers: int, evs: int) -> None:
    assert pacing.pace(Health(), peers, evs, 256) == pacing.Pace(0, 100 * MS)


@pytest.mark.parametrize(
    ("peers", "evs_per_peer", "window", "interval_ms"),
    [(8, 256, 49, 200), (64, 256, 16, 544), (64, 16, 16, 544), (4096, 256, 16, 34_816), (4096, 4, 4, 10_240)],
)
def test_many_peers_take_turns(peers: int, evs_per_peer: int, window: int, interval_ms: float) -> None:
    found = pacing.pace(Health(), peers, peers * evs_per_peer, evs_per_peer)
    assert (found.window, found.interval_ns / MS) == (window, interval_ms)
    # Half of what is allowed, at most: the rest is for what is to be tried.
    assert peers * (found.window + 1) / (found.interval_ns / 1e9) <= Health().idle_probes / 2 * 1.13


def test_who_is_asked_seldom_is_given_time_to_answer() -> None:
    assert pacing.silent_ns(pacing.Pace(0, 100 * MS), 3000 * MS) == 3000 * MS
    assert pacing.silent_ns(pacing.Pace(16, 14_000 * MS), 3000 * MS) == 42_000 * MS


def test_a_budget_is_so_much_per_second_and_no_more_than_half_at_once() -> None:
    b = pacing.Budget(1000)
    assert b.left(0) == 500
    b.spend(550)
    assert b.left(50 * MS) == 0
    assert b.left(100 * MS) == 50
    assert b.left(90 * MS) == 50  # a clock that steps back gives nothing
    assert b.left(10**12) == 500


# ---- the monitor at that pace ----


def test_quiet_peers_get_no_more_probes_than_allowed_and_all_evs_their_turn() -> None:
    m = Many()
    m.run(30_000)
    rates = m.per_second()
    assert max(rates[2:]) <= ALLOWED
    assert np.mean(rates[2:]) == pytest.approx(ALLOWED / 2, rel=0.2)
    evs = m.arrays.evs["probe_seq"][1:]
    assert evs.min() >= 3
    assert evs.max() <= 3 * evs.min()
    times = [i for i, row in enumerate(m.programs.swept) if row == 1]
    assert max(np.diff(times)) <= 2 * PEERS


def test_unknown_evs_become_good_as_fast_as_allowed() -> None:
    m = Many(EvState.UNKNOWN)
    m.run(8000)
    assert max(m.per_second()[2:]) <= ALLOWED * 1.25
    assert set(m.arrays.evs["state"][1:].flat) == {EvState.GOOD}


def test_peers_that_never_answer_are_probed_within_the_budget_for_ever() -> None:
    m = Many(EvState.UNKNOWN)
    m.programs.mute = set(range(PEERS + 1))
    m.run(20_000)
    rates = m.per_second()
    assert max(rates[2:]) <= ALLOWED * 1.25  # a second may have part of another one's
    assert min(rates[2:]) >= ALLOWED * 0.5
    assert m.arrays.evs["probe_seq"][1:].min() >= 2


def test_a_fallen_ev_of_a_quiet_peer_is_tried_and_returns() -> None:
    m = Many()
    m.run(3000)
    m.programs.change(7, 50, EvState.ASSUMED_BAD, Reason.OVERDUE)
    m.arrays.evs["relapses"][7, 50], m.arrays.ledgers["good"][7, 50] = 1, 0
    m.run(10_000)
    assert m.arrays.evs["state"][7, 50] == EvState.GOOD
    assert (m.arrays.evs["state"][1:] == EvState.GOOD).all()


def test_traffic_wakes_a_peer_at_once_and_is_not_limited() -> None:
    m = Many()
    m.run(5000)
    m.programs.swept.clear()
    m.arrays.rounds["round"][9] += 1
    m.arrays.evs["tx_packets"][9, 3] += 10
    begun = m.programs.now
    while m.monitor._who.busy_ns[9] < begun:
        assert m.programs.now - begun < 100 * MS
        m.run(20)
    assert m.programs.swept.count(9) <= 1
    for _ in range(12):  # it stalls: nothing comes by its packets
        m.programs.probes.clear()
        m.run(20)
        assert sum(n for _, n in m.programs.probes if n == EVS + 1) == EVS + 1


def test_a_quiet_peer_that_is_gone_is_told_unreachable() -> None:
    m = Many()
    m.run(5000)
    m.monitor.peerwatch._started -= 100  # patience is for the first moments
    m.programs.mute = {5}
    m.run(20_000)
    said = [(e["peer"], e["to"]) for e in m.log._events if e["kind"] == "peer" and e["reason"] == "no_replies"]
    assert said == [("h5", "unreachable")]
    m.programs.mute = set()
    m.run(10_000)
    assert [(e["peer"], e["to"]) for e in m.log._events][-1] == ("h5", "reachable")


def test_an_allowed_ev_is_probed_before_it_carries_traffic_though_all_was_calm_before() -> None:
    m = Many()
    m.run(5000)
    evs = m.arrays.evs
    evs["state"][6, 2] = EvState.UNKNOWN  # denied and allowed between two looks
    m.arrays.peers["wanted"][6] += 1
    m.arrays.ledgers["replies"][6, 2] += 1
    while m.monitor._unjudged[6]:
        m.run(20)
    assert evs["state"][6, 2] == EvState.UNKNOWN
    m.run(10_000)
    assert evs["state"][6, 2] == EvState.GOOD


def by_its_clock(m: Many, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes for the monitor only where the programs take some."""
    monkeypatch.setattr("mrcd.monitor.time.perf_counter", lambda: m.programs.clock)


def test_no_tick_takes_long_and_nobody_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 busy peers, or a slow machine: what there is no time for comes first in the next tick."""
    m = Many()
    by_its_clock(m, monkeypatch)
    m.programs.takes_s = 0.002
    m.monitor._who.busy_ns[1:] = m.programs.now + 10**12  # all have traffic, which has stalled
    for tick in range(30):
        m.run(20)
        assert len(m.programs.swept) <= 8 * (tick + 1)  # so many are looked at together; all would take 200 ms
    assert len(set(m.programs.swept)) == PEERS
    counts = np.bincount(m.programs.swept, minlength=PEERS + 1)[1:]
    assert counts.max() - counts.min() <= 2


def test_steers_that_there_is_no_time_for_are_carried_out_later(monkeypatch: pytest.MonkeyPatch) -> None:
    m = Many(EvState.UNKNOWN)
    by_its_clock(m, monkeypatch)
    steer, slow = m.programs.steer, 0.001

    def slowly(*args: object) -> bool:
        m.programs.clock += slow
        return steer(*args)  # type: ignore[arg-type]

    m.programs.steer = slowly  # type: ignore[method-assign,assignment]
    for tick in range(150):  # a look at eight peers may find 512 EVs to steer
        m.run(20)
        assert (m.arrays.evs["state"][1:] == EvState.GOOD).sum() <= 8 * (tick + 1)
    assert (m.arrays.evs["state"][1:] == EvState.GOOD).any()
    slow = 0.0
    m.run(8000)
    assert (m.arrays.evs["state"][1:] == EvState.GOOD).all()


def test_durations_count_what_is_no_longer_than_each_bound() -> None:
    d = Durations()
    for seconds in (0.0001, 0.003, 0.02, 5.0):
        d.add(seconds)
    found = dict(d.cumulative())
    assert (found[0.0001], found[0.002], found[0.005], found[0.02], found[1.0], found["+Inf"]) == (1, 1, 2, 3, 3, 4)
    assert d.longest_s == 5.0
    assert d.sum_s == pytest.approx(5.0231)
    d.forget()
    assert (d.longest_s, d.cumulative()[-1]) == (0.0, ("+Inf", 0))


def test_words_of_evs_are_where_calm_looks_for_them() -> None:
    """configured, plane, srh_len, weight, state: one 64-bit word, the third."""
    fields = abi.EV.fields
    assert fields is not None
    assert [fields[n][1] for n in ("configured", "plane", "srh_len", "weight", "state")] == [16, 17, 18, 19, 20]
    assert abi.EV.itemsize % 8 == 0
    fields = abi.PEER.fields
    assert fields is not None
    assert [fields[n][1] for n in ("ports", "status", "heard_ns")] == [8, 12, 64]
    assert abi.PEER.itemsize % 8 == 0


@pytest.mark.parametrize(("shape", "dtype"), [((3, 5), np.int64), ((2, 3, 4), np.uint32), ((0, 7), np.int16)])
def test_lazy_arrays_are_zeros_that_can_be_written(shape: tuple[int, ...], dtype: type) -> None:
    found = lazy.zeros(shape, dtype)
    assert found.shape == shape
    assert found.dtype == dtype
    assert not found.any()
    found[...] = 7
    assert (found == 7).all()


def test_lazy_arrays_take_memory_where_they_are_written_only() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    found = lazy.zeros((1 << 25,), np.int64)  # 256 MB
    found[:: 1 << 20] = 1
    assert resident() - before < 8 << 20


def test_a_quiet_peer_that_has_traffic_is_looked_at_in_the_next_turn() -> None:
    m = Many()
    m.run(5000)
    m.arrays.evs["tx_packets"][6] += 1
    m.arrays.rounds["round"][6] += 1
    begun = m.programs.now
    while m.monitor._who.busy_ns[6] < begun and m.programs.now - begun < 10**9:
        m.run(20)
    assert m.programs.now - begun <= 100 * MS


def test_no_tick_greets_more_than_it_has_time_for_and_nobody_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    m = Many()
    m.run(10_000)
    by_its_clock(m, monkeypatch)
    m.programs.takes_s = 0.002
    m.monitor._who.due_ns[1:] = 0
    m.monitor._budget = pacing.Budget(10**6)  # for all at once
    m.programs.swept.clear()
    for tick in range(40):
        m.run(20)
        assert len(m.programs.swept) <= 3 * (tick + 1)
    assert set(m.programs.swept) == set(range(1, PEERS + 1))
