# SPDX-License-Identifier: BSD-2-Clause
"""Tests the bytes of piggybacked probe requests, and of the packets that carry them."""

import socket
import struct

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption
from scapy.layers.inet6 import IPv6ExtHdrDestOpt
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from mrcd.fabric.wire import MRCProbe, MRCReport
from mrcd.kernel import abi
from tests.packet.cluster import H2, Setup
from tests.packet.piggyback import (
    CARRIERS,
    COUNTS_BYTES,
    IPV4,
    IPV6,
    NO_DUP_ACKS,
    TrafficWithProbes,
    all_encapsulations,
    assert_data,
    assert_request,
    without_timer_probes,
)
from tests.packet.rig import Bench
from tests.packet.wires import SECONDS, Gso

pytestmark = pytest.mark.root


@all_encapsulations
@pytest.mark.parametrize("packet", CARRIERS, ids=lambda p: f"{p.summary().split()[0]}{len(p)}")
def test_a_request_is_made_of_a_packet(traffic: TrafficWithProbes, bench: Bench, packet: Packet) -> None:
    traffic.make_probe_due()
    sent, requests = traffic.send(packet)
    assert (len(sent), len(requests), bench.drops()) == (1, 1, {})
    assert_data(bench, sent[0], packet)
    mrc = assert_request(bench, requests[0], packet)
    assert (mrc.ev, mrc.seq, mrc[MRCProbe].report_seq) == (0, 1, 1)
    assert bench.reports(H2)["report_seq"] == 1
    assert bench.reports(H2)["requested_ns"] == bench.reports(H2)["sent_ns"][1] == mrc.tx_ns
    assert (bench.ev(H2, 0)["probe_seq"], bench.path_stats(H2, 0)["probe_ns"]) == (1, mrc.tx_ns)
    # The request is made before its packet is counted as sent.
    assert (bench.ev(H2, 0)["tx_packets"], bench.path_stats(H2, 0)["noted_tx"]) == (1, 0)


@without_timer_probes
@pytest.mark.parametrize(
    "packet",
    [
        IP(src="10.99.0.1", dst="10.99.0.3", options=[IPOption(b"\x01")] * 24) / UDP() / Raw(bytes(300)),
        IPV4 / ICMP() / Raw(bytes(300)),
        IPV6 / IPv6ExtHdrDestOpt() / UDP() / Raw(bytes(300)),
    ],
    ids=["options", "icmp", "extension header"],
)
def test_packets_whose_checksum_is_outside_the_ballast_carry_no_request(
    traffic: TrafficWithProbes, bench: Bench, packet: Packet
) -> None:
    traffic.make_probe_due()
    sent, requests = traffic.send(packet)
    assert (len(sent), requests) == (1, [])
    assert_data(bench, sent[0], packet)
    assert len(traffic.send(CARRIERS[0])[1]) == 1  # the next suitable packet carries the request


def tap_with_offloads(plane: int) -> socket.socket:
    """Returns a raw socket that sees the frames of a plane with their pending offloads (virtio_net_hdr)."""
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    s.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
    s.settimeout(SECONDS)
    s.bind((f"w{plane}", 3))
    return s


@all_encapsulations
@pytest.mark.parametrize(
    ("packet", "gso"),
    [
        (IPV4 / TCP(sport=1, dport=2, flags="A") / Raw(bytes(3000)), Gso("tcp4", 1000, 34)),
        (
            IPV6 / TCP(sport=1, dport=2, flags="A", options=[("NOP", None)] * 40) / Raw(bytes(3000)),
            Gso("tcp6", 1000, 54),
        ),
        (IPV6 / UDP(sport=1, dport=2) / Raw(bytes(3000)), Gso("udp", 1000, 54)),
    ],
    ids=["tcp4", "tcp6", "udp"],
)
def test_the_nic_writes_the_checksum_of_a_burst_into_the_ballast(
    traffic: TrafficWithProbes, bench: Bench, packet: Packet, gso: Gso
) -> None:
    traffic.make_probe_due()
    with tap_with_offloads(0) as tap:
        sent, requests = traffic.send(packet, gso)
        assert (len(sent), len(requests), bench.drops()) == (1, 1, {})
        assert_data(bench, sent[0], packet, segments=3)
        assert_request(bench, requests[0], packet, burst=True)
        while (seen := tap.recv(1 << 16))[10:] != requests[0].data:
            pass
    flags, kind, _, _, start, offset = struct.unpack("BBHHHH", seen[:10])
    assert kind == 0  # not a burst
    assert flags & 1
    ballast = len(requests[0].data) - len(Ether(requests[0].data)[MRCReport])
    assert ballast <= start + offset <= ballast + abi.BALLAST - 2


@without_timer_probes
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_burst_as_long_as_a_request_carries_one(traffic: TrafficWithProbes, bench: Bench, extra: int) -> None:
    packet = IPV4 / TCP(sport=1, dport=2, flags="A") / Raw(bytes(COUNTS_BYTES - 40 + extra))
    traffic.make_probe_due()
    sent, requests = traffic.send(packet, Gso("tcp4", 100, 34))
    assert (len(sent), len(requests), bench.drops()) == (1, 1, {})
    assert_data(bench, sent[0], packet, segments=2)
    assert_request(bench, requests[0], packet, burst=True)


@all_encapsulations
def test_requests_on_a_vlan_plane_are_tagged(traffic: TrafficWithProbes, bench: Bench) -> None:
    bench.tables.planes["vlan"][0] = 100
    traffic.make_probe_due()
    sent, requests = traffic.send(CARRIERS[1])
    assert [f.vlan for f in sent + requests] == [100, 100]
    assert_request(bench, requests[0], CARRIERS[1])
    assert_data(bench, sent[0], CARRIERS[1])


@without_timer_probes
def test_without_a_probe_interface_there_are_no_requests(traffic: TrafficWithProbes, bench: Bench) -> None:
    bench.tables.node["probe_ifindex"] = 0
    traffic.make_probe_due()
    sent, requests = traffic.send(CARRIERS[0])
    assert (len(sent), requests, bench.reports(H2)["report_seq"]) == (1, [], 0)


@without_timer_probes
def test_a_request_that_cannot_be_made_is_counted_and_its_packet_goes_on(
    traffic: TrafficWithProbes, bench: Bench
) -> None:
    bench.reports(H2)["requested_ns"], bench.reports(H2)["cursor"] = 0, 1
    bench.ev(H2, 4)["configured"] = 0
    sent, requests = traffic.send(CARRIERS[0])
    assert (len(sent), requests, bench.drops()) == (1, [], {"probe_failed": 1})
    assert_data(bench, sent[0], CARRIERS[0])


@pytest.mark.parametrize("bench", [Setup(more=NO_DUP_ACKS)], indirect=True, ids=["usid"])
@pytest.mark.parametrize("packet", CARRIERS[:6:2], ids=lambda p: f"{p.summary().split()[0]}{len(p)}")
def test_packets_carry_requests_in_packet_granularity(bench: Bench, packet: Packet) -> None:
    traffic = TrafficWithProbes(bench, bench.attach_push("packet"), bench.wires())
    bench.attach_probe()
    traffic.make_probe_due()
    sent, requests = traffic.send(packet)
    assert (len(sent), len(requests), bench.drops()) == (1, 1, {})
    assert_data(bench, sent[0], packet)
    assert_request(bench, requests[0], packet)


def test_packets_of_the_kernel_pass_mrc_probe_unchanged(bench: Bench) -> None:
    bench.attach_push()
    bench.attach_probe()
    tap = bench.tap("m0", "m0p")
    for packet in (CARRIERS[0], IPV4 / ICMP()):
        tap.send(Ether(src="02:00:00:00:02:01", dst="02:00:00:00:02:00") / packet)
        (frame,) = tap.frames()
        assert frame.data == bytes(Ether(src="02:00:00:00:02:01", dst="02:00:00:00:02:00") / packet)
    assert bench.drops() == {}
