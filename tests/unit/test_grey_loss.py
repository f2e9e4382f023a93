# SPDX-License-Identifier: BSD-2-Clause
"""Tests the grey-loss test: its detections, its speed, its false alarms, and the memory that it takes."""

import math
import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from mrcd.config.cluster_file import Health
from mrcd.health import grey_loss
from mrcd.health.grey_loss import Alarm, Grey, zeros
from mrcd.kernel import abi
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables
from tests.unit.arrays import Arrays

S = 10**9
SLICES = 50
ROW = np.array([0])


class Flow:
    """One busy peer: each second 50 slices with packets on every EV, of which some are lost."""

    def __init__(self, loss: list[float], *, seed: int = 0, packets: int = 4000, **h: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.loss = np.array(loss)
        self.packets = packets // SLICES  # in a slice
        self.evs, self.path_stats = np.zeros((1, len(loss)), abi.EV), np.zeros((1, len(loss)), abi.PATH_STATS)
        self.evs["configured"], self.evs["state"] = 1, EvState.GOOD
        self.grey = Grey(Health.model_validate(h), 1, len(loss))
        self.now = 10**12
        self.look()

    def look(self) -> list[Alarm]:
        return self.grey.test(ROW, self.evs, self.now)

    def lose(self, ev: int, packets: int) -> None:
        """Returns the losses that become known in a slice; negative: late arrivals."""
        self.path_stats["deficit"][:, ev] += np.uint32(packets % 2**32)

    def slice(self) -> None:
        """Traffic of a fiftieth of a second."""
        self.now += S // SLICES
        good = self.evs["state"] == EvState.GOOD
        self.path_stats["judged"] += np.where(good, self.packets, 0).astype(np.uint64)
        lost = self.rng.binomial(self.packets, self.loss)
        self.path_stats["deficit"] += np.where(good, lost, 0).astype(np.uint32)
        self.cut()

    def cut(self) -> None:
        """A slice ends here."""
        sent, lost = self.path_stats["judged"], self.path_stats["lost_before"] + self.path_stats["deficit"]
        self.grey.add_slice(ROW, sent.astype(np.uint32), lost.astype(np.uint32))

    def second(self) -> list[Alarm]:
        """Traffic of a second, then a look."""
        for _ in range(SLICES):
            self.slice()
        return self.look()

    def seconds(self, count: int) -> list[Alarm]:
        return [a for _ in range(count) for a in self.second()]

    def until_found(self, limit: int) -> int:
        for n in range(1, limit + 1):
            if self.second():
                return n
        raise AssertionError(f"nothing found in {limit} s")


# ---- the arithmetic ----


@pytest.mark.parametrize("n", [1, 7, 60])
@pytest.mark.parametrize("p", [0.004, 0.0625, 0.5, 0.9])
def test_the_tail_is_binomial(n: int, p: float) -> None:
    for k in range(-1, n + 2):
        exact = math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(max(k, 0), n + 1))
        assert grey_loss.tail(n, p, k) == pytest.approx(exact, rel=1e-9, abs=1e-300)


def test_the_tail_at_its_ends() -> None:
    assert (grey_loss.tail(5, 0.0, 1), grey_loss.tail(5, 1.0, 5), grey_loss.tail(0, 0.5, 1)) == (0.0, 1.0, 0.0)
    assert grey_loss.tail(100_000, 1 / 16, 9000) < 1e-200
    assert grey_loss.tail(100_000, 1 / 16, 6250) == pytest.approx(0.5, abs=0.01)


# ---- error rates ----


@pytest.mark.parametrize("evs", [4, 16])
@pytest.mark.parametrize("losses", [0.02, 0.4])  # lossy slices, of all: rare, and not
def test_false_alarms_stay_below_the_threshold(evs: int, losses: float) -> None:
    """All EVs lose alike. A hundred thousand comparisons at α = 1 % and 0.1 %."""
    rng = np.random.default_rng(evs)
    slices = np.array([200 + 30 * i for i in range(evs)])
    share = slices / slices.sum()
    trials = 100_000 // evs
    drawn = np.stack([rng.binomial(n, losses, trials) for n in slices], axis=1)
    many = drawn > drawn.sum(axis=1, keepdims=True) * share * 1.05  # the others are not improbable
    p = [
        grey_loss.tail(int(drawn[i].sum()), share[e], int(drawn[i, e])) for i, e in zip(*np.nonzero(many), strict=True)
    ]
    for alpha in (0.01, 0.001):
        count, expected = sum(x < alpha for x in p), alpha * drawn.size
        assert count <= expected + 4 * math.sqrt(expected)


@pytest.mark.parametrize(
    ("loss", "seconds", "packets"),
    [
        *(([p] * 16, 130, 4000) for p in (0.0005, 0.005, 0.01, 0.05)),
        ([0.01, 0.015, 0.02, 0.012] * 4, 300, 4000),  # small differences
        ([0.0001] + [0.0] * 15, 300, 4000),  # below grey_ratio
        ([0.01], 100, 4000),  # a single EV cannot stand out
        ([0.0] * 16, 70, 0),  # idle
    ],
    ids=str,
)
def test_loss_that_raises_no_alarm(loss: list[float], seconds: int, packets: int) -> None:
    for seed in range(3 if seconds == 130 else 1):
        assert Flow(loss, seed=seed, packets=packets).seconds(seconds) == []


def test_a_common_loss_does_not_fail_a_just_returned_ev() -> None:
    f = Flow([0.0] * 16)
    f.evs["state"][0, 3] = EvState.ASSUMED_BAD
    f.seconds(50)
    f.evs["state"][0, 3], f.evs["state_since_ns"][0, 3] = EvState.GOOD, f.now + 1
    f.loss[:] = 0.05
    assert f.seconds(3) == []
    f.loss[:] = 0.0
    assert f.seconds(100) == []


# ---- what is found ----


@pytest.mark.parametrize("seed", range(5))
def test_an_ev_that_is_lossy_again_after_its_return_is_found_before_the_next_long_window(seed: int) -> None:
    f = Flow([0.0] * 9, seed=seed, packets=100)
    f.evs["state"][0, 3] = EvState.ASSUMED_BAD
    f.seconds(5)
    f.evs["state"][0, 3], f.evs["state_since_ns"][0, 3], f.loss[3] = EvState.GOOD, f.now + 1, 0.004
    # 0.4 lossy slices a second: ten are found in 25 s, but two windows of 16 s hold 6.4 each.
    f.until_found(50)


@pytest.mark.parametrize(("evs", "packets"), [(16, 4000), (4, 4000), (256, 1000), (2, 4000)])
def test_half_a_percent_among_healthy_evs_is_found_in_seconds(evs: int, packets: int) -> None:
    found = []
    for seed in range(20):
        f = Flow([0.005] + [0.0] * (evs - 1), seed=seed, packets=packets)
        found.append(f.until_found(64))
        assert f.seconds(0) == []
    assert np.median(found) <= 4
    assert max(found) <= 8


def test_an_alarm_has_the_ev_and_the_evidence() -> None:
    f = Flow([0.0] * 5 + [0.01] + [0.0] * 10)
    (alarm,) = [a for _ in range(20) for a in f.second()][:1]
    assert (alarm.row, alarm.ev) == (0, 5)
    assert alarm.evidence["lost_packets"] / alarm.evidence["sent_packets"] == pytest.approx(0.01, rel=0.6)
    assert alarm.evidence["usual_loss_ratio"] == 0.0
    assert 0.9 <= alarm.evidence["window_s"] <= 4.1


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        ([0.01] * 15 + [0.05], {15}),  # stands out from shared loss
        ([0.005] * 4 + [0.0] * 12, {0, 1, 2, 3}),
        ([0.005] * 8 + [0.0] * 8, set(range(8))),  # one of two planes
    ],
    ids=str,
)
def test_all_evs_that_lose_more_than_others_are_found(loss: list[float], found: set[int]) -> None:
    assert {a.ev for a in Flow(loss).seconds(16)} == found


def test_a_failed_ev_hides_no_other() -> None:
    f = Flow([0.3] + [0.005] + [0.0] * 14)
    f.second()
    f.evs["state"][0, 0] = EvState.ASSUMED_BAD
    assert {a.ev for a in f.seconds(10)} == {1}


def test_losses_before_a_failure_do_not_count_after_the_return() -> None:
    f = Flow([0.01] + [0.0] * 15)
    f.until_found(10)
    f.evs["state"][0, 0] = EvState.ASSUMED_BAD
    f.seconds(2)
    f.loss[0] = 0.0
    f.evs["state"][0, 0], f.evs["state_since_ns"][0, 0] = EvState.GOOD, f.now + 1
    assert f.seconds(100) == []


def test_revoked_losses_do_not_count() -> None:
    f = Flow([0.0] * 16)
    for _ in range(30):
        for _ in range(SLICES // 2):
            f.lose(2, 3)
            f.slice()
            f.lose(2, -3)  # late packets have come after all
            f.slice()
        assert f.look() == []


def test_one_interruption_counts_once_for_any_number_of_packets() -> None:
    f = Flow([0.0] * 16)
    for _ in range(5):
        f.lose(4, 300)
        f.seconds(20)
    assert f.seconds(100) == []


def test_counts_wrap() -> None:
    f = Flow([0.0] * 16)
    f.path_stats["judged"], f.path_stats["lost_before"] = 2**32 - 5000, 2**32 - 10
    f.seconds(70)
    f.loss[7] = 0.01
    assert f.until_found(20) <= 8


# ---- whom the daemon looks at ----


class Noted:
    """A table that records which rows are read."""

    def __init__(self, table: NDArray[np.void], read: list[list[int]]) -> None:
        self.shape = table.shape
        self._table, self._read = table, read

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.void]:
        self._read.append(rows.tolist())
        return self._table[rows]


class Watched(Arrays):
    """Three peers with traffic, of eight EVs each, and the watch of two of them."""

    def __init__(self) -> None:
        super().__init__(3, 8)
        self.evs["configured"], self.evs["state"] = 1, EvState.GOOD
        self.now = 10**12
        self.read: list[list[int]] = []  # rows of which EVs were read, by look
        self.watch = self.another()

    def another(self) -> grey_loss.Watch:
        """Returns another watch of the same tables."""
        shown = SimpleNamespace(evs=Noted(self.evs, self.read), path_stats=self.path_stats, reports=self.reports)
        return grey_loss.Watch(Health(), cast(Tables, shown), np.array([1, 2]))

    def traffic(self, lossy: dict[int, int] | None = None) -> list[Alarm]:
        """50 ms of traffic to all peers, then a look. `lossy`: row → EV that loses one of 100 packets."""
        self.now += S // 20
        self.path_stats["judged"] += 100
        self.reports["judged"] += 800
        for row, ev in (lossy or {}).items():
            self.path_stats["deficit"][row, ev] += 1
            self.reports["lossy"][row] += 1
        return self.watch.find_alarms(self.now)


@pytest.mark.parametrize("is_final", [False, True])
def test_the_lossy_ev_is_found(is_final: bool) -> None:
    """A packet missing on an EV may become finally lost while others are missing."""
    w = Watched()
    found: list[Alarm] = []
    for _ in range(4 * 20):
        if is_final:
            w.path_stats["lost_before"][1, 3] += w.path_stats["deficit"][1, 3]
            w.path_stats["deficit"][1, 3] = 0
        found = found or w.traffic({1: 3})
    assert [(a.row, a.ev) for a in found] == [(1, 3)]
    assert found[0].evidence["lost_packets"] / found[0].evidence["sent_packets"] == pytest.approx(0.01, rel=0.1)


def test_evs_are_read_only_of_peers_that_have_lost_packets_lately() -> None:
    w = Watched()
    for _ in range(100):
        w.traffic()
    assert w.read == []
    w.traffic({2: 0})
    assert w.read == [[2]]
    w.read.clear()
    for _ in range(63 * 20):
        w.traffic()
    assert w.read == [[2]] * (63 * 20)  # the longest window may yet need them
    w.read.clear()
    for _ in range(2 * 20):
        w.traffic()
    assert len(w.read) == pytest.approx(20, abs=1)


def test_evs_are_not_read_while_there_is_no_traffic() -> None:
    w = Watched()
    w.traffic({1: 0, 2: 1})
    w.reports["judged"][1] += 1
    w.read.clear()
    w.now += S
    w.watch.find_alarms(w.now)
    w.watch.find_alarms(w.now + S)
    assert w.read == [[1]]


def test_losses_before_the_start_and_rows_without_a_peer_are_not_read() -> None:
    w = Watched()
    w.reports["lossy"] = 5
    w.watch = w.another()
    w.traffic({0: 1})
    assert w.read == []


def test_counts_of_lossy_reports_wrap() -> None:
    w = Watched()
    w.reports["lossy"], w.reports["judged"] = 2**32 - 1, 2**32 - 100
    w.watch.find_alarms(w.now)
    w.read.clear()
    w.reports["lossy"][1] = 0
    w.reports["judged"] += 800
    w.watch.find_alarms(w.now + 70 * S)
    assert w.read == [[1]]


def test_lazy_arrays_take_memory_where_they_are_written_only() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    found = zeros((1 << 25,), np.int64)  # 256 MB
    assert (found.shape, found.dtype == np.int64, found[7]) == ((1 << 25,), True, 0)
    assert zeros((0, 7), np.int16).shape == (0, 7)  # of no peers
    found[:: 1 << 20] = 1
    assert resident() - before < 8 << 20


def test_loss_above_a_lower_ratio_is_found() -> None:
    assert Flow([0.0001] + [0.0] * 15, grey_ratio=0.00003).until_found(128) <= 128
