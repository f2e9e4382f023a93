# SPDX-License-Identifier: BSD-2-Clause
"""Tests reports: which of them count, and what is counted: losses, samples, and good reports in a row."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scapy.packet import Packet, Raw

from labkit.traffic.wire import PROBE_REPLY, MRCProbe
from mrcd.kernel import abi
from mrcd.kernel.enums import EvState
from tests.packet.clock import MS, advance, now
from tests.packet.packets import EVS, H2, SLOTS
from tests.packet.reports import (
    EVERY,
    GENERATION,
    LAGGING,
    LOST_BURSTS,
    PAST_REORDERING_MS,
    Reporter,
    ReportRequest,
    events,
    others,
    state,
)
from tests.packet.rig import Bench, Setup, dropped

pytestmark = pytest.mark.root


_OF_THE_REPLY = ("reply_seq", "replies", "rtt_ns")  # fields that every reply changes, with or without a report


def judged(bench: Bench) -> bytes:
    """Returns all fields that reports change: without round trips and the time of the last arrival."""
    path_stats, evs, peers = (t.copy() for t in (bench.tables.path_stats, bench.tables.evs, bench.tables.peers))
    for name in _OF_THE_REPLY:
        path_stats[name] = 0
    peers["heard_ns"] = peers["plane_mask_ns"] = 0
    return bytes(path_stats.tobytes() + evs.tobytes() + peers.tobytes())


def lagging_request(bench: Bench) -> tuple[Reporter, ReportRequest]:
    """Returns a request in flight whose report will make EV 5 lag."""
    r = Reporter(bench)
    r.send_all(3, lose=(5,))
    advance(PAST_REORDERING_MS * MS)
    return r, r.request_report()


def counts_as(r: Reporter, frame: Packet) -> None:
    """Asserts that a report is judged."""
    r.deliver(frame)
    assert (r.bench.ev(H2, 5)["state"], r.bench.path_stats(H2, 5)["deficit"]) == (EvState.SKIP, 3)


def is_ignored(r: Reporter, frame: Packet, reason: str | None = None) -> None:
    """Asserts that a report is not judged."""
    before = judged(r.bench)
    r.deliver(frame, reason)
    assert judged(r.bench) == before


# ---- sequence numbers ----


def test_a_lost_request_is_a_loss_on_its_path(bench: Bench, r: Reporter) -> None:
    advance(PAST_REORDERING_MS * MS)
    lost = r.request_report(arrives=False)
    r.report()
    assert bench.tables.path_stats["missed"][H2].tolist() == [int(ev == lost.ev) for ev in EVERY]


def test_a_report_counts_once(bench: Bench) -> None:
    r, a = lagging_request(bench)
    frame = r.reply(a)
    counts_as(r, frame)
    is_ignored(r, frame)


def test_an_overtaken_report_is_ignored(bench: Bench) -> None:
    r, a = lagging_request(bench)
    old = r.reply(a)
    r.packets[5] += 3
    r.report()
    is_ignored(r, old)
    assert bench.usable(H2) == EVERY


def test_a_report_counts_although_a_later_probe_on_its_ev_was_answered(bench: Bench) -> None:
    r, a = lagging_request(bench)
    bench.path_stats(H2, a.ev)["reply_seq"] = bench.ev(H2, a.ev)["probe_seq"] = a.seq + 5
    counts_as(r, r.reply(a))
    assert bench.path_stats(H2, a.ev)["reply_seq"] == a.seq + 5


def test_reports_in_the_order_they_were_requested_all_count(bench: Bench, r: Reporter) -> None:
    replies = []
    for _ in range(abi.REPORTS_KEPT):
        r.send_all(2)
        advance(PAST_REORDERING_MS * MS)
        replies.append(r.reply(r.request_report()))
    for n, frame in enumerate(replies, 1):
        r.deliver(frame)
        assert bench.path_stats(H2, 5)["judged"] == 2 * n
    assert not bench.tables.path_stats["deficit"][H2].any()


def test_a_report_with_an_overwritten_sequence_number_is_ignored(bench: Bench) -> None:
    """Its marks are overwritten."""
    r, a = lagging_request(bench)
    for _ in range(abi.REPORTS_KEPT):
        r.request_report()
    is_ignored(r, r.reply(a))


@pytest.mark.parametrize(
    ("field", "values"),
    [("report_seq", [0, 1, 3, 2**32 - 1]), ("first", [1, 128]), ("counts", [EVS - 1, EVS + 1, 0]), ("tx_ns", [-1, 1])],
)
def test_reports_that_differ_from_the_request_are_ignored(bench: Bench, field: str, values: list[int]) -> None:
    r, a = lagging_request(bench)
    advance(MS)
    for value in values:
        sent_ns = now() - MS if field == "tx_ns" else 0
        forged: dict[str, Any] = {field: sent_ns + value}
        is_ignored(r, r.reply(a, **forged) / Raw(bytes(64)))
        assert bench.reports(H2)["applied_seq"] == a.report_seq - 1


def test_a_report_from_the_future_is_dropped(bench: Bench) -> None:
    r, a = lagging_request(bench)
    is_ignored(r, r.reply(a, tx_ns=now() + 10**12), "unsolicited_reply")
    counts_as(r, r.reply(a))


def test_a_truncated_report_changes_nothing(bench: Bench) -> None:
    r, a = lagging_request(bench)
    short = bytes(r.reply(a)["MRC"].payload)
    at = len(MRCProbe())
    for length in (at, at + 1, at + abi.BALLAST, len(short) - 8, len(short) - 1):
        frame = bench.arriving("h2", a.ev, Raw(short[:length]), type=PROBE_REPLY)
        dropped(bench, frame, "bad_probe", a.ev // SLOTS)
    counts_as(r, r.reply(a))


# ---- generations ----


def test_the_first_report_sets_the_base_of_the_counts(bench: Bench) -> None:
    """This host has new tables, or the peer started later."""
    bench.tables.evs["tx_packets"][H2], bench.tables.evs["probe_seq"][H2] = 1000, 40
    r = Reporter(bench, start=12, probes=7)
    r.send_all(5)
    r.report()
    path_stats = bench.tables.path_stats[H2]
    assert [path_stats[name].tolist() for name in ("judged", "deficit", "missed")] == [[5] * EVS, [0] * EVS, [0] * EVS]
    assert (bench.usable(H2), events(bench)) == (EVERY, [])


def test_packets_in_flight_at_the_base_do_not_exceed_the_sent_count(bench: Bench) -> None:
    bench.tables.evs["tx_packets"][H2] = 100
    r = Reporter(bench, start=90)
    r.packets = [100] * EVS
    r.report()
    assert not bench.tables.path_stats["deficit"][H2].any()
    r.send(5, 2, arrive=0)
    r.report()
    assert bench.tables.path_stats["deficit"][H2].tolist() == [2 * (ev == 5) for ev in EVERY]


@pytest.mark.parametrize("generation", [1, GENERATION + 1, 2**32 - 1])
def test_new_tables_of_the_peer_count_as_no_loss(bench: Bench, r: Reporter, generation: int) -> None:
    r.send_all(50)
    r.send(9, 2, arrive=0)
    r.report()
    assert bench.path_stats(H2, 9)["deficit"] == 2
    r.generation, r.packets, r.probes = generation, [3] * EVS, [0] * EVS
    r.send_all(10, lose=tuple(EVERY))  # the fate of these is unknown
    r.report()
    assert (bench.usable(H2), events(bench)) == (EVERY, [])
    r.send_all(10)
    r.send(4, 1, arrive=0)
    r.report()
    path_stats = bench.tables.path_stats[H2]
    assert path_stats["lost_before"].tolist() == [2 * (ev == 9) for ev in EVERY]
    assert path_stats["deficit"].tolist() == [int(ev == 4) for ev in EVERY]
    assert path_stats["judged"].tolist() == [60 + 2 * (ev == 9) + (ev == 4) for ev in EVERY]
    assert bench.usable(H2) == others(4)


def test_a_lagging_ev_returns_when_the_peer_restarts(bench: Bench) -> None:
    r, a = lagging_request(bench)
    counts_as(r, r.reply(a))
    r.generation, r.packets, r.probes = 7, [0] * EVS, [0] * EVS
    r.report()
    assert (bench.usable(H2), bench.path_stats(H2, 5)["lag_ns"], events(bench)) == (EVERY, 0, [])
    for _ in range(2 * LOST_BURSTS):
        r.send_all(3)
        r.report()
    assert (bench.usable(H2), events(bench)) == (EVERY, [])


def test_new_tables_of_this_host_count_as_no_loss(bench: Bench) -> None:
    """The peer's counts continue; here all counts begin at zero."""
    bench.reports(H2)["report_seq"] = bench.reports(H2)["applied_seq"] = 2**32 - 3
    r = Reporter(bench, start=10**6, probes=300)
    for _ in range(6):
        r.send_all(4)
        r.report()
    assert (bench.usable(H2), events(bench)) == (EVERY, [])
    assert (bench.tables.path_stats["judged"][H2] == 24).all()
    assert bench.reports(H2)["report_seq"] == bench.reports(H2)["applied_seq"] == 4


# ---- counters wrap ----


def test_counters_wrap(bench: Bench) -> None:
    bench.tables.evs["tx_packets"][H2] = 2**32 - 10
    bench.tables.evs["probe_seq"][H2] = bench.tables.path_stats["reply_seq"][H2] = 2**32 - 1
    r = Reporter(bench, start=2**32 - 20, probes=2**16 - 2)
    for ce in (2**15 - 1, 2**16 - 2, 2**16 - 1):
        r.ce = [ce] * EVS
        r.report()
    for _ in range(2 * EVS):
        r.send_all(3)
        r.report()
    path_stats = bench.tables.path_stats[H2]
    for name in ("deficit", "missed", "window_losses", "loss_ns", "lost_before"):
        assert not path_stats[name].any(), name
    assert (path_stats["judged"] == 6 * EVS).all()
    assert (bench.usable(H2), events(bench)) == (EVERY, [])
    r.send(5, 4, arrive=1)
    r.ce[9] += 3
    marks = int(path_stats["rx_ce"][9])
    r.report()
    assert (bench.path_stats(H2, 5)["deficit"], bench.path_stats(H2, 9)["rx_ce"]) == (3, marks + 3)


# ---- more EVs than a report has room for ----

wide = pytest.mark.parametrize("bench", [Setup(evs=256)], indirect=True, ids=[""])
WIDE = [plane * 64 + slot for plane in range(4) for slot in range(4)]  # one for each T1


@wide
def test_reports_come_in_parts(bench: Bench, r: Reporter) -> None:
    for n in range(1, 20):
        for ev in WIDE:
            r.send(ev, 2)
        r.report()
        halves = [bench.tables.path_stats["judged"][H2, WIDE[:8]], bench.tables.path_stats["judged"][H2, WIDE[8:]]]
        newest = int(bench.reports(H2)["report_seq"]) % 2
        assert (halves[newest] == 2 * n).all()
        assert (halves[1 - newest] == 2 * (n - 1)).all()
    assert not bench.tables.path_stats["deficit"][H2].any()
    assert events(bench) == []


@wide
@pytest.mark.parametrize("ev", [1, 65, 129, 194])
def test_a_dead_ev_fails_by_its_own_report_part(bench: Bench, r: Reporter, ev: int) -> None:
    for _ in range(2 * LOST_BURSTS + 3):
        for other in WIDE:
            r.send(other, 2, arrive=0 if other == ev else 2)
        r.report()
        r.burst(ev, 0)
    assert events(bench) == [(ev, "SKIP", "ASSUMED_BAD", "overdue")]
    assert not bench.tables.path_stats["deficit"][H2, [e for e in WIDE if e != ev]].any()


@wide
def test_the_loss_windows_of_every_report_part_fade(bench: Bench, r: Reporter) -> None:
    for ev in WIDE:
        r.send(ev, 1000)
    r.report()
    r.report()
    bench.tables.path_stats["epoch"][H2] -= 1
    before = bench.tables.path_stats["window_tx"][H2, WIDE].copy()
    assert (before >= 1000 >> 1).all()
    r.report()
    r.report()
    assert (bench.tables.path_stats["window_tx"][H2, WIDE] <= before // 2 + 1).all()


@wide
def test_a_report_of_the_other_part_is_ignored(bench: Bench, r: Reporter) -> None:
    for ev in WIDE:
        r.send(ev, 2, arrive=0)
    advance(PAST_REORDERING_MS * MS)
    a = r.request_report()
    is_ignored(r, r.reply(a, first=(a.report_seq + 1) % 2 * abi.REPORT_EVS))


# ---- exact counts ----


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
def test_samples_and_losses_count_reports_and_probes(bench: Bench, r: Reporter) -> None:
    """For data a report is one sample, whatever it shows; for probes each probe is one."""
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


def test_good_reports_in_a_row_are_counted(bench: Bench, r: Reporter) -> None:
    """They show new arrivals and no new loss; other reports neither count nor reset."""
    bench.set_state(H2, EvState.ASSUMED_BAD, 5)
    good = bench.path_stats(H2, 5)["good"]
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


def test_probes_are_good_reports_too(bench: Bench, r: Reporter) -> None:
    """An EV that was left carries only probes."""
    bench.set_state(H2, EvState.ASSUMED_BAD, 5)
    for n in range(1, 4):
        r.probe_failed_ev(5, arrive=1)
        assert bench.path_stats(H2, 5)["good"] == n
    assert bench.path_stats(H2, 5)["long_sent"] == 0
    for known in (2, 3, 3):  # good reports after a long probe
        bench.path_stats(H2, 5)["long_sent"] = bench.path_stats(H2, 5)["long_sent"] or 1
        r.probe_failed_ev(5, arrive=1)
        assert bench.path_stats(H2, 5)["long_sent"] == known
    bench.path_stats(H2, 5)["good"] = 65535
    r.send(5)
    r.report()
    assert bench.path_stats(H2, 5)["good"] == 65535


def test_each_report_in_flight_has_marks_of_its_own(bench: Bench, r: Reporter) -> None:
    """The marks are the packets sent by the time of the request."""
    for n in range(1, abi.REPORTS_KEPT + 1):
        r.send(5, 10)
        advance(PAST_REORDERING_MS * MS)
        request = r.request_report()
        assert bench.path_stats(H2, 5)["mark_tx"][request.report_seq % abi.REPORTS_KEPT] == 10 * n
    assert sorted(bench.path_stats(H2, 5)["mark_tx"]) == [10, 20, 30, 40]


def test_a_cpu_that_stands_still_while_it_applies_a_report_fails_no_ev(bench: Bench, r: Reporter) -> None:
    """The hypervisor may stop it. Reports are passed over until it goes on, and none is judged by their absence."""
    bench.reports(H2)["busy"] = 1
    for _ in range(2):
        r.send_all(10)
        r.report(after_ms=30)
    r.send(5, 3, arrive=0)
    assert events(bench) == []
    bench.reports(H2)["busy"] = 0
    r.report(after_ms=30)
    assert state(bench, 5) == LAGGING
    assert {state(bench, ev)[0] for ev in others(5)} == {EvState.GOOD}
