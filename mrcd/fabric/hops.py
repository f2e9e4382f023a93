"""What the uSIDs of a path mean: topology.py's numbering, backwards. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import Any, Literal

_REST = (1 << 96) - 1  # behind the block


@dataclass(frozen=True)
class Hop:
    """Where a packet is steered to: a uSID, or a plain address by whichever way the fabric likes.

    destination   the packet's, as it arrives at this hop: what tcpdump shows there
    plane, number None for an address, and for a uSID that this numbering does not have
    """

    segment: int  # of the path's segments, from 0
    destination: IPv6Address
    usid: int | None
    kind: Literal["t0", "t1", "host", "other", "address"]
    plane: int | None = None
    number: int | None = None

    def document(self) -> dict[str, Any]:
        """As in the API; the uSID in hexadecimal."""
        return {
            "segment": self.segment,
            "destination": str(self.destination),
            "usid": None if self.usid is None else f"{self.usid:04x}",
            "kind": self.kind,
            "plane": self.plane,
            "number": self.number,
        }


def hops(segments: Iterable[IPv6Address], block: IPv6Network) -> list[Hop]:
    """The hops of a path in travel order; `segments` as topology.EV has them."""
    return [hop for n, address in enumerate(segments) for hop in _segment(n, address, block)]


def _segment(n: int, address: IPv6Address, block: IPv6Network) -> Iterator[Hop]:
    if address not in block:
        yield Hop(n, address, None, "address")
        return
    rest = int(address) & _REST
    while usid := rest >> 80:  # the end of a carrier is 0 (RFC 9800 §4.1)
        destination = IPv6Address(int(block.network_address) | rest)
        kind, plane, number = _meaning(usid)
        yield Hop(n, destination, usid, kind, plane, number)
        rest = rest << 16 & _REST


def _meaning(usid: int) -> tuple[Literal["t0", "t1", "host", "other"], int | None, int | None]:
    top = usid >> 14
    if top == 0b01:
        return "t0", usid >> 11 & 7, usid & 0x7FF
    if top == 0b10:
        return "t1", usid >> 11 & 7, usid & 0x7FF
    if usid >> 13 == 0b110:
        return "host", usid >> 10 & 7, usid & 0x3FF
    return "other", None, None
