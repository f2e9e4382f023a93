# SPDX-License-Identifier: BSD-2-Clause
"""Tests bursts, and the delivery of popped packets on mrc0: from every plane, with the flow's hash, merged."""

import ctypes
import errno
import socket
import struct
from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import MRC
from mrcd.config.cluster_file import Granularity
from mrcd.kernel import features
from mrcd.kernel.enums import KernelHas
from mrcd.net.netlink import set_offload
from tests.packet.packets import (
    ETHERNET,
    H0,
    H2,
    PLANES,
    all_encapsulations,
    datagram,
    ip,
    nic_mac,
    popped,
    versions,
    wire_mac,
)
from tests.packet.rig import Bench, Setup, Xdp
from tests.packet.wires import SECONDS, Gso, Sender, Tap, changed, until

pytestmark = pytest.mark.root


# ---- bursts ----


SIZE = 1000


def burst(version: int, payload: int, transport: Packet | None = None) -> Packet:
    return (
        ip(version, tos=2)
        / (transport or TCP(sport=1, dport=2, flags="A"))
        / Raw(bytes(i & 0xFF for i in range(payload)))
    )


def gso(packet: Packet) -> Gso:
    l4_at = len(ETHERNET) + (20 if IP in packet else 40)
    if UDP in packet:
        return Gso("udp", SIZE, l4_at)
    return Gso("tcp4" if IP in packet else "tcp6", SIZE, l4_at)


@versions
@all_encapsulations
def test_a_burst_is_sent_whole(bench: Bench, version: int) -> None:
    stack, wires = bench.attach_push(), bench.wires()
    packet = burst(version, 20 * SIZE)
    stack.send(ETHERNET / packet, gso(packet))
    found = [wire.frames() for wire in wires]
    assert [len(frames) for frames in found] == [1, 0, 0, 0]
    mrc = Ether(found[0][0].data)[MRC]
    assert found[0][0].data == bytes(bench.sent(H2, 0, packet, segments=20, tx_ns=mrc.tx_ns))
    assert (bench.ev(H2, 0)["tx_packets"], bench.ev(H2, 0)["tx_bytes"]) == (20, len(packet))
    assert bench.drops() == {}


@pytest.mark.parametrize(
    ("payload", "segments"), [(SIZE + 1, 2), (2 * SIZE - 1, 2), (2 * SIZE, 2), (2 * SIZE + 1, 3), (60 * SIZE, 60)]
)
@pytest.mark.parametrize(
    "transport", [TCP(flags="A"), TCP(flags="A", options=[("NOP", None)] * 12), UDP()], ids=["tcp", "options", "udp"]
)
@versions
def test_segments_are_counted(bench: Bench, version: int, transport: Packet, payload: int, segments: int) -> None:
    stack, wires = bench.attach_push(), bench.wires()
    packet = burst(version, payload, transport)
    for _ in range(PLANES + 1):
        stack.send(ETHERNET / packet, gso(packet))
    found = [Ether(f.data)[MRC] for wire in wires for f in wire.frames()]
    assert [(m.ev, m.segments, m.seq) for m in found] == [(ev, segments, 0) for ev in (0, 1, 4, 8, 12)]
    bench.tables.node["plane_mask"] = 1
    for _ in range(3):  # slots 2 and 3, then 0 again
        stack.send(ETHERNET / packet, gso(packet))
    again = [Ether(f.data)[MRC] for f in wires[0].frames()]
    assert [(m.ev, m.seq) for m in again] == [(2, 0), (3, 0), (0, segments)]


@pytest.fixture
def receiver(bench: Bench) -> Iterator[Bench]:
    with bench.far_host().fresh() as other:
        yield other
        other.detach()


@versions
@all_encapsulations
def test_a_burst_arrives_whole(bench: Bench, receiver: Bench, version: int) -> None:
    # No switch changes the destination or the SRH here.
    receiver.tables.planes["sid"][0] = bench.ev(H2, 0)["dst"]
    bench.tables.srhs["bytes"][:, 3] = 0
    # Without DECAP_L3 a popped burst keeps the outer protocol until mrc0 receives it, and here mrc0 does not.
    shown = version if features.kernel_has() & KernelHas.DECAP_L3 else 6
    stack, out = bench.attach_push(), receiver.attach_pop(0, shown)
    packet = burst(version, 20 * SIZE)
    stack.send(ETHERNET / packet, gso(packet))
    (frame,) = out.frames()
    assert frame.data == bytes(Ether(src=nic_mac(0), dst=wire_mac(0)) / packet)
    assert receiver.rx(H0, 0) == (20, len(packet), 0)
    assert bench.drops() == receiver.drops() == {}


@pytest.mark.parametrize(("segments", "reason"), [(0, "merged"), (1, "merged"), (2, None)])
def test_packets_merged_by_receive_offload_are_dropped(bench: Bench, segments: int, reason: str | None) -> None:
    """Their inner packets could not be separated."""
    one = bytes(datagram(H2, H0, size=SIZE - 28))
    frame = bench.arriving("h2", 0, Raw(one * 2), segments=segments)
    wire = bench.attach_pop(0, 4)
    wire.send(frame, Gso("udp", 32 + SIZE, len(ETHERNET) + 40))
    assert len(wire.frames()) == (0 if reason else 1)
    assert bench.drops() == ({reason: 1} if reason else {})
    assert bench.rx(H2, 0) == ((0, 0, 0) if reason else (2, 2 * SIZE, 0))


@pytest.mark.parametrize("xdp", [None, "xdp-generic"])
@versions
def test_a_short_burst_of_udp_counts_as_its_packets(bench: Bench, version: int, xdp: Xdp | None) -> None:
    """Generic XDP sees one packet that fits the MTU."""
    plane, inner = 3 if xdp else 0, datagram(H2, H0, version, 300)
    wire = bench.attach_pop(plane, version, xdp)
    wire.send(bench.arriving("h2", 4 * plane, inner, segments=3), Gso("udp", 32 + len(inner) - 200, len(ETHERNET) + 40))
    assert len(wire.frames()) == 1
    assert bench.rx(H2, 4 * plane) == (3, len(inner), 0)


def test_ce_on_a_burst_marks_every_packet_of_it(bench: Bench) -> None:
    inner = datagram(H2, H0, size=2 * SIZE, tos=2)
    frame = changed(bench.arriving("h2", 0, inner, segments=2), IPv6, tc=3)
    wire = bench.attach_pop(0, 4)
    wire.send(frame, Gso("udp", 32 + SIZE + 28, len(ETHERNET) + 40))
    (out,) = wire.frames()
    assert Ether(out.data)[IP].tos == 3
    assert bench.rx(H2, 0) == (2, len(inner), 2)


class ShortGso(Gso):
    """GSO fields with a TCP header of 20 bytes, whatever the header says."""

    def header(self, frame: bytes) -> bytes:
        return struct.pack("BBHHHH", 1, 1, self.l4_at + 20, self.size, self.l4_at, 16)


def test_a_burst_whose_headers_exceed_it_counts_as_one_packet(bench: Bench) -> None:
    """A virtual machine can write any length into a TCP header, and the stack has not counted the segments."""
    stack = bench.attach_push()
    packet = burst(4, 10, TCP(flags="A", dataofs=15))
    try:
        stack.send(ETHERNET / packet, ShortGso("tcp4", 5, len(ETHERNET) + 20))
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
        pytest.skip("this kernel refuses such a packet itself")
    assert bench.tables.evs["tx_packets"][H2].sum() == 1


# ---- delivery ----


SEGMENTS = 20
TC_PLANES = (0, 1)  # the others have XDP in some tests, and keep it
_SCTP = 132
by_tc_or_xdp = pytest.mark.parametrize(("plane", "xdp"), [(0, None), (2, "xdp")], ids=["tc", "xdp"])
_TSO = ("tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation")
_SO_ATTACH_FILTER = 26
_TELL_HASH = (  # classic BPF: operation, constant
    (0x20, 0xFFFFF000 + 32),  # A = the packet's hash (SKF_AD_RXHASH); 0: it has none
    (0x74, 26),  # A >>= 26: the bits by which RPS chooses
    (0x04, 20),  # A += 20
    (0x16, 0),  # let so many bytes through
)


def ethernet(bench: Bench) -> Ether:
    mine, other = (bench.namespace.json("link", "show", name)[0]["address"] for name in ("m0b", "m0bp"))
    return Ether(src=other, dst=mine)


@versions
@pytest.mark.parametrize(("plane", "xdp"), [(0, None), (1, None), (2, "xdp")])
def test_popped_packets_are_delivered(bench: Bench, version: int, plane: int, xdp: Xdp | None) -> None:
    tap, received = bench.attach_pop(plane, version, xdp), bench.receive(version)
    inner = datagram(H2, H0, version)
    tap.send(bench.arriving("h2", 4 * plane, inner))
    (frame,) = received.frames()
    assert (frame.data, tap.frames()) == (bytes(ethernet(bench) / inner), [])
    assert frame.kind == socket.PACKET_HOST  # the stack drops packets to another station
    assert (bench.rx(H2, 4 * plane), bench.drops()) == ((1, len(inner), 0), {})


def test_the_tag_is_removed_before_delivery(bench: Bench) -> None:
    bench.tables.planes["vlan"][0] = 7
    tap, received = bench.attach_pop(0, 4), bench.receive(4)
    tap.send(bench.arriving("h2", 0, datagram(H2, H0), vlan=7))
    (frame,) = received.frames()
    assert (frame.data, frame.vlan) == (bytes(ethernet(bench) / datagram(H2, H0)), None)


@versions
def test_packets_popped_by_generic_xdp_reach_the_stack(bench: Bench, version: int) -> None:
    """There the kernel gives tc packets without Ethernet header, received by the NIC."""
    tap, received = bench.attach_pop(3, version, "xdp-generic"), bench.receive(version)
    inner = datagram(H2, H0, version)
    tap.send(bench.arriving("h2", 12, inner))
    (frame,) = [*received.frames(), *tap.frames()]
    assert frame.data in (bytes(ethernet(bench) / inner), popped(inner, 3))


@versions
@by_tc_or_xdp
def test_other_packets_are_received_by_the_nic(bench: Bench, version: int, plane: int, xdp: Xdp | None) -> None:
    """The host's other traffic, with and without XDP."""
    tap, received = bench.attach_pop(plane, version, xdp), bench.receive(version)
    frame = popped(datagram(H2, H0, version), plane)
    tap.send(frame)
    assert ([f.data for f in tap.frames()], received.frames()) == ([frame], [])


def test_without_mrc0_the_nic_receives_popped_packets(bench: Bench) -> None:
    tap = bench.attach_pop(0, 4)
    tap.send(bench.arriving("h2", 0, datagram(H2, H0)))
    assert [f.data for f in tap.frames()] == [popped(datagram(H2, H0))]


# ---- a tunnel's burst, which was cut with its outer headers on ----


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
@pytest.mark.parametrize("checksum", [0, 0x1234], ids=["", "sum"])
def test_a_segment_of_a_tunnel_burst_without_a_checksum_gets_its_own_lengths(
    bench: Bench, version: int, plane: int, xdp: Xdp | None, checksum: int
) -> None:
    tap, received = bench.attach_pop(plane, version, xdp), bench.receive(version)
    inner = of_length(datagram(H2, H0, version), 3000)
    inner[UDP].chksum = checksum
    tap.send(bench.arriving("h2", 4 * plane, inner, segments=4))
    (frame,) = received.frames()
    if checksum:
        assert Ether(frame.data)[UDP].chksum == checksum
    else:
        assert frame.data == bytes(ethernet(bench) / of_length(datagram(H2, H0, version), 0))


# ---- the flow's hash ----


def hashes(bench: Bench, *packets: Packet) -> list[int]:
    """Returns six bits of each packet's hash, as a socket filter shows them by the length that it passes.

    The planes of the packets differ, and so do their outer headers.
    """
    version = 4 if IP in packets[0] else 6
    taps = [bench.attach_pop(p, version) for p in TC_PLANES]
    bench.receive(version)
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
    return ip(version, H2, H0) / transport(sport=source, dport=to) / Raw(bytes(200))


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
    packets = [ip(version, H2, H0, **{"proto" if version == 4 else "nh": _SCTP}) / Raw(bytes(200)) for _ in range(64)]
    for n, packet in enumerate(packets):
        packet.src = f"10.98.{n}.1" if version == 4 else f"fd00:98:{n:x}::1"
    assert len(set(hashes(bench, *packets))) > 16


def test_fragments_of_a_packet_have_one_hash(bench: Bench) -> None:
    whole = bytes(UDP(sport=1000, dport=2000, len=608) / Raw(bytes(600)))
    first = ip(4, H2, H0, id=7, flags="MF", proto=17) / Raw(whole[:304])
    one, other = hashes(bench, first, ip(4, H2, H0, id=7, frag=38, proto=17) / Raw(whole[304:]))
    assert one == other


# ---- merging ----


@pytest.fixture
def pair(bench: Bench) -> Iterator[tuple[Bench, Bench]]:
    """Returns a host that sends packet by packet, and one at the other end of its wires."""
    other = bench.far_host()
    offloads = {"m0": dict.fromkeys((*_TSO, "tx-generic-segmentation"), False)}
    offloads |= {"m0bp": dict.fromkeys(_TSO, False), "m0b": {"rx-gro": True}}
    with other.fresh():
        for name, features in offloads.items():
            set_offload(name, features)
        yield bench, other
        for name, features in offloads.items():
            set_offload(name, {feature: not on for feature, on in features.items()})
        other.detach()


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
    request: pytest.FixtureRequest, bench: Bench, plane: int, xdp: Xdp | None, merge_xdp: bool, size: int, by_peer: bool
) -> None:
    request.addfinalizer(lambda: _set_mtu(bench, plane, 1500))
    _set_mtu(bench, plane, 1600)
    tap, received = bench.attach_pop(plane, 4, xdp), bench.receive(4, merging=True)
    bench.tables.node["merge_xdp"] = merge_xdp
    segment = ip(4, H2, H0) / TCP(sport=1, dport=2, flags="A") / Raw(bytes(size))
    for inner, sent in ((segment, by_peer), (datagram(H2, H0, size=200), False)):
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
        receiver.attach_pop(plane, version)
    return sender.attach_push(granularity), receiver.receive(version, merging=True)


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
    packet = bytes(datagram(H0, H2, version))
    assert [f[14:] for f in arrived(received, 8 * len(packet))] == [packet] * 8


@versions
@pytest.mark.parametrize("bench", [Setup("ecmp")], indirect=True)
def test_a_whole_burst_stays_whole(pair: tuple[Bench, Bench], version: int) -> None:
    stack, received = through(pair, "burst", version)
    packet = burst(version, SEGMENTS * SIZE)
    stack.send(ETHERNET / packet, gso(packet))
    (frame,) = arrived(received, SEGMENTS * SIZE)
    assert frame[14:] == bytes(packet)
