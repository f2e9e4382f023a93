# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_tick: new and failed EVs, links, missing reports, silent and idle peers."""

import struct
from collections import Counter

import numpy as np
import pytest
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet, Raw

from labkit.traffic.wire import MRCProbe
from mrcd.health import probe_pace
from mrcd.kernel import abi, libbpf
from mrcd.kernel.enums import EvState, ProbeKind, Reason
from tests.packet.clock import MS, advance, now
from tests.packet.packets import ALL_PLANES, EVS, H1, H2, H5
from tests.packet.reports import EVERY, Reporter, events, others, state
from tests.packet.rig import Bench, Setup
from tests.packet.ticks import (
    ASSUMED_BAD,
    CALM_TICK_S,
    DENIED,
    ETH_HLEN,
    GOOD,
    HEALTH,
    INTERVAL_MS,
    IP_HLEN,
    SKIP,
    SUSPECT_TICK_S,
    TICK_S,
    UNKNOWN,
    fail_ev,
    in_turn,
    postpone,
    probe_requests,
    probes_by_kind,
    record_all_answers,
    record_arrivals,
    reply,
    requests,
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
        record_all_answers(h2_bench)
        elapsed += 10
        at += [elapsed] * len(probe_requests(wires)[0])
    gaps = np.diff(at).tolist()
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
    (packet,), _ = requests(wires)
    return packet


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


def test_some_retries_have_full_size_while_the_budget_is_short(h2_bench: Bench, wires: list[Tap]) -> None:
    stats = h2_bench.path_stats(H2, 5)
    fail_ev(h2_bench, 5)
    retried(h2_bench, wires)
    are_long = []
    for n in range(1, 17):
        record_arrivals(h2_bench, 5)
        stats["long_sent"] = n > 1
        h2_bench.tables.clock["budget"] = HEALTH.idle_probes // 8 + 1
        are_long.append(len(retried(h2_bench, wires)) > h2_bench.plan.inner_mtu)
    assert [n for n, is_long in enumerate(are_long, 1) if is_long] == [1, 8, 16]


def test_an_ev_returns_after_a_probe_of_full_size_however_many_small_ones_arrive(
    h2_bench: Bench, wires: list[Tap]
) -> None:
    """As those of sweeps, between two retries."""
    stats = h2_bench.path_stats(H2, 5)
    fail_ev(h2_bench, 5)
    retried(h2_bench, wires)
    record_arrivals(h2_bench, 5, reports=HEALTH.good_probes)
    stats["long_sent"] = stats["loss_ns"] = 0
    h2_bench.ev(H2, 5)["state_since_ns"] = 1
    h2_bench.tables.clock["budget"] = HEALTH.idle_probes // 8 + 1
    assert len(retried(h2_bench, wires)) > h2_bench.plan.inner_mtu
    for known in (1, 2):  # good reports since then
        stats["long_sent"] = known
        run_tick(h2_bench, INTERVAL_MS)
        assert (state(h2_bench, 5)[0], stats["long_sent"]) == (ASSUMED_BAD, known)
    stats["long_sent"] = 3
    run_tick(h2_bench, INTERVAL_MS)
    assert state(h2_bench, 5)[0] == GOOD


def test_a_denied_ev_is_probed_seldom_and_stays_denied(h2_bench: Bench, wires: list[Tap]) -> None:
    h2_bench.dataplane.set_state(H2, 5, DENIED, Reason.ADMIN, EvState)
    for _ in range(150):
        run_tick(h2_bench, INTERVAL_MS)
        record_arrivals(h2_bench, 5, reports=20)
    assert 3 <= len(probe_requests(wires)[0]) <= 4
    assert state(h2_bench, 5) == (DENIED, Reason.ADMIN)


@pytest.mark.parametrize(
    ("flaps", "ms"), [(0, 1000), (1, 1000), (2, 2000), (3, 4000), (6, 32_000), (7, 60_000), (8, 60_000), (255, 60_000)]
)
def test_a_failed_ev_returns_after_a_hold_down_that_doubles_up_to_its_cap(h2_bench: Bench, flaps: int, ms: int) -> None:
    assert probe_pace.hold_down_ns(HEALTH, flaps) == ms * MS
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
    record_arrivals(h2_bench, 5, reports=HEALTH.good_probes)
    stats = h2_bench.path_stats(H2, 5)
    table, field, value = {
        "few reports": (stats, "good", HEALTH.good_probes - 1),
        "lag": (stats, "lag_ns", 0),
        "no arrival": (stats, "good", 0),
        "loss": (stats, "loss_ns", 0),
        "link": (h2_bench.peer(H2), "plane_mask", ALL_PLANES & ~0b10),
        "detached": (h2_bench.peer(H2), "status", abi.STATUS_DETACHED),
    }[what]
    for _ in range(20):
        table[field] = now() if field.endswith("_ns") else value
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


@pytest.mark.parametrize(
    ("bench", "steps"),
    [(Setup(), [1, 2, 4, 8]), (Setup(health="ramp_ms = 0"), [8])],
    indirect=["bench"],
    ids=["by steps", "without a ramp"],
)
def test_a_returning_ev_ramps_from_one_eighth_to_full_weight(h2_bench: Bench, steps: list[int]) -> None:
    assert weights(h2_bench) == steps
    assert with_deadlines(h2_bench) == []


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


# ---- links ----


@pytest.mark.parametrize("before", [GOOD, SKIP])
@pytest.mark.parametrize("whose", ["link_down", "peer_link_down"])
def test_a_link_that_goes_down_fails_its_evs(h2_bench: Bench, before: EvState, whose: str) -> None:
    run_tick(h2_bench)
    for ev in range(4, 8):
        h2_bench.ev(H2, ev)["state"] = before
    (h2_bench.tables.node if whose == "link_down" else h2_bench.peer(H2))["plane_mask"] = ALL_PLANES & ~0b10
    h2_bench.dataplane.refresh(H2)
    run_tick(h2_bench)
    assert events(h2_bench) == [(ev, before.name, "ASSUMED_BAD", whose) for ev in range(4, 8)]
    run_ticks(h2_bench, 2000)
    assert events(h2_bench) == []
    assert h2_bench.usable(H2) == others(4, 5, 6, 7)


@pytest.mark.parametrize("before", [UNKNOWN, ASSUMED_BAD, DENIED])
def test_a_link_that_goes_down_changes_no_ev_that_is_out_of_use(
    h2_bench: Bench, before: EvState, wires: list[Tap]
) -> None:
    h2_bench.set_state(H2, before, *EVERY)
    h2_bench.tables.node["plane_mask"] = 0
    h2_bench.dataplane.refresh(H2)
    run_ticks(h2_bench, 1000)
    assert events(h2_bench) == []
    assert probe_requests(wires) == ([], [])


def test_the_hold_down_starts_when_the_link_returns(h2_bench: Bench) -> None:
    run_tick(h2_bench)
    h2_bench.peer(H2)["plane_mask"] = ALL_PLANES & ~0b10
    h2_bench.dataplane.refresh(H2)
    run_tick(h2_bench)
    run_ticks(h2_bench, 5000)
    tick_h2_now(h2_bench)
    record_arrivals(h2_bench, *range(4, 8), reports=HEALTH.good_probes)
    h2_bench.peer(H2)["plane_mask"] = ALL_PLANES
    h2_bench.dataplane.refresh(H2)
    run_tick(h2_bench, HEALTH.hold_down_ms - 200)
    assert {state(h2_bench, ev)[0] for ev in range(4, 8)} == {ASSUMED_BAD}
    run_tick(h2_bench, 400)
    assert {state(h2_bench, ev) for ev in range(4, 8)} == {(GOOD, Reason.HEALED)}


def test_a_link_down_report_from_a_peer_takes_effect_in_the_next_tick(h2_bench: Bench) -> None:
    r = Reporter(h2_bench)
    run_tick(h2_bench)
    postpone(h2_bench, H2)
    r.report(plane_mask=ALL_PLANES & ~0b10)
    run_tick(h2_bench)
    assert {state(h2_bench, ev) for ev in range(4, 8)} == {(ASSUMED_BAD, Reason.PEER_LINK_DOWN)}


def test_a_change_of_this_host_is_announced_with_one_probe_per_peer(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.watches["swept_ns"], bench.tables.node["idle_us"] = now(), 3_600_000_000
    run_tick(bench)
    probe_requests(wires)
    bench.tables.watches["announce"], bench.tables.watches["due_ns"] = 1, 0
    run_tick(bench)
    assert probe_requests(wires) == ([], [H1, H2, H5])
    assert not bench.tables.watches["announce"][[H1, H2, H5]].any()
    record_all_answers(bench)
    run_ticks(bench, 200)
    assert probe_requests(wires) == ([], [])


def test_a_detached_host_sends_idle_probes_only(h2_bench: Bench, wires: list[Tap]) -> None:
    fail_ev(h2_bench, 5)
    h2_bench.tables.node["status"] = abi.STATUS_DETACHED
    h2_bench.reports(H2)["report_seq"], h2_bench.reports(H2)["requested_ns"] = 1, now() - 3 * MS
    run_ticks(h2_bench, 100)
    assert probe_requests(wires) == ([], [])
    h2_bench.tables.watches["swept_ns"][H2] = h2_bench.tables.watches["due_ns"][H2] = 0
    run_tick(h2_bench)
    assert len(probe_requests(wires)[0]) == EVS
    assert h2_bench.tables.watches["unanswered"][H2] == 0


# ---- missing reports and silent peers ----


def test_a_missing_report_makes_sweeps_frequent(h2_bench: Bench, wires: list[Tap]) -> None:
    h2_bench.reports(H2)["report_seq"], h2_bench.reports(H2)["requested_ns"] = 1, now() - 3 * MS
    h2_bench.tables.watches["due_ns"][H2] = 0
    assert run_tick(h2_bench, 10) == SUSPECT_TICK_S
    plain, reports = probe_requests(wires)
    assert (plain, reports) == ([(H2, ev) for ev in EVERY], [H2])
    swept = []
    for step in range(100):  # of 5 ms
        run_tick(h2_bench, 5)
        h2_bench.tables.watches["unanswered"][H2] = 1  # keeps the peer from becoming silent
        if probe_requests(wires)[0]:
            swept.append(step)
    gaps = np.diff(swept).tolist()
    assert sorted(gaps[:4]) == gaps[:4]  # each missing report makes the next sweep later
    assert gaps[3] >= 4 * gaps[0]
    record_all_answers(h2_bench)
    assert run_tick(h2_bench, 6) == TICK_S
    assert probe_requests(wires) == ([], [])


def test_a_lagging_ev_is_probed_until_its_lag_ends(h2_bench: Bench, wires: list[Tap]) -> None:
    r = Reporter(h2_bench)
    r.send_all(3)
    r.report()
    r.send(5, 3, arrive=0)
    r.report()
    assert with_deadlines(h2_bench) == [5]
    h2_bench.tables.path_stats["probe_after_ns"][H2] = 0
    probe_requests(wires)
    for _ in range(5):
        record_all_answers(h2_bench)
        run_tick(h2_bench, INTERVAL_MS)
        assert probe_requests(wires)[0] == [(H2, 5)]
    h2_bench.path_stats(H2, 5)["lag_ns"], h2_bench.ev(H2, 5)["state"] = 0, GOOD
    record_all_answers(h2_bench)
    run_tick(h2_bench, INTERVAL_MS)
    assert (probe_requests(wires)[0], with_deadlines(h2_bench)) == ([], [])


def test_a_peer_that_answers_nothing_is_silent_and_keeps_its_evs(h2_bench: Bench, wires: list[Tap]) -> None:
    h2_bench.tables.watches["swept_ns"][H2] = 0
    begun = now()
    tick_h2_now(h2_bench)
    while not h2_bench.tables.watches["silent"][H2]:
        run_tick(h2_bench, 5)
    assert 2 * INTERVAL_MS * MS <= now() - begun <= 200 * MS
    assert (events(h2_bench), h2_bench.usable(H2)) == ([], EVERY)
    probe_requests(wires)
    run_ticks(h2_bench, 200)
    assert probe_requests(wires) == ([], [])  # a silent peer is swept as rarely as an idle one
    h2_bench.tables.watches["swept_ns"][H2] = 0
    tick_h2_now(h2_bench)
    reply(h2_bench, 5, tx_ns=now())
    run_tick(h2_bench)
    assert h2_bench.tables.watches["silent"][H2] == h2_bench.tables.watches["unanswered"][H2] == 0


def test_a_reply_on_any_ev_keeps_a_peer_from_being_silent(h2_bench: Bench) -> None:
    h2_bench.tables.watches["swept_ns"][H2] = 0
    tick_h2_now(h2_bench)
    for n in range(40):
        run_tick(h2_bench, 5)
        if n % 4 == 3:
            reply(h2_bench, n % EVS, tx_ns=now())
    assert h2_bench.tables.watches["silent"][H2] == 0


@pytest.mark.parametrize(
    "bench",
    [Setup(health="probe_interval_ms = 5000\nidle_interval_ms = 5000\nprobe_backoff_ms = 5000")],
    indirect=True,
    ids=[""],
)
def test_unanswered_sweeps_within_the_interval_do_not_make_a_peer_silent(h2_bench: Bench) -> None:
    for _ in range(20):
        h2_bench.tables.watches["timed_out"][H2], h2_bench.tables.watches["due_ns"][H2] = 1, 0
        run_tick(h2_bench)
    assert h2_bench.tables.watches["unanswered"][H2] == 20
    assert h2_bench.tables.watches["silent"][H2] == 0


# ---- probes of idle peers ----


def test_quiet_peers_are_swept_each_idle_interval(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.node["idle_us"] = 10_000_000
    assert run_tick(bench) == TICK_S
    plain, reports = probe_requests(wires)
    assert plain == [(p, ev) for p in (H1, H2, H5) for ev in np.flatnonzero(bench.tables.evs["configured"][p]).tolist()]
    assert reports == [H1, H2, H5]
    record_all_answers(bench)
    run_tick(bench, 10_000)  # the first interval is random, up to this length
    assert probe_requests(wires) == (plain, reports)
    record_all_answers(bench)
    run_tick(bench, 9000)
    assert probe_requests(wires) == ([], [])
    run_tick(bench, 2000)
    assert probe_requests(wires) == (plain, reports)


def test_each_limited_sweep_continues_with_the_next_evs(bench: Bench, wires: list[Tap]) -> None:
    postpone(bench, H1, H5)
    bench.tables.node["idle_evs"] = 6
    seen = []
    for _ in range(8):
        run_tick(bench, 1000)
        plain, _ = probe_requests(wires)
        seen += [ev for _, ev in plain]
        record_all_answers(bench)
    assert Counter(seen) == Counter(3 * EVERY)


@pytest.mark.parametrize("bench", [Setup(health="idle_probes = 100")], indirect=True, ids=[""])
def test_idle_probes_stay_within_the_budget(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.node["idle_us"] = 1000
    total = 0
    for _ in range(150):  # three seconds
        run_tick(bench, 20)
        plain, reports = probe_requests(wires)
        total += len(plain) + len(reports)
        record_all_answers(bench)
    assert 300 <= total <= 300 + 50 + 2 * EVS, total


@pytest.mark.parametrize("bench", [Setup(health="idle_probes = 100")], indirect=True, ids=[""])
def test_an_idle_timeout_sweeps_at_once_even_beyond_the_budget(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.clock["budget"], bench.tables.clock["refilled_ns"] = -50, now()
    bench.tables.watches["timed_out"][H2] = 1
    run_tick(bench)
    plain, reports = probe_requests(wires)
    assert plain == [(H2, ev) for ev in EVERY]
    assert reports == [H2]
    assert bench.tables.watches["timed_out"][H2] == 0


def test_while_the_budget_is_spent_one_failed_ev_per_tick_is_probed(h2_bench: Bench) -> None:
    """Each in its turn, so that they heal although CPUs stay too busy for a whole budget. Denied EVs wait."""
    denied, failed = EVERY[:4], EVERY[4:8]
    run_tick(h2_bench)
    h2_bench.set_state(H2, DENIED, *denied)
    h2_bench.set_state(H2, ASSUMED_BAD, *failed)
    counts = []
    for _ in range(150):  # three seconds
        h2_bench.tables.clock["budget"] = -HEALTH.idle_probes
        before = h2_bench.tables.evs["probe_seq"][H2].copy()
        run_tick(h2_bench, 20)
        record_all_answers(h2_bench)
        counts.append(h2_bench.tables.evs["probe_seq"][H2] - before)
    probes = np.array(counts)
    assert probes[:, failed].sum(axis=1).max() == 1
    assert probes[:, failed].sum(axis=0).min() >= 3
    assert not probes[:, denied].any()


@pytest.mark.parametrize("bench", [Setup(evs=64, t1s=16)], indirect=True, ids=[""])
@pytest.mark.parametrize(("tick_ms", "peers"), [(5, [H2, H5]), (20, [H2])])
def test_while_the_budget_is_spent_all_failed_evs_are_probed_in_turn(
    h2_bench: Bench, tick_ms: int, peers: list[int]
) -> None:
    """However often the tick runs, it probes no more than 50 in a second beyond the budget; and none is left out."""
    evs, seconds = h2_bench.tables.evs, 15
    evs["state"][peers] = ASSUMED_BAD
    h2_bench.tables.watches["deadlines"][peers], h2_bench.tables.watches["due_ns"][peers] = [2**64 - 1, 0, 0, 0], 0
    h2_bench.tables.watches["swept_ns"][peers] = now()
    before = evs["probe_seq"][peers].copy()
    for _ in range(seconds * 1000 // tick_ms):
        h2_bench.tables.clock["budget"] = -HEALTH.idle_probes
        run_tick(h2_bench, tick_ms)
        record_all_answers(h2_bench)
    probes = evs["probe_seq"][peers] - before
    numbers, hosts = probes.sum(axis=0), probes.sum(axis=1)
    assert 0 < numbers.max() <= 2 * numbers.min()
    assert 0 < hosts.max() <= 5 * hosts.min()
    assert probes.sum() <= 2 * 50 * seconds  # each comes with a request for a report


def test_the_budget_stays_between_a_debt_of_a_second_and_half_a_second(bench: Bench) -> None:
    bench.tables.clock["budget"] = -(10**6)
    bench.tables.peers["configured"] = 0
    run_tick(bench, 100)
    run_tick(bench)
    assert -HEALTH.idle_probes <= bench.tables.clock["budget"] < 0
    run_ticks(bench, 5000, 500)
    assert bench.tables.clock["budget"] == HEALTH.idle_probes // 2 + 1


@pytest.mark.parametrize("which", ["unconfigured", "busy"])
def test_a_tick_probes_nothing_without_peers_or_while_another_cpu_runs_it(
    bench: Bench, wires: list[Tap], which: str
) -> None:
    if which == "busy":
        bench.tables.clock["busy"] = 1
    else:
        bench.tables.peers["configured"] = 0
    assert run_tick(bench) == TICK_S
    assert probe_requests(wires) == ([], [])


@pytest.mark.parametrize("busy", ["nothing", "traffic", "an EV out of use", "an overdue report"])
def test_in_calm_weather_ticks_are_rare_and_the_daemon_is_not_silent_meanwhile(bench: Bench, busy: str) -> None:
    bench.tables.node["idle_us"] = 10**9
    bench.tables.watches["swept_ns"] = now()
    run_ticks(bench, 5000, 20)  # the weights of all EVs are full now
    bench.tables.clock["active_ns"] = bench.tables.node["ticked_ns"] = 0
    if busy == "traffic":
        libbpf.update_elem(bench.map_fd("mrc_paid"), bytes(4), struct.pack("I", 1))
    elif busy == "an EV out of use":
        fail_ev(bench, 3)
    elif busy == "an overdue report":
        bench.reports(H2)["report_seq"] += 1
        bench.reports(H2)["requested_ns"] = now()
        bench.tables.watches["due_ns"][H2] = 0
    found = run_tick(bench, 1000)
    assert (found == CALM_TICK_S) == (busy == "nothing")
    assert bench.tables.node["ticked_ns"] == now() + (CALM_TICK_S - TICK_S) * 1e9 * (busy == "nothing")
    if busy == "traffic":
        assert [run_tick(bench, ms) for ms in (2900, 100, 20)] == [TICK_S, CALM_TICK_S, CALM_TICK_S]


@pytest.mark.parametrize(("is_calm", "woken"), [(True, 1), (False, 0)], ids=["calm", "busy"])
def test_work_that_a_program_finds_in_calm_weather_wakes_the_daemon_once(
    h2_bench: Bench, is_calm: bool, woken: int
) -> None:
    """A peer that was silent answers again, on several EVs."""
    h2_bench.tables.watches["swept_ns"][H2] = 0
    tick_h2_now(h2_bench)
    h2_bench.dataplane.events()
    h2_bench.tables.clock["active_ns"] = 0 if is_calm else now()
    for ev in (1, 5, 9):
        h2_bench.tables.watches["silent"][H2] = 1
        reply(h2_bench, ev, tx_ns=now())
    assert (h2_bench.dataplane.events()["ev"] == abi.EVENT_IDLE_TIMEOUT).sum() == woken


def test_probes_are_counted_by_kind(bench: Bench) -> None:
    before = probes_by_kind(bench)
    postpone(bench, H1, H5)
    fail_ev(bench, 3)
    bench.tables.watches["timed_out"][H2] = 1
    run_tick(bench)
    after = probes_by_kind(bench)
    grown = [after[kind.text] - before.get(kind.text, 0) for kind in (ProbeKind.RETRY, ProbeKind.SUSPICION)]
    assert grown == [1, EVS]  # suspicion: all EVs but the retried one, and a request for a report
    record_all_answers(bench)
    run_tick(bench, 1000)
    assert probes_by_kind(bench)[ProbeKind.IDLE.text] > before.get(ProbeKind.IDLE.text, 0)


def test_first_sweeps_of_peers_start_at_different_evs(bench: Bench, wires: list[Tap]) -> None:
    """Different starts keep every T1 covered by the probes to some peer at any time."""
    bench.tables.node["idle_evs"] = 3
    run_tick(bench)
    plain, _ = probe_requests(wires)
    assert {ev for p, ev in plain if p == H2} == set(in_turn(6, 7, 8))
    assert {ev for p, ev in plain if p == H5} == set(in_turn(15, 0, 1))


def test_an_unanswered_probe_makes_the_next_tick_request_a_report(bench: Bench, wires: list[Tap]) -> None:
    """The report requested with the sweep is too early to show the missing probe."""
    postpone(bench, H1, H5)
    bench.tables.node["idle_us"] = 3_600_000_000
    for lost in (0, 1):
        bench.tables.watches["swept_ns"][H2] = bench.tables.watches["due_ns"][H2] = 0
        run_tick(bench)
        assert len(probe_requests(wires)[0]) == EVS
        for ev in range(EVS - lost):
            reply(bench, ev, tx_ns=now())
        bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
        run_tick(bench, 10)
        assert probe_requests(wires) == ([], [H2] * lost)


@pytest.mark.parametrize("bench", [Setup(evs=256)], indirect=True, ids=[""])
def test_reports_of_256_evs_are_requested_in_two_parts(bench: Bench, wires: list[Tap]) -> None:
    postpone(bench, H1, H5)
    bench.tables.node["idle_us"] = 3_600_000_000
    run_tick(bench)
    probe_requests(wires)
    bench.tables.watches["unanswered"][H2] = 0
    parts = []
    for _ in range(4):
        bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
        run_tick(bench, 10)
        parts += [packet[MRCProbe].first for packet in requests(wires)[1]]
    assert sorted(parts) == [0, abi.REPORT_EVS]
