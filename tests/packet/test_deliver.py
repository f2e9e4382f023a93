# SPDX-License-Identifier: BSD-2-Clause
"""Tests the delivery of popped packets on mrc0: from every plane, with the flow's hash, merged where required."""

import ctypes
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from mrcd.config.cluster_file import Granularity
from mrcd.net.netlink import set_offload
from tests.packet.cluster import H0, H2, PLANES, Setup, datagram, nic_mac, wire_mac
from tests.packet.rig import Bench, Protocol, Xdp
from tests.packet.test_burst import ETHERNET, SIZE, burst, gso
from tests.packet.wires import SECONDS, Sender, Tap, until

pytestmark = pytest.mark.root

SEGMENTS = 20
TC_PLANES = (0, 1)  # the others have XDP in some tests, and keep it
_SCTP = 132
versions = pytest.mark.parametrize("version", [4, 6])
_TSO = ("tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation")
_SO_ATTACH_FILTER = 26
_TELL_HASH = (  # classic BPF: operation, constant
    (0x20, 0xFFFFF000 + 32),  # A = the packet's hash (SKF_AD_RXHASH); 0: it has none
    (0x74, 26),  # A >>= 26: the bits by which RPS chooses
    (0x04, 20),  # A += 20
    (0x16, 0),  # let so many bytes through
)


def protocol(version: int) -> Protocol:
    return "ipv4" if version == 4 else "ipv6"


def ethernet(bench: Bench) -> Ether:
    """Returns the Ethernet header of packets that m0b receives."""
    mine, other = (bench.namespace.json("link", "show", name)[0]["address"] for name in ("m0b", "m0bp"))
    return Ether(src=other, dst=mine)


@versions
def test_popped_packets_of_every_plane_are_delivered(bench: Bench, version: int) -> None:
    taps, inner = [bench.attach_pop(p, protocol(version)) for p in TC_PLANES], datagram(H2, H0, version)
    received = bench.receive(protocol(version))
    for plane, tap in zip(TC_PLANES, taps, strict=True):
        tap.send(bench.arriving("h2", 4 * plane, inner))
    assert [f.data for f in received.frames()] == [bytes(ethernet(bench) / inner)] * 2
    assert [tap.frames() for tap in taps] == [[], []]
    assert [bench.rx(H2, 4 * p) for p in TC_PLANES] == [(1, len(inner), 0)] * 2
    assert bench.drops() == {}


@versions
def test_delivered_packets_are_addressed_to_this_host(bench: Bench, version: int) -> None:
    """The stack drops packets to another station."""
    tap, received = bench.attach_pop(0, protocol(version)), bench.receive(protocol(version))
    tap.send(bench.arriving("h2", 0, datagram(H2, H0, version)))
    (frame,) = received.frames()
    assert frame.kind == socket.PACKET_HOST


def test_the_tag_is_removed_before_delivery(bench: Bench) -> None:
    bench.tables.planes["vlan"][0] = 7
    tap, received = bench.attach_pop(0, "ipv4"), bench.receive("ipv4")
    tap.send(bench.arriving("h2", 0, datagram(H2, H0), vlan=7))
    (frame,) = received.frames()
    assert (frame.data, frame.vlan) == (bytes(ethernet(bench) / datagram(H2, H0)), None)


@versions
def test_packets_popped_by_xdp_are_delivered(bench: Bench, version: int) -> None:
    tap, received = bench.attach_pop(2, protocol(version), "xdp"), bench.receive(protocol(version))
    inner = datagram(H2, H0, version)
    tap.send(bench.arriving("h2", 8, inner))
    assert [f.data for f in received.frames()] == [bytes(ethernet(bench) / inner)]
    assert tap.frames() == []
    assert bench.rx(H2, 8) == (1, len(inner), 0)


@versions
def test_packets_popped_by_generic_xdp_reach_the_stack(bench: Bench, version: int) -> None:
    """There the kernel gives tc packets without Ethernet header, received by the NIC."""
    tap, received = bench.attach_pop(3, protocol(version), "xdp-generic"), bench.receive(protocol(version))
    inner = datagram(H2, H0, version)
    tap.send(bench.arriving("h2", 12, inner))
    (frame,) = [*received.frames(), *tap.frames()]
    assert frame.data in (bytes(ethernet(bench) / inner), bytes(Ether(src=wire_mac(3), dst=nic_mac(3)) / inner))


@versions
def test_other_packets_are_received_by_the_nic(bench: Bench, version: int) -> None:
    """The host's other traffic, with and without XDP."""
    hooks: list[tuple[int, Xdp | None]] = [(0, None), (2, "xdp")]
    for plane, xdp in hooks:
        tap, received = bench.attach_pop(plane, protocol(version), xdp), bench.receive(protocol(version))
        frame = bytes(Ether(src=wire_mac(plane), dst=nic_mac(plane)) / datagram(H2, H0, version))
        tap.send(frame)
        assert [f.data for f in tap.frames()] == [frame]
        assert received.frames() == []


def test_without_mrc0_the_nic_receives_popped_packets(bench: Bench) -> None:
    tap = bench.attach_pop(0, "ipv4")
    tap.send(bench.arriving("h2", 0, datagram(H2, H0)))
    assert [f.data for f in tap.frames()] == [bytes(Ether(src=wire_mac(0), dst=nic_mac(0)) / datagram(H2, H0))]


def test_dropped_packets_are_not_delivered(bench: Bench) -> None:
    tap, received = bench.attach_pop(0, "ipv4"), bench.receive("ipv4")
    tap.send(bench.arriving("h2", 0, datagram(H2, H0), version=99))
    assert received.frames() == []
    assert bench.drops() == {"bad_version": 1}


# ---- a tunnel's burst, which was cut with its outer headers on ----

by_tc_or_xdp = pytest.mark.parametrize(("plane", "xdp"), [(0, None), (2, "xdp")], ids=["tc", "xdp"])


def of_length(packet: Packet, more: int) -> Packet:
    """Returns a datagram without a checksum, whose headers claim a length of `more` bytes more."""
    found, length = packet.copy(), len(packet[UDP]) + more
    found[UDP].len, found[UDP].chksum = length, 0
    if IP in found:
        found[IP].len, found[IP].chksum = 20 + length, None
    else:
        found[IPv6].plen = length
    return found.__class__(bytes(found))


@versions
@by_tc_or_xdp
def test_a_segment_of_a_tunnel_burst_gets_its_own_lengths(
    bench: Bench, version: int, plane: int, xdp: Xdp | None
) -> None:
    tap, received = bench.attach_pop(plane, protocol(version), xdp), bench.receive(protocol(version))
    inner = datagram(H2, H0, version)
    tap.send(bench.arriving("h2", 4 * plane, of_length(inner, 3000), segments=4))
    assert [f.data for f in received.frames()] == [bytes(ethernet(bench) / of_length(inner, 0))]


@versions
@by_tc_or_xdp
def test_a_malformed_datagram_is_not_repaired(bench: Bench, version: int, plane: int, xdp: Xdp | None) -> None:
    """A short packet is not part of a burst: the receiver drops packets shorter than their length fields."""
    tap, received = bench.attach_pop(plane, protocol(version), xdp), bench.receive(protocol(version))
    inner = of_length(datagram(H2, H0, version), 3000)
    tap.send(bench.arriving("h2", 4 * plane, inner))
    assert [f.data for f in received.frames()] == [bytes(ethernet(bench) / inner)]


@versions
@by_tc_or_xdp
def test_a_checksum_is_not_changed(bench: Bench, version: int, plane: int, xdp: Xdp | None) -> None:
    """Bursts with a checksum are not left whole, so the checksum is wrong, and the receiver must see that."""
    tap, received = bench.attach_pop(plane, protocol(version), xdp), bench.receive(protocol(version))
    inner = of_length(datagram(H2, H0, version), 3000)
    inner[UDP].chksum = 0x1234
    tap.send(bench.arriving("h2", 4 * plane, inner, segments=4))
    (frame,) = received.frames()
    assert Ether(frame.data)[UDP].chksum == 0x1234


# ---- the flow's hash ----


def hashes(bench: Bench, *packets: Packet) -> list[int]:
    """Returns six bits of each packet's hash, as a socket filter shows them by the length that it passes.

    The planes of the packets differ, and so do their outer headers.
    """
    version = 4 if IP in packets[0] else 6
    taps = [bench.attach_pop(p, protocol(version)) for p in TC_PLANES]
    bench.receive(protocol(version))
    code = b"".join(struct.pack("HxxI", operation, constant) for operation, constant in _TELL_HASH)
    kept = ctypes.create_string_buffer(code)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as s:
        program = struct.pack("HP", len(_TELL_HASH), ctypes.addressof(kept))
        s.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        s.settimeout(SECONDS)
        s.bind(("m0b", 0x0800 if version == 4 else 0x86DD))
        found = []
        for number, packet in enumerate(packets):
            plane = number % len(taps)
            taps[plane].send(bench.arriving("h2", 4 * plane, packet))
            found.append(len(s.recv(4096)) - 20)
    return found


def with_ports(version: int, source: int, to: int, transport: type[Packet] = UDP) -> Packet:
    """Returns a packet of a flow."""
    ip = datagram(H2, H0, version).copy()
    ip.remove_payload()
    return ip / transport(sport=source, dport=to) / Raw(bytes(200))


@versions
@pytest.mark.parametrize("transport", [TCP, UDP])
def test_packets_of_a_flow_have_one_hash(bench: Bench, version: int, transport: type[Packet]) -> None:
    assert len(set(hashes(bench, *[with_ports(version, 1000, 2000, transport)] * 8))) == 1


@versions
@pytest.mark.parametrize("transport", [TCP, UDP])
def test_flows_have_different_hashes(bench: Bench, version: int, transport: type[Packet]) -> None:
    found = hashes(bench, *(with_ports(version, 1000 + n, 2000, transport) for n in range(128)))
    assert len(set(found)) > 32  # of 64


@versions
@pytest.mark.parametrize("bench", [Setup(more='[overlay]\nsource_check = "off"')], indirect=True, ids=[""])
def test_sources_without_ports_have_different_hashes(bench: Bench, version: int) -> None:
    packets = []
    for n in range(64):
        if version == 4:
            ip = IP(src=f"10.98.{n}.1", dst="10.99.0.1", proto=_SCTP)
        else:
            ip = IPv6(src=f"fd00:98:{n:x}::1", dst="fd00:99::1", nh=_SCTP)
        packets.append(ip / Raw(bytes(200)))
    assert len(set(hashes(bench, *packets))) > 16


def test_fragments_of_a_packet_have_one_hash(bench: Bench) -> None:
    whole = bytes(UDP(sport=1000, dport=2000, len=608) / Raw(bytes(600)))
    first = IP(src="10.99.0.3", dst="10.99.0.1", id=7, flags="MF", proto=17) / Raw(whole[:304])
    second = IP(src="10.99.0.3", dst="10.99.0.1", id=7, frag=38, proto=17) / Raw(whole[304:])
    one, other = hashes(bench, first, second)
    assert one == other


# ---- merging ----


@pytest.fixture
def pair(bench: Bench, tmp_path: Path) -> Iterator[tuple[Bench, Bench]]:
    """Returns a host that sends packet by packet, and one at the other end of its wires."""
    other = Bench(tmp_path / "h2", bench.setup, host="h2", wired_to=bench)
    offloads = {"m0": dict.fromkeys((*_TSO, "tx-generic-segmentation"), False)}
    offloads |= {"m0bp": dict.fromkeys(_TSO, False), "m0b": {"rx-gro": True}}
    with other.fresh():
        for name, features in offloads.items():
            set_offload(name, features)
        yield bench, other
        for name, features in offloads.items():
            set_offload(name, {feature: not on for feature, on in features.items()})
    other.close()


@pytest.mark.parametrize(
    ("plane", "xdp", "merge_xdp", "size", "by_peer"),
    [
        (0, None, False, 200, True),
        (0, None, True, 200, True),
        (2, "xdp", False, 200, False),
        (2, "xdp", True, 200, True),
        (0, None, False, 1421 - 40, False),  # a byte more than mrc0's MTU, for which a veth would drop it
    ],
)
def test_only_single_packets_within_the_mtu_go_through_the_merging_veth(
    request: pytest.FixtureRequest,
    bench: Bench,
    plane: int,
    xdp: Xdp | None,
    merge_xdp: bool,
    size: int,
    by_peer: bool,
) -> None:
    request.addfinalizer(lambda: _set_mtu(bench, plane, 1500))
    _set_mtu(bench, plane, 1600)
    tap, received = bench.attach_pop(plane, "ipv4", xdp), bench.receive("ipv4", merging=True)
    bench.tables.node["merge_xdp"] = merge_xdp
    head = IP(src="10.99.0.3", dst="10.99.0.1")
    segment = head / TCP(sport=1, dport=2, flags="A") / Raw(bytes(size))
    for inner, sent in ((segment, by_peer), (head / UDP(sport=1, dport=2) / Raw(bytes(200)), False)):
        before = sent_by_peer(bench)
        tap.send(bench.arriving("h2", 4 * plane, inner))
        assert sent_by_peer(bench) == before + sent
        assert [f.data[14:] for f in received.frames()] == [bytes(inner)]


def _set_mtu(bench: Bench, plane: int, mtu: int) -> None:
    for name in (f"n{plane}", f"w{plane}"):
        bench.namespace.ip("link", "set", name, "mtu", str(mtu))


def sent_by_peer(bench: Bench) -> int:
    return int(bench.namespace.json("-s", "link", "show", "m0bp")[0]["stats64"]["tx"]["packets"])


def through(pair: tuple[Bench, Bench], granularity: Granularity, version: int) -> tuple[Sender, Tap]:
    """Returns the sender of one host, and the tap of all packets delivered on the other."""
    sender, receiver = pair
    for plane in range(PLANES):
        receiver.attach_pop(plane, protocol(version))
    return sender.attach_push(granularity), receiver.receive(protocol(version), merging=True)


def arrived(received: Tap, least: int) -> list[bytes]:
    """Returns the bytes that m0b received, as soon as there are `least`."""
    found: list[bytes] = []

    def enough() -> bool:
        found.extend(f.data for f in received.frames())
        return sum(map(len, found)) >= least

    until(f"{least} bytes have come", enough)
    return found


@versions
@pytest.mark.parametrize("bench", [Setup("ecmp")], indirect=True)
def test_segments_from_all_planes_are_merged(pair: tuple[Bench, Bench], version: int) -> None:
    sender, receiver = pair
    stack, received = through(pair, "packet", version)
    packet = burst(version, SEGMENTS * SIZE)
    stack.send(ETHERNET / packet, gso(packet))
    frames = arrived(received, SEGMENTS * SIZE)
    assert len(frames) < SEGMENTS / 2
    payload = b"".join(bytes(Ether(f)[TCP].payload) for f in frames)
    assert payload == bytes(packet[Raw])
    assert {Ether(f)[TCP].sport for f in frames} == {packet[TCP].sport}
    counted = [receiver.rx(H0, ev)[0] for ev in range(16)]
    assert sum(counted) == SEGMENTS
    assert sum(n > 0 for n in counted) == 16
    assert sender.drops() == receiver.drops() == {}


@versions
@pytest.mark.parametrize("bench", [Setup("ecmp")], indirect=True)
def test_datagrams_are_not_merged(pair: tuple[Bench, Bench], version: int) -> None:
    stack, received = through(pair, "packet", version)
    before = sent_by_peer(pair[1])
    for _ in range(8):
        stack.send(ETHERNET / datagram(H0, H2, version))
    assert sent_by_peer(pair[1]) == before
    frames = arrived(received, 8 * len(datagram(H0, H2, version)))
    assert [f[14:] for f in frames] == [bytes(datagram(H0, H2, version))] * 8


@versions
@pytest.mark.parametrize("bench", [Setup("ecmp")], indirect=True)
def test_a_whole_burst_stays_whole(pair: tuple[Bench, Bench], version: int) -> None:
    stack, received = through(pair, "burst", version)
    packet = burst(version, SEGMENTS * SIZE)
    stack.send(ETHERNET / packet, gso(packet))
    (frame,) = arrived(received, SEGMENTS * SIZE)
    assert frame[14:] == bytes(packet)
