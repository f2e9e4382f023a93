# SPDX-License-Identifier: BSD-2-Clause
"""Tests when a packet that is pushed carries a probe request, and on which EV."""

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from mrcd.fabric.wire import MRC
from mrcd.kernel import abi
from tests.packet.clock import MS, advance, now
from tests.packet.cluster import EVS, H2, H5, PLANES, SLOTS, Setup
from tests.packet.piggyback import (
    CARRIERS,
    IPV4,
    NO_TIMER_PROBES,
    ONE_SECOND_GAP,
    PACKETS_PER_REQUEST,
    TrafficWithProbes,
    assert_request,
    no_timer_probes,
    without_timer_probes,
)
from tests.packet.rig import Bench
from tests.packet.wires import Gso, until

pytestmark = pytest.mark.root


@without_timer_probes
def test_one_packet_in_sixteen_carries_a_request(traffic: TrafficWithProbes, bench: Bench) -> None:
    found = []
    for n in range(1, 4 * PACKETS_PER_REQUEST + 1):
        advance(MS)
        if traffic.send(CARRIERS[0])[1]:
            found.append(n)
    assert found == [PACKETS_PER_REQUEST, 2 * PACKETS_PER_REQUEST, 3 * PACKETS_PER_REQUEST, 4 * PACKETS_PER_REQUEST]


@without_timer_probes
def test_only_packets_to_the_same_peer_count(traffic: TrafficWithProbes, bench: Bench) -> None:
    other = IP(src="10.99.0.1", dst="10.99.0.6") / UDP() / b"x"
    bench.reports(H5)["requested_ns"] = now()
    for _ in range(PACKETS_PER_REQUEST - 1):
        advance(MS)
        assert not traffic.send(CARRIERS[0])[1]
        assert not traffic.send(other)[1]
    assert [Ether(f.data)[MRC].receiver for f in traffic.send(CARRIERS[0])[1]] == [H2]
    assert [Ether(f.data)[MRC].receiver for f in traffic.send(other)[1]] == [H5]


@pytest.mark.parametrize("bench", [Setup(health="probe_packets = 1")], indirect=True, ids=[""])
def test_an_idle_timeout_event_follows_the_end_of_dense_traffic(traffic: TrafficWithProbes, bench: Bench) -> None:
    hosts: list[int] = []

    def has_timed_out() -> bool:
        hosts.extend(int(e["host_id"]) for e in bench.dataplane.events() if e["ev"] == abi.EVENT_IDLE_TIMEOUT)
        return bool(hosts)

    has_timed_out()
    hosts.clear()
    advance(MS)
    assert len(traffic.send(CARRIERS[0])[1]) == 1
    until("the idle timeout expires", has_timed_out)
    assert hosts == [H2]


ONE_SECOND_WINDOW = Setup(health=f"{NO_TIMER_PROBES}\nreorder_us = 1000000\noverdue_ms = 1000")


@pytest.mark.parametrize("bench", [ONE_SECOND_GAP], indirect=True, ids=[""])
@pytest.mark.parametrize(
    ("carrier", "gaps"),
    [(CARRIERS[0], 1), (CARRIERS[1], 2), (CARRIERS[2], 2), (CARRIERS[2] / b"data", 1)],
    ids=["small", "large", "acknowledgements", "small with data"],
)
def test_requests_are_a_gap_apart(traffic: TrafficWithProbes, bench: Bench, carrier: Packet, gaps: int) -> None:
    """The gap is doubled for large packets and for acknowledgements that are pushed.

    Received acknowledgements then carry the request first, where there are any.
    """
    for _ in range(2 * PACKETS_PER_REQUEST):
        assert not traffic.send(carrier)[1]
    for _ in range(gaps):
        assert not traffic.send(carrier)[1]
        advance(1000 * MS)
    assert len(traffic.send(carrier)[1]) == 1
    assert not traffic.send(carrier)[1]


@pytest.mark.parametrize("bench", [ONE_SECOND_WINDOW], indirect=True, ids=[""])
def test_requests_are_a_reordering_window_apart(traffic: TrafficWithProbes, bench: Bench) -> None:
    for _ in range(2 * PACKETS_PER_REQUEST):
        assert not traffic.send(CARRIERS[0])[1]
    advance(1000 * MS)
    assert len(traffic.send(CARRIERS[0])[1]) == 1


@pytest.mark.parametrize(
    ("bench", "chunks"),
    [(no_timer_probes(), 1), (no_timer_probes(evs=256), 2)],
    indirect=["bench"],
    ids=["a chunk", "two"],
)
def test_unanswered_reports_are_limited(traffic: TrafficWithProbes, bench: Bench, chunks: int) -> None:
    requests = 0
    for _ in range(PACKETS_PER_REQUEST * (abi.REPORTS_KEPT * chunks + 3)):
        advance(MS)
        requests += len(traffic.send(CARRIERS[0])[1])
    assert requests == abi.REPORTS_KEPT * chunks
    bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    assert len(traffic.send(CARRIERS[0])[1]) == 1
    # After a long time one more is sent: all earlier ones may be lost.
    bench.reports(H2)["applied_seq"] -= 100
    assert not traffic.send(CARRIERS[0])[1]
    advance(10_000 * MS)
    assert len(traffic.send(CARRIERS[0])[1]) == 1


@without_timer_probes
def test_a_request_of_another_cpu_in_the_near_future_delays_the_next(traffic: TrafficWithProbes, bench: Bench) -> None:
    bench.reports(H2)["requested_ns"] = now() + 1000 * MS
    for _ in range(2 * PACKETS_PER_REQUEST):
        assert not traffic.send(CARRIERS[0])[1]
    assert bench.reports(H2)["report_seq"] == 0


@without_timer_probes
def test_requests_visit_usable_evs_in_order(traffic: TrafficWithProbes, bench: Bench) -> None:
    bench.set_usable(H2, 4, False)
    found = []
    for _ in range(EVS):
        bench.reports(H2)["requested_ns"] = 0
        bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]  # answered
        (frame,) = traffic.send(CARRIERS[0])[1]
        found.append(assert_request(bench, frame, CARRIERS[0]).ev)
    expected = [plane * SLOTS + slot for slot in range(SLOTS) for plane in range(PLANES)]
    assert found == [5 if ev == 4 else ev for ev in expected]


@without_timer_probes
def test_a_burst_counts_as_its_wire_packets(traffic: TrafficWithProbes, bench: Bench) -> None:
    bench.reports(H2)["requested_ns"] = now() - MS
    burst = IPV4 / TCP(sport=1, dport=2, flags="A") / Raw(bytes((PACKETS_PER_REQUEST - 1) * 1000))
    sent, requests = traffic.send(burst, Gso("tcp4", 1000, 34))
    assert (len(sent), len(requests)) == (1, 0)
    assert int(bench.ev(H2, Ether(sent[0].data)[MRC].ev)["tx_packets"]) == PACKETS_PER_REQUEST - 1
    sent, requests = traffic.send(IPV4 / TCP(sport=1, dport=2, flags="A") / Raw(bytes(100)))
    assert (len(sent), len(requests)) == (1, 1)
