# SPDX-License-Identifier: BSD-2-Clause
"""Tests rare orders and times of reports."""

from dataclasses import replace

import pytest

from mrcd.kernel.enums import EvState, Reason
from tests.packet.clock import MS, advance, now
from tests.packet.cluster import H2, Setup
from tests.packet.reports import EVERY, NEVER, PAST_REORDERING_MS, Reporter, state, unfading
from tests.packet.rig import Bench

pytestmark = pytest.mark.root


@unfading
def test_a_report_older_than_the_newest_is_ignored(bench: Bench) -> None:
    """The second of two requests arrives first, and its report returns last: its counts are older."""
    r = Reporter(bench)
    r.send_all(3)
    r.report()
    advance(PAST_REORDERING_MS * MS)
    first, second = r.request_report(arrives=False), r.request_report(arrives=False)
    r.probes[second.ev] += 1
    second = replace(second, counts=r.counts())
    r.probes[first.ev] += 1
    r.ce[7] += 2
    r.deliver(r.reply(first, delay=50 * MS))
    r.deliver(r.reply(second))
    assert max(bench.tables.path_stats["window_samples"][H2]) == 2
    assert not bench.tables.path_stats["deficit"][H2].any()
    r.report(after_ms=60)
    assert bench.path_stats(H2, 7)["rx_ce"] == 2


def test_reports_of_a_restarted_peer_are_accepted(bench: Bench) -> None:
    r = Reporter(bench)
    bench.reports(H2)["report_tx_ns"] = now() + 3600 * 1000 * MS
    r.send(5, 2)
    r.report()
    assert bench.path_stats(H2, 5)["judged"] == 2


@pytest.mark.parametrize("bench", [Setup(evs=256)], indirect=True, ids=[""])
def test_lagging_evs_of_every_report_part_get_probe_bursts(bench: Bench) -> None:
    evs = bench.tables.evs
    for ev in range(256):  # the most paths: copies of each plane's first one
        evs[H2, ev] = evs[H2, ev // 64 * 64]
    bench.dataplane.refresh(H2)
    r = Reporter(bench)
    r.report()
    r.send_all(3, lose=tuple(range(1, 256)))
    for _ in range(2):
        r.report()
    tried: set[int] = set()
    for _ in range(64):
        for ev in range(1, 256):
            burst = r.burst(ev, 0)
            r.probes[ev] += burst - (burst > 0)  # one probe is lost, so it keeps lagging
            tried |= {ev} if burst else set()
        r.report()
    assert tried == set(range(1, 256))


@pytest.mark.parametrize("bench", [Setup(evs=18)], indirect=True, ids=[""])
def test_evs_outside_of_all_planes_are_not_used(bench: Bench) -> None:
    """18 EVs over 4 planes: 4 each, and two without a path."""
    usable = bench.tables.peers["usable"][H2]
    assert usable.tolist() == [0xFFFF, 0, 0, 0]
    for ev in range(4):
        bench.set_state(H2, EvState.ASSUMED_BAD, ev)
    bench.dataplane.refresh(H2)
    assert usable.tolist() == [0xFFF0, 0, 0, 0]


def probe_failed_ev(bench: Bench, r: Reporter, arrive: int) -> None:
    """Sends a probe on EV 5 and no other, of which `arrive` arrive, and reports."""
    bench.path_stats(H2, 5)["probe_after_ns"] = 0
    bench.reports(H2)["requested_ns"] = now() + 10**12  # this sweep requests no report
    bench.dataplane.sweep(H2)
    bench.path_stats(H2, 5)["probe_after_ns"] = NEVER
    r.burst(5, arrive)
    r.report()


def test_a_missing_probe_of_a_failed_ev_may_still_be_late(bench: Bench) -> None:
    """Its hold-down begins anew when the tick finds that it is lost, and not here."""
    r, stats = Reporter(bench), bench.path_stats(H2, 5)
    bench.set_state(H2, EvState.ASSUMED_BAD, 5)
    lost_ns = int(stats["loss_ns"])
    probe_failed_ev(bench, r, arrive=0)
    assert (stats["lag_ns"] > 0, stats["good"], stats["missed"], stats["loss_ns"]) == (True, 0, 1, lost_ns)
    probe_failed_ev(bench, r, arrive=1)  # another one; the first stays missing
    assert (stats["lag_ns"] > 0, stats["good"], stats["missed"], stats["loss_ns"]) == (True, 1, 1, lost_ns)
    probe_failed_ev(bench, r, arrive=2)
    assert (stats["lag_ns"], stats["good"], stats["missed"], stats["loss_ns"]) == (0, 2, 0, lost_ns)
    assert state(bench, 5)[0] == EvState.ASSUMED_BAD


def test_a_late_probe_of_a_failed_ev_hides_no_other_that_is_missing(bench: Bench) -> None:
    r, stats = Reporter(bench), bench.path_stats(H2, 5)
    bench.set_state(H2, EvState.ASSUMED_BAD, 5)
    for arrive, missed in ((0, 1), (0, 2), (2, 1)):
        probe_failed_ev(bench, r, arrive)
        assert (stats["missed"], stats["lag_ns"] > 0) == (missed, True)
    probe_failed_ev(bench, r, arrive=2)
    assert (stats["missed"], stats["lag_ns"]) == (0, 0)


def test_a_congested_ev_that_lags_is_left(bench: Bench) -> None:
    """Another CPU may have marked it between the read and the exchange of the state."""
    r = Reporter(bench)
    r.send_all(3)
    r.report()
    r.send_all(3, lose=(5,))
    bench.ev(H2, 5)["state"], bench.ev(H2, 5)["skip_reason"] = EvState.SKIP, Reason.CONGESTED
    bench.ev(H2, 5)["last_tx_ns"] = bench.path_stats(H2, 5)["lag_ns"] = now()
    r.report()
    assert state(bench, 5) == (EvState.SKIP, Reason.LAGGING)
    assert bench.usable(H2) == [e for e in EVERY if e != 5]
