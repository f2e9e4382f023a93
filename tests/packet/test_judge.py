# SPDX-License-Identifier: BSD-2-Clause
"""Tests the judgement of EVs by reports: which lag, which are probed by bursts, and which fail by silence."""

from dataclasses import replace

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from labkit.traffic.wire import MRC, MRCProbe
from mrcd.kernel.enums import EvState, Histogram, Reason
from tests.packet.clock import MS, advance, now
from tests.packet.packets import EVS, H2, H5
from tests.packet.reports import (
    BURST_PROBES,
    BURSTS_AT_ONCE,
    EVERY,
    LAGGING,
    LOSSES,
    LOST_BURSTS,
    PAST_REORDERING_MS,
    STALL_MAX_MS,
    Reporter,
    events,
    lagging,
    on_its_way,
    others,
    patient,
    state,
    unfading,
)
from tests.packet.rig import Bench, Setup
from tests.packet.ticks import HEALTH, postpone, tick_h2_now

pytestmark = pytest.mark.root


OVERDUE = (EvState.ASSUMED_BAD, Reason.OVERDUE)


@pytest.mark.parametrize("arrive", [0, 2])
def test_an_ev_with_missing_packets_is_left_with_the_first_report(bench: Bench, r: Reporter, arrive: int) -> None:
    wires = bench.wires()
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
    told = [
        int(event[name]) for name in ("host_id", "ev", "before", "after", "reason", "reports", "flaps", "icmp_type")
    ]
    assert told == [H2, 5, LAGGING[0], *OVERDUE, LOST_BURSTS, 1, 0]
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
    assert not any(stats[name] for name in LOSSES)
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


def test_two_dead_paths_fail_although_one_was_congested(bench: Bench, r: Reporter) -> None:
    bench.dataplane.set_state(H2, 9, EvState.SKIP, Reason.CONGESTED, [EvState.GOOD])
    assert bench.usable(H2) == EVERY
    for _ in range(LOST_BURSTS + 1):
        r.send_all(3, lose=(5, 9))
        r.report()
        assert bench.usable(H2) == others(5, 9)
        r.burst(5, 0)
        r.burst(9, 0)
    assert events(bench) == []  # a receiving CPU may stand still
    advance(STALL_MAX_MS * MS)
    r.report()
    assert sorted(events(bench)) == [(ev, "SKIP", "ASSUMED_BAD", "overdue") for ev in (5, 9)]
    assert (bench.tables.evs["state"][H2, others(5, 9)] == EvState.GOOD).all()


# ---- silence that fails no EV ----


@pytest.mark.parametrize("stall_ms", [5, 15, 50])
def test_no_ev_fails_while_one_receiving_cpu_stands_still(bench: Bench, r: Reporter, stall_ms: int) -> None:
    """Every third EV waits in its queue, and other CPUs answer. A path that dies meanwhile is left, and fails."""
    waiting, dead, held = EVERY[::3], 5, dict.fromkeys(EVERY, 0)
    sends = -(-stall_ms // PAST_REORDERING_MS)
    for _ in range(sends):
        r.send_all(3, lose=(*waiting, dead))
        advance(PAST_REORDERING_MS * MS)
        request = r.request_report(arrives=False)
        if request.ev in (*waiting, dead):
            held[request.ev] += 1
            continue
        r.probes[request.ev] += 1
        r.deliver(r.reply(request))
        assert bench.usable(H2) == others(*waiting, dead)
        for ev in (*waiting, dead):
            held[ev] += r.burst(ev, 0)
    for ev in waiting:  # that CPU runs again
        r.packets[ev] += 3 * sends
        r.probes[ev] += held[ev]
    for _ in range(2 * LOST_BURSTS):
        r.send_all(3, lose=(dead,))
        r.burst(dead, 0)
        for ev in waiting:
            r.burst(ev)
        r.report()
    assert events(bench) == [(dead, "SKIP", "ASSUMED_BAD", "overdue")]
    assert bench.usable(H2) == others(dead)


@unfading
def test_without_loss_no_ev_changes(bench: Bench, r: Reporter) -> None:
    for n in range(20):
        r.send_all(n)
        r.report()
    assert (bench.tables.evs["state"][H2] == EvState.GOOD).all()
    assert (bench.usable(H2), events(bench)) == (EVERY, [])
    path_stats = bench.tables.path_stats[H2]
    assert (path_stats["judged"] == sum(range(20))).all()
    first_probe = np.arange(EVS) == 0  # the EV of the first probe, which is not judged
    assert (path_stats["window_samples"] == 19 + bench.tables.evs["probe_seq"][H2] - first_probe).all()
    assert not any(path_stats[name].any() for name in ("deficit", "missed", "lag_ns", "loss_ns", *LOSSES))
    assert not bench.tables.histograms()[: Histogram.RTT].any()


def test_when_all_evs_lag_none_fails(bench: Bench, r: Reporter) -> None:
    """The peer paused until just before the request arrived: the floor stays in use, and no EV fails."""
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


def test_no_ev_fails_while_nothing_is_answered(bench: Bench, r: Reporter) -> None:
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
def test_packets_within_the_reordering_window_are_not_missing(bench: Bench, r: Reporter) -> None:
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
def test_new_packets_do_not_hide_older_missing_ones(bench: Bench, r: Reporter) -> None:
    r.send_all(3, lose=(5,))
    for sent in (0, 100):
        r.send(5, sent, arrive=0)
        advance(1000 * MS)
        bench.ev(H2, 5)["last_tx_ns"] = now()
        assert bench.path_stats(H2, 5)["deficit"] == 0
        r.report(after_ms=0)
    assert (state(bench, 5), bench.path_stats(H2, 5)["deficit"]) == (LAGGING, 3)


def test_packets_sent_a_little_later_by_another_cpu_are_not_missing(bench: Bench, r: Reporter) -> None:
    r.send(5, 3, arrive=0)
    bench.ev(H2, 5)["last_tx_ns"] = now() + 1000 * MS
    r.report()
    assert (bench.usable(H2), bench.path_stats(H2, 5)["deficit"]) == (EVERY, 0)


@pytest.mark.parametrize("was", [EvState.ASSUMED_BAD, EvState.DENIED, EvState.UNKNOWN])
def test_silence_does_not_change_an_unused_ev(bench: Bench, r: Reporter, was: EvState) -> None:
    bench.set_state(H2, was, 5)
    for _ in range(2 * LOST_BURSTS):
        r.send_all(3, lose=(5,))
        r.report()
    assert (bench.ev(H2, 5)["state"], events(bench), r.burst(5, 0)) == (was, [], 0)
    assert bench.path_stats(H2, 5)["deficit"] == 6 * LOST_BURSTS


# ---- probe bursts ----


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
    assert not any(stats[name] for name in ("deficit", *LOSSES))


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


@pytest.mark.parametrize(
    ("budget", "sent"),
    [(100, BURST_PROBES), (1, BURST_PROBES), (0, 1), (-HEALTH.idle_probes, 1)],
)
def test_probe_bursts_are_charged_to_the_budget(bench: Bench, budget: int, sent: int) -> None:
    """Bursts overdraw it; then an EV gets one probe per report."""
    bench.tables.clock["budget"] = budget
    r = lagging(bench)
    assert r.burst(5, 0) == sent
    assert bench.tables.clock["budget"] == budget - sent


def test_an_ev_that_lags_without_a_burst_is_given_back_by_the_probes_of_the_tick(bench: Bench) -> None:
    bench.tables.clock["budget"] = -HEALTH.idle_probes
    r = lagging(bench)
    bench.tables.path_stats["probe_after_ns"][H2] = 0
    postpone(bench, H5)
    tick_h2_now(bench)
    assert r.burst(5) > 0
    r.quiet()
    assert state(bench, 5)[0] == EvState.GOOD


def test_many_lagging_evs_share_the_probes_of_a_report(bench: Bench, r: Reporter) -> None:
    """The probes of one burst are divided among the EVs that are probed with a report."""
    dead = tuple(EVERY[1 : BURSTS_AT_ONCE + 3])
    r.send_all(3, lose=dead)
    r.report()
    assert [r.burst(ev, 0) for ev in dead] == [BURST_PROBES // BURSTS_AT_ONCE] * BURSTS_AT_ONCE + [0] * 2
    bench.tables.path_stats["probe_ns"][H2, dead[:BURSTS_AT_ONCE]] = now() + 10**12
    r.report(after_ms=1)
    assert [r.burst(ev, 0) for ev in dead] == [0] * BURSTS_AT_ONCE + [BURST_PROBES // 2] * 2


def test_probe_bursts_on_a_vlan_plane_are_tagged(bench: Bench) -> None:
    bench.tables.planes["vlan"][1] = 100
    r, wires = Reporter(bench), bench.wires()
    r.send_all(3, lose=(5, 9))
    advance(PAST_REORDERING_MS * MS)
    bench.reports(H2)["cursor"] = 1  # requested on plane 1
    request = r.request_report()
    inlet = bench.attach_pop(1, 6)
    frame = Ether(bytes(r.reply(request)))
    inlet.send(Ether(src=frame.src, dst=frame.dst) / Dot1Q(vlan=100) / frame.payload)
    assert inlet.frames() == []  # consumed by mrc_pop
    found = [(f.vlan, Ether(f.data)[MRC].ev) for wire in wires for f in wire.frames()]
    assert found.count((100, 5)) == found.count((None, 9)) == BURST_PROBES // 2
    assert state(bench, 5) == state(bench, 9) == LAGGING


# ---- rare orders and times ----


@unfading
def test_a_report_older_than_the_newest_is_ignored(bench: Bench, r: Reporter) -> None:
    """The second of two requests arrives first, and its report returns last: its counts are older."""
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


def test_reports_of_a_restarted_peer_are_accepted(bench: Bench, r: Reporter) -> None:
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


def test_a_missing_probe_of_a_failed_ev_may_still_be_late(bench: Bench, r: Reporter) -> None:
    """Its hold-down begins anew when the tick finds that it is lost, and not here."""
    stats = bench.path_stats(H2, 5)
    bench.set_state(H2, EvState.ASSUMED_BAD, 5)
    lost_ns = int(stats["loss_ns"])
    r.probe_failed_ev(5, arrive=0)
    assert (stats["lag_ns"] > 0, stats["good"], stats["missed"], stats["loss_ns"]) == (True, 0, 1, lost_ns)
    r.probe_failed_ev(5, arrive=1)  # another one; the first stays missing
    assert (stats["lag_ns"] > 0, stats["good"], stats["missed"], stats["loss_ns"]) == (True, 1, 1, lost_ns)
    r.probe_failed_ev(5, arrive=2)
    assert (stats["lag_ns"], stats["good"], stats["missed"], stats["loss_ns"]) == (0, 2, 0, lost_ns)
    assert state(bench, 5)[0] == EvState.ASSUMED_BAD


def test_a_late_probe_of_a_failed_ev_hides_no_other_that_is_missing(bench: Bench, r: Reporter) -> None:
    stats = bench.path_stats(H2, 5)
    bench.set_state(H2, EvState.ASSUMED_BAD, 5)
    for arrive, missed in ((0, 1), (0, 2), (2, 1)):
        r.probe_failed_ev(5, arrive)
        assert (stats["missed"], stats["lag_ns"] > 0) == (missed, True)
    r.probe_failed_ev(5, arrive=2)
    assert (stats["missed"], stats["lag_ns"]) == (0, 0)


def test_a_congested_ev_that_lags_is_left(bench: Bench, r: Reporter) -> None:
    """Another CPU may have marked it between the read and the exchange of the state."""
    r.send_all(3)
    r.report()
    r.send_all(3, lose=(5,))
    bench.ev(H2, 5)["state"], bench.ev(H2, 5)["skip_reason"] = EvState.SKIP, Reason.CONGESTED
    bench.ev(H2, 5)["last_tx_ns"] = bench.path_stats(H2, 5)["lag_ns"] = now()
    r.report()
    assert state(bench, 5) == (EvState.SKIP, Reason.LAGGING)
    assert bench.usable(H2) == [e for e in EVERY if e != 5]
