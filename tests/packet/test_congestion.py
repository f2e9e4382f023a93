# SPDX-License-Identifier: BSD-2-Clause
"""Tests congestion, which is no failure: an EV with CE marks, or with more delay than others, is skipped once."""

import pytest
from scapy.layers.inet import IP, UDP

from mrcd.kernel.enums import EvState, Reason
from tests.packet.clock import MS, advance, now
from tests.packet.cluster import EVS, H2, PLANES, Setup
from tests.packet.reports import EVERY, Reporter, events, others, state
from tests.packet.rig import Bench

pytestmark = pytest.mark.root

CONGESTED = (EvState.SKIP, Reason.CONGESTED)
PACKET = IP(src="10.99.0.1", dst="10.99.0.3") / UDP() / b"x"


def spread(bench: Bench, packets: int) -> list[int]:
    """Returns packets per EV, for a number of packets pushed."""
    before = bench.tables.evs["tx_packets"][H2].copy()
    for _ in range(packets):
        assert bench.push(PACKET)[0] == "redirect"
    return list((bench.tables.evs["tx_packets"][H2] - before).tolist())


def marked(bench: Bench, *evs: int) -> Reporter:
    """Returns a reporter after a report with CE marks on these EVs."""
    r = Reporter(bench)
    for ev in evs:
        r.send(ev, 3)
        r.ce[ev] += 2
    r.report()
    return r


def test_ce_marks_skip_an_ev_exactly_once(bench: Bench) -> None:
    marked(bench, 5)
    assert (state(bench, 5), bench.usable(H2), events(bench)) == (CONGESTED, EVERY, [])
    assert (bench.path_stats(H2, 5)["skips"], bench.path_stats(H2, 5)["rx_ce"]) == (1, 2)
    assert all(state(bench, ev)[0] == EvState.GOOD for ev in others(5))
    sent = spread(bench, EVS)
    assert (sent[5], sum(sent[4:8]), sum(sent)) == (0, 4, EVS)  # another EV of its plane got its packet
    assert state(bench, 5)[0] == EvState.GOOD
    sent = spread(bench, 3 * EVS)
    assert sent[5] == 3
    assert (bench.path_stats(H2, 5)["skips"], bench.ev(H2, 5)["reason"], events(bench)) == (1, Reason.NEW, [])


def test_further_reports_do_not_repeat_a_pending_skip(bench: Bench) -> None:
    """Reports may be more frequent than the packets on an EV."""
    bench.ev(H2, 5)["last_tx_ns"] = now()
    r = marked(bench, 5)
    for _ in range(3):
        r.report()
        assert state(bench, 5) == CONGESTED
    assert bench.path_stats(H2, 5)["skips"] == 1
    assert spread(bench, EVS)[5] == 0


def test_congestion_is_forgotten_after_the_traffic_ends(bench: Bench) -> None:
    bench.ev(H2, 5)["last_tx_ns"] = now()
    r = marked(bench, 5)
    r.report(after_ms=900)
    assert state(bench, 5) == CONGESTED
    r.report(after_ms=100)
    assert (state(bench, 5)[0], bench.usable(H2), events(bench)) == (EvState.GOOD, EVERY, [])
    r.ce[5] += 1
    r.report()
    assert (state(bench, 5), bench.path_stats(H2, 5)["skips"]) == (CONGESTED, 2)


def test_the_same_marks_count_once(bench: Bench) -> None:
    r = marked(bench, 5)
    spread(bench, EVS)
    for ev in EVERY:
        r.packets[ev] += int(bench.ev(H2, ev)["tx_packets"]) - r.packets[ev]
    for _ in range(3):
        r.report()
    assert (state(bench, 5)[0], bench.path_stats(H2, 5)["rx_ce"]) == (EvState.GOOD, 2)


def test_a_plane_with_congestion_on_all_evs_stays_in_use(bench: Bench) -> None:
    marked(bench, 4, 5, 6, 7)
    sent = spread(bench, 4 * PLANES)
    assert [sum(sent[p * 4 : p * 4 + 4]) for p in range(PLANES)] == [4] * PLANES
    assert all(state(bench, ev)[0] == EvState.GOOD for ev in range(4, 8))


@pytest.mark.parametrize("was", [EvState.ASSUMED_BAD, EvState.DENIED, EvState.UNKNOWN])
def test_an_unused_ev_is_not_skipped(bench: Bench, was: EvState) -> None:
    bench.set_state(H2, was, 5)
    marked(bench, 5)
    assert (bench.ev(H2, 5)["state"], bench.path_stats(H2, 5)["rx_ce"]) == (was, 2)


# ---- queueing delay ----

SKIP_DELAY_US = 1000


def delayed(bench: Bench, us: int, *, rtt_ns: int = 1000) -> int:
    """Delivers a reply with `us` more delay than the others, after this usual round trip. Returns its EV."""
    r = Reporter(bench)
    r.report()
    advance(6 * MS)
    request = r.request_report()
    bench.reports(H2)["rtt_ns"] = rtt_ns
    advance(2 * MS)
    r.deliver(r.reply(request, delay=us * 1000))
    return request.ev


def test_an_ev_with_more_delay_than_the_others_is_skipped(bench: Bench) -> None:
    ev = delayed(bench, SKIP_DELAY_US + 1)
    assert (state(bench, ev), events(bench)) == (CONGESTED, [])
    spread(bench, EVS)
    assert state(bench, ev)[0] == EvState.GOOD


@pytest.mark.parametrize("us", [0, SKIP_DELAY_US, -5000])
def test_delay_up_to_the_limit_is_no_congestion(bench: Bench, us: int) -> None:
    delayed(bench, us)
    assert all(state(bench, ev)[0] == EvState.GOOD for ev in EVERY)


def test_one_way_delay_without_a_longer_round_trip_is_clock_drift(bench: Bench) -> None:
    delayed(bench, 5000, rtt_ns=10**12)
    assert all(state(bench, ev)[0] == EvState.GOOD for ev in EVERY)


@pytest.mark.parametrize("bench", [Setup(health="skip_delay_us = 0")], indirect=True, ids=[""])
def test_skips_for_delay_can_be_disabled(bench: Bench) -> None:
    delayed(bench, 10**6)
    assert all(state(bench, ev)[0] == EvState.GOOD for ev in EVERY)


def test_the_least_delay_is_forgotten_after_ten_seconds(bench: Bench) -> None:
    """Clocks drift and routes change, so the minimum delay is measured again."""
    r = Reporter(bench)
    advance(10_001 * MS)
    for _ in range(3):
        request = r.request_report()
        bench.reports(H2)["rtt_ns"] = 1000
        r.deliver(r.reply(request, delay=50 * MS))
    assert all(state(bench, ev)[0] == EvState.GOOD for ev in EVERY)


def test_round_trips_are_smoothed(bench: Bench) -> None:
    """An eighth per reply for the peer and for the EV, and their variation by a quarter (RFC 6298)."""
    r = Reporter(bench)
    for ev in EVERY:  # whichever is next
        bench.path_stats(H2, ev)["rtt_ns"] = 8_000_000
    bench.reports(H2)["rtt_ns"], bench.reports(H2)["rtt_var_ns"] = 16_000_000, 4_000_000
    advance(6 * MS)
    request = r.request_report()
    advance(800 * MS)  # in flight
    r.deliver(r.reply(request))
    rtt8 = int(bench.path_stats(H2, request.ev)["rtt_ns"]) - 7_000_000
    reports = bench.reports(H2)
    assert rtt8 >= 100 * MS
    assert reports["rtt_ns"] == 14_000_000 + rtt8
    assert abs(int(reports["rtt_var_ns"]) - (3_000_000 + (8 * rtt8 - 16_000_000) // 4)) <= 2
