# SPDX-License-Identifier: BSD-2-Clause
"""The inner packet as the model pops it: its ECN field, checksum, addresses and lengths."""

import struct

from tests.packet.model_host import ETH_IPV4, ETH_IPV6, PROTO_UDP, DroppedError

NOT_ECT, ECT_1, ECT_0, CE = range(4)
_IPV4, _IPV6 = 20, 40  # bytes of the least header


def eth_type_of(inner: bytes) -> bytes:
    return ETH_IPV4 if inner[0] >> 4 == 4 else ETH_IPV6


def merged(inner: bytes, outer_ecn: int) -> tuple[bytes, bool]:
    """Returns an inner packet with the ECN field of RFC 6040 §4.2, and whether the fabric has marked it.

    Raises DroppedError.
    """
    version = inner[0] >> 4 if inner else None
    if version is None or len(inner) < {4: _IPV4, 6: _IPV6}.get(version, 0):
        raise DroppedError("truncated")
    if version not in (4, 6):
        raise DroppedError("bad_inner")
    first = int.from_bytes(inner[:2], "big")  # the ECN field is in bits 0 and 1 (IPv4), or 4 and 5 (IPv6)
    shift = 0 if version == 4 else 4
    ecn = first >> shift & 3
    if outer_ecn == CE and ecn == NOT_ECT:
        raise DroppedError("ce_not_ect")
    after = CE if outer_ecn == CE else ECT_1 if (outer_ecn, ecn) == (ECT_1, ECT_0) else ecn
    changed = first & ~(3 << shift) | after << shift
    out = changed.to_bytes(2, "big") + inner[2:]
    if version == 4 and changed != first:
        out = _with_checksum(out, first, changed)
    return out, outer_ecn == CE and ecn != CE


def _with_checksum(packet: bytes, before: int, after: int) -> bytes:
    """Returns an IPv4 packet in whose header a word has changed, with the checksum of RFC 1624."""
    checksum = int.from_bytes(packet[10:12], "big")
    total = (checksum ^ 0xFFFF) + (before ^ 0xFFFF) + after
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return packet[:10] + (total ^ 0xFFFF).to_bytes(2, "big") + packet[12:]


def addresses(inner: bytes) -> tuple[bytes, bytes]:
    return (inner[12:16], inner[16:20]) if inner[0] >> 4 == 4 else (inner[8:24], inner[24:40])


def is_udp(inner: bytes) -> bool:
    return len(inner) >= _IPV4 and inner[9 if inner[0] >> 4 == 4 else 6] == PROTO_UDP


def is_cut(inner: bytes) -> bool:
    """Returns whether an inner packet is shorter than its header says, or than a header."""
    if len(inner) < _IPV4:
        return True
    if inner[0] >> 4 == 4:
        return int.from_bytes(inner[2:4], "big") > len(inner)
    return inner[0] >> 4 == 6 and (len(inner) < _IPV6 or _IPV6 + int.from_bytes(inner[4:6], "big") > len(inner))


def with_own_lengths(inner: bytes) -> bytes:
    """Returns a UDP segment that has the lengths of its burst with lengths of its own."""
    if not is_udp(inner):
        return inner
    out, at = bytearray(inner), _IPV6
    if inner[0] >> 4 == 4:
        burst = int.from_bytes(inner[2:4], "big")
        if burst <= len(inner):
            return inner
        out = bytearray(_with_checksum(inner, burst, len(inner)))
        struct.pack_into("!H", out, 2, len(inner))
        at = (inner[0] & 15) * 4
    else:
        if int.from_bytes(inner[4:6], "big") + _IPV6 <= len(inner):
            return inner
        struct.pack_into("!H", out, 4, len(inner) - _IPV6)
    if at + 6 <= len(inner):
        struct.pack_into("!H", out, at + 4, (len(inner) - at) % 0x10000)
    return bytes(out)
