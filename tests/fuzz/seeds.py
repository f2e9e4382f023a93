# SPDX-License-Identifier: BSD-2-Clause
"""Builds the first inputs of each fuzz target from real packets, by scapy and scripts/labkit/traffic/wire.py."""

import itertools
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6TimeExceeded, IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic import wire
from labkit.traffic.wire import DIAGNOSTIC, PROBE_REPLY, MRCCount, MRCProbe, MRCReport
from tests.fuzz.tables import ENCAPSULATIONS, EVS, nic_mac, plan, wire_mac

# Bits of struct conditions (tests/fuzz/host.h).
WITH_SRH, AUTH_IS_REQUIRED, SOURCE_CHECK, OLD_KERNEL, WITH_VLAN, SACK_HIDING, MERGING = (1 << i for i in range(7))
IN_PAGES, IS_BURST, IS_ENCAPSULATED, WITHOUT_META, WITHOUT_ETHERNET, ON_PLANE_1 = (1 << i for i in range(6))
WITH_SOCKET = 0x80
DUE, CLASSES = 4, 16
VLAN = 100
FROM_MRC = 14 + 40 + 8  # offset of the MRC header, without an SRH
XDP, WRAPPED, TAGGED, TWICE = 2, 4, 8, 16  # conditions.target of pop
EV = 5
SEED = 1


def _conditions(host: int = 0, skb: int = 0, more: int = 0, target: int = 0, linear: int = 0) -> bytes:
    return struct.pack("8B", host, skb, linear, 3, 60, 3, more, target)


def _mac(octets: bytes) -> str:
    return octets.hex(":")


def _arriving(encapsulation: str, payload: Packet, ev: int = EV, vlan: int = 0, host: str = "h2", **mrc: Any) -> bytes:
    """Returns a frame of a peer to this host, as it leaves the last switch."""
    peer, receiver = plan(encapsulation, host), plan(encapsulation)
    path = next(e for p in peer.peers if p.host.id == 0 for e in p.evs if e.ev == ev)
    ends = {"smac": _mac(wire_mac(path.plane)), "dmac": _mac(nic_mac(path.plane))}
    frame = wire.outer(peer, path, payload, vlan=vlan, mrc=mrc, **ends)
    frame[IPv6].dst = str(receiver.sids[path.plane])
    if IPv6ExtHdrSegmentRouting in frame:
        frame[IPv6ExtHdrSegmentRouting].segleft = 0
    return bytes(frame)


def _inner(source: int, to: int) -> list[Packet]:
    """Returns packets between the applications of two hosts."""
    options = [("NOP", None), ("NOP", None), ("SAck", (300, 400))]
    timestamps = [("NOP", None), ("NOP", None), ("Timestamp", (1, 2)), *options]
    transports = [
        UDP(sport=1000, dport=2000) / Raw(b"x" * 60),
        TCP(sport=1, dport=2, flags="PA") / Raw(b"x" * 60),
        TCP(sport=1, dport=2, flags="A", seq=7, ack=9),
        TCP(sport=1, dport=2, flags="A", options=options),
        TCP(sport=1, dport=2, flags="A", options=timestamps),
    ]
    found = []
    for transport, tos in itertools.product(transports, (0, 2)):
        found.append(IP(src=f"10.99.0.{source + 1}", dst=f"10.99.0.{to + 1}", tos=tos) / transport)
        found.append(IPv6(src=f"fd00:99::{source + 1}", dst=f"fd00:99::{to + 1}", tc=tos) / transport)
    found.append(IP(src=f"10.99.0.{source + 1}", dst=f"10.99.0.{to + 1}", frag=100) / Raw(b"x" * 60))
    return found


def _probes() -> list[tuple[Packet, dict[str, Any]]]:
    """Returns probes and the fields of their MRC headers."""
    report = MRCReport(records=[MRCCount(packets=100, probes=50)] * EVS)
    room = MRCReport(records=[MRCCount()] * EVS)
    fields = {"seq": 51, "plane_mask": 3, "generation": 9, "report_seq": 3, "counts": EVS, "key_ids": [1, 2]}
    return [
        (MRCProbe(seq=1, plane_mask=3, generation=9, tx_ns=10**12), {}),
        (MRCProbe(seq=1, plane_mask=1, status=1, generation=9, tx_ns=10**12), {}),
        (MRCProbe(**fields) / room, {}),
        (MRCProbe(**fields) / room, {"flags": DIAGNOSTIC}),
        (MRCProbe(**{**fields, "counts": 0}), {"type": PROBE_REPLY}),
        (MRCProbe(**fields) / report, {"type": PROBE_REPLY}),
        (MRCProbe(**fields) / report, {"type": PROBE_REPLY, "flags": DIAGNOSTIC}),
    ]


def _frames(encapsulation: str, vlan: int = 0) -> Iterator[bytes]:
    """Yields frames of a peer: data and probes."""
    for packet in _inner(2, 0):
        yield _arriving(encapsulation, packet, vlan=vlan)
    yield _arriving(encapsulation, _inner(2, 0)[0], vlan=vlan, segments=3)
    for probe, fields in _probes():
        yield _arriving(encapsulation, Raw(bytes(probe)), vlan=vlan, **{"type": 2, **fields})


def outer() -> Iterator[bytes]:
    """Yields inputs of outer."""
    for encapsulation, vlan in itertools.product(ENCAPSULATIONS, (0, VLAN)):
        for frame in _frames(encapsulation, vlan):
            yield _conditions() + frame


def pop() -> Iterator[bytes]:
    """Yields inputs of pop."""
    chance = random.Random(SEED)
    for number, encapsulation in enumerate(ENCAPSULATIONS):
        for vlan, xdp in itertools.product((0, VLAN), (0, XDP)):
            for frame in _frames(encapsulation, vlan):
                host = number * WITH_SRH | (WITH_VLAN if vlan else 0)
                host |= chance.choice([0, SOURCE_CHECK, OLD_KERNEL, SACK_HIDING, MERGING, SACK_HIDING | SOURCE_CHECK])
                skb = ON_PLANE_1 | chance.choice([0, 0, IN_PAGES, IS_BURST, IS_ENCAPSULATED, WITHOUT_ETHERNET])
                more, target = chance.choice([0, DUE]), xdp | chance.choice([0, TWICE])
                yield _conditions(host, skb, more, target, linear=chance.randrange(14, 200)) + frame
    for frame in _frames("usid"):  # from the MRC header on
        for host, tagged in ((0, 0), (AUTH_IS_REQUIRED, TAGGED), (AUTH_IS_REQUIRED, 0)):
            yield _conditions(host, ON_PLANE_1, target=WRAPPED | tagged | chance.choice([0, XDP])) + frame[FROM_MRC:]


def push() -> Iterator[bytes]:
    """Yields inputs of push."""
    chance = random.Random(SEED)
    for packet, more in itertools.product([*_inner(0, 2), *_inner(0, 1)], (0, DUE, DUE | CLASSES)):
        frame = bytes(Ether(src=_mac(nic_mac(0)), dst=_mac(wire_mac(0))) / packet)
        host = chance.choice([0, WITH_SRH, SOURCE_CHECK, OLD_KERNEL, WITH_VLAN, AUTH_IS_REQUIRED])
        skb = chance.choice([0, WITH_SOCKET, IS_BURST, IS_ENCAPSULATED, IS_BURST | IS_ENCAPSULATED, IN_PAGES])
        yield _conditions(host, skb, more, linear=60, target=chance.randrange(4)) + frame


def icmp() -> Iterator[bytes]:
    """Yields inputs of icmp: ICMPv6 errors, from their ICMPv6 header on."""
    for number, encapsulation in enumerate(ENCAPSULATIONS):
        own = plan(encapsulation)
        path = next(e for p in own.peers if p.host.id == 2 for e in p.evs if e.ev == EV)
        for payload, kind in itertools.product(
            (_inner(0, 2)[0], MRCProbe(seq=50)), (ICMPv6DestUnreach(code=0, cksum=0), ICMPv6TimeExceeded(cksum=0))
        ):
            seq = 50 if isinstance(payload, MRCProbe) else 99
            ends: dict[str, Any] = {"smac": _mac(nic_mac(1)), "dmac": _mac(wire_mac(1))}
            sent = wire.outer(own, path, payload, mrc={"seq": seq, "tx_ns": 10**12}, **ends)
            for auth, target in itertools.product((0, AUTH_IS_REQUIRED), (0, 1, 3)):
                head = _conditions(number * WITH_SRH | auth, ON_PLANE_1, target=target)
                yield head + bytes(kind) + bytes(sent[IPv6])


def probes() -> Iterator[bytes]:
    """Yields inputs of probes: records of actions, time, traffic and length, and from the MRC header on."""
    chance = random.Random(SEED)
    contents = []
    for key_id, (probe, fields) in itertools.product((0, 1), _probes()):
        frame = _arriving("usid", Raw(bytes(probe)), **{"type": 2, "key_id": key_id, **fields})
        contents.append(frame[FROM_MRC:])
    for first, auth in itertools.product(contents, (0, AUTH_IS_REQUIRED)):
        for actions in (0x02, 0x03, 0x05, 0x06, 0x0F, 0x1B, 0x25, 0x7B):
            records = b""
            for content in [first, *chance.choices(contents, k=4)]:
                records += bytes([actions, chance.randrange(8), chance.randrange(256), len(content)]) + content
            yield _conditions(auth | chance.choice([0, WITH_SRH]), more=chance.choice([0, 64])) + records


def copies() -> Iterator[bytes]:
    """Yields inputs of copies: a first number, then steps."""
    chance = random.Random(SEED)
    for first in (0, 1, 2**32 - 5000, 2**31):
        steps = bytes(chance.choice([0, 0, 1, 40, 128, 140, 255, chance.randrange(256)]) for _ in range(60))
        yield _conditions() + first.to_bytes(4, "little") + steps


SEEDS = {"outer": outer, "probes": probes, "icmp": icmp, "push": push, "pop": pop, "copies": copies}


def write(target: str, directory: Path) -> None:
    """Writes the first inputs of a target, one file each."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(SEEDS[target]()):
        (directory / f"seed-{number:03}").write_bytes(content)
