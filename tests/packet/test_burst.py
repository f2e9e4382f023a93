# SPDX-License-Identifier: BSD-2-Clause
"""Tests bursts: a GSO packet stays one packet through push, wire and pop, and is counted as its segments."""

import errno
import struct
from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from mrcd.fabric.wire import MRC
from mrcd.kernel import features
from mrcd.kernel.enums import KernelHas
from tests.packet.cluster import H0, H2, PLANES, all_encapsulations, nic_mac, wire_mac
from tests.packet.rig import Bench, Hook, Protocol, Xdp
from tests.packet.wires import Gso, changed

pytestmark = pytest.mark.root

ETHERNET = Ether(src="02:00:00:00:02:00", dst="02:00:00:00:02:01")
SIZE = 1000


def burst(version: int, payload: int, transport: Packet | None = None) -> Packet:
    """Returns one packet of many segments, to host h2."""
    if version == 4:
        ip = IP(src="10.99.0.1", dst="10.99.0.3", id=7, tos=2)
    else:
        ip = IPv6(src="fd00:99::1", dst="fd00:99::3", tc=2)
    return ip / (transport or TCP(sport=1, dport=2, flags="A")) / Raw(bytes(i & 0xFF for i in range(payload)))


def gso(packet: Packet) -> Gso:
    """Returns the GSO fields that the stack would give such a packet."""
    l4_at = len(ETHERNET) + (20 if IP in packet else 40)
    if UDP in packet:
        return Gso("udp", SIZE, l4_at)
    return Gso("tcp4" if IP in packet else "tcp6", SIZE, l4_at)


@pytest.mark.parametrize("version", [4, 6])
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
@pytest.mark.parametrize("version", [4, 6])
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
    """Returns host h2 at the other end of the wires."""
    with bench.far_host().fresh() as other:
        yield other


@pytest.mark.parametrize("version", [4, 6])
@all_encapsulations
def test_a_burst_arrives_whole(bench: Bench, receiver: Bench, version: int) -> None:
    # No switch changes the destination or the SRH here.
    receiver.tables.planes["sid"][0] = bench.ev(H2, 0)["dst"]
    bench.tables.srhs["bytes"][:, 3] = 0
    # Without DECAP_L3 a popped burst keeps the outer protocol until mrc0 receives it, and here mrc0 does not.
    protocol: Protocol = "ipv4" if version == 4 and features.kernel_has() & KernelHas.DECAP_L3 else "ipv6"
    stack, out = bench.attach_push(), receiver.attach_pop(0, protocol)
    packet = burst(version, 20 * SIZE)
    stack.send(ETHERNET / packet, gso(packet))
    (frame,) = out.frames()
    assert frame.data == bytes(Ether(src=nic_mac(0), dst=wire_mac(0)) / packet)
    assert receiver.rx(H0, 0) == (20, len(packet), 0)
    assert bench.drops() == receiver.drops() == {}


@pytest.mark.parametrize(("segments", "reason"), [(0, "merged"), (1, "merged"), (2, None)])
def test_packets_merged_by_receive_offload_are_dropped(bench: Bench, segments: int, reason: str | None) -> None:
    """Their inner packets could not be separated."""
    one = bytes(IP(src="10.99.0.3", dst="10.99.0.1") / UDP() / Raw(bytes(SIZE - 28)))
    frame = bench.arriving("h2", 0, Raw(one * 2), segments=segments)
    wire = bench.attach_pop(0, "ipv4")
    wire.send(frame, Gso("udp", 32 + SIZE, len(ETHERNET) + 40))
    assert len(wire.frames()) == (0 if reason else 1)
    assert bench.drops() == ({reason: 1} if reason else {})
    assert bench.rx(H2, 0) == ((0, 0, 0) if reason else (2, 2 * SIZE, 0))


def test_xdp_counts_the_packets_of_a_burst_without_gso_size(bench: Bench) -> None:
    """Generic XDP on a virtual link: there is no GSO size, but the packet is longer than the MTU."""
    inner = IP(src="10.99.0.3", dst="10.99.0.1") / UDP() / Raw(bytes(3 * SIZE))
    frame = bench.arriving("h2", 0, inner, segments=3)
    out = bytes(Ether(src=wire_mac(0), dst=nic_mac(0)) / inner)
    assert bench.pop_xdp(frame, bench.ifindex["n0"]) == ("pass", out)
    assert bench.rx(H2, 0) == (3, len(inner), 0)


@pytest.mark.parametrize("xdp", [None, "xdp-generic"])
@pytest.mark.parametrize("version", [4, 6])
def test_a_short_burst_of_udp_counts_as_its_packets(bench: Bench, version: int, xdp: Xdp | None) -> None:
    """Generic XDP sees one packet that fits the MTU."""
    source, to = ("10.99.0.3", "10.99.0.1") if version == 4 else ("fd00:99::3", "fd00:99::1")
    inner = (IP if version == 4 else IPv6)(src=source, dst=to) / UDP() / Raw(bytes(300))
    wire = bench.attach_pop(1 if xdp else 0, "ipv4" if version == 4 else "ipv6", xdp)
    frame = bench.arriving("h2", 4 if xdp else 0, inner, segments=3)
    wire.send(frame, Gso("udp", 32 + len(inner) - 200, len(ETHERNET) + 40))
    assert len(wire.frames()) == 1
    assert bench.rx(H2, 4 if xdp else 0) == (3, len(inner), 0)


@pytest.mark.parametrize("hook", ["tc", "xdp"])
def test_a_segment_that_the_kernel_cut_counts_once(bench: Bench, hook: Hook) -> None:
    """Each segment has the header of the whole burst."""
    inner = IP(src="10.99.0.3", dst="10.99.0.1") / UDP() / Raw(bytes(SIZE))
    assert bench.pop(hook, bench.arriving("h2", 0, inner, segments=20))[0] == "pass"
    assert bench.rx(H2, 0) == (1, len(inner), 0)


def test_ce_on_a_burst_marks_every_packet_of_it(bench: Bench) -> None:
    inner = IP(src="10.99.0.3", dst="10.99.0.1", tos=2) / UDP() / Raw(bytes(2 * SIZE))
    frame = changed(bench.arriving("h2", 0, inner, segments=2), IPv6, tc=3)
    wire = bench.attach_pop(0, "ipv4")
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
