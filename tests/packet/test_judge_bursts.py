# SPDX-License-Identifier: BSD-2-Clause
"""Tests probe bursts: an EV with missing packets is probed by bursts, and returns when one arrives completely."""

import pytest
from scapy.layers.l2 import Dot1Q, Ether

from mrcd.fabric.wire import MRC
from mrcd.kernel.enums import EvState
from tests.packet.clock import MS, advance, now
from tests.packet.cluster import H2, Setup
from tests.packet.reports import (
    BURST_PROBES,
    BURSTS_AT_ONCE,
    EVERY,
    LAGGING,
    PAST_REORDERING_MS,
    Reporter,
    events,
    lagging,
    on_its_way,
    patient,
    state,
    unfading,
)
from tests.packet.rig import Bench

pytestmark = pytest.mark.root


@unfading
def test_a_complete_probe_burst_returns_the_ev(bench: Bench) -> None:
    r = lagging(bench)
    assert r.burst(5) == BURST_PROBES
    r.report()
    assert state(bench, 5)[0] == EvState.GOOD
    assert (bench.usable(H2), events(bench)) == (EVERY, [])
    stats = bench.path_stats(H2, 5)
    assert (stats["lag_ns"], stats["lost_bursts"], stats["deficit"], stats["window_losses"]) == (0, 0, 3, 1)
    assert bench.ev(H2, 5)["flaps"] == 0


@unfading
def test_late_packets_return_the_ev_without_a_loss(bench: Bench) -> None:
    r = lagging(bench)
    stats = bench.path_stats(H2, 5)
    assert (stats["window_losses"], stats["pending_losses"]) == (1, 1)
    r.packets[5] += 3
    r.burst(5)
    r.report()
    assert state(bench, 5)[0] == EvState.GOOD
    assert [
        int(stats[n]) for n in ("deficit", "window_lost", "window_losses", "pending_losses", "confirmed_losses")
    ] == [0] * 5


def test_arrivals_before_the_probe_burst_do_not_return_the_ev(bench: Bench) -> None:
    """The probe burst may be in flight or lost; late packets are no evidence about it."""
    r = lagging(bench)
    for _ in range(3):
        r.packets[5] += 1
        on_its_way(bench, 5)
        r.report()
        assert state(bench, 5) == LAGGING
    assert (bench.path_stats(H2, 5)["deficit"], bench.path_stats(H2, 5)["missed"]) == (0, 0)


def test_a_probe_burst_still_in_flight_does_not_return_the_ev_yet(bench: Bench) -> None:
    r = lagging(bench)
    assert r.burst(5, 1) == BURST_PROBES
    for _ in range(BURST_PROBES - 2):
        on_its_way(bench, 5)
        r.report()
        assert state(bench, 5) == LAGGING
        assert (r.burst(5), bench.path_stats(H2, 5)["missed"]) == (0, 0)
        r.probes[5] += 1
    r.probes[5] += 1
    on_its_way(bench, 5)
    r.report()
    assert state(bench, 5)[0] == EvState.GOOD


def test_a_partial_probe_burst_does_not_change_the_ev(bench: Bench) -> None:
    r = lagging(bench)
    for n in range(1, 6):
        assert r.burst(5, BURST_PROBES - 1) == BURST_PROBES
        r.report()
        assert state(bench, 5) == LAGGING
        stats = bench.path_stats(H2, 5)
        assert (stats["missed"], stats["lost_bursts"], stats["good"]) == (n, 0, 0)
    assert r.burst(5) == BURST_PROBES
    r.report()
    assert state(bench, 5)[0] == EvState.GOOD


@patient(10_000)
def test_probe_bursts_are_repeated_at_intervals(bench: Bench) -> None:
    """At most 16 probe bursts in the shortest time of a verdict."""
    gap = 10_000 * MS // 16
    r = lagging(bench)
    r.burst(5, 0)
    bench.path_stats(H2, 5)["probe_ns"] = now() - gap // 2
    r.report(after_ms=1)
    assert r.burst(5, 0) == 0
    bench.path_stats(H2, 5)["probe_ns"] = now() - gap
    r.report(after_ms=1)
    assert r.burst(5, 0) == BURST_PROBES


@pytest.mark.parametrize("bench", [Setup(health="loss_samples = 100")], indirect=True, ids=[""])
def test_probe_bursts_are_limited_to_two_percent_of_the_packets(bench: Bench) -> None:
    """128 probes are free; then each whole burst takes 67 data packets per probe; otherwise one probe is sent."""

    def lag() -> int:
        r.report()  # the probe burst has arrived
        assert state(bench, 5)[0] == EvState.GOOD
        r.send(5, arrive=0)
        r.report()
        return r.burst(5)

    r = lagging(bench)
    sizes = [r.burst(5)] + [lag() for _ in range(10)]
    assert sizes == [BURST_PROBES] * 9 + [1] * 2  # the few packets sent pay for the ninth
    r.send_all(BURST_PROBES * 67 // len(EVERY) + 1)
    assert [lag() for _ in range(3)] == [BURST_PROBES, 1, 1]


def test_many_lagging_evs_share_the_probes_of_a_report(bench: Bench) -> None:
    """The probes of one burst are divided among the EVs that are probed with a report."""
    r = Reporter(bench)
    dead = tuple(EVERY[1 : BURSTS_AT_ONCE + 3])
    r.send_all(3, lose=dead)
    r.report()
    assert [r.burst(ev, 0) for ev in dead] == [BURST_PROBES // BURSTS_AT_ONCE] * BURSTS_AT_ONCE + [0] * 2
    bench.tables.path_stats["probe_ns"][H2, dead[:BURSTS_AT_ONCE]] = now() + 10**12
    r.report(after_ms=1)
    assert [r.burst(ev, 0) for ev in dead] == [0] * BURSTS_AT_ONCE + [BURST_PROBES // 2] * 2


def test_evs_that_keep_lagging_do_not_starve_the_others_of_probe_bursts(bench: Bench) -> None:
    r = Reporter(bench)
    r.send_all(3, lose=tuple(EVERY[1:]))
    r.report()
    tried = set()
    for _ in range(8):
        for ev in EVERY[1:]:
            burst = r.burst(ev, 0)
            r.probes[ev] += burst - (burst > 0)  # one probe of each burst is lost
            tried |= {ev} if burst else set()
        r.report()
    assert tried == set(EVERY[1:])


def test_probe_bursts_on_a_vlan_plane_are_tagged(bench: Bench) -> None:
    bench.tables.planes["vlan"][1] = 100
    r, wires = Reporter(bench), bench.wires()
    r.send_all(3, lose=(5, 9))
    advance(PAST_REORDERING_MS * MS)
    bench.reports(H2)["cursor"] = 1  # requested on plane 1
    request = r.request_report()
    inlet = bench.attach_pop(1, "ipv6")
    frame = Ether(bytes(r.reply(request)))
    inlet.send(Ether(src=frame.src, dst=frame.dst) / Dot1Q(vlan=100) / frame.payload)
    assert inlet.frames() == []  # consumed by mrc_pop
    found = [(f.vlan, Ether(f.data)[MRC].ev) for wire in wires for f in wire.frames()]
    assert found.count((100, 5)) == found.count((None, 9)) == BURST_PROBES // 2
    assert state(bench, 5) == state(bench, 9) == LAGGING
