# SPDX-License-Identifier: BSD-2-Clause
"""Tests what pays for piggybacked probe requests: the traffic, or the budget of the host."""

import struct

import pytest
from scapy.layers.inet import UDP
from scapy.packet import Raw

from mrcd.kernel import libbpf
from tests.packet.clock import MS, advance, now
from tests.packet.cluster import H2
from tests.packet.piggyback import (
    CARRIERS,
    COUNTS_BYTES,
    ETHERNET,
    HEALTH,
    IPV4,
    KEPT_BYTES,
    PACKETS_PER_REQUEST,
    TrafficWithProbes,
    without_timer_probes,
)
from tests.packet.rig import Bench

pytestmark = pytest.mark.root


@pytest.mark.parametrize("size", [100, 1000])
@without_timer_probes
def test_without_budget_67_packets_and_134_bytes_per_byte_pay_for_a_request(
    traffic: TrafficWithProbes, bench: Bench, size: int
) -> None:
    packet = IPV4 / UDP(sport=1, dport=2) / Raw(bytes(size))
    request_bytes = 14 + 40 + 8 + 32 + 32 + COUNTS_BYTES  # Ethernet, IPv6, UDP, MRC, probe, and the report
    request_bytes += len(ETHERNET / packet) if len(ETHERNET / packet) <= KEPT_BYTES else 0
    bench.tables.clock["budget"] = HEALTH.idle_probes // 8
    found = []
    for n in range(1, 800):
        advance(MS)
        if traffic.send(packet)[1]:
            found.append(n)
        bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    each = max(67, -(-134 * request_bytes // len(packet)))
    assert found == list(range(each, 800, each))
    assert bench.tables.clock["budget"] == HEALTH.idle_probes // 8


@without_timer_probes
def test_the_host_budget_pays_for_requests_that_traffic_does_not_cover(
    traffic: TrafficWithProbes, bench: Bench
) -> None:
    bench.tables.clock["budget"] = HEALTH.idle_probes // 8 + 2  # an eighth is reserved for the tick
    found = []
    for n in range(1, 4 * PACKETS_PER_REQUEST + 1):
        advance(MS)
        if traffic.send(CARRIERS[0])[1]:
            found.append(n)
    assert found == [PACKETS_PER_REQUEST, 2 * PACKETS_PER_REQUEST]
    assert bench.tables.clock["budget"] == HEALTH.idle_probes // 8


@without_timer_probes
def test_requests_paid_by_traffic_are_counted(traffic: TrafficWithProbes, bench: Bench) -> None:
    bench.tables.clock["budget"] = 0
    set_paid(bench, 0)
    packet = IPV4 / UDP(sport=1, dport=2) / Raw(bytes(1000))
    for _ in range(67):
        advance(MS)
        traffic.send(packet)
    assert bench.reports(H2)["report_seq"] == 1
    assert struct.unpack("I", libbpf.lookup_elem(paid_map(bench), struct.pack("I", 0), 4) or b"") == (1,)


@without_timer_probes
def test_requests_paid_by_traffic_are_limited_between_ticks(traffic: TrafficWithProbes, bench: Bench) -> None:
    """The limit, 1.5 times the rate of an idle host, keeps the CPU free for other work."""
    bench.tables.clock["budget"] = 0
    bench.tables.clock["refilled_ns"] = now() + 10_000 * MS  # no time has passed since the tick
    set_paid(bench, 0)
    packet = IPV4 / UDP(sport=1, dport=2) / Raw(bytes(1000))
    for _ in range(6 * 67):
        advance(MS)
        bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
        traffic.send(packet)
    assert bench.reports(H2)["report_seq"] == 4


@pytest.mark.parametrize(("paid", "more"), [(0, 80), (30, 50), (60, 20), (90, 30), (900, 40)])
def test_the_tick_subtracts_requests_paid_by_traffic_from_the_budget(bench: Bench, paid: int, more: int) -> None:
    """An idle host may send 80 in 20 ms; where traffic pays for more, the tick adds a third of that, at least 40."""
    bench.tables.peers["configured"] = 0  # the tick sends nothing
    set_paid(bench, paid)
    bench.tables.clock["budget"], bench.tables.clock["refilled_ns"] = 0, now() - 20 * MS
    bench.dataplane.tick()
    assert more <= bench.tables.clock["budget"] <= more + 8  # 8: for the time that the test itself takes


def paid_map(bench: Bench) -> int:
    """Returns the descriptor of the map that counts requests paid by traffic."""
    return bench.map_fd("mrc_paid")


def set_paid(bench: Bench, number: int) -> None:
    """Sets the number of requests paid by traffic since the last tick."""
    libbpf.update_elem(paid_map(bench), struct.pack("I", 0), struct.pack("I", number))
