# SPDX-License-Identifier: BSD-2-Clause
"""Builds and parses diagnostic probes: requests that a peer answers, and loopback probes. Pure.

It uses struct, because scapy takes a second to import. Tests compare it with scapy (scripts/labkit/traffic/wire.py).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address

from mrcd.auth.tag import TAG_BYTES, tag
from mrcd.versions import PROBE_VERSION

REQUEST, REPLY = 2, 3  # enum mrc_type
DIAGNOSTIC = 0x2  # MRC_FLAG_DIAGNOSTIC: no program counts the packet or changes an EV state by it
SPORT_BASE = 0xC000
HOP_LIMIT = 64
_ECT_0 = 2  # RFC 3168 §5: a queue may mark it instead of dropping it
SRH_MAX = 88  # bytes: MRC_SRH_MAX

_ETH, _IPV6, _UDP_HEADER = 14, 40, 8
_MRC = struct.Struct("!BBBBHHIHHQ")
_PROBE = struct.Struct("!IHHIIHH4xQ")
_IPPROTO_ROUTING, _IPPROTO_UDP, _SRH_TYPE = 43, 17, 4
HEADERS = _IPV6 + _UDP_HEADER + _MRC.size + TAG_BYTES + _PROBE.size  # bytes from IPv6 on, without an SRH


@dataclass(frozen=True)
class Tagged:
    """Holds a packet's tag, the id of its key, and the bytes under the tag."""

    key_id: int = 0
    message: bytes = b""
    tag: bytes = b""


@dataclass(frozen=True)
class Probe:
    """The fields of a diagnostic probe. `token` identifies this run's packets; `ns` is CLOCK_MONOTONIC."""

    kind: int
    sender: int
    receiver: int
    ev: int
    seq: int
    token: int
    ns: int
    tagged: Tagged = field(default=Tagged(), compare=False)  # of a packet that was read


def srh(segments: Sequence[IPv6Address]) -> bytes:
    """Return the reduced SRH of a packet to the first of these segments (RFC 8754 §2); empty for one segment."""
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
    reserved: int = 0,
    key_id: int = 0,
    key: bytes = b"",
) -> bytes:
    """Return an Ethernet frame with the flow label, ports and headers of the EV's data.

    It is tagged with `key`, unless `key_id` is 0. `size` is the least number of bytes from the IPv6 header on.
    `reserved` bytes behind the probe leave space for the SRH of the reply.
    """
    routing = srh(segments)
    mrc = _MRC.pack(
        PROBE_VERSION,
        probe.kind,
        DIAGNOSTIC,
        key_id,
        probe.sender,
        probe.ev,
        probe.seq & 0xFFFFFFFF,
        1,
        probe.receiver,
        probe.ns,
    )
    fixed = _PROBE.pack(probe.seq & 0xFFFFFFFF, 0, 0, 0, probe.token, 0, 0, probe.ns)
    body = mrc + (tag(key, mrc + fixed) if key_id else bytes(TAG_BYTES)) + fixed
    body += bytes(max(reserved, size - HEADERS - len(routing)))
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


def size_of(segments: Sequence[IPv6Address], reserved: int = 0) -> int:
    """Return the bytes of the smallest packet over these segments, from the IPv6 header on."""
    return HEADERS + len(srh(segments)) + reserved


def read(frame: bytes, udp_port: int) -> Probe | None:
    """Return the diagnostic probe in an Ethernet frame without a VLAN tag; None for any other frame."""
    at = _ETH + _IPV6
    if len(frame) < at or frame[12:14] != b"\x86\xdd":
        return None
    protocol = frame[_ETH + 6]
    if protocol == _IPPROTO_ROUTING and len(frame) >= at + 8:
        protocol, at = frame[at], at + 8 + 8 * frame[at + 1]
    if protocol != _IPPROTO_UDP or len(frame) < at + HEADERS - _IPV6:
        return None
    if frame[at + 2 : at + 4] != udp_port.to_bytes(2, "big"):
        return None
    at += _UDP_HEADER
    version, kind, flags, key_id, sender, ev, _, _, receiver, _ = _MRC.unpack_from(frame, at)
    if version != PROBE_VERSION or kind not in (REQUEST, REPLY) or not flags & DIAGNOSTIC:
        return None
    tag_at = at + _MRC.size
    fixed_at = tag_at + TAG_BYTES
    seq, _, _, _, token, _, _, ns = _PROBE.unpack_from(frame, fixed_at)
    message = frame[at:tag_at] + frame[fixed_at : fixed_at + _PROBE.size]  # the probe has no counts
    return Probe(kind, sender, receiver, ev, seq, token, ns, Tagged(key_id, message, frame[tag_at:fixed_at]))
