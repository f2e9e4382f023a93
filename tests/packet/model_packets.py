# SPDX-License-Identifier: BSD-2-Clause
"""Generates packets for the model: those that peers send, and random changes in them before and after the tag.

A value that most packets have is in a list several times, so that most packets get far. Packets are described relative
to the host's time and tables, because only then is their age known: `encoded` makes the bytes.
"""

import random
import struct
from dataclasses import dataclass, replace

from siphash24 import siphash24

from mrcd.kernel.abi import BALLAST
from tests.packet.model_host import (
    COUNT,
    DATA,
    ETH_IPV6,
    ETH_VLAN,
    HEADER,
    IPV6,
    MRC,
    MS,
    PROBE,
    PROBE_FORMAT,
    PROTO_ICMPV6,
    PROTO_ROUTING,
    PROTO_UDP,
    REPLY,
    REQUEST,
    U32,
    U64,
    UDP,
    Host,
    version,
)
from tests.packet.packets import ALL_PLANES, EVS, H0, H1, H2, H5, PLANES

GENERATION = 7  # of the peers' tables
_HOP_BY_HOP, _FRAGMENT, _TCP = 0, 44, 6


@dataclass(frozen=True)
class Situation:
    """The part of the host's state that differs from example to example."""

    delivers: bool  # there is an overlay interface
    is_detached: bool
    generation: int
    vlans: tuple[int, ...]  # of the planes
    skew_ns: int  # between the planes to each peer


def situation(chance: random.Random) -> Situation:
    return Situation(
        delivers=chance.choice([True, False]),
        is_detached=chance.choice([False, False, False, True]),
        generation=chance.choice([1, 1, 1, 1, 0]),
        vlans=chance.choice([(0,) * PLANES, (0, 100, 0, 0), (100, 0, 101, 0)]),
        skew_ns=chance.choice([0, 0, 0, 600_000]),
    )


@dataclass(frozen=True)
class Inner:
    """An inner packet; hosts beyond the cluster's have addresses that belong to nobody."""

    version: int
    source: int
    target: int
    ecn: int
    protocol: int
    payload: int  # bytes
    kind: str  # "mapped": the IPv6 addresses are IPv4-mapped; "burst": the lengths are those of a longer packet
    bytes_kept: int

    def encoded(self) -> bytes:
        total = self.payload + 8
        stated = total + 3000 if self.kind == "burst" else total
        ends = (self.source + 1, self.target + 1)
        body = struct.pack("!HHHH", 1000, 2000, stated, 0) + bytes(self.payload)
        if self.version == 4:
            source, target = (bytes([10, 99, 0, n]) for n in ends)
            head = struct.pack("!BBHIBBH", 0x45, 0x28 | self.ecn, 20 + stated, 7 << 16, 63, self.protocol, 0x1234)
        else:
            prefix = bytes(10) + b"\xff\xff\x0a\x63\x00" if self.kind == "mapped" else b"\xfd\x00\x00\x99" + bytes(11)
            source, target = (prefix + bytes([n]) for n in ends)
            head = struct.pack("!IHBB", 6 << 28 | (0x28 | self.ecn) << 20 | 0x12345, stated, self.protocol, 63)
        return (head + source + target + body)[: self.bytes_kept]


@dataclass(frozen=True)
class Packet:
    """A packet of a peer; the fields that are most often right come first."""

    host: int
    ev: int
    type: int
    inner: Inner
    tag: str
    age_ms: int
    ecn: int
    segments: int
    seq: int
    flags: int
    probe: tuple[int, ...]  # seq, plane mask, status, generation, first, counts
    round_trip_ms: int
    room: int  # bytes behind a probe
    to: str  # "sid", "address" of the plane; "other" plane's; "kernel" SID
    shape: str
    gso_size: int
    lengths: int  # error of both lengths
    header: tuple[int, int]  # (offset, XOR) of a byte of the MRC header, before the tag
    mutations: tuple[tuple[str, int, int], ...]  # after the tag


def packet(chance: random.Random) -> Packet:
    """Returns the next random packet."""
    choose = chance.choice
    inner = Inner(
        version=choose([4, 6]),
        source=choose([-1] * 9 + [H0, H1, H2, H5, 8]),  # -1: the sender
        target=choose([H0] * 6 + [H2, 8]),
        ecn=chance.randrange(4),
        protocol=choose([PROTO_UDP, PROTO_UDP, _TCP, 50]),
        payload=choose([0, 1, 40, 100, 470, 600, 1200, 1800]),
        kind=choose(["", "", "", "mapped", "burst"]),
        bytes_kept=choose([2000] * 12 + [0, 1, 19, 20, 23, 27, 39, 40, 45]),
    )
    probe = (
        chance.randint(0, 12),
        choose([ALL_PLANES, ALL_PLANES, 0xFFFF, 0b0101, 0]),
        choose([0, 0, 0, 1, 2, 4]),
        choose([GENERATION] * 6 + [GENERATION + 1]),
        choose([0, 0, 3, EVS - 1, EVS, 65535]),
        choose([0, 0, 1, 4, EVS, EVS + 1, 128, 129, 65535]),
    )
    header = (chance.randrange(24), chance.randint(1, 255)) if chance.random() < 0.08 else (0, 0)
    mutations = tuple(_mutation(chance) for _ in range(choose([0] * 8 + [1, 2])))
    far_seq = choose([2048, 2049, 4096, 65000, 262_144, 262_200, 270_336, U32 - 1])
    return Packet(
        host=choose([H2, H2, H1, H5]),
        ev=chance.randrange(EVS),
        type=choose([DATA, DATA, DATA, REQUEST, REQUEST, REPLY]),
        inner=inner,
        tag=choose(["right"] * 6 + ["new key", "none", "none", "wrong", "another pair's", "unknown key"]),
        age_ms=choose([0] * 9 + [1, 300, -50, 700, 3_600_000, -300]),
        ecn=chance.randrange(4),
        segments=choose([1] * 6 + [0, 2, 3, 65535]),
        seq=choose([chance.randint(0, 40), far_seq]),
        flags=choose([0] * 6 + [1, 2]),
        probe=probe,
        round_trip_ms=choose([0, 0, 0, 0, 50, 200, 700, 6000, -10]),
        room=choose([0, 63, 64, 192, 300, 1200]),
        to=choose(["sid"] * 20 + ["address", "address", "other", "kernel", "kernel"]),
        shape=choose(_SHAPES),
        gso_size=choose([0] * 9 + [1000]),
        lengths=choose([0] * 12 + [1, -1, -40, 3000]),
        header=header,
        mutations=mutations,
    )


_SHAPES = [*[""] * 20, *["srh"] * 3, "left", "hop-by-hop", "fragment", "vlan", "vlan", "qinq", "icmp", "nested"]


def _mutation(chance: random.Random) -> tuple[str, int, int]:
    return chance.choice(
        [
            ("flip", chance.randint(0, 110), chance.randrange(8)),
            ("flip", chance.randint(0, 400), chance.randrange(8)),
            ("write", chance.randint(12, 130), chance.randrange(256)),
            ("cut", chance.randint(0, 200), 0),
            ("pad", chance.randint(1, 60), chance.randrange(256)),
        ]
    )


def encoded(p: Packet, host: Host, now: int, vlan: int, kinds: tuple[int, int]) -> bytes:
    plane = p.ev // host.slots
    clock_ns = host.tables["auths"]["clock_ns"][p.host].item()
    tx_ns = (now + clock_ns - p.age_ms * MS) % U64
    key_id = {"new key": kinds[1], "none": 0, "unknown key": 99}.get(p.tag, kinds[0])
    body = _inner(p, host, plane) if p.type == DATA else _probe(p, now, tx_ns)
    fields = (version(p.type), p.type, p.flags, key_id, p.host, p.ev, p.seq, p.segments, host.id, tx_ns, bytes(8))
    header = bytearray(HEADER.pack(*fields))
    header[p.header[0]] ^= p.header[1]
    if key_id in host.keys:
        message = bytes(header[:24]) + (body[:PROBE] if p.type != DATA else b"")
        if p.type == REPLY:
            begin = PROBE + BALLAST
            message += body[begin : begin + COUNT * p.probe[5]]
        sender = H1 if p.tag == "another pair's" and p.host != H1 else p.host
        key = host.keys[key_id](sender, H5 if sender != p.host else host.id)
        header[24:] = siphash24(message, key=key).digest()
    if p.tag == "wrong":
        header[31] ^= 1
    return _mutated(_framed(p, host, plane, vlan, bytes(header) + body), p.mutations)


def _inner(p: Packet, host: Host, plane: int) -> bytes:
    if p.shape == "nested":  # a packet of mrcd inside, which must not be popped as well
        head = struct.pack("!IHBB", 6 << 28, UDP + MRC, PROTO_UDP, 64) + host.peers[p.host][plane]
        udp = struct.pack("!HHHH", 0xC000, host.udp_port, UDP + MRC, 0)
        return head + host.planes[plane].sid + udp + HEADER.pack(2, 1, 0, 0, p.host, p.ev, 0, 1, host.id, 0, b"")
    inner = p.inner
    if inner.source < 0:
        inner = replace(inner, source=p.host)
    return inner.encoded()


def _probe(p: Packet, now: int, tx_ns: int) -> bytes:
    seq, plane_mask, status, generation, first, counts = p.probe
    request_ns = (now - p.round_trip_ms * MS) % U64 if p.type == REPLY else tx_ns
    probe = PROBE_FORMAT.pack(seq, plane_mask, status, generation, 1, first, counts, b"\x07\x08", 0xABCD, request_ns)
    return probe + bytes(i & 0xFF for i in range(p.room))


def _framed(p: Packet, host: Host, plane: int, vlan: int, payload: bytes) -> bytes:
    """Returns a frame with outer headers around what follows UDP."""
    source = host.peers[p.host][plane]
    here, other = host.planes[plane], host.planes[(plane + 1) % len(host.planes)]
    destination = {"sid": here.sid, "address": here.address, "other": other.sid}.get(p.to, b"")
    if p.to == "kernel":
        destination = here.sid[:6] + (b"\xe0\x04" if p.seq % 2 else b"\xe0\x06") + here.sid[8:]
    size = (len(payload) + UDP + p.lengths) % 0x10000
    udp = struct.pack("!HHHH", 0xC000 + p.ev, host.udp_port, size, 0)
    extension, protocol = b"", PROTO_UDP
    if p.shape in ("srh", "left"):
        protocol, segments = PROTO_ROUTING, p.seq % 7
        left = segments if p.shape == "left" else 0
        extension = struct.pack("!BBBBBBH", PROTO_UDP, 2 * segments, 4, left, max(segments - 1, 0), 0, 0)
        extension += bytes(16 * segments)
    elif p.shape in ("hop-by-hop", "fragment"):
        protocol = _HOP_BY_HOP if p.shape == "hop-by-hop" else _FRAGMENT
        extension = struct.pack("!BBHI", PROTO_UDP, 0, 0x0104, 0)
    elif p.shape == "icmp":
        protocol, extension = PROTO_ICMPV6, _icmp(p, host, plane)
    length = (len(extension) + size) % 0x10000
    word = 6 << 28 | (0x28 | p.ecn) << 20 | p.ev
    ip = struct.pack("!IHBB", word, length, protocol, 61) + source + destination
    tags = b"".join(ETH_VLAN + struct.pack("!H", n) for n in _vlans(p, vlan))
    return bytes(range(12)) + tags + ETH_IPV6 + ip + extension + udp + payload


def _vlans(p: Packet, vlan: int) -> list[int]:
    if p.shape == "vlan":
        return [0x2000 | 100]
    return [100, vlan] if p.shape == "qinq" else [vlan] * bool(vlan)


def _icmp(p: Packet, host: Host, plane: int) -> bytes:
    """Returns an ICMPv6 error that quotes a packet of this host; what follows is the rest of the quotation."""
    quoted = HEADER.pack(version(DATA), DATA, 0, 0, host.id, p.ev, 0, 1, p.host, 0, b"")
    udp = struct.pack("!HHHH", 0xC000 + p.ev, host.udp_port, UDP + MRC, 0)
    ip = struct.pack("!IHBB", 6 << 28, UDP + MRC, PROTO_UDP, 60) + host.planes[plane].address + bytes(16)
    assert len(ip) == IPV6
    return bytes([1 + p.seq % 3, 0, 0, 0, 0, 0, 0, 0]) + ip + udp + quoted


def _mutated(frame: bytes, mutations: tuple[tuple[str, int, int], ...]) -> bytes:
    out = bytearray(frame)
    for kind, at, value in mutations:
        if kind == "cut":
            del out[max(14, len(out) - at) :]
        elif kind == "pad":
            out += bytes([value]) * at
        elif at < len(out):
            out[at] = out[at] ^ 1 << value if kind == "flip" else value
    return bytes(out)
