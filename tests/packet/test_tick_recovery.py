# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_tick: probes of new and failed EVs, the return after the hold-down, and the ramp."""

import numpy as np
import pytest
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from mrcd.fabric.wire import MRCProbe
from mrcd.health import hold_down
from mrcd.kernel import abi
from mrcd.kernel.enums import EvState, Reason
from tests.packet.clock import MS, advance, now
from tests.packet.cluster import ALL_PLANES, H2, Setup
from tests.packet.reports import EVERY, events, state
from tests.packet.rig import Bench
from tests.packet.ticks import (
    ASSUMED_BAD,
    DENIED,
    ETH_HLEN,
    GOOD,
    HEALTH,
    INTERVAL_MS,
    IP_HLEN,
    UNKNOWN,
    fail_ev,
    probe_requests,
    record_all_answers,
    record_arrivals,
    reply,
    run_tick,
    run_ticks,
    tick_h2_now,
    with_deadlines,
)
from tests.packet.wires import Tap

pytestmark = pytest.mark.root

# ---- new EVs ----


def test_a_new_ev_becomes_good_only_with_its_first_reply(h2_bench: Bench, wires: list[Tap]) -> None:
    h2_bench.set_state(H2, UNKNOWN, 5)
    run_tick(h2_bench)
    plain, reports = probe_requests(wires)
    assert (plain, reports) == ([(H2, 5)], [H2])
    assert state(h2_bench, 5)[0] is UNKNOWN
    reply(h2_bench, 5, tx_ns=now())
    assert state(h2_bench, 5) == (GOOD, Reason.PROBED)
    assert h2_bench.ev(H2, 5)["weight"] == abi.WEIGHT_FULL
    assert h2_bench.ev(H2, 5)["state_since_ns"] == now()
    assert events(h2_bench) == [(5, "UNKNOWN", "GOOD", "probed")]
    assert h2_bench.usable(H2) == EVERY
    run_tick(h2_bench)
    assert with_deadlines(h2_bench) == []


def test_a_reply_to_a_probe_sent_before_the_ev_was_allowed_is_ignored(h2_bench: Bench) -> None:
    """An EV that is allowed again carries traffic only after a new probe."""
    run_tick(h2_bench)
    h2_bench.dataplane.set_state(H2, 5, DENIED, Reason.ADMIN, EvState)
    before = now()
    advance(1)
    h2_bench.dataplane.set_state(H2, 5, UNKNOWN, Reason.ADMIN, EvState)
    run_tick(h2_bench)
    reply(h2_bench, 5, tx_ns=before)
    assert state(h2_bench, 5)[0] is UNKNOWN


# ---- failed EVs ----


def test_probe_intervals_of_a_failed_ev_double_up_to_one_second(h2_bench: Bench, wires: list[Tap]) -> None:
    fail_ev(h2_bench, 5)
    at, elapsed = [], 0
    for _ in range(400):
        run_tick(h2_bench, 10)
        h2_bench.reports(H2)["applied_seq"], h2_bench.tables.watches["unanswered"][H2] = (
            h2_bench.reports(H2)["report_seq"],
            0,
        )
        elapsed += 10
        at += [elapsed] * len(probe_requests(wires)[0])
    gaps = np.diff(at).tolist()
    # Real time passes beside the simulated time: gaps are shorter on a busy machine, never longer.
    wanted = ([20, 40, 80, 160, 320, 640] + [1000] * len(gaps))[: len(gaps)]
    assert all(0.4 * w <= gap <= w + 10 for gap, w in zip(gaps, wanted, strict=True)), gaps
    assert sorted(gaps[:6]) == gaps[:6]
    assert len(gaps) > 6


def test_an_answer_resets_the_probe_interval_of_a_failed_ev(h2_bench: Bench, wires: list[Tap]) -> None:
    fail_ev(h2_bench, 5)
    run_ticks(h2_bench, 2000)
    reply(h2_bench, 5, tx_ns=now())
    run_tick(h2_bench)  # the peer was silent
    probe_requests(wires)
    counts = []
    for _ in range(8):
        record_arrivals(h2_bench, 5)
        run_tick(h2_bench, INTERVAL_MS)
        counts.append(len(probe_requests(wires)[0]))
    assert counts == [1] * 8


def retried(bench: Bench, wires: list[Tap]) -> Packet:
    """Returns the probe of a failed EV that is due now."""
    run_tick(bench, INTERVAL_MS)
    (frame,) = (f for wire in wires for f in map(Ether, (x.data for x in wire.frames())) if not f[MRCProbe].counts)
    return frame


def test_an_answering_failed_ev_is_probed_with_full_size_packets(h2_bench: Bench, wires: list[Tap]) -> None:
    """Otherwise a path that loses only long packets would return and fail again without end."""
    fail_ev(h2_bench, 5)
    assert len(retried(h2_bench, wires)) < 300
    longest = len(bytes(h2_bench.sent(H2, 5, Raw(bytes(h2_bench.plan.inner_mtu)))))
    for _ in range(3):
        record_arrivals(h2_bench, 5)
        probe = retried(h2_bench, wires)
        assert len(probe) == longest == ETH_HLEN + IP_HLEN + probe[IPv6].plen
    record_arrivals(h2_bench, 5)
    h2_bench.path_stats(H2, 5)["good"] = 0  # a report says that one was lost
    assert len(retried(h2_bench, wires)) < 300


def test_a_denied_ev_is_probed_seldom_and_stays_denied(h2_bench: Bench, wires: list[Tap]) -> None:
    h2_bench.dataplane.set_state(H2, 5, DENIED, Reason.ADMIN, EvState)
    for _ in range(150):
        run_tick(h2_bench, INTERVAL_MS)
        record_arrivals(h2_bench, 5, reports=20)
    assert 3 <= len(probe_requests(wires)[0]) <= 4
    assert state(h2_bench, 5) == (DENIED, Reason.ADMIN)


@pytest.mark.parametrize(
    ("flaps", "ms"),
    [(0, 1000), (1, 1000), (2, 2000), (3, 4000), (6, 32_000), (7, 60_000), (8, 60_000), (255, 60_000)],
)
def test_a_failed_ev_returns_after_a_hold_down_that_doubles_up_to_its_cap(h2_bench: Bench, flaps: int, ms: int) -> None:
    assert hold_down.hold_down_ns(HEALTH, flaps) == ms * MS
    fail_ev(h2_bench, 5, flaps)
    run_tick(h2_bench)  # the first tick reads the deadline
    record_arrivals(h2_bench, 5, reports=HEALTH.good_probes)
    run_tick(h2_bench, ms - 100)
    assert state(h2_bench, 5)[0] is ASSUMED_BAD
    run_tick(h2_bench, 200)
    assert state(h2_bench, 5) == (GOOD, Reason.HEALED)
    (event,) = (e for e in h2_bench.events() if e["after"] == GOOD)
    assert (event["reason"], event["reports"]) == (Reason.HEALED, HEALTH.good_probes)
    assert h2_bench.usable(H2) == EVERY


@pytest.mark.parametrize("what", ["few reports", "lag", "no arrival", "loss", "link", "detached"])
def test_a_failed_ev_does_not_return_while_a_condition_is_missing(h2_bench: Bench, what: str) -> None:
    fail_ev(h2_bench, 5)
    record_arrivals(h2_bench, 5, reports=HEALTH.good_probes - (what == "few reports"))
    stats = h2_bench.path_stats(H2, 5)
    for _ in range(20):
        if what == "lag":
            stats["lag_ns"] = now()
        elif what == "no arrival":
            stats["good"] = 0
        elif what == "loss":
            stats["loss_ns"] = now()
        elif what == "link":
            h2_bench.peer(H2)["plane_mask"] = ALL_PLANES & ~0b10
        elif what == "detached":
            h2_bench.peer(H2)["status"] = abi.STATUS_DETACHED
        run_tick(h2_bench, 500)
        tick_h2_now(h2_bench)
        assert state(h2_bench, 5)[0] is ASSUMED_BAD


def return_after_hold_down(bench: Bench) -> None:
    """Has h2, which was silent, answer again, and EV 5 return after a whole hold-down and no sooner."""
    record_arrivals(bench, 5)
    run_tick(bench)
    record_arrivals(bench, 5, reports=HEALTH.good_probes)
    run_tick(bench, HEALTH.hold_down_ms // 2)
    assert state(bench, 5)[0] is ASSUMED_BAD
    run_tick(bench, HEALTH.hold_down_ms)
    assert state(bench, 5)[0] is GOOD


def test_the_hold_down_begins_with_the_first_arrival_and_not_with_the_last_loss(h2_bench: Bench) -> None:
    """Probes are rare at that point: the time before the first arrival is no evidence of health."""
    fail_ev(h2_bench, 5)
    run_ticks(h2_bench, 5000)
    tick_h2_now(h2_bench)
    return_after_hold_down(h2_bench)


@pytest.mark.parametrize("late_ms", [0, 20, 80])
def test_the_hold_down_begins_anew_only_if_a_missing_packet_is_not_merely_late(h2_bench: Bench, late_ms: int) -> None:
    def wait(ms: int) -> EvState:
        for _ in range(0, ms, INTERVAL_MS):
            run_tick(h2_bench, INTERVAL_MS)
            record_all_answers(h2_bench)
        return state(h2_bench, 5)[0]

    fail_ev(h2_bench, 5)
    run_tick(h2_bench)
    record_arrivals(h2_bench, 5, reports=HEALTH.good_probes)
    assert wait(HEALTH.hold_down_ms - 200) is ASSUMED_BAD
    h2_bench.path_stats(H2, 5)["lag_ns"] = now() if late_ms else 0
    assert wait(late_ms) is ASSUMED_BAD
    h2_bench.path_stats(H2, 5)["lag_ns"] = 0  # a report says that it has arrived
    assert (wait(300) is GOOD) == (late_ms <= 20)
    assert wait(HEALTH.hold_down_ms) is GOOD


def test_an_ev_does_not_return_while_its_peer_answers_nothing(h2_bench: Bench) -> None:
    fail_ev(h2_bench, 5)
    run_tick(h2_bench)
    record_arrivals(h2_bench, 5, reports=HEALTH.good_probes)
    h2_bench.tables.watches["silent"][H2] = 1
    run_ticks(h2_bench, 2 * HEALTH.hold_down_ms)
    assert (state(h2_bench, 5)[0], h2_bench.path_stats(H2, 5)["good"]) == (ASSUMED_BAD, 0)
    return_after_hold_down(h2_bench)


def test_below_the_floor_an_ev_that_answers_is_used_once_its_missing_packet_is_given_up(h2_bench: Bench) -> None:
    h2_bench.set_state(H2, DENIED, *(ev for ev in EVERY if ev not in (5, 6)))
    h2_bench.peer(H2)["floor"] = 1
    fail_ev(h2_bench, 5, reason=Reason.OVERDUE)
    h2_bench.set_state(H2, ASSUMED_BAD, 6)
    h2_bench.dataplane.refresh(H2)
    (used,) = h2_bench.usable(H2)
    other = h2_bench.path_stats(H2, 11 - used)
    other["good"], other["lag_ns"] = 1, now()
    run_tick(h2_bench)
    assert h2_bench.usable(H2) == [used]
    run_ticks(h2_bench, 100)
    assert h2_bench.usable(H2) == [11 - used]


def weights(bench: Bench, step_ms: int = INTERVAL_MS) -> list[int]:
    """Returns the successive weights of EV 5 after its return."""
    fail_ev(bench, 5)
    run_tick(bench)
    record_arrivals(bench, 5, reports=HEALTH.good_probes)
    run_tick(bench, 1100)
    assert state(bench, 5)[0] is GOOD
    seen = [int(bench.ev(H2, 5)["weight"])]
    for _ in range(0, 600, step_ms):
        run_tick(bench, step_ms)
        seen.append(int(bench.ev(H2, 5)["weight"]))
    return [w for w, before in zip(seen, [0, *seen], strict=False) if w != before]


def test_a_returning_ev_ramps_from_one_eighth_to_full_weight(h2_bench: Bench) -> None:
    assert weights(h2_bench) == [1, 2, 4, 8]
    assert with_deadlines(h2_bench) == []


@pytest.mark.parametrize("bench", [Setup(health="ramp_ms = 0")], indirect=True, ids=[""])
def test_without_a_ramp_an_ev_returns_at_full_weight(h2_bench: Bench) -> None:
    assert weights(h2_bench) == [8]


def test_refresh_restores_deadlines_after_a_daemon_restart(h2_bench: Bench) -> None:
    """`refresh` makes the programs examine all EVs of the peer, whatever deadlines they had."""
    h2_bench.set_state(H2, ASSUMED_BAD, 5)
    h2_bench.ev(H2, 6)["weight"] = 2
    h2_bench.tables.watches[H2] = np.zeros((), abi.WATCH)
    h2_bench.tables.watches["swept_ns"] = now()
    h2_bench.dataplane.refresh(H2)
    assert with_deadlines(h2_bench) == [5, 6]
    run_tick(h2_bench, 10_000)
    assert h2_bench.ev(H2, 6)["weight"] == abi.WEIGHT_FULL
    assert with_deadlines(h2_bench) == [5]
