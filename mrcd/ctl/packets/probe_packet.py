"""The packets of mrcctl's tools: probe requests that count nowhere, and packets that come back by themselves. Pure.

Written and read by struct: scapy (mrcd/wire.py), which takes a second to import, is the oracle of the tests.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address

WIRE_VERSION = 2
REQUEST, REPLY = 2, 3  # enum mrc_type
DIAGNOSTIC = 0x2  # MRC_FLAG_DIAGNOSTIC: no program counts it, none judges by it
SPORT_BASE = 0xC000
HOP_LIMIT = 64
_ECT_0 = 2  # RFC 3168 §5: queues that mark are not to drop it
SRH_MAX = 88  # of a path: MRC_SRH_MAX

_ETH, _IPV6, _UDP_HEADER = 14, 40, 8
_MRC = struct.Struct("!BBBxHHIHHQ8x")
_PROBE = struct.Struct("!IHHIIHH4xQ")
_IPPROTO_ROUTING, _IPPROTO_UDP, _SRH_TYPE = 43, 17, 4
HEADERS = _IPV6 + _UDP_HEADER + _MRC.size + _PROBE.size  # bytes of the least packet without an SRH, from IPv6 on


@dataclass(frozen=True)
class Probe:
    """What a tool's packet says. `token` tells this run's packets from those of others; `ns` is CLOCK_MONOTONIC."""

    kind: int
    sender: int
    receiver: int
    ev: int
    seq: int
    token: int
    ns: int


def srh(segments: Sequence[IPv6Address]) -> bytes:
    """The reduced SRH behind a packet to the first of these segments (RFC 8754 §2); empty for a single one."""
    others = segments[:0:-1]
    if not others:
        return b""
    n = len(others)
    return bytes([_IPPROTO_UDP, 2 * n, _SRH_TYPE, n, n - 1, 0, 0, 0]) + b"".join(s.packed for s in others)


def build(
    probe: Probe,
    segments: Sequence[IPv6Address],
    *,
    source: IPv6Address,
    smac: bytes,
    dmac: bytes,
    udp_port: int,
    size: int = 0,
    room: int = 0,
) -> bytes:
    """An Ethernet frame that travels as data of this EV does: same flow label, ports and headers.

    `size` bytes from the IPv6 header on, at the least; `room` bytes are kept behind the probe for the SRH
    of the way back.
    """
    routing = srh(segments)
    mrc = _MRC.pack(
        WIRE_VERSION,
        probe.kind,
        DIAGNOSTIC,
        probe.sender,
        probe.ev,
        probe.seq & 0xFFFFFFFF,
        1,
        probe.receiver,
        probe.ns,
    )
    body = mrc + _PROBE.pack(probe.seq & 0xFFFFFFFF, 0, 0, 0, probe.token, 0, 0, probe.ns)
    body += bytes(max(room, size - HEADERS - len(routing)))
    length = _UDP_HEADER + len(body)
    udp = struct.pack("!HHHH", SPORT_BASE + probe.ev, udp_port, length, 0)  # no checksum: RFC 6935
    ip6 = struct.pack(
        "!IHBB",
        6 << 28 | _ECT_0 << 20 | probe.ev,
        len(routing) + length,
        _IPPROTO_ROUTING if routing else _IPPROTO_UDP,
        HOP_LIMIT,
    )
    ip6 += source.packed + segments[0].packed
    return dmac + smac + b"\x86\xdd" + ip6 + routing + udp + body


def size_of(segments: Sequence[IPv6Address], room: int = 0) -> int:
    """Bytes of the least packet by these segments, from the IPv6 header on."""
    return HEADERS + len(srh(segments)) + room


def read(frame: bytes, udp_port: int) -> Probe | None:
    """A tool's packet in an Ethernet frame without a VLAN tag; None if it is anything else."""
    at = _ETH + _IPV6
    if len(frame) < at or frame[12:14] != b"\x86\xdd":
        return None
    protocol = frame[_ETH + 6]
    if protocol == _IPPROTO_ROUTING and len(frame) >= at + 8:
        protocol, at = frame[at], at + 8 + 8 * frame[at + 1]
    if protocol != _IPPROTO_UDP or len(frame) < at + _UDP_HEADER + _MRC.size + _PROBE.size:
        return None
    if frame[at + 2 : at + 4] != udp_port.to_bytes(2, "big"):
        return None
    at += _UDP_HEADER
    version, kind, flags, sender, ev, _, _, receiver, _ = _MRC.unpack_from(frame, at)
    if version != WIRE_VERSION or kind not in (REQUEST, REPLY) or not flags & DIAGNOSTIC:
        return None
    seq, _, _, _, token, _, _, ns = _PROBE.unpack_from(frame, at + _MRC.size)
    return Probe(kind, sender, receiver, ev, seq, token, ns)
