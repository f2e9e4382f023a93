# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_tick: a failed EV makes other peers' EVs through the same links be probed at once."""

import struct
from collections.abc import Collection

import pytest

from mrcd.kernel import abi, libbpf
from mrcd.kernel.enums import EvState, Reason
from tests.cluster_files import dual
from tests.packet.clock import now
from tests.packet.packets import EVS, H2, H5
from tests.packet.reports import EVERY
from tests.packet.rig import NEVER, Bench, Setup
from tests.packet.ticks import (
    ASSUMED_BAD,
    DENIED,
    GOOD,
    fail_ev,
    postpone,
    probe_requests,
    probes_by_kind,
    run_tick,
    run_ticks,
)
from tests.packet.wires import Tap

pytestmark = pytest.mark.root

H6 = 6


def probes_of_other_peers(
    bench: Bench, wires: list[Tap], answered: Collection[int] = (), lost: int = 0
) -> list[tuple[int, int]]:
    """Returns the plain requests sent to other peers right after EV 6 of h2 failed.

    Then h5 answers the probes on the EVs in `answered`, but not the last `lost` on EV 6, and ticks run until the shared
    failure is decided.
    """
    run_tick(bench)
    plain, reports = probe_requests(wires)
    assert not [r for r in reports if r != H2]
    for ev in answered:
        bench.path_stats(H5, ev)["reply_seq"] = bench.ev(H5, ev)["probe_seq"] - lost * (ev == 6)
    run_ticks(bench, DECISION_MS, 1)
    shares = SHARE.iter_unpack(libbpf.lookup_all(bench.map_fd("mrc_t1_failures"), 8, SHARE.size))
    assert all(made == begun and not left for *_, made, begun, _, left, _, _ in shares)
    return [p for p in plain if p[0] != H2]


def probes_after_failure(
    bench: Bench, wires: list[Tap], answered: Collection[int] = (), lost: int = 0
) -> list[tuple[int, int]]:
    """Lets EV 6 of h2 fail before that."""
    fail_ev(bench, 6, reason=Reason.OVERDUE)
    return probes_of_other_peers(bench, wires, answered, lost)


DECISION_MS = 10  # longer than REPLY_TIMEOUT_MIN_NS of bpf/neighbours.h
SHARE = struct.Struct("3Q8I")  # struct mrc_t1_failure


def h5_state(bench: Bench, ev: int) -> tuple[EvState, Reason]:
    return EvState(bench.ev(H5, ev)["state"]), Reason(bench.ev(H5, ev)["reason"])


EXPECTED_PROBES = [(H5, 6)] * 3 + [(H5, 7)]  # none to h1, which is under the same T0 as this host


def test_a_failure_probes_a_peer_under_each_t0_and_a_control_ev(h2_bench: Bench, wires: list[Tap]) -> None:
    assert probes_after_failure(h2_bench, wires) == EXPECTED_PROBES


def test_an_ev_that_misses_its_probes_fails_when_the_control_ev_answers(h2_bench: Bench, wires: list[Tap]) -> None:
    probes_after_failure(h2_bench, wires, [7])
    assert h5_state(h2_bench, 6) == (ASSUMED_BAD, Reason.OVERDUE)
    assert h2_bench.usable(H5) == [ev for ev in EVERY if ev != 6]
    assert probes_by_kind(h2_bench)["retry"] > 0


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_ev_that_answers_a_probe_stays_in_use(h2_bench: Bench, wires: list[Tap], lost: int) -> None:
    probes_after_failure(h2_bench, wires, [6, 7], lost)
    assert h5_state(h2_bench, 6)[0] == GOOD
    run_tick(h2_bench, 3)
    plain = [p for p in probe_requests(wires)[0] if p[0] != H2]
    assert plain == ([(H5, 6)] if lost else [])  # what is unclear is asked of each peer


def test_probes_sent_after_the_check_do_not_count_as_missing(h2_bench: Bench, wires: list[Tap]) -> None:
    fail_ev(h2_bench, 6, reason=Reason.OVERDUE)
    run_tick(h2_bench)
    for ev in (6, 7):
        h2_bench.path_stats(H5, ev)["reply_seq"] = h2_bench.ev(H5, ev)["probe_seq"]
    h2_bench.ev(H5, 6)["probe_seq"] += 16  # a probe burst
    probes_of_other_peers(h2_bench, wires)
    assert h5_state(h2_bench, 6)[0] == GOOD


def test_a_silent_peer_is_not_probed_for_shared_failures(h2_bench: Bench, wires: list[Tap]) -> None:
    h2_bench.tables.watches["silent"][H5] = 1
    assert probes_after_failure(h2_bench, wires) == []
    assert h5_state(h2_bench, 6)[0] == GOOD


def test_without_any_answer_a_probe_and_a_report_request_go_to_every_peer(h2_bench: Bench, wires: list[Tap]) -> None:
    probes_after_failure(h2_bench, wires)
    assert h5_state(h2_bench, 6)[0] == GOOD
    run_tick(h2_bench, 3)
    plain, reports = probe_requests(wires)
    assert ([p for p in plain if p[0] != H2], [r for r in reports if r != H2]) == ([(H5, 6)], [H5])


def test_the_control_ev_is_one_in_use(h2_bench: Bench, wires: list[Tap]) -> None:
    h2_bench.set_state(H5, ASSUMED_BAD, 7)
    postpone(h2_bench, H5)
    assert probes_after_failure(h2_bench, wires) == [(H5, 4), *[(H5, 6)] * 3]


@pytest.mark.parametrize("bench", [Setup(more=dual(H6, 1, 2))], indirect=True, ids=["usid"])
@pytest.mark.parametrize(
    ("arrived_at", "age_ns", "left", "asked"),
    [(H6, -1, [H5], [H6]), (H5, -1, [], [H5, H6]), (H6, 0, [H5, H6], []), (H5, 0, [H5, H6], [])],
)
def test_an_ev_on_which_packets_arrive_is_not_left_for_a_shared_failure(
    h2_bench: Bench, wires: list[Tap], arrived_at: int, age_ns: int, left: list[int], asked: list[int]
) -> None:
    """Reports say that packets arrived on EV 6 after the failure: at the probed peer, or at another under its T0."""
    postpone(h2_bench, H6)
    fail_ev(h2_bench, 6, reason=Reason.OVERDUE)
    h2_bench.path_stats(arrived_at, 6)["arrived_ns"] = now() - age_ns
    assert probes_of_other_peers(h2_bench, wires, [7]) == EXPECTED_PROBES
    assert [host for host in (H5, H6) if h2_bench.ev(host, 6)["state"] == ASSUMED_BAD] == left
    assert [r for r in probe_requests(wires)[0] if r[0] not in (H2, *left)] == [(host, 6) for host in asked]


@pytest.mark.parametrize("bench", [Setup(more=dual(H6, 1, 2))], indirect=True, ids=["usid"])
def test_the_next_peer_replaces_one_that_is_being_probed_already(h2_bench: Bench, wires: list[Tap]) -> None:
    postpone(h2_bench, H6)
    h2_bench.path_stats(H5, 6)["probe_after_ns"] = NEVER
    assert probes_after_failure(h2_bench, wires) == [(H5, 7), *[(H6, 6)] * 3, (H6, 7)]


def test_the_shared_path_is_found_under_another_ev_number(h2_bench: Bench, wires: list[Tap]) -> None:
    six, four = h2_bench.ev(H5, 6)["dst"].copy(), h2_bench.ev(H5, 4)["dst"].copy()
    h2_bench.ev(H5, 4)["dst"], h2_bench.ev(H5, 6)["dst"] = six, four
    assert probes_after_failure(h2_bench, wires, [5]) == [(H5, 4)] * 3 + [(H5, 5)]
    assert h5_state(h2_bench, 4) == (ASSUMED_BAD, Reason.OVERDUE)


@pytest.mark.parametrize("least", [EVS - 1, EVS])
def test_a_shared_failure_takes_a_dead_ev_out_of_use_even_at_the_floor(
    h2_bench: Bench, wires: list[Tap], least: int
) -> None:
    h2_bench.peer(H5)["floor"] = least
    probes_after_failure(h2_bench, wires, [7])
    assert h5_state(h2_bench, 6)[0] == ASSUMED_BAD
    # Nothing arrives on EV 6, so the floor does not keep it.
    assert h2_bench.usable(H5) == [ev for ev in EVERY if ev != 6]


def test_a_lossy_ev_fills_the_floor_after_a_shared_failure(h2_bench: Bench, wires: list[Tap]) -> None:
    in_use = [4, 5, 6, 7]
    h2_bench.peer(H5)["floor"] = len(in_use)
    for ev in set(EVERY) - set(in_use):
        assert h2_bench.dataplane.set_state(H5, ev, ASSUMED_BAD, Reason.LOSS, [GOOD])
    postpone(h2_bench, H5)
    probes_after_failure(h2_bench, wires, [7])
    assert h5_state(h2_bench, 6)[0] == ASSUMED_BAD
    assert h2_bench.usable(H5) == [4, 5, 7, 11]


@pytest.mark.parametrize("what", ["loss", "not in use", "twice", "detached"])
def test_other_peers_are_not_probed_without_a_new_dead_link(h2_bench: Bench, wires: list[Tap], what: str) -> None:
    if what == "not in use":
        h2_bench.set_state(H5, DENIED, 6)
        postpone(h2_bench, H5)
    elif what == "detached":
        h2_bench.peer(H5)["status"] = abi.STATUS_DETACHED
    elif what == "twice":
        fail_ev(h2_bench, 6, reason=Reason.OVERDUE)
        probes_of_other_peers(h2_bench, wires, [6, 7])
        h2_bench.set_state(H2, GOOD, 6)
    assert h2_bench.dataplane.set_state(H2, 6, ASSUMED_BAD, Reason.LOSS if what == "loss" else Reason.OVERDUE, [GOOD])
    assert probes_of_other_peers(h2_bench, wires) == []


@pytest.mark.parametrize("bench", ["srh", "ecmp"], indirect=True)
def test_srh_and_ecmp_have_no_shared_failures(h2_bench: Bench, wires: list[Tap]) -> None:
    assert probes_after_failure(h2_bench, wires) == []
