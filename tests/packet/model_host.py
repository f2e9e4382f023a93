# SPDX-License-Identifier: BSD-2-Clause
"""The model's host and a packet that arrives at it: tables, outer headers, tags and ages."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from siphash24 import siphash24

from mrcd.kernel.abi import REPLAY_WORDS, SRH_MAX
from mrcd.kernel.enums import AuthMode

MS = 1_000_000
U32, U64 = 1 << 32, 1 << 64
ETHERNET, VLAN, IPV6, UDP, MRC, PROBE, COUNT = 14, 4, 40, 8, 32, 32, 8  # bytes
ETH_IPV4, ETH_IPV6, ETH_VLAN = b"\x08\x00", b"\x86\xdd", b"\x81\x00"
PROTO_UDP, PROTO_ROUTING, PROTO_ICMPV6 = 17, 43, 58
DATA, REQUEST, REPLY = 1, 2, 3
CRITICAL, DIAGNOSTIC = 0x1, 0x2
DETACHED, PLAIN = 0x1, 0x2  # status bits
CHANGING = 0xFF  # in bits 8 to 15 of the status: the wire version of a host that changes it
_LAPS, _LAPS_OLD, _EPOCHS = 1 << 21, 128, 1 << 10  # of the numbers in a replay window
HEADER = struct.Struct("!BBBBHHIHHQ8s")
PROBE_FORMAT = struct.Struct("!IHHIIHH2sHQ")
NOW = -1
"""The value of a time that the program reads from the clock."""


def version(kind: int) -> int:
    """Returns the version of a packet of this type."""
    return 3 if kind == DATA else 2


@dataclass(frozen=True)
class Plane:
    ifindex: int
    sid: bytes
    address: bytes


@dataclass(frozen=True)
class Host:
    """The host, as its configuration and the test set it up."""

    tables: dict[str, NDArray[np.void]]  # as they were before the packet
    id: int
    planes: tuple[Plane, ...]
    links: frozenset[int]  # numbers of the links that it watches
    evs: int  # per peer
    inner_mtu: int
    udp_port: int
    fingerprint: int  # of the cluster file
    is_strict: bool
    mode: AuthMode
    peers: Mapping[int, tuple[bytes, ...]]  # host id → its address on each plane
    owners: Mapping[bytes, int]  # inner address → host id
    keys: Mapping[int, Callable[[int, int], bytes]]  # accepted key id → the key of packets from one host to another
    headers: Mapping[tuple[int, int], bytes]  # (peer, EV) → Ethernet, IPv6 and SRH with which this host sends

    @property
    def slots(self) -> int:
        return self.evs // len(self.planes)

    def most_evs(self, peer: int) -> int:
        """Returns the paths to a peer in the plane that has most."""
        planes = [n // self.slots for row, n in self.headers if row == peer]
        return max(map(planes.count, planes))


@dataclass
class Outcome:
    """The host's verdict on a packet. `reply` returns the bytes of a reply that is sent at a time."""

    verdict: str
    data: bytes = b""
    reply: Callable[[int], bytes] | None = None
    drop: str = ""
    is_popped: bool = False
    changes: list[tuple[str, Any, str, Any]] = field(default_factory=list)  # table, index, field, value
    open: set[tuple[str, str]] = field(default_factory=set)  # (table, field or "" for all): not predicted


def pair_offset(sender: int, receiver: int, places: int) -> int:
    """Returns where a pair of hosts begins, out of `places`: R2 of M. Roberts (2018), in fractions of 2^32."""
    plastic = 1.324717957244746
    one, other = (round(U32 / plastic**power) for power in (1, 2))
    return (sender * one + receiver * other) % U32 * places // U32


class DroppedError(Exception):
    """The packet is dropped; the text is the reason's name."""


class ForgottenError(DroppedError):
    """The packet is so old that nobody knows whether its number has arrived."""


class EliminatedError(Exception):
    """The packet is the second copy of a critical one."""


class NotOursError(Exception):
    """The packet is not mrcd's."""


@dataclass(frozen=True)
class Outer:
    """The outer headers. `fault` is what is wrong with them; then the fields behind it are not filled in."""

    l3: int  # offset of the IPv6 header
    vlan: int
    destination: bytes
    source: bytes
    traffic_class: int
    ip_length: int
    fault: str = ""
    udp_length: int = 0
    end: int = 0  # offset behind the MRC header
    version: int = 0
    type: int = 0
    flags: int = 0
    key_id: int = 0
    sender: int = 0
    ev: int = 0
    seq: int = 0
    segments: int = 0
    receiver: int = 0
    tx_ns: int = 0
    tag: bytes = b""


def parse(frame: bytes, udp_port: int) -> Outer:
    """Returns the outer headers of an mrcd packet. Raises NotOursError for any other."""
    l3, vlan, eth_type = ETHERNET, 0, frame[12:14]
    if eth_type == ETH_VLAN:
        l3, vlan, eth_type = l3 + VLAN, int.from_bytes(frame[14:16], "big") & 0xFFF, frame[16:18]
    if eth_type != ETH_IPV6 or len(frame) < l3 + IPV6:
        raise NotOursError
    word, ip_length, protocol = struct.unpack_from("!IHB", frame, l3)
    source, destination = frame[l3 + 8 : l3 + 24], frame[l3 + 24 : l3 + 40]
    known = (l3, vlan, destination, source, word >> 20 & 0xFF, ip_length)
    at, segments_left = l3 + IPV6, 0
    if protocol == PROTO_ROUTING:
        if len(frame) < at + 8:
            raise NotOursError
        protocol, words, kind, segments_left = frame[at : at + 4]
        if kind != 4 or protocol != PROTO_UDP:
            raise NotOursError
        if words % 2 or 8 + 8 * words > SRH_MAX:  # a segment has 16 bytes; the host knows no TLVs
            return Outer(*known, "bad_srh")
        at += 8 + 8 * words
    if protocol != PROTO_UDP or len(frame) < at + UDP or int.from_bytes(frame[at + 2 : at + 4], "big") != udp_port:
        raise NotOursError
    if segments_left:
        return Outer(*known, "bad_srh")
    end = at + UDP + MRC
    if len(frame) < end:
        return Outer(*known, "truncated")
    udp_length = int.from_bytes(frame[at + 4 : at + 6], "big")
    return Outer(*known, "", udp_length, end, *HEADER.unpack_from(frame, at + UDP))


def signed(number: int) -> int:
    return (number + U64 // 2) % U64 - U64 // 2


@dataclass
class Arriving:
    """A packet that arrives on an interface at a time of this host's clock, and what it has led to so far."""

    host: Host
    frame: bytes
    ifindex: int
    now: int
    gso_size: int
    out: Outcome

    def get(self, table: str, index: Any, name: str) -> Any:
        """Returns a field as it was before the packet."""
        return self.host.tables[table][name][index].tolist()

    def set(self, table: str, index: Any, name: str, value: Any) -> None:
        """Notes that the packet sets a field."""
        self.out.changes.append((table, index, name, value))

    def add(self, table: str, index: Any, name: str, count: int) -> None:
        """Notes that the packet adds to a count."""
        self.set(table, index, name, self.get(table, index, name) + count)

    def epoch(self, table: str, peer: int, generation: int) -> int:
        """Returns the epoch of a peer's numbers: another one for each generation of its tables."""
        epoch: int = self.get(table, peer, "epoch")
        if self.get(table, peer, "generation") != generation:
            epoch += 1
            self.set(table, peer, "generation", generation)
            self.set(table, peer, "epoch", epoch)
        return epoch

    def noted(self, table: str, peer: int, kind: str, number: int, epoch: int) -> tuple[str, Any, str, int]:
        """Returns table, index, field and value of the word that notes a number.

        Raises DroppedError if it has arrived before, or is so old that nobody knows.

        Numbers go through the words of the window, 32 in each, lap by lap. A word holds the numbers of one lap.
        """
        at = number // 32 % REPLAY_WORDS
        lap, bit = number // 32 // REPLAY_WORDS, 1 << number % 32
        word = self.get(table, peer, kind)[at]
        seen, its_lap, its_epoch = word % U32, (word >> 32) % _LAPS, word >> 54
        kept = 0
        if seen and its_epoch == epoch % _EPOCHS:
            if lap == its_lap:
                kept = seen
            if 1 <= (its_lap - lap) % _LAPS <= _LAPS_OLD:
                raise ForgottenError("replayed")
            if kept & bit:
                raise DroppedError("replayed")
        return table, (peer, at), kind, epoch % _EPOCHS << 54 | lap << 32 | kept | bit

    def is_tagged(self, o: Outer, message: bytes, check: Callable[[], None] = lambda: None) -> bool:
        """Returns whether the packet has a right tag; False if it needs none. Raises DroppedError.

        `check` comes before the tag is computed.
        """
        if self.host.mode is AuthMode.OFF:
            return False
        if o.key_id == 0:
            if self.host.mode is AuthMode.REQUIRED:
                raise DroppedError("untagged")
            return False
        if o.key_id not in self.host.keys:
            raise DroppedError("unknown_key")
        check()
        if siphash24(message, key=self.host.keys[o.key_id](o.sender, self.host.id)).digest() != o.tag:
            raise DroppedError("bad_tag")
        return True

    def count_untagged(self, o: Outer) -> None:
        if self.host.mode is AuthMode.PERMISSIVE and o.key_id == 0:
            self.add("auths", o.sender, "untagged", 1)

    def is_new(self, o: Outer) -> bool:
        """Returns whether a packet is of the last half second by its sender's clock, as far as that is known."""
        clock_ns = self.get("auths", o.sender, "clock_ns")
        if not clock_ns:
            return self.host.mode is not AuthMode.REQUIRED
        return -100 * MS < signed(self.now + clock_ns - o.tx_ns) < 500 * MS

    def request_clock(self, peer: int) -> None:
        """Has a report requested from a peer that was not heard a moment ago: its reply tells its clock."""
        if signed(self.now - self.get("peers", peer, "heard_ns")) >= 20 * MS:
            self.set("watches", peer, "due_ns", 0)
            self.set("watches", peer, "announce", 1)

    def is_unheard(self, peer: int) -> bool:
        """Returns whether nothing was heard of a peer for a second, or for three sweeps."""
        heard_ns, idle_us = self.get("peers", peer, "heard_ns"), self.get("node", (), "idle_us")
        return not heard_ns or signed(self.now - heard_ns) >= max(1000 * MS, 3000 * idle_us)
