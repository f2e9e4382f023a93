# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_tick: link changes at both ends, announcements, and a detached host."""

import pytest

from mrcd.kernel import abi
from mrcd.kernel.enums import EvState, Reason
from tests.packet.clock import MS, now
from tests.packet.cluster import ALL_PLANES, EVS, H1, H2, H5, PLANES, SLOTS
from tests.packet.reports import EVERY, Reporter, events, others, state
from tests.packet.rig import Bench
from tests.packet.ticks import (
    ASSUMED_BAD,
    DENIED,
    GOOD,
    HEALTH,
    SKIP,
    UNKNOWN,
    fail_ev,
    postpone,
    probe_requests,
    record_all_answers,
    record_arrivals,
    run_tick,
    run_ticks,
    tick_h2_now,
)
from tests.packet.wires import Tap

pytestmark = pytest.mark.root


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


def test_planes_without_a_link_are_not_probed(h2_bench: Bench, wires: list[Tap]) -> None:
    h2_bench.tables.node["plane_mask"] = 0b1001
    h2_bench.tables.watches["swept_ns"][H2] = 0
    tick_h2_now(h2_bench)
    assert {ev // SLOTS for _, ev in probe_requests(wires)[0]} == {0, PLANES - 1}
