# SPDX-License-Identifier: BSD-2-Clause
"""Tests the packets of mrcctl's tools against scapy and the ABI, and their socket filter in the kernel."""

import ctypes
import socket
import struct
from ipaddress import IPv6Address

import pytest
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw
from siphash24 import siphash24

from labkit.traffic import wire
from labkit.traffic.wire import MRC, MRCProbe
from mrcd.config import cluster_file
from mrcd.fabric import topology
from mrcd.probes import probe_packet
from mrcd.probes.probe_packet import Probe, Tagged
from mrcd.probes.raw_socket import packet_filter
from tests.cluster_files import host

SMAC, DMAC = "02:00:00:00:00:01", "02:00:00:00:01:01"
PROBE = Probe(probe_packet.REQUEST, 0, 1, 3, 77, 0xDEADBEEF, 12345)


def plan(encapsulation: str) -> topology.Plan:
    text = (
        f'[cluster]\nplanes = 2\nt0s = 2\nt1s = 2\nevs_per_peer = 4\nencapsulation = "{encapsulation}"\n'
        + host(0)
        + host(1, t0=1)
    )
    return topology.plan(cluster_file.parse(text), "h0")


def built(
    encapsulation: str, size: int = 0, reserved: int = 0, probe: Probe = PROBE, key_id: int = 0, key: bytes = b""
) -> tuple[bytes, Packet]:
    """Returns a probe on EV 3, built by mrcctl and by scapy, which makes no tag."""
    p = plan(encapsulation)
    path = p.peers[0].evs[3]
    mine = probe_packet.build(
        probe, path.segments, source=p.addresses[path.plane], smac=_octets(SMAC), dmac=_octets(DMAC), udp_port=4797,
        size=size, reserved=reserved, key_id=key_id, key=key,
    )  # fmt: skip
    content = MRCProbe(seq=probe.seq, report_seq=probe.token, tx_ns=probe.ns)
    fields = {"type": probe.kind, "seq": probe.seq, "tx_ns": probe.ns, "flags": wire.DIAGNOSTIC, "key_id": key_id}
    least = bytes(wire.outer(p, path, content, smac=SMAC, dmac=DMAC, mrc=fields))
    padding = bytes(max(reserved, size - (len(least) - 14)))
    return mine, wire.outer(p, path, content / Raw(padding), smac=SMAC, dmac=DMAC, mrc=fields)


def _octets(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


@pytest.mark.parametrize("encapsulation", ["usid", "srh", "ecmp"])
@pytest.mark.parametrize(("size", "reserved"), [(0, 0), (0, 88), (1500, 0), (1500, 88), (60, 0)])
def test_every_byte_is_as_scapy_builds_it(encapsulation: str, size: int, reserved: int) -> None:
    mine, theirs = built(encapsulation, size, reserved)
    assert mine == bytes(theirs)
    if size == 1500:
        assert len(mine) == 14 + 1500


@pytest.mark.parametrize("encapsulation", ["usid", "srh", "ecmp"])
def test_a_built_probe_is_parsed_to_the_same_fields(encapsulation: str) -> None:
    frame, _ = built(encapsulation)
    assert probe_packet.read(frame, 4797) == PROBE
    assert probe_packet.read(frame, 4798) is None
    assert all(probe_packet.read(frame[:n], 4797) is None for n in range(len(frame)))


@pytest.mark.parametrize("encapsulation", ["usid", "srh", "ecmp"])
@pytest.mark.parametrize("size", [0, 1500])
def test_a_tag_is_over_the_header_and_the_probe(encapsulation: str, size: int) -> None:
    key = bytes(range(16))
    mine, theirs = built(encapsulation, size, key_id=7, key=key)
    header, content = bytes(theirs[MRC])[:24], bytes(theirs[MRCProbe])[:32]
    found = siphash24(header + content, key=key).digest()
    theirs[MRC].auth = int.from_bytes(found, "big")  # the bytes in their order
    assert mine == bytes(theirs)
    probe = probe_packet.read(mine, 4797)
    assert probe is not None
    assert probe.tagged == Tagged(7, header + content, found)


def test_packets_without_the_diagnostic_flag_are_not_parsed() -> None:
    p = plan("usid")
    path = p.peers[0].evs[3]
    others = [
        wire.outer(p, path, MRCProbe(seq=1), smac=SMAC, dmac=DMAC),  # mrcd's own
        wire.outer(p, path, Raw(bytes(100)), smac=SMAC, dmac=DMAC, mrc={"flags": wire.DIAGNOSTIC}),  # data
        wire.outer(p, path, MRCProbe(seq=1), smac=SMAC, dmac=DMAC, mrc={"flags": wire.DIAGNOSTIC, "version": 1}),
    ]
    assert [probe_packet.read(bytes(o), 4797) for o in others] == [None] * 3


def test_the_least_size() -> None:
    for segments in (1, 2, 6):
        path = [IPv6Address(i) for i in range(segments)]
        assert probe_packet.size_of(path) == 40 + topology.srh_bytes(segments) + 8 + 32 + 32


# ---- the filter ----


def passes(frame: bytes) -> bool:
    """Returns whether the filter passes a whole frame: a socket with the filter gets it as a datagram."""
    code = packet_filter(4797, wire.DIAGNOSTIC)
    inside, outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with inside, outside:
        kept = ctypes.create_string_buffer(code)
        inside.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", len(code) // 8, ctypes.addressof(kept)))
        inside.setblocking(False)
        try:
            outside.send(frame)
            return inside.recv(1 << 16) == frame
        except (BlockingIOError, PermissionError):  # this kind of socket reports the drop to the sender
            return False


ETHER = Ether(src=SMAC, dst=DMAC)


@pytest.mark.parametrize("encapsulation", ["usid", "srh", "ecmp"])
@pytest.mark.parametrize("tag", [False, True])
def test_diagnostic_packets_pass_the_filter(encapsulation: str, tag: bool) -> None:
    _, theirs = built(encapsulation)
    if tag:
        theirs = ETHER / Dot1Q(vlan=7) / theirs[IPv6]
    assert passes(bytes(theirs))
    theirs[MRC].flags = 0
    assert not passes(bytes(theirs))


@pytest.mark.parametrize(
    "frame",
    [
        ETHER / Raw(b"\x08\x00" + bytes(60)),
        ETHER / IPv6(src="::1", dst="::2") / UDP(dport=53) / Raw(bytes(40)),
        ETHER / IPv6(src="::1", dst="::2", nh=6) / Raw(bytes(40)),
        ETHER / Dot1Q(vlan=7, type=0x0800) / Raw(bytes(60)),
        Raw(bytes(20)),
    ],
    ids=["ipv4", "dns", "tcp", "tagged ipv4", "short"],
)
def test_other_packets_do_not_pass_the_filter(frame: Packet) -> None:
    assert not passes(bytes(frame))
