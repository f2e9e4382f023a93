"""The accounts: what became of every packet is known exactly, whatever order packets and reports come in."""

import random
from dataclasses import replace

import numpy as np
import pytest

from mrcd.tables import abi
from mrcd.tables.abi import EvState, Reason
from tests.packet.cluster import EVS, H2, Setup
from tests.packet.reports import EVERY, MS, SETTLED_MS, Reporter, events, now, unfaded
from tests.packet.rig import Bench

pytestmark = [pytest.mark.root, pytest.mark.clock]

MUTE = Setup(health="loss_samples = 1000\nloss_ratio = 1\noverdue_ms = 10000\nloss_window_ms = 60000")
mute = pytest.mark.parametrize("bench", [MUTE], indirect=True, ids=[""])
"""Nobody is condemned: these tests are of the counting."""


class Fabric:
    """Traffic over h2's paths at random: some of it is lost, some of it is under way for some time."""

    def __init__(self, bench: Bench, seed: int, *, longest: int) -> None:
        self.r = Reporter(bench)
        self.chance = random.Random(seed)
        self.longest = longest  # turns that a packet is under way at most; more than one is beyond the window
        self.lost = np.zeros(EVS, np.int64)
        self.sent = np.zeros(EVS, np.int64)
        self._coming: list[tuple[int, int, str]] = []  # turns to go, EV, what
        self._turn = 0

    def _put(self, ev: int, what: str) -> None:
        self._coming.append((self._turn + self.chance.randint(1, self.longest), ev, what))

    def _arrive(self, *, all_of_it: bool = False) -> None:
        due = [c for c in self._coming if all_of_it or c[0] <= self._turn]
        self._coming = [c for c in self._coming if c not in due]
        for _, ev, what in due:
            getattr(self.r, what)[ev] += 1

    def turn(self, loss: float) -> None:
        """A reordering window of time: what was under way comes in, more is sent, a report may be asked for."""
        self._turn += 1
        self.r.bench.age(SETTLED_MS * MS)
        self.r.bench.tables.evs["last_tx_ns"][H2] = 0
        self._arrive()
        for ev in EVERY:
            sent = self.chance.choice([0, 0, 1, 2, 7])
            lost = sum(self.chance.random() < loss for _ in range(sent))
            self.r.send(ev, sent, arrive=0)
            self.sent[ev] += sent
            self.lost[ev] += lost
            if sent:
                self.r.bench.ev(H2, ev)["last_tx_ns"] = now() + 10**9  # only just
            for _ in range(sent - lost):
                self._put(ev, "packets")
            for _ in range(self.r.burst(ev, 0)):
                if self.chance.random() >= loss:
                    self._put(ev, "probes")
        if self.chance.random() < 0.7:
            self._ask(loss)

    def _ask(self, loss: float) -> None:
        asked = self.r.ask(arrives=False)
        if self.chance.random() < loss:
            return
        self.r.probes[asked.ev] += 1
        if self.chance.random() < loss:
            return
        self.r.settle(self.r.reply(replace(asked, counts=self.r.counts())))

    def drain(self) -> None:
        """All that was under way comes in, and a report says so."""
        self._arrive(all_of_it=True)
        self.r.bench.tables.evs["last_tx_ns"][H2] = 0
        self.r.report()


@mute
@pytest.mark.parametrize("loss", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_under_way_is_never_taken_for_lost(bench: Bench, seed: int, loss: float) -> None:
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
def test_the_accounts_are_right_again_after_any_reordering(bench: Bench, seed: int, longest: int) -> None:
    f = Fabric(bench, seed, longest=longest)
    for _ in range(40):
        f.turn(0.05)
    f.drain()
    assert bench.tables.path_stats["deficit"][H2].tolist() == f.lost.tolist()
    assert bench.tables.path_stats["judged"][H2].tolist() == f.sent.tolist()


@mute
@pytest.mark.parametrize("seed", range(3))
def test_the_accounts_go_on_over_generations_of_the_peer(bench: Bench, seed: int) -> None:
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
    """Of data a report is one sample, whatever it knows of; of probes each is one."""
    unfaded()
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
    assert (stats["window_samples"], stats["window_losses"]) == (17, 5)  # nothing new is no sample


# ---- what the daemon goes by when it gives an EV back ----


def test_good_reports_in_a_row(bench: Bench) -> None:
    """They knew of new arrivals and of no new loss; others neither count nor begin anew."""
    r = Reporter(bench)
    bench.set_state(H2, EvState.ASSUMED_BAD, 5)
    good = bench.path_stats(H2, 5)["good"]
    assert good == 0
    for n in range(1, 4):
        r.send(5)
        r.report()
        r.report()  # of nothing new
        assert good == n
    loss_ns = int(bench.path_stats(H2, 5)["loss_ns"])
    assert loss_ns == 0
    before = now()
    r.send(5, 2, arrive=1)
    r.report(after_ms=0)
    assert (good, before <= bench.path_stats(H2, 5)["loss_ns"] <= now()) == (0, True)
    r.send(5)
    r.report(after_ms=0)
    assert (good, bench.path_stats(H2, 5)["loss_ns"] < now()) == (1, True)
    assert (bench.ev(H2, 5)["state"], events(bench)) == (EvState.ASSUMED_BAD, [])


def test_probes_are_good_reports_too(bench: Bench) -> None:
    """Nothing else is sent on an EV that was left."""
    r = Reporter(bench)
    bench.set_state(H2, EvState.ASSUMED_BAD, 5)
    for n in range(1, 4):
        bench.path_stats(H2, 5)["probe_after_ns"] = 0
        bench.reports(H2)["requested_ns"] = now() + 10**12  # not a report
        assert bench.dataplane.sweep(H2) == 1
        bench.path_stats(H2, 5)["probe_after_ns"] = 2**63
        assert r.burst(5) == 1
        r.report()
        assert bench.path_stats(H2, 5)["good"] == n
    bench.path_stats(H2, 5)["good"] = 65535
    r.send(5)
    r.report()
    assert bench.path_stats(H2, 5)["good"] == 65535


def test_a_fall_begins_them_anew(bench: Bench) -> None:
    r = Reporter(bench)
    r.send(5)
    r.report()
    assert bench.path_stats(H2, 5)["good"] == 1
    assert bench.dataplane.set_state(H2, 5, EvState.ASSUMED_BAD, Reason.GREY_LOSS, [EvState.GOOD])
    assert (bench.path_stats(H2, 5)["good"], bench.path_stats(H2, 5)["loss_ns"] > 0) == (0, True)


def test_lagging_marks_are_taken_round_by_round(bench: Bench) -> None:
    """Each of the rounds under way has marks of its own."""
    r = Reporter(bench)
    for n in range(1, abi.REPORTS_KEPT + 1):
        r.send(5, 10)
        bench.age(SETTLED_MS * MS)
        asked = r.ask()
        assert bench.path_stats(H2, 5)["mark_tx"][asked.report_seq % abi.REPORTS_KEPT] == 10 * n
    assert sorted(bench.path_stats(H2, 5)["mark_tx"]) == [10, 20, 30, 40]
