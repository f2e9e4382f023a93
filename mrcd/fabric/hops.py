# SPDX-License-Identifier: BSD-2-Clause
"""Decodes the uSIDs of a path to switches and hosts: the inverse of the numbering in srv6.py. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import Any, Literal

_BELOW_BLOCK = (1 << 96) - 1  # the address bits that follow the block


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
    top = usid >> 14
    if top == 0b01:
        return "t0", usid >> 11 & 7, usid & 0x7FF
    if top == 0b10:
        return "t1", usid >> 11 & 7, usid & 0x7FF
    if usid >> 13 == 0b110:
        return "host", usid >> 10 & 7, usid & 0x3FF
    return "other", None, None
