# SPDX-License-Identifier: BSD-2-Clause
"""Tests silence: an EV with missing packets is left at once, and fails when nothing arrives on it."""

import pytest
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from mrcd.fabric.wire import MRC, MRCProbe
from mrcd.kernel.enums import EvState, Histogram, Reason
from tests.packet.clock import MS
from tests.packet.cluster import H2, H5
from tests.packet.reports import (
    BURST_PROBES,
    EVERY,
    LAGGING,
    LOST_BURSTS,
    PAST_REORDERING_MS,
    Reporter,
    events,
    lagging,
    on_its_way,
    others,
    patient,
    state,
    unfading,
)
from tests.packet.rig import Bench

pytestmark = pytest.mark.root

OVERDUE = (EvState.ASSUMED_BAD, Reason.OVERDUE)


@pytest.mark.parametrize("arrive", [0, 2])
def test_an_ev_with_missing_packets_is_left_with_the_first_report(bench: Bench, arrive: int) -> None:
    r, wires = Reporter(bench), bench.wires()
    r.send_all(3, lose=(5,))
    r.packets[5] += arrive
    r.report()
    assert state(bench, 5) == LAGGING
    assert bench.usable(H2) == others(5)
    assert (events(bench), bench.path_stats(H2, 5)["skips"], bench.ev(H2, 5)["flaps"]) == ([], 1, 0)
    assert (bench.path_stats(H2, 5)["deficit"], bench.path_stats(H2, 5)["lag_ns"] > 0) == (3 - arrive, True)
    assert (bench.tables.evs["state"][H2, others(5)] == EvState.GOOD).all()
    # The EV gets a probe burst on exactly this path, beside the request for the report.
    found = [Ether(f.data) for wire in wires for f in wire.frames()]
    tried = [f for f in found if f[MRC].ev == 5]
    assert len(found) == BURST_PROBES + 1
    assert [f[MRCProbe].seq for f in tried] == list(range(1, BURST_PROBES + 1))
    assert [f[MRC].seq - tried[0][MRC].seq for f in tried] == list(range(BURST_PROBES))
    for number, frame in enumerate(tried, 1):
        tx_ns, seq = frame[MRC].tx_ns, frame[MRC].seq
        probe = MRCProbe(seq=number, tx_ns=tx_ns, **bench.told()) / Raw(bytes(frame[MRC])[len(MRC() / MRCProbe()) :])
        assert bytes(frame) == bytes(bench.sent(H2, 5, probe, seq=seq, tx_ns=tx_ns))
        assert len(frame[MRC]) == len(MRC() / MRCProbe())  # without the counts of the request that they are copies of
    assert (bench.ev(H2, 5)["probe_seq"], bench.drops()) == (BURST_PROBES, {})


def bucket(value: int) -> int:
    """Returns the histogram bucket of a value: four per power of two."""
    exponent = value.bit_length() - 1
    return value if value < 4 else (exponent - 1) * 4 + (value >> exponent - 2) % 4


def test_an_ev_fails_after_six_probe_bursts_without_an_arrival(bench: Bench) -> None:
    r = lagging(bench)
    for n in range(1, LOST_BURSTS + 1):
        assert (state(bench, 5), events(bench)) == (LAGGING, [])
        assert r.burst(5, 0) == BURST_PROBES
        r.send_all(3, lose=(5,))
        r.report()
        assert bench.path_stats(H2, 5)["lost_bursts"] == n
    assert state(bench, 5) == OVERDUE
    assert (bench.usable(H2), r.burst(5, 0)) == (others(5), 0)
    record, stats = bench.ev(H2, 5), bench.path_stats(H2, 5)
    assert (record["flaps"], stats["good"], stats["lag_ns"]) == (1, 0, 0)
    (event,) = bench.dataplane.events()
    assert (event["host_id"], event["ev"], event["before"], event["after"]) == (H2, 5, LAGGING[0], OVERDUE[0])
    assert (event["reason"], event["reports"], event["flaps"]) == (Reason.OVERDUE, LOST_BURSTS, 1)
    assert (event["icmp_type"], event["icmp_code"]) == (0, 0)
    assert (record["state_since_ns"], stats["loss_ns"]) == (event["ns"], event["ns"])
    silent = int(event["ns"]) - int(stats["arrived_ns"])
    assert (event["silent_ns"], silent > LOST_BURSTS * PAST_REORDERING_MS * MS) == (silent, True)
    assert 0 < event["lost_packets"] <= event["sent_packets"]
    # From the last packet known to have arrived until now, and the packets sent meanwhile.
    detection, after_good = bench.tables.histograms()[[Histogram.DETECTION, Histogram.AFTER_GOOD]]
    assert (detection.sum(), after_good.sum()) == (1, 1)
    assert (detection[bucket(silent)], after_good[bucket(3 + 3 * LOST_BURSTS)]) == (1, 1)
    # The other EVs did not change.
    assert (bench.tables.evs["state"][H2, others(5)] == EvState.GOOD).all()
    assert not (bench.tables.evs["state"][H5] == EvState.ASSUMED_BAD).any()


@patient(1000)
def test_an_ev_fails_no_sooner_than_the_overdue_time(bench: Bench) -> None:
    r = lagging(bench)
    for _ in range(3 * LOST_BURSTS):
        bench.path_stats(H2, 5)["probe_ns"] -= 100 * MS
        r.burst(5, 0)
        r.report()
    assert (state(bench, 5), events(bench)) == (LAGGING, [])
    assert bench.path_stats(H2, 5)["lost_bursts"] > LOST_BURSTS
    r.report(after_ms=1000)
    assert events(bench) == [(5, "SKIP", "ASSUMED_BAD", "overdue")]


@unfading
def test_late_packets_are_subtracted_after_the_window_has_faded(bench: Bench) -> None:
    """They are subtracted from the window, although the loss was sure."""
    r = lagging(bench)
    stats = bench.path_stats(H2, 5)
    late = r.burst(5, 0)
    r.report()
    assert stats["window_losses"] == stats["pending_losses"] == 1 + late
    later = r.burst(5, 0)
    stats["epoch"] -= 1
    r.report()
    left = (1 + late) // 2
    assert (stats["window_losses"], stats["confirmed_losses"]) == (left + later, left)
    r.probes[5] += late + later
    r.packets[5] += 3
    r.burst(5)
    r.report()
    assert (stats["deficit"], stats["missed"]) == (0, 0)
    assert [int(stats[n]) for n in ("window_lost", "window_losses", "pending_losses", "confirmed_losses")] == [0] * 4
    assert events(bench) == []


@patient(100)
def test_one_arrival_resets_the_probe_bursts(bench: Bench) -> None:
    r = lagging(bench)
    for _ in range(LOST_BURSTS - 1):
        r.burst(5, 0)
        r.report(after_ms=10)
    r.burst(5, 1)
    r.report(after_ms=100)
    assert bench.path_stats(H2, 5)["lost_bursts"] == 1  # further delayed packets may follow
    for n in range(2, LOST_BURSTS + 1):
        assert (state(bench, 5), events(bench)) == (LAGGING, [])
        r.burst(5, 0)
        r.report(after_ms=10)
        assert bench.path_stats(H2, 5)["lost_bursts"] == n
    assert state(bench, 5) == OVERDUE


def test_reports_without_news_do_not_count_as_probe_bursts(bench: Bench) -> None:
    """Only missing probes count, not repeated reports of one old loss, nor earlier packets."""
    r = lagging(bench)
    for _ in range(LOST_BURSTS + 1):
        on_its_way(bench, 5)
        r.send(5, 3, arrive=0)
        r.report()
    assert (state(bench, 5), events(bench), bench.path_stats(H2, 5)["lost_bursts"]) == (LAGGING, [], 0)


def test_two_dead_paths_fail_although_one_was_congested(bench: Bench) -> None:
    r = Reporter(bench)
    bench.dataplane.set_state(H2, 9, EvState.SKIP, Reason.CONGESTED, [EvState.GOOD])
    assert bench.usable(H2) == EVERY
    for _ in range(LOST_BURSTS + 1):
        r.send_all(3, lose=(5, 9))
        r.report()
        assert bench.usable(H2) == others(5, 9)
        r.burst(5, 0)
        r.burst(9, 0)
    assert sorted(events(bench)) == [(ev, "SKIP", "ASSUMED_BAD", "overdue") for ev in (5, 9)]
    assert (bench.tables.evs["state"][H2, others(5, 9)] == EvState.GOOD).all()
