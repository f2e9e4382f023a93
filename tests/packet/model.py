# SPDX-License-Identifier: BSD-2-Clause
"""Models a host that receives packets, independently of the programs: outer headers, tags, inner packets, probes."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from siphash24 import siphash24

from mrcd.kernel.abi import BALLAST, MAX_PLANES, REPLAY_WORDS, REPORT_EVS, SRH_MAX
from mrcd.kernel.enums import AuthMode, EvState, Reason

MS = 1_000_000
U32, U64 = 1 << 32, 1 << 64
ETHERNET, VLAN, IPV6, UDP, MRC, PROBE, COUNT = 14, 4, 40, 8, 32, 32, 8  # bytes
ETH_IPV4, ETH_IPV6, ETH_VLAN = b"\x08\x00", b"\x86\xdd", b"\x81\x00"
PROTO_UDP, PROTO_ROUTING, PROTO_ICMPV6 = 17, 43, 58
VERSION, DATA, REQUEST, REPLY, DIAGNOSTIC = 2, 1, 2, 3, 0x2
DETACHED, PLAIN = 0x1, 0x2  # status bits
HEADER = struct.Struct("!BBBBHHIHHQ8s")
PROBE_FORMAT = struct.Struct("!IHHIIHH2sHQ")
NOW = -1
"""The value of a time that the program reads from the clock."""


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


# ---- inner packets ----


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


# ---- probes ----


LAPS, LAPS_OLD, EPOCHS = 1 << 21, 128, 1 << 10  # of the numbers in a replay window
JUDGED = {
    *((table, "") for table in ("evs", "path_stats", "reports", "watches")),
    *(("peers", name) for name in ("usable", "usable_changes", "usable_planes", "queued", "plane_skew_ns")),
}
"""Fields that a believed reply or an ICMPv6 error may change."""


class Probe:
    """A probe whose MRC header is verified."""

    def __init__(self, at: Arriving, o: Outer) -> None:
        self.at, self.o, self.host, self.peer = at, o, at.host, o.sender
        self.header, self.body = at.frame[o.end - MRC : o.end - 8], at.frame[o.end : o.end + PROBE]
        self.seq, self.plane_mask, self.status, self.generation, *rest = PROBE_FORMAT.unpack(self.body)
        _, self.first, self.counts, self.key_ids, self.fingerprint, self.tx_ns = rest
        usable: list[int] = at.get("peers", self.peer, "usable")
        self.usable = [n for n in range(self.host.evs) if usable[n // 64] >> n % 64 & 1]

    # ---- a request ----

    def answer(self, plane: int) -> None:
        """Counts a request, learns from it, and replies with the counts that it requests. Raises DroppedError."""
        at, o = self.at, self.o
        if self._check_request():
            self._learn_status()
        ev = self._reply_ev(plane)
        headers = self.host.headers.get((self.peer, ev))
        if headers is None:
            raise DroppedError("reply_failed")
        is_counted = not o.flags & DIAGNOSTIC
        if is_counted:
            at.add("rxs", (self.peer, o.ev), "probes", 1)
        if not at.get("node", (), "generation"):  # the host answers no probes yet
            at.out.verdict = "drop"
            return
        room = len(at.frame) - len(headers) - UDP - MRC
        if self.counts and (self.first + self.counts > self.host.evs or room < PROBE + BALLAST + COUNT * self.counts):
            raise DroppedError("bad_probe")
        if room < PROBE:
            raise DroppedError("reply_failed")
        counts = b"".join(
            struct.pack(
                "!IHH",
                at.get("rxs", (self.peer, n), "packets") % U32,
                (at.get("rxs", (self.peer, n), "probes") + (n == o.ev and is_counted)) & 0xFFFF,
                at.get("rxs", (self.peer, n), "ce") & 0xFFFF,
            )
            for n in range(self.first, self.first + self.counts)
        )
        at.out.verdict, at.out.reply = "redirect", lambda tx_ns: self._reply(headers, ev, counts, tx_ns)

    def _check_request(self) -> bool:
        """Returns whether what the request says of its sender is believed. Raises DroppedError."""
        at, o = self.at, self.o
        is_tagged = at.is_tagged(o, self.header + self.body)
        at.count_untagged(o)
        if not is_tagged:
            return not o.flags & DIAGNOSTIC
        if not at.is_new(o):
            at.request_clock(self.peer)
            if at.get("auths", self.peer, "clock_ns"):
                raise DroppedError("stale")
            return False
        if o.flags & DIAGNOSTIC:
            return False
        if self.generation != at.get("peers", self.peer, "generation") and self._is_overtaken():
            raise DroppedError("stale")
        epoch = at.get("replays", self.peer, "epoch")
        if at.get("replays", self.peer, "generation") != self.generation:
            epoch += 1
            at.set("replays", self.peer, "generation", self.generation)
            at.set("replays", self.peer, "epoch", epoch)
        at.set("replays", *self._noted("requests", o.seq, epoch))
        return True

    def _reply_ev(self, plane: int) -> int:
        """Returns the next usable EV of the plane, else of any, another one for each probe; else the request's."""
        cursor, slots, planes = (self.seq + self.o.ev) % U32, self.host.slots, len(self.host.planes)
        first = cursor % self.host.most_evs(self.peer)
        ring = [plane * slots + (first + i) % slots for i in range(slots)]
        if not self.o.flags & DIAGNOSTIC:
            others = [(cursor + i) % planes for i in range(planes)]
            ring += [other * slots + (cursor // planes + i) % slots for other in others for i in range(slots)]
        return next((n for n in ring if n in self.usable), self.o.ev)

    def _reply(self, headers: bytes, ev: int, counts: bytes, tx_ns: int) -> bytes:
        at, o, get = self.at, self.o, self.at.get
        after = UDP + MRC + len(at.frame) - len(headers) - UDP - MRC  # bytes behind the IPv6 header and the SRH
        ip = bytearray(headers)
        struct.pack_into("!I", ip, ETHERNET, 6 << 28 | (o.traffic_class & ~3 | ECT_0) << 20 | ev)
        struct.pack_into("!H", ip, ETHERNET + 4, len(headers) - ETHERNET - IPV6 + after)
        udp = struct.pack("!HHHH", 0xC000 + ev, self.host.udp_port, after, 0)
        key_id = get("auths", self.peer, "tx_id")[get("auths", self.peer, "tx_slot")]
        fields = (VERSION, REPLY, o.flags, key_id, self.host.id, o.ev, o.seq, o.segments, self.peer, tx_ns, b"")
        header = HEADER.pack(*fields)[:-8]
        plane_mask, generation = get("node", (), "plane_mask"), get("node", (), "generation")
        status = get("node", (), "status") | get("auths", self.peer, "status")
        accepted = bytes(get("auths", self.peer, "rx_id")[:2])
        told = struct.pack("!HHI", plane_mask, status, generation)
        file = struct.pack("!H", self.host.fingerprint)
        body = self.body[:4] + told + self.body[12:20] + accepted + file + self.body[24:]
        tag = bytes(8)
        if key_id:
            tag = siphash24(header + body + counts, key=self.host.keys[key_id](self.host.id, self.peer)).digest()
        out = bytes(ip) + udp + header + tag + body
        rest = bytearray(at.frame[len(out) :])  # of the request: ballast, room for counts and an SRH, filler
        if counts:
            rest[BALLAST : BALLAST + len(counts)] = counts
        return out + bytes(rest)

    # ---- a reply ----

    def apply_reply(self) -> None:
        """Believes a reply to a request of this host. Raises DroppedError."""
        at, o, now = self.at, self.o, self.at.now
        begin = o.end + PROBE + BALLAST
        end = begin + COUNT * self.counts if self.counts else begin
        if self.counts > REPORT_EVS or (self.counts and len(at.frame) < end):
            raise DroppedError("bad_probe")
        if at.is_tagged(o, self.header + self.body + at.frame[begin:end], self._check_age):
            at.set("replays", *self._noted("replies", o.seq, 0))
            self._learn_clock()
        at.count_untagged(o)
        if (self.peer, o.ev) not in self.host.headers:
            raise DroppedError("bad_ev")
        ahead = (at.get("evs", (self.peer, o.ev), "probe_seq") - self.seq) % U32
        if ahead >= 65536 or (now - self.tx_ns) % U64 > 5000 * MS:
            raise DroppedError("unsolicited_reply")
        at.out.open |= JUDGED
        self._learn_status()

    def _check_age(self) -> None:
        """Raises DroppedError unless the reply answers a request of the last half second for the first time."""
        if (self.at.now - self.tx_ns) % U64 > 500 * MS:
            raise DroppedError("stale")
        if (self.at.get("auths", self.peer, "sent") - self.o.seq) % U32 >= 65536:
            raise DroppedError("unsolicited_reply")
        self._noted("replies", self.o.seq, 0)

    def _learn_clock(self) -> None:
        if (self.at.now - self.tx_ns) % U64 > 100 * MS:
            return
        clock_ns, before = (self.o.tx_ns - self.tx_ns) % U64, self.at.get("auths", self.peer, "clock_ns")
        if not before or not -10 * MS <= signed(clock_ns - before) <= 10 * MS:
            self.at.set("auths", self.peer, "clock_ns", clock_ns or 1)

    # ---- both ----

    def _noted(self, kind: str, number: int, epoch: int) -> tuple[Any, str, int]:
        """Returns index, field and value of the word that notes a number.

        Raises DroppedError if it has arrived before, or is so old that nobody knows.

        Numbers go through the words of the window, 32 in each, lap by lap. A word holds the numbers of one lap.
        """
        index = (self.peer, number // 32 % REPLAY_WORDS)
        lap, bit = number // 32 // REPLAY_WORDS, 1 << number % 32
        word = self.at.get("replays", self.peer, kind)[index[1]]
        seen, its_lap, its_epoch = word % U32, (word >> 32) % LAPS, word >> 54
        kept = 0
        if seen and its_epoch == epoch % EPOCHS:
            if lap == its_lap:
                kept = seen
            if kept & bit or 1 <= (its_lap - lap) % LAPS <= LAPS_OLD:
                raise DroppedError("replayed")
        return index, kind, epoch % EPOCHS << 54 | lap << 32 | kept | bit

    def _is_overtaken(self) -> bool:
        newest: int = self.at.get("peers", self.peer, "plane_mask_ns")
        return self.o.tx_ns < newest < self.o.tx_ns + 1000 * MS

    def _learn_status(self) -> None:
        at, peer = self.at, self.peer
        if at.is_unheard(peer) or self.status & (DETACHED | PLAIN):
            at.set("peers", peer, "plain_ns", NOW)
        at.set("peers", peer, "heard_ns", NOW)
        if self._is_overtaken():
            return
        if at.get("peers", peer, "plane_mask") != self.plane_mask:
            self._choose_usable()
        for name, value in (
            ("plane_mask_ns", self.o.tx_ns),
            ("generation", self.generation),
            ("key_ids", [*self.key_ids, 0, 0]),
            ("fingerprint", self.fingerprint),
            ("status", self.status),
            ("plane_mask", self.plane_mask),
        ):
            at.set("peers", peer, name, value)

    def _choose_usable(self) -> None:
        """Usable are the good EVs on links of both ends, and while these are too few, the best of the others."""
        at, plane_mask = self.at, self.plane_mask & self.at.get("node", (), "plane_mask")
        numbers = [n for peer, n in self.host.headers if peer == self.peer and plane_mask >> n // self.host.slots & 1]
        ranked = sorted((self._rank(n), self._place(n), n) for n in numbers)
        most = at.get("peers", self.peer, "floor") or 1
        self.usable = [n for rank, _, n in ranked if rank == 1]
        self.usable += [n for rank, _, n in ranked if 1 < rank < 5][: max(0, most - len(self.usable))]
        if not self.usable:
            self.usable = [n for rank, _, n in ranked if rank == 5][:most]
        words = [sum(1 << n % 64 for n in self.usable if n // 64 == w) for w in range(4)]
        at.set("peers", self.peer, "usable", words)
        at.set("peers", self.peer, "usable_planes", sum(1 << p for p in {n // self.host.slots for n in self.usable}))
        at.add("peers", self.peer, "usable_changes", 1)
        at.set("watches", self.peer, "due_ns", 0)

    def _place(self, n: int) -> int:
        """Returns an EV's place in the order over all planes, which begins elsewhere for each pair of hosts."""
        planes = len(self.host.planes)
        first = pair_offset(self.host.id, self.peer, planes * self.host.most_evs(self.peer))
        return (n % self.host.slots * planes + n // self.host.slots - first) % self.host.evs

    def _rank(self, n: int) -> int:
        def get(table: str, name: str) -> int:
            value: int = self.at.get(table, (self.peer, n), name)
            return value

        state = get("evs", "state")
        if state == EvState.GOOD or (state == EvState.SKIP and not get("path_stats", "lag_ns")):
            return 1
        if state != EvState.ASSUMED_BAD:
            return {EvState.UNKNOWN: 2, EvState.SKIP: 3}.get(EvState(state), 6)
        if get("evs", "reason") in (Reason.LOSS, Reason.GREY_LOSS):
            return 5 if get("path_stats", "lost_bursts") else 4
        return 4 if get("path_stats", "good") else 5


# ---- the programs ----


SINGLE, OF_BURST = b"dpop", b"epop"
"""The marks that mrc_pop_xdp leaves in front of a popped packet (bpf/deliver.h)."""
_UDT4, _UDT6 = b"\xe0\x04", b"\xe0\x06"  # functions of the kernel's SIDs


def by_tc(host: Host, frame: bytes, ifindex: int, now: int, gso_size: int = 0) -> Outcome:
    return _outcome(_pop_by_tc, Arriving(host, frame, ifindex, now, gso_size, Outcome("pass", frame)))


def by_xdp(host: Host, frame: bytes, ifindex: int, now: int) -> Outcome:
    """Returns what mrc_pop_xdp does with a frame. What passes unchanged is left to mrc_pop, which does all the work."""
    return _outcome(_pop_by_xdp, Arriving(host, frame, ifindex, now, 0, Outcome("pass", frame)))


def _outcome(act: Callable[[Arriving], None], at: Arriving) -> Outcome:
    try:
        act(at)
    except NotOursError:
        pass
    except DroppedError as reason:
        at.out.verdict, at.out.drop = "drop", str(reason)
    return at.out


def _pop_by_tc(at: Arriving) -> None:
    if at.frame[12:14] != ETH_IPV6:  # the kernel keeps a VLAN tag beside the packet
        raise NotOursError
    try:
        o = parse(at.frame, at.host.udp_port)
        plane = _plane(at, o)
    except NotOursError:
        if at.frame[20] == PROTO_ICMPV6:
            at.out.open |= JUDGED
        _guard_kernel_sids(at)
        raise
    if o.fault:
        raise DroppedError(o.fault)
    if _is_diagnostic_reply(o):
        at.out.verdict = "drop"  # the tool has read it: not counted
        return
    if _is_link_probe(at, o):
        _pop_link_probe(at, o, plane)
    _verify(at, o, plane)
    _check_lengths(at, o, is_burst=at.gso_size > 0)
    if o.type != DATA:
        _pop_probe(at, o, plane)
        return
    if at.gso_size and o.segments < 2:
        raise DroppedError("merged")
    inner = _pop_data(at, o, o.segments if at.gso_size else 1)
    if at.gso_size:  # BPF_PROG_TEST_RUN makes no complete burst: the kernel refuses to shorten it
        raise DroppedError("pop_failed")
    ethernet = at.frame[:12]
    if at.get("node", (), "overlay_ifindex"):
        at.out.verdict, ethernet = "redirect", bytes(at.get("node", (), "overlay_eth"))
        inner = with_own_lengths(inner) if o.segments > 1 else inner
    at.out.data = ethernet + eth_type_of(inner) + inner


def _pop_by_xdp(at: Arriving) -> None:
    o = parse(at.frame, at.host.udp_port)
    if o.fault:
        raise NotOursError  # mrc_pop counts it
    plane = _plane(at, o)
    if _is_diagnostic_reply(o) or _is_link_probe(at, o):
        return
    _verify(at, o, plane)
    inner = at.frame[o.end :]
    is_ack = len(inner) <= 512 and at.get("peers", o.sender, "plane_skew_ns") > 500_000  # SACK blocks may be hidden
    is_of_burst = o.segments != 1 and len(inner) <= at.host.inner_mtu and is_udp(inner)
    if o.type != DATA or is_ack or is_of_burst:
        return
    packets = o.segments if len(inner) > at.host.inner_mtu else 1  # longer than a packet: a whole burst
    _check_lengths(at, o, is_burst=packets > 1)
    mark = OF_BURST if o.segments > 1 and is_udp(inner) else SINGLE
    inner = _pop_data(at, o, packets)
    at.out.data = mark + at.frame[:12] + eth_type_of(inner) + inner


def _plane(at: Arriving, o: Outer) -> int:
    """Returns the plane whose NIC, VLAN and address a packet has. Raises NotOursError."""
    for number, plane in enumerate(at.host.planes):
        if (plane.ifindex, at.get("planes", number, "vlan")) == (at.ifindex, o.vlan):
            if o.destination in (plane.sid, plane.address):
                return number
            break
    raise NotOursError


def _is_diagnostic_reply(o: Outer) -> bool:
    return (o.version, o.type) == (VERSION, REPLY) and bool(o.flags & DIAGNOSTIC)


def _is_link_probe(at: Arriving, o: Outer) -> bool:
    return (o.version, o.type, o.sender, o.receiver) == (VERSION, REQUEST, at.host.id, at.host.id)


def _pop_link_probe(at: Arriving, o: Outer, plane: int) -> None:
    """Drops a packet that says that it is a link probe of this host: no other host knows the key."""
    if len(at.frame) < o.end + PROBE:
        raise DroppedError("truncated")
    if o.ev not in at.host.links:
        raise DroppedError("bad_ev")
    raise DroppedError("bad_tag" if o.ev % MAX_PLANES == plane else "wrong_plane")


def _verify(at: Arriving, o: Outer, plane: int) -> None:
    """Checks that a peer has sent the packet on this path; of data also tag and age. Raises DroppedError."""
    for reason, is_wrong in (
        ("bad_version", o.version != VERSION),
        ("bad_type", o.type not in (DATA, REQUEST, REPLY)),
        ("wrong_receiver", o.receiver != at.host.id),
        ("unknown_sender", o.sender not in at.host.peers),
        ("bad_ev", o.ev >= at.host.evs),
        ("wrong_plane", o.type != REPLY and o.ev // at.host.slots != plane),
    ):
        if is_wrong:
            raise DroppedError(reason)
    if o.source != at.host.peers[o.sender][plane]:
        raise DroppedError("wrong_source")
    if o.type == DATA and at.is_tagged(o, at.frame[o.end - MRC : o.end - 8]) and not at.is_new(o):
        at.request_clock(o.sender)
        raise DroppedError("stale")


def _check_lengths(at: Arriving, o: Outer, *, is_burst: bool) -> None:
    """Checks the outer lengths, but not a burst's: the kernel writes them when it cuts it. Raises DroppedError."""
    srh = o.end - o.l3 - IPV6 - UDP - MRC
    ends = o.l3 + IPV6 + o.ip_length <= len(at.frame)
    if not is_burst and not (ends and UDP + MRC <= o.udp_length == o.ip_length - srh):
        raise DroppedError("truncated")


def _pop_data(at: Arriving, o: Outer, packets: int) -> bytes:
    """Counts data that has arrived on its path, and returns the inner packet. Raises DroppedError."""
    inner, index = at.frame[o.end :], (o.sender, o.ev)
    at.count_untagged(o)
    at.add("rxs", index, "packets", packets)
    at.add("rxs", index, "bytes", len(inner))
    try:
        inner, is_marked = merged(inner, o.traffic_class & 3)
    except DroppedError as reason:
        if str(reason) == "ce_not_ect":  # the fabric has marked it all the same
            at.add("rxs", index, "ce", packets)
        raise
    at.add("rxs", index, "ce", packets * is_marked)
    at.out.is_popped = True
    if at.host.is_strict:
        source, destination = addresses(inner)
        for fault, address, owner in (
            ("wrong_inner_source", source, o.sender),
            ("wrong_inner_destination", destination, at.host.id),
        ):
            if at.host.owners.get(address) != owner:
                at.add("peers", o.sender, "refused", packets)
                raise DroppedError(fault)
    return inner


def _pop_probe(at: Arriving, o: Outer, plane: int) -> None:
    if o.udp_length < UDP + MRC + PROBE or len(at.frame) < o.end + PROBE:
        raise DroppedError("truncated")
    if o.type == REQUEST:
        Probe(at, o).answer(plane)
        return
    Probe(at, o).apply_reply()
    at.out.verdict = "drop"  # it has served: not counted


def _guard_kernel_sids(at: Arriving) -> None:
    """Lets only peers reach the kernel's SIDs, while they or this host use them. Raises DroppedError."""
    source, destination = at.frame[22:38], at.frame[38:54]
    sids = [p.sid[:6] for p in at.host.planes if not any(p.sid[6:])]
    if destination[:6] not in sids or destination[6:8] not in (_UDT4, _UDT6):
        return
    peer = int.from_bytes(source[12:], "big") - 1
    if source not in at.host.peers.get(peer, ()) or not _may_use_kernel_sids(at, peer):
        raise DroppedError("stray_srv6")


def _may_use_kernel_sids(at: Arriving, peer: int) -> bool:
    if at.get("node", (), "status") & DETACHED or at.get("peers", peer, "status") & (DETACHED | PLAIN):
        return True
    return signed(at.now - at.get("peers", peer, "plain_ns")) < 3000 * MS or at.is_unheard(peer)
