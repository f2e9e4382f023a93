# SPDX-License-Identifier: BSD-2-Clause
"""Tests the states of EVs: how the daemon sets them, the events, and the usable EVs."""

import os
import random
import select
import threading
from collections.abc import Iterable
from functools import partial
from typing import cast

import pytest

from mrcd.kernel import abi
from mrcd.kernel.enums import EvState, Histogram, Reason
from tests.packet.clock import MS, now
from tests.packet.model_host import pair_offset
from tests.packet.packets import EVS, H0, H2, H5, PLANES, SLOTS
from tests.packet.reports import EVERY, LOSSES, Reporter, events, others
from tests.packet.rig import Bench, Setup

pytestmark = pytest.mark.root

ANY = list(EvState)
UNKNOWN, GOOD, SKIP, ASSUMED_BAD, DENIED = ANY


def in_order(host: int) -> list[int]:
    """Returns the EVs slot by slot over all planes, from the one on with which this host begins towards a host."""
    first = pair_offset(H0, host, EVS)
    return [n % PLANES * SLOTS + n // PLANES % SLOTS for n in range(first, first + EVS)]


def set_state(
    bench: Bench, ev: int, state: EvState, reason: Reason = Reason.ADMIN, leave: Iterable[EvState] = ANY
) -> bool:
    return bench.dataplane.set_state(H2, ev, state, reason, leave)


# ---- mrc_set_states ----


def test_a_state_is_set_only_from_an_allowed_state(bench: Bench) -> None:
    assert not set_state(bench, 5, DENIED, leave=[UNKNOWN, SKIP, ASSUMED_BAD])
    assert (bench.ev(H2, 5)["state"], events(bench)) == (GOOD, [])
    assert set_state(bench, 5, DENIED, leave=[GOOD, SKIP])
    assert (bench.ev(H2, 5)["state"], bench.ev(H2, 5)["reason"]) == (DENIED, Reason.ADMIN)
    assert bench.ev(H2, 5)["state_since_ns"] == now()
    assert bench.usable(H2) == others(5)
    assert events(bench) == [(5, "GOOD", "DENIED", "admin")]
    assert not set_state(bench, 5, DENIED)
    assert set_state(bench, 5, UNKNOWN, leave=[DENIED])
    assert events(bench) == [(5, "DENIED", "UNKNOWN", "admin")]
    assert bench.usable(H2) == others(5)
    assert set_state(bench, 5, GOOD, Reason.PROBED)
    assert bench.usable(H2) == EVERY
    assert len(bench.usable(H5)) == EVS


@pytest.mark.parametrize(
    ("host", "ev", "state"),
    [*((H2, ev, DENIED) for ev in (EVS, 2**32 - 2, 2**16 + 5)), (H2, 5, 5), (3, 5, DENIED), (2**32 - 1, 5, DENIED)],
)
def test_unknown_peers_evs_and_states_are_refused(bench: Bench, host: int, ev: int, state: int) -> None:
    before = bench.counted()
    assert not bench.dataplane.set_state(host, ev, cast(EvState, state), Reason.ADMIN, ANY)
    assert (bench.counted(), events(bench)) == (before, [])


def test_the_state_of_an_unconfigured_ev_cannot_be_set(bench: Bench) -> None:
    bench.ev(H2, 5)["configured"] = 0
    assert not set_state(bench, 5, DENIED)


# ---- events, and what is kept ----


def test_an_event_has_the_evidence(bench: Bench) -> None:
    stats = bench.path_stats(H2, 5)
    for name, value in {
        "window_tx": 1000, "window_lost": 30, "window_samples": 200, "window_losses": 12,
        "pending_losses": 11, "confirmed_losses": 10,
        "lost_bursts": 7, "good": 9,
    }.items():  # fmt: skip
        stats[name] = value
    stats["arrived_ns"] = now() - 40 * MS
    stats["lag_ns"] = now()
    bench.ev(H2, 5)["tx_packets"], stats["after_good"] = 2**32 + 10, 2**32 - 30
    assert set_state(bench, 5, ASSUMED_BAD, Reason.GREY_LOSS)
    (event,) = bench.dataplane.events()
    told = {name: int(event[name]) for name in abi.EVENT.names or ()}
    silent = told.pop("silent_ns")
    assert silent == told["ns"] - stats["arrived_ns"] >= 40 * MS
    assert told == {
        "ns": bench.ev(H2, 5)["state_since_ns"], "host_id": H2, "ev": 5, "before": GOOD, "after": ASSUMED_BAD,
        "reason": Reason.GREY_LOSS, "flaps": 1, "icmp_type": 0, "icmp_code": 0,
        "reports": 7, "lost_packets": 30, "sent_packets": 1000,
    }  # fmt: skip
    # A failure resets these; the hold-down depends on its time.
    assert not any(stats[name] for name in ("window_tx", "window_samples", "lag_ns", "good", *LOSSES))
    assert stats["loss_ns"] == told["ns"]
    detection, after_good = bench.tables.histograms()[[Histogram.DETECTION, Histogram.AFTER_GOOD]]
    assert (detection.sum(), after_good.sum(), after_good[(5 - 1) * 4 + 1]) == (1, 1, 1)  # 40 is 32 + 8


def test_events_are_read_all_at_once_in_their_order(bench: Bench) -> None:
    for n in range(600):
        assert set_state(bench, 5, GOOD if n % 2 else ASSUMED_BAD, Reason.ADMIN)
    readable = partial(select.select, [bench.dataplane.events_fd()], [], [], 0)
    assert readable()[0]
    assert [int(e["after"]) for e in bench.dataplane.events()] == [ASSUMED_BAD, GOOD] * 300
    assert not readable()[0]


@pytest.mark.parametrize(
    ("reason", "has_arrived"), [(Reason.LINK_DOWN, True), (Reason.PEER_LINK_DOWN, True), (Reason.GREY_LOSS, False)]
)
def test_links_down_and_evs_without_arrivals_are_left_out_of_the_detection_times(
    bench: Bench, reason: Reason, has_arrived: bool
) -> None:
    bench.path_stats(H2, 5)["arrived_ns"] = now() * has_arrived
    assert set_state(bench, 5, ASSUMED_BAD, reason)
    (event,) = bench.dataplane.events()
    assert event["silent_ns"] == 0
    assert not bench.tables.histograms().any()


def test_a_skip_is_no_event(bench: Bench) -> None:
    record = bench.ev(H2, 5)
    record["state_since_ns"] = since = now() - 10**9
    for n in (1, 2):
        assert set_state(bench, 5, SKIP, Reason.CONGESTED)
        assert bench.path_stats(H2, 5)["skips"] == n
        assert (record["skip_reason"], record["reason"]) == (Reason.CONGESTED, Reason.NEW)
        assert bench.usable(H2) == EVERY
        assert set_state(bench, 5, GOOD, Reason.CONGESTED)
    assert (record["state_since_ns"], record["reason"], events(bench)) == (since, Reason.NEW, [])


@pytest.mark.parametrize(
    ("flaps", "well_ms", "after"),
    [(0, 0, 1), (1, 59_000, 2), (1, 61_000, 1), (5, 121_000, 4), (5, 10**7, 1), (254, 0, 255), (255, 0, 255)],
)
def test_flaps_are_forgotten_one_by_one(bench: Bench, flaps: int, well_ms: int, after: int) -> None:
    """An EV that was in use for hold_down_max_ms, a minute, loses one flap."""
    record = bench.ev(H2, 5)
    record["flaps"], record["state_since_ns"] = flaps, max(1, now() - well_ms * MS)
    assert set_state(bench, 5, ASSUMED_BAD, Reason.GREY_LOSS)
    assert record["flaps"] == after
    assert set_state(bench, 5, GOOD, Reason.HEALED)
    assert record["flaps"] == after
    assert [int(e["flaps"]) for e in bench.dataplane.events()] == [after, after]


# ---- the usable EVs ----


def usable_by_rank(bench: Bench) -> list[int]:
    """Returns the usable EVs by the rule in Python.

    The good ones; below the floor the least bad; a silent one only if there is no other.
    """
    plane_mask = int(bench.tables.node["plane_mask"]) & int(bench.peer(H2)["plane_mask"])
    floor = max(1, int(bench.peer(H2)["floor"]))

    def rank(ev: int) -> int:
        record, stats = bench.ev(H2, ev), bench.path_stats(H2, ev)
        if not record["configured"] or not plane_mask >> ev // SLOTS & 1 or record["state"] == DENIED:
            return 9
        bad = 4 if stats["good"] and not stats["lag_ns"] else 5
        lagging = 3 if stats["lag_ns"] else 1
        return {GOOD: 1, SKIP: lagging, UNKNOWN: 2, ASSUMED_BAD: bad}[EvState(record["state"])]

    chosen: list[int] = []
    for wanted in range(1, 6):
        for ev in in_order(H2):
            full = wanted > 1 and len(chosen) >= floor
            if rank(ev) == wanted and not full and not (wanted == 5 and any(rank(e) < 5 for e in chosen)):
                chosen.append(ev)
    return sorted(chosen)


@pytest.mark.parametrize("seed", range(4))
def test_the_usable_evs_are_the_best_ones(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        weights = chance.choice([(1, 1, 1, 1, 1), (0, 1, 1, 20, 5), (1, 0, 0, 5, 20), (0, 0, 0, 1, 0)])
        for ev in EVERY:
            bench.ev(H2, ev)["state"] = chance.choices(ANY, weights)[0]
            bench.path_stats(H2, ev)["lag_ns"] = chance.choice([0, 1])
            bench.path_stats(H2, ev)["good"] = chance.choice([0, 0, 0, 3])
        bench.peer(H2)["floor"] = chance.choice([0, 1, 4, 7, 16, 200])
        bench.tables.node["plane_mask"] = chance.choice([15, 15, 11])
        bench.peer(H2)["plane_mask"] = chance.choice([65535, 13, 0])
        bench.dataplane.refresh(H2)
        assert bench.usable(H2) == usable_by_rank(bench)


@pytest.mark.parametrize("worse", [UNKNOWN, ASSUMED_BAD])
def test_the_floors_of_two_pairs_take_different_t1s(bench: Bench, worse: EvState) -> None:
    """In mass congestion, and when a cluster starts, the floors of all hosts would fill from T1 0 on."""
    floors = []
    for host in (H2, H5):
        bench.set_state(host, worse, *EVERY)
        floors.append(bench.usable(host))
        assert floors[-1] == sorted(in_order(host)[:PLANES])
        assert {ev // SLOTS for ev in floors[-1]} == set(range(PLANES))
    assert not {*floors[0]} & {*floors[1]}


@pytest.mark.parametrize("reason", [Reason.LOSS, Reason.GREY_LOSS])
def test_lossy_evs_fill_the_floor(bench: Bench, reason: Reason) -> None:
    for ev in others(5, 10):
        assert set_state(bench, ev, ASSUMED_BAD, reason)
    assert bench.usable(H2) == [5, 8, 10, 12]


def test_a_reply_updates_the_plane_mask_of_the_peer(bench: Bench, r: Reporter) -> None:
    r.report(plane_mask=0b0111)
    assert {ev // SLOTS for ev in bench.usable(H2)} == {0, 1, 2}
    wanted = int(bench.peer(H2)["usable_changes"])
    r.report(plane_mask=0b0111)
    assert bench.peer(H2)["usable_changes"] == wanted  # nothing to do
    r.report()
    assert bench.usable(H2) == EVERY


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="takes two CPUs")
@pytest.mark.parametrize("bench", [Setup(evs=256)], indirect=True, ids=[""])  # a longer computation
def test_two_cpus_set_states_at_once(bench: Bench) -> None:
    """No CPU waits, and at the end the usable EVs are right."""
    rounds, two = 500, threading.Barrier(2)
    usable = bench.tables.peers["usable"][H2]
    wrong: list[int] = []

    def work(cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})
        chance = random.Random(cpu)
        for n in range(rounds):
            two.wait()
            set_state(bench, chance.choice(EVERY[:SLOTS]) + 64 * cpu, chance.choice([GOOD, ASSUMED_BAD, DENIED]))
            if two.wait() == 0:
                found = usable.copy()
                bench.dataplane.refresh(H2)
                wrong.extend([n] * bool((found != usable).any()))

    threads = [threading.Thread(target=work, args=(cpu,)) for cpu in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, bench.peer(H2)["busy"]) == ([], 0)
    assert len(events(bench)) > rounds // 2


# ---- weights ----


@pytest.mark.parametrize("weight", [1, 2, 4])
def test_a_returning_ev_gets_packets_by_its_weight(bench: Bench, weight: int) -> None:
    bench.ev(H2, 5)["weight"] = weight
    sent = bench.spread(64 * EVS)
    assert abs(sent[5] - 64 * weight / 8) <= 1
    assert sum(sent[4:8]) == 64 * SLOTS
    beside = [sent[ev] for ev in (4, 6, 7)]
    assert max(beside) <= 1.5 * sum(beside) / 3
    assert {sent[ev] for ev in EVERY if ev // SLOTS != 1} == {64}


def test_returning_evs_do_not_get_each_others_packets(bench: Bench) -> None:
    returning = [0, 4, 8, 12]
    for ev in returning:
        bench.ev(H2, ev)["weight"] = 1
    sent = bench.spread(80 * EVS)
    assert all(5 <= sent[ev] <= 20 for ev in returning), sent


@pytest.mark.parametrize("weight", [1, 2, 4])
def test_a_plane_that_returns_as_a_whole_gets_packets_by_its_weight(bench: Bench, weight: int) -> None:
    """It got its full share at once before, all of it on one T1."""
    for ev in (4, 5, 6, 7):
        bench.ev(H2, ev)["weight"] = weight
    sent = bench.spread(64 * EVS)
    returned, others = sent[4:8], sent[:4] + sent[8:]
    assert max(returned) <= 1.5 * sum(returned) / SLOTS
    assert max(others) <= 1.5 * sum(others) / len(others)
    assert abs(sum(returned) - 64 * SLOTS * weight / 8) <= 4


def test_a_returning_ev_alone_in_its_plane_gets_packets_by_its_weight(bench: Bench) -> None:
    bench.set_state(H2, DENIED, 4, 6, 7)
    bench.ev(H2, 5)["weight"] = 1
    sent = bench.spread(64 * EVS)
    assert abs(sent[5] - 4 * 64 / 8) <= 2


@pytest.mark.parametrize("bench", [Setup(evs=64, t1s=16)], indirect=True, ids=[""])
@pytest.mark.parametrize("ramping", [1, 4, 8, 15, 16])
def test_neighbours_that_return_together_get_packets_by_their_weight(bench: Bench, ramping: int) -> None:
    slots = 16
    for ev in range(ramping):
        bench.ev(H2, ev)["weight"] = 1
    sent = bench.spread(64 * 4 * slots)
    assert all(abs(n - 8) <= 4 for n in sent[:ramping]), sent[:ramping]
    if ramping <= slots // 2:  # the plane has its share
        assert sum(sent[:slots]) >= 0.9 * 64 * slots
    assert max(sent) <= 64 * 5  # and no EV stands in for all that return


def test_evs_that_all_return_share_all_packets(bench: Bench) -> None:
    for ev in EVERY:
        bench.ev(H2, ev)["weight"] = 1
    sent = bench.spread(64 * EVS)
    assert min(sent) >= 64 / 1.5
    assert max(sent) <= 64 * 1.5


@pytest.mark.parametrize("bench", [Setup(evs=256)], indirect=True, ids=[""])
def test_weights_work_beyond_the_first_bitmap_word(bench: Bench) -> None:
    """Four T1s, so slots 0 to 3 of 64 in each plane; each plane has a bitmap word."""
    words = bench.tables.peers["usable"][H2]
    assert words.tolist() == [0xF] * PLANES
    assert set_state(bench, 130, DENIED)
    assert words.tolist() == [0xF, 0xF, 0b1011, 0xF]
