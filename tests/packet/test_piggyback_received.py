# SPDX-License-Identifier: BSD-2-Clause
"""Tests piggybacked probe requests that are made of received packets."""

import pytest
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from tests.packet.clock import MS, advance, now
from tests.packet.cluster import H2, nic_mac, wire_mac
from tests.packet.piggyback import (
    CARRIERS,
    ONE_SECOND_GAP,
    PACKETS_PER_REQUEST,
    TrafficWithProbes,
    assert_request,
)
from tests.packet.rig import Bench
from tests.packet.wires import Frame, Tap

pytestmark = pytest.mark.root

ACK = IP(src="10.99.0.3", dst="10.99.0.1", id=9) / TCP(sport=2, dport=1, flags="A")


def requests_on_receipt(traffic: TrafficWithProbes, inlet: Tap, packet: Packet, **mrc: int) -> list[Frame]:
    """Delivers a packet of h2, asserts that the stack gets it unchanged, and returns the requests that go out."""
    inlet.send(traffic.bench.arriving("h2", 5, packet, **mrc))
    (frame,) = inlet.frames()
    assert frame.data == bytes(Ether(src=wire_mac(1), dst=nic_mac(1)) / packet)
    sent, requests = traffic.sent_packets()
    assert sent == []
    return requests


def push_packets(traffic: TrafficWithProbes, packets: int) -> None:
    """Pushes `packets` packets after a request for a report; none of them carries a request."""
    traffic.bench.reports(H2)["requested_ns"] = now()
    for _ in range(packets):
        assert not traffic.send(CARRIERS[0])[1]


@pytest.mark.parametrize("bench", [ONE_SECOND_GAP], indirect=True, ids=[""])
@pytest.mark.parametrize("packet", [ACK, ACK / Raw(bytes(512 - 54))], ids=len)
def test_a_received_acknowledgement_carries_a_request(traffic: TrafficWithProbes, bench: Bench, packet: Packet) -> None:
    inlet = bench.attach_pop(1, "ipv4")
    push_packets(traffic, PACKETS_PER_REQUEST)
    assert requests_on_receipt(traffic, inlet, packet) == []  # the gap is not over
    advance(1000 * MS)
    (frame,) = requests_on_receipt(traffic, inlet, packet)
    assert assert_request(bench, frame, packet).receiver == H2
    assert requests_on_receipt(traffic, inlet, packet) == []
    assert bench.drops() == {}


@pytest.mark.parametrize("bench", [ONE_SECOND_GAP], indirect=True, ids=[""])
@pytest.mark.parametrize(
    "packet",
    [ACK / Raw(bytes(513 - 54)), IP(src="10.99.0.3", dst="10.99.0.1") / ICMP()],
    ids=["not small", "icmp"],
)
def test_large_or_non_tcp_packets_received_carry_no_request(
    traffic: TrafficWithProbes, bench: Bench, packet: Packet
) -> None:
    inlet = bench.attach_pop(1, "ipv4")
    push_packets(traffic, PACKETS_PER_REQUEST)
    advance(1000 * MS)
    assert requests_on_receipt(traffic, inlet, packet) == []
    assert len(requests_on_receipt(traffic, inlet, ACK)) == 1


@pytest.mark.parametrize("bench", [ONE_SECOND_GAP], indirect=True, ids=[""])
def test_a_received_acknowledgement_carries_no_request_before_enough_packets_were_sent(
    traffic: TrafficWithProbes, bench: Bench
) -> None:
    inlet = bench.attach_pop(1, "ipv4")
    push_packets(traffic, PACKETS_PER_REQUEST - 1)
    advance(1000 * MS)
    assert requests_on_receipt(traffic, inlet, ACK) == []
