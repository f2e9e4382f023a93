# SPDX-License-Identifier: BSD-2-Clause
"""Computes uSIDs, carriers, the hosts' addresses and SRHs. Pure arithmetic.

The numbering of 16-bit uSIDs (RFC 9800 NEXT-C-SID behind a 32-bit block), one function per kind:

    T0      01ppp q0i iiii iiii     0x4000 | ppp << 11 | q << 10 | t0
    T1      10ppp q0i iiii iiii     0x8000 | ppp << 11 | q << 10 | t1
    host    110pp p   ii iiii iiii  0xc000 | ppp << 10 | port of its T0, of planes 0 to 7
            001pp p   ii iiii iiii  0x2000 | ppp << 10 | port of its T0, of planes 8 to 15
    local   111…                    0xe000 and up: functions of the node itself (RFC 9800 LIB)

ppp are the lower bits of the plane, and q is the upper one: 1 from plane 8 on. As in MRC, the plane is part of every
uSID. The T1's number is the uplink of the T0, and the host's number is the T0's downlink.
So an EV's address can be computed, and a fault can be named by its link.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import Any, Literal

from mrcd.config.cluster_file import Host

UDT4 = 0xE004  # decapsulate inner IPv4 (kernel fallback routes only)
UDT6 = 0xE006  # decapsulate inner IPv6

_BELOW_BLOCK = (1 << 96) - 1  # the address bits that follow the block
_UDP, _SRH_TYPE, _SRH_HEADER = 17, 4, 8


def t0_usid(plane: Any, t0: Any) -> Any:
    """Returns the uSID of a T0 switch; an array of uSIDs for arrays."""
    return 0x4000 | _plane_bits(plane) | t0


def t1_usid(plane: Any, t1: Any) -> Any:
    """Returns the uSID of a T1 switch; an array of uSIDs for arrays."""
    return 0x8000 | _plane_bits(plane) | t1


def host_usid(plane: Any, port: Any) -> Any:
    """Returns the uSID of a host NIC, which is valid at its T0 only; an array of uSIDs for arrays."""
    return 0xC000 - 0xA000 * (plane >> 3) | (plane & 7) << 10 | port


def _plane_bits(plane: Any) -> Any:
    return (plane & 7) << 11 | plane >> 3 << 10


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


# ---- the same read backwards ----


@dataclass(frozen=True)
class Hop:
    """One hop of a path: a uSID, or a plain address to which the fabric routes by its own rules.

    destination   the packet's destination when it arrives at this hop, as tcpdump shows it there
    plane, number None for an address, and for a uSID outside this numbering
    """

    segment: int  # index of the path's segment, from 0
    destination: IPv6Address
    usid: int | None
    kind: Literal["t0", "t1", "host", "other", "address"]
    plane: int | None = None
    number: int | None = None

    def document(self) -> dict[str, Any]:
        """Returns the hop as a document of the API, with the uSID in hexadecimal."""
        return {
            "segment": self.segment,
            "destination": str(self.destination),
            "usid": None if self.usid is None else f"{self.usid:04x}",
            "kind": self.kind,
            "plane": self.plane,
            "number": self.number,
        }


def hops(segments: Iterable[IPv6Address], block: IPv6Network) -> list[Hop]:
    """Returns the hops of a path in travel order. `segments` are EV.segments."""
    return [hop for n, address in enumerate(segments) for hop in _segment(n, address, block)]


def _segment(n: int, address: IPv6Address, block: IPv6Network) -> Iterator[Hop]:
    if address not in block:
        yield Hop(n, address, None, "address")
        return
    rest = int(address) & _BELOW_BLOCK
    while usid := rest >> 80:  # the end of a carrier is 0 (RFC 9800 §4.1)
        destination = IPv6Address(int(block.network_address) | rest)
        kind, plane, number = _decode(usid)
        yield Hop(n, destination, usid, kind, plane, number)
        rest = rest << 16 & _BELOW_BLOCK


def _decode(usid: int) -> tuple[Literal["t0", "t1", "host", "other"], int | None, int | None]:
    if usid >> 14 in (0b01, 0b10):
        return "t0" if usid < 0x8000 else "t1", usid >> 11 & 7 | usid >> 7 & 8, usid & 0x3FF
    if usid >> 13 in (0b110, 0b001):
        return "host", usid >> 10 & 7 | (0 if usid & 0x8000 else 8), usid & 0x3FF
    return "other", None, None
