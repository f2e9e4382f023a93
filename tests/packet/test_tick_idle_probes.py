# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_tick: probes of idle peers, their budget and their reports."""

from collections import Counter

import numpy as np
import pytest
from scapy.layers.l2 import Ether

from mrcd.fabric.wire import MRCProbe
from mrcd.kernel import abi
from mrcd.kernel.enums import ProbeKind
from tests.packet.clock import now
from tests.packet.cluster import EVS, H1, H2, H5, Setup
from tests.packet.reports import EVERY
from tests.packet.rig import Bench
from tests.packet.ticks import (
    HEALTH,
    TICK_S,
    fail_ev,
    postpone,
    probe_requests,
    probes_by_kind,
    record_all_answers,
    reply,
    run_tick,
)
from tests.packet.wires import Tap

pytestmark = pytest.mark.root


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


def test_the_budget_debt_is_capped_at_one_second(bench: Bench) -> None:
    bench.tables.clock["budget"] = -(10**6)
    bench.tables.peers["configured"] = 0
    run_tick(bench, 100)
    run_tick(bench)
    assert -HEALTH.idle_probes <= bench.tables.clock["budget"] < 0


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


def test_probes_are_counted_by_kind(bench: Bench) -> None:
    before = probes_by_kind(bench)
    postpone(bench, H1, H5)
    fail_ev(bench, 3)
    bench.tables.watches["timed_out"][H2] = 1
    run_tick(bench)
    after = probes_by_kind(bench)
    grown = {k: n - before.get(k, 0) for k, n in after.items() if n != before.get(k, 0)}
    assert grown[ProbeKind.RETRY.text] == 1
    assert grown[ProbeKind.SUSPICION.text] == EVS  # all EVs but the retried one, and a request for a report
    record_all_answers(bench)
    run_tick(bench, 1000)
    assert probes_by_kind(bench)[ProbeKind.IDLE.text] > before.get(ProbeKind.IDLE.text, 0)


def test_first_sweeps_of_peers_start_at_different_evs(bench: Bench, wires: list[Tap]) -> None:
    """Different starts keep every T1 covered by the probes to some peer at any time."""
    bench.tables.node["idle_evs"] = 3
    run_tick(bench)
    plain, _ = probe_requests(wires)
    assert {ev for p, ev in plain if p == H2} == {6, 7, 8}
    assert {ev for p, ev in plain if p == H5} == {15, 0, 1}


def test_an_unanswered_probe_makes_the_next_tick_request_a_report(bench: Bench, wires: list[Tap]) -> None:
    """The report requested with the sweep is too early to show the missing probe."""
    postpone(bench, H1, H5)
    bench.tables.node["idle_us"] = 3_600_000_000
    bench.tables.watches["swept_ns"][H2] = 0
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
    bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    bench.tables.watches["unanswered"][H2] = 0
    parts = []
    for _ in range(4):
        run_tick(bench, 10)
        frames = [Ether(f.data)[MRCProbe] for wire in wires for f in wire.frames()]
        parts += [f.first for f in frames if f.counts]
        bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    assert sorted(parts) == [0, abi.REPORT_EVS]
