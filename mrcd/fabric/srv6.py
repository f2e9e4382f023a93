# SPDX-License-Identifier: BSD-2-Clause
"""Computes uSIDs, carriers, the hosts' addresses and SRHs. Pure arithmetic.

The numbering of 16-bit uSIDs (RFC 9800 NEXT-C-SID behind a 32-bit block), one function per kind:

    T0      01ppp iii iiii iiii     0x4000 | plane << 11 | t0
    T1      10ppp iii iiii iiii     0x8000 | plane << 11 | t1
    host    110pp p   ii iiii iiii  0xc000 | plane << 10 | port of its T0
    local   111…                    0xe000 and up: functions of the node itself (RFC 9800 LIB)

As in MRC, the plane is part of every uSID. The T1's number is the uplink of the T0, and the host's number is the
T0's downlink. So an EV's address can be computed, and a fault can be named by its link.
"""

from collections.abc import Sequence
from ipaddress import IPv6Address, IPv6Network
from typing import Any

from mrcd.config.cluster_file import Host

UDT4 = 0xE004  # decapsulate inner IPv4 (kernel fallback routes only)
UDT6 = 0xE006  # decapsulate inner IPv6

_UDP, _SRH_TYPE, _SRH_HEADER = 17, 4, 8


def t0_usid(plane: Any, t0: Any) -> Any:
    """Returns the uSID of a T0 switch; an array of uSIDs for arrays."""
    return 0x4000 | plane << 11 | t0


def t1_usid(plane: Any, t1: Any) -> Any:
    """Returns the uSID of a T1 switch; an array of uSIDs for arrays."""
    return 0x8000 | plane << 11 | t1


def host_usid(plane: Any, port: Any) -> Any:
    """Returns the uSID of a host NIC, which is valid at its T0 only; an array of uSIDs for arrays."""
    return 0xC000 | plane << 10 | port


def carrier(block: IPv6Network, usids: Sequence[int]) -> IPv6Address:
    """Returns the carrier of up to six uSIDs in travel order: they follow the block (RFC 9800 §4.1)."""
    if not 1 <= len(usids) <= 6:
        raise ValueError(f"a carrier holds 1 to 6 uSIDs, not {len(usids)}")
    value = int(block.network_address)
    for i, usid in enumerate(usids):
        value |= usid << (80 - 16 * i)
    return IPv6Address(value)


def usid_prefix(block: IPv6Network, usid: int) -> IPv6Network:
    """Returns the /48 prefix by which a switch matches a uSID."""
    return IPv6Network((carrier(block, [usid]), 48))


def plane_address(underlay: IPv6Network, plane: int, host: Host) -> IPv6Address:
    """Returns a host's address on a plane: underlay : plane : T0 :: host id + 1."""
    return IPv6Address(int(underlay.network_address) | plane << 80 | host.t0 << 64 | (host.id + 1))


def plane_network(underlay: IPv6Network, plane: int, t0: int | None = None) -> IPv6Network:
    """Returns the prefix of a plane (/48), or of one T0 in it (/64)."""
    value = int(underlay.network_address) | plane << 80
    return IPv6Network((value, 48)) if t0 is None else IPv6Network((value | t0 << 64, 64))


def srh_bytes(segments: int) -> int:
    """Returns the bytes of a reduced SRH (RFC 8754, H.Encaps.Red): the destination holds the first segment."""
    return 0 if segments <= 1 else _SRH_HEADER + 16 * (segments - 1)


def srh_header(segments: int) -> bytes:
    """Returns the fixed part (RFC 8754 §2) of a reduced SRH for `segments` segments, two at least."""
    return bytes([_UDP, 2 * (segments - 1), _SRH_TYPE, segments - 1, segments - 2, 0, 0, 0])


def reduced_srh(segments: Sequence[IPv6Address]) -> bytes:
    """Returns the SRH of H.Encaps.Red (RFC 8986 §5.2), without the first segment, which is the destination.

    The layout is that of RFC 8754 §2, with the segment list in reverse order. Empty for a single segment.
    """
    if len(segments) == 1:
        return b""
    return srh_header(len(segments)) + b"".join(s.packed for s in reversed(segments[1:]))
