# SPDX-License-Identifier: BSD-2-Clause
"""Tests silence that fails no EV: nothing is lost, all EVs lag, nothing is answered, or it is too early."""

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP

from mrcd.kernel.enums import EvState, Histogram
from tests.packet.clock import MS, advance, now
from tests.packet.cluster import EVS, H2
from tests.packet.reports import (
    BURSTS_AT_ONCE,
    EVERY,
    LAGGING,
    LOST_BURSTS,
    Reporter,
    events,
    others,
    patient,
    state,
    unfading,
)
from tests.packet.rig import Bench

pytestmark = pytest.mark.root


@unfading
def test_without_loss_no_ev_changes(bench: Bench) -> None:
    r = Reporter(bench)
    for n in range(20):
        r.send_all(n)
        r.report()
    assert (bench.tables.evs["state"][H2] == EvState.GOOD).all()
    assert (bench.usable(H2), events(bench)) == (EVERY, [])
    path_stats = bench.tables.path_stats[H2]
    assert (path_stats["judged"] == sum(range(20))).all()
    first_probe = np.arange(EVS) == 0  # the EV of the first probe, which is not judged
    assert (path_stats["window_samples"] == 19 + bench.tables.evs["probe_seq"][H2] - first_probe).all()
    for column in (
        "deficit",
        "missed",
        "window_lost",
        "window_losses",
        "pending_losses",
        "confirmed_losses",
        "lag_ns",
        "loss_ns",
    ):
        assert not path_stats[column].any(), column
    assert not bench.tables.histograms()[: Histogram.RTT].any()


def test_an_idle_ev_is_not_suspected(bench: Bench) -> None:
    """Nothing arrives on it, and nothing is missing."""
    r = Reporter(bench)
    for _ in range(2 * LOST_BURSTS):
        for ev in others(5):
            r.send(ev, 10)
        r.report()
    assert (bench.usable(H2), events(bench)) == (EVERY, [])


def test_when_all_evs_lag_none_fails(bench: Bench) -> None:
    """The peer paused until just before the request arrived: the floor stays in use, and no EV fails."""
    r = Reporter(bench)
    r.send_all(3, lose=tuple(EVERY))
    r.report()
    assert len(bench.usable(H2)) == bench.peer(H2)["floor"] == 4
    for _ in range(2 * EVS):
        assert bench.push(IP(src="10.99.0.1", dst="10.99.0.3") / UDP())[0] == "redirect"
    assert bench.tables.evs["tx_packets"][H2].tolist() == [3 + 8 * (ev in bench.usable(H2)) for ev in EVERY]
    assert (bench.tables.evs["state"][H2, bench.usable(H2)[1:]] == EvState.SKIP).all()  # all but the EV of the request
    r.packets = bench.tables.evs["tx_packets"][H2].tolist()
    for _ in range(1 + EVS // BURSTS_AT_ONCE):
        for ev in EVERY:
            r.burst(ev)
        r.report()
    assert (bench.usable(H2), events(bench)) == (EVERY, [])
    assert not bench.tables.path_stats["deficit"][H2].any()


def test_no_ev_fails_while_nothing_is_answered(bench: Bench) -> None:
    r = Reporter(bench)
    for _ in range(20):
        r.send_all(5, lose=tuple(EVERY))
        advance(1000 * MS)
        r.request_report(arrives=False)
    assert (bench.usable(H2), events(bench)) == (EVERY, [])
    assert (bench.tables.evs["state"][H2] == EvState.GOOD).all()
    # Then it answers, and all but the probes have arrived: these were lost while the whole reverse direction was.
    r.packets = [n + 100 for n in r.packets]
    r.report()
    assert not bench.tables.path_stats["deficit"][H2].any()


@patient(1000, reorder_us=1_000_000)
def test_packets_within_the_reordering_window_are_not_missing(bench: Bench) -> None:
    r = Reporter(bench)
    r.send_all(3)
    r.report(after_ms=1000)
    r.send_all(3, lose=(5,))
    bench.ev(H2, 5)["last_tx_ns"] = now()
    r.report(after_ms=0)
    assert bench.usable(H2) == EVERY
    assert (bench.path_stats(H2, 5)["judged"], bench.path_stats(H2, 5)["deficit"]) == (3, 0)
    r.report(after_ms=1000)
    assert state(bench, 5) == LAGGING
    assert (bench.path_stats(H2, 5)["judged"], bench.path_stats(H2, 5)["deficit"]) == (6, 3)


@patient(1000, reorder_us=1_000_000)
def test_new_packets_do_not_hide_older_missing_ones(bench: Bench) -> None:
    r = Reporter(bench)
    r.send_all(3, lose=(5,))
    for sent in (0, 100):
        r.send(5, sent, arrive=0)
        advance(1000 * MS)
        bench.ev(H2, 5)["last_tx_ns"] = now()
        assert bench.path_stats(H2, 5)["deficit"] == 0
        r.report(after_ms=0)
    assert (state(bench, 5), bench.path_stats(H2, 5)["deficit"]) == (LAGGING, 3)


def test_packets_sent_a_little_later_by_another_cpu_are_not_missing(bench: Bench) -> None:
    r = Reporter(bench)
    r.send(5, 3, arrive=0)
    bench.ev(H2, 5)["last_tx_ns"] = now() + 1000 * MS
    r.report()
    assert (bench.usable(H2), bench.path_stats(H2, 5)["deficit"]) == (EVERY, 0)


@pytest.mark.parametrize("was", [EvState.ASSUMED_BAD, EvState.DENIED, EvState.UNKNOWN])
def test_silence_does_not_change_an_unused_ev(bench: Bench, was: EvState) -> None:
    r = Reporter(bench)
    bench.set_state(H2, was, 5)
    for _ in range(2 * LOST_BURSTS):
        r.send_all(3, lose=(5,))
        r.report()
    assert (bench.ev(H2, 5)["state"], events(bench), r.burst(5, 0)) == (was, [], 0)
    assert bench.path_stats(H2, 5)["deficit"] == 6 * LOST_BURSTS
