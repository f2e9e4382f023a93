# SPDX-License-Identifier: BSD-2-Clause
"""Tests the counts of lost packets: they are exact for any order of packets and reports."""

import random
from dataclasses import replace

import numpy as np
import pytest

from mrcd.kernel import abi
from mrcd.kernel.enums import EvState, Reason
from tests.packet.clock import MS, advance, now
from tests.packet.cluster import EVS, H2, Setup
from tests.packet.reports import EVERY, PAST_REORDERING_MS, Reporter, events
from tests.packet.rig import Bench

pytestmark = pytest.mark.root

MUTE = Setup(health="loss_samples = 1000\nloss_ratio = 1\noverdue_ms = 10000\nloss_window_ms = 60000")
mute = pytest.mark.parametrize("bench", [MUTE], indirect=True, ids=[""])
"""No EV fails: these tests check the counts."""


class Fabric:
    """Random traffic over h2's paths: some packets are lost, some are in flight for some time."""

    def __init__(self, bench: Bench, seed: int, *, longest: int) -> None:
        self.r = Reporter(bench)
        self.chance = random.Random(seed)
        self.longest = longest  # most steps that a packet is in flight; more than one is beyond the window
        self.lost = np.zeros(EVS, np.int64)
        self.sent = np.zeros(EVS, np.int64)
        self._coming: list[tuple[int, int, str]] = []  # steps to go, EV, what
        self._turn = 0

    def _put(self, ev: int, what: str) -> None:
        self._coming.append((self._turn + self.chance.randint(1, self.longest), ev, what))

    def _arrive(self, *, all_of_it: bool = False) -> None:
        due = [c for c in self._coming if all_of_it or c[0] <= self._turn]
        self._coming = [c for c in self._coming if c not in due]
        for _, ev, what in due:
            getattr(self.r, what)[ev] += 1

    def turn(self, loss: float) -> None:
        """Advances by a reordering window: packets arrive, more are sent, a report may be requested."""
        self._turn += 1
        advance(PAST_REORDERING_MS * MS)
        self.r.bench.tables.evs["last_tx_ns"][H2] = 0
        self._arrive()
        for ev in EVERY:
            sent = self.chance.choice([0, 0, 1, 2, 7])
            lost = sum(self.chance.random() < loss for _ in range(sent))
            self.r.send(ev, sent, arrive=0)
            self.sent[ev] += sent
            self.lost[ev] += lost
            if sent:
                self.r.bench.ev(H2, ev)["last_tx_ns"] = now() + 10**9  # just now
            for _ in range(sent - lost):
                self._put(ev, "packets")
            for _ in range(self.r.burst(ev, 0)):
                if self.chance.random() >= loss:
                    self._put(ev, "probes")
        if self.chance.random() < 0.7:
            self._request_report(loss)

    def _request_report(self, loss: float) -> None:
        request = self.r.request_report(arrives=False)
        if self.chance.random() < loss:
            return
        self.r.probes[request.ev] += 1
        if self.chance.random() < loss:
            return
        self.r.deliver(self.r.reply(replace(request, counts=self.r.counts())))

    def drain(self) -> None:
        """Lets all packets in flight arrive, and reports them."""
        self._arrive(all_of_it=True)
        self.r.bench.tables.evs["last_tx_ns"][H2] = 0
        self.r.report()


@mute
@pytest.mark.parametrize("loss", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_packets_in_flight_are_never_counted_as_lost(bench: Bench, seed: int, loss: float) -> None:
    f = Fabric(bench, seed, longest=1)
    path_stats = bench.tables.path_stats[H2]
    for _ in range(40):
        f.turn(loss)
        assert (path_stats["deficit"] <= f.lost).all()
        assert (path_stats["judged"] <= f.sent).all()
    f.drain()
    assert path_stats["deficit"].tolist() == f.lost.tolist()
    assert path_stats["judged"].tolist() == f.sent.tolist()
    assert events(bench) == []


@mute
@pytest.mark.parametrize("longest", [2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_counts_are_exact_again_after_any_reordering(bench: Bench, seed: int, longest: int) -> None:
    f = Fabric(bench, seed, longest=longest)
    for _ in range(40):
        f.turn(0.05)
    f.drain()
    assert bench.tables.path_stats["deficit"][H2].tolist() == f.lost.tolist()
    assert bench.tables.path_stats["judged"][H2].tolist() == f.sent.tolist()


@mute
@pytest.mark.parametrize("seed", range(3))
def test_counts_continue_over_generations_of_the_peer(bench: Bench, seed: int) -> None:
    f = Fabric(bench, seed, longest=3)
    path_stats = bench.tables.path_stats[H2]
    for generation in range(1, 5):
        for _ in range(12):
            f.turn(0.1)
        f.drain()
        total = path_stats["lost_before"] + path_stats["deficit"]
        assert total.tolist() == f.lost.tolist()
        assert path_stats["judged"].tolist() == f.sent.tolist()
        f.r.generation, f.r.packets, f.r.probes = generation, [f.chance.randrange(99)] * EVS, [0] * EVS
        f.r.report()
        assert path_stats["lost_before"].tolist() == f.lost.tolist()
        assert not path_stats["deficit"].any()


@mute
def test_samples_and_losses_count_reports_and_probes(bench: Bench) -> None:
    """For data a report is one sample, whatever it shows; for probes each probe is one."""
    r = Reporter(bench)
    r.send(5, 100, arrive=60)
    r.report()
    stats = bench.path_stats(H2, 5)
    assert (stats["window_samples"], stats["window_losses"]) == (1, 1)
    assert (stats["window_tx"], stats["window_lost"]) == (100, 40)
    assert r.burst(5, 12) == 16
    r.report()
    assert (stats["window_samples"], stats["window_losses"]) == (17, 5)
    assert (stats["window_tx"], stats["window_lost"]) == (116, 44)
    r.report()
    assert (stats["window_samples"], stats["window_losses"]) == (17, 5)  # a report without news is no sample


# ---- good reports, by which the daemon returns an EV ----


def test_good_reports_in_a_row_are_counted(bench: Bench) -> None:
    """They show new arrivals and no new loss; other reports neither count nor reset."""
    r = Reporter(bench)
    bench.set_state(H2, EvState.ASSUMED_BAD, 5)
    good = bench.path_stats(H2, 5)["good"]
    assert good == 0
    for n in range(1, 4):
        r.send(5)
        r.report()
        r.report()  # without news
        assert good == n
    missing_ns, loss_ns = (bench.path_stats(H2, 5)[name] for name in ("lag_ns", "loss_ns"))
    assert (missing_ns, loss_ns) == (0, 0)
    r.send(5, 2, arrive=1)
    r.report(after_ms=0)
    assert (good, missing_ns, loss_ns) == (0, now(), 0)
    r.send(5)
    r.report(after_ms=1)
    assert (good, missing_ns < now(), loss_ns) == (1, True, 0)
    assert (bench.ev(H2, 5)["state"], events(bench)) == (EvState.ASSUMED_BAD, [])


def test_probes_are_good_reports_too(bench: Bench) -> None:
    """An EV that was left carries only probes."""
    r = Reporter(bench)
    bench.set_state(H2, EvState.ASSUMED_BAD, 5)
    for n in range(1, 4):
        bench.path_stats(H2, 5)["probe_after_ns"] = 0
        bench.reports(H2)["requested_ns"] = now() + 10**12  # so that no report is due
        assert bench.dataplane.sweep(H2) == 1
        bench.path_stats(H2, 5)["probe_after_ns"] = 2**63
        assert r.burst(5) == 1
        r.report()
        assert bench.path_stats(H2, 5)["good"] == n
    bench.path_stats(H2, 5)["good"] = 65535
    r.send(5)
    r.report()
    assert bench.path_stats(H2, 5)["good"] == 65535


def test_a_failure_resets_the_good_reports(bench: Bench) -> None:
    r = Reporter(bench)
    r.send(5)
    r.report()
    assert bench.path_stats(H2, 5)["good"] == 1
    assert bench.dataplane.set_state(H2, 5, EvState.ASSUMED_BAD, Reason.GREY_LOSS, [EvState.GOOD])
    assert (bench.path_stats(H2, 5)["good"], bench.path_stats(H2, 5)["loss_ns"] > 0) == (0, True)


def test_each_report_in_flight_has_marks_of_its_own(bench: Bench) -> None:
    """The marks are the packets sent by the time of the request."""
    r = Reporter(bench)
    for n in range(1, abi.REPORTS_KEPT + 1):
        r.send(5, 10)
        advance(PAST_REORDERING_MS * MS)
        request = r.request_report()
        assert bench.path_stats(H2, 5)["mark_tx"][request.report_seq % abi.REPORTS_KEPT] == 10 * n
    assert sorted(bench.path_stats(H2, 5)["mark_tx"]) == [10, 20, 30, 40]
