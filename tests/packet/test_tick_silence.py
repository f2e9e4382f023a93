# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_tick: missing reports, lagging EVs, and silent peers."""

import numpy as np
import pytest

from tests.packet.clock import MS, now
from tests.packet.cluster import EVS, H2, Setup
from tests.packet.reports import EVERY, Reporter, events
from tests.packet.rig import Bench
from tests.packet.ticks import (
    GOOD,
    INTERVAL_MS,
    SUSPECT_TICK_S,
    TICK_S,
    probe_requests,
    record_all_answers,
    reply,
    run_tick,
    run_ticks,
    tick_h2_now,
    with_deadlines,
)
from tests.packet.wires import Tap

pytestmark = pytest.mark.root


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
