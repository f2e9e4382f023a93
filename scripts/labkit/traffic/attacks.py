# SPDX-License-Identifier: BSD-2-Clause
"""Builds the packets of attackers in the fabric: forged ones, and recorded ones.

The victims are a flow's two ends. The attackers are the hosts beside them: each can send to the other victim along the
same switches. The outer source of a forged packet is a victim's address, unless the attacker shows its own. The lab's
T0s must not filter sources (`source_filters`).
"""

import contextlib
import itertools
import secrets
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scapy.layers.inet import IP
from scapy.layers.inet import UDP as InnerUDP
from scapy.layers.inet6 import ICMPv6DestUnreach, IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.traffic import wire
from labkit.traffic.wire import MRC, PROBE_REPLY, PROBE_REQUEST, MRCProbe
from mrcd.fabric import srv6, topology
from mrcd.fabric.topology import EV, Plan
from mrcd.kernel.pinned import Tables
from mrcd.net.routes import with_function

PORT = 5999  # UDP port of both ends on which nothing genuine arrives during an attack
_ETH_P_ALL = 3
_OUTGOING = 4  # socket.PACKET_OUTGOING
_RECORDED_MOST = 4000  # frames
_TAP_BYTES = 32 << 20  # the flow's bursts pass through the tap, too
_SO_NO_CHECK, _SO_RCVBUFFORCE = 11, 33
_PLANE = 0
_CRITICAL_NUMBERS, _CRITICAL_STEP = 400, 64  # together more than the flow sends in one attack


@dataclass(frozen=True)
class Attack:
    """Frames that one host sends on its first plane. `works_when_off`: it does harm without authentication."""

    name: str
    attacker: str
    frames: tuple[bytes, ...]
    works_when_off: bool


@dataclass(frozen=True)
class Side:
    """One direction of the flow: its sender, its receiver, and the attacker beside the sender."""

    lab: Lab
    sender: str
    receiver: str
    attacker: str

    def plan(self, host: str) -> Plan:
        """Returns the plan of a host."""
        return topology.plan(self.lab.fabric.config, host)

    def paths(self) -> list[EV]:
        """Returns the sender's EVs to the receiver on the attacker's plane."""
        peer = next(p for p in self.plan(self.sender).peers if p.host.name == self.receiver)
        return [ev for ev in peer.evs if ev.plane == _PLANE]

    def ends(self) -> tuple[str, str]:
        """Returns the MAC addresses of the attacker's NIC and of its T0."""
        fabric = self.lab.fabric
        link = next(k for k in fabric.links if k.lower.node == self.attacker and k.plane == _PLANE)
        lower, upper = (
            next(p.mac for p in fabric.nodes[end.node].ports if p.name == end.port) for end in (link.lower, link.upper)
        )
        return lower, upper

    def forged(self, path: EV, content: Packet, **mrc: Any) -> bytes:
        """Returns a packet that claims to be the sender's."""
        smac, dmac = self.ends()
        return bytes(wire.outer(self.plan(self.sender), path, content, smac=smac, dmac=dmac, mrc=mrc))


def _probe(**fields: object) -> Packet:
    return Raw(
        bytes(MRCProbe(**{"seq": 1 << 20, "plane_mask": 0, "status": 1, "tx_ns": time.monotonic_ns(), **fields}))
    )


def _inner(side: Side) -> Packet:
    source, target = map(side.lab.fabric.address, (side.sender, side.receiver))
    return IP(src=source, dst=target) / InnerUDP(sport=PORT, dport=PORT) / Raw(b"forged" * 20)


def forged(side: Side, recorded: Sequence[bytes]) -> list[Attack]:
    """Returns the forgeries of one direction. `recorded`: packets of the sender, for their numbers and times."""
    soon = time.monotonic_ns() + 10**9
    last, tag = _last_data(recorded), _wrong_tag(recorded)
    data = tuple(side.forged(p, _inner(side), tx_ns=soon, **tag) for p in side.paths())
    found = [Attack("forged data", side.attacker, data, True)]
    for name, kind in (("forged request", PROBE_REQUEST), ("forged reply", PROBE_REPLY)):
        frames = tuple(side.forged(p, _probe(), type=kind, tx_ns=soon, **tag) for p in side.paths())
        found.append(Attack(name, side.attacker, frames, kind == PROBE_REQUEST))
    own = tuple(_from_attacker(side, frame) for frame in found[1].frames)
    found.append(Attack("request from another address", side.attacker, own, False))
    found.append(Attack("plain SRv6", side.attacker, tuple(_plain(side)), False))
    if last is not None:
        found.append(Attack("forged ICMPv6 error", side.attacker, tuple(_errors(side, last)), False))
    return found


def critical(side: Side, recorded: Sequence[bytes]) -> Attack:
    """Returns packets with some of the sender's next critical numbers: delivered first, they would eliminate those."""
    number, soon = critical_sent(side) + 1, time.monotonic_ns() + 10**9
    with contextlib.closing(Tables(observe.pins(side.lab, side.sender), writable=False)) as tables:
        number += int(tables.node["generation"])
    frames = []
    for n, path in zip(range(_CRITICAL_NUMBERS), itertools.cycle(side.paths()), strict=False):
        mrc = {"flags": wire.CRITICAL, "seq": (number + n * _CRITICAL_STEP) % 2**32, "tx_ns": soon}
        frames.append(side.forged(path, _inner(side), **mrc, **_wrong_tag(recorded)))
    return Attack("forged critical data", side.attacker, tuple(frames), True)


def _wrong_tag(recorded: Sequence[bytes]) -> dict[str, int]:
    """Returns the fields of a tag by the sender's key, with a random value."""
    last = _last_data(recorded)
    return {"key_id": last[MRC].key_id, "auth": secrets.randbits(64)} if last is not None else {}


def critical_sent(side: Side) -> int:
    """Returns how many critical packets the sender has sent twice."""
    return _copies(side.lab, side.sender, side.receiver, "sent")


def critical_delivered(side: Side) -> int:
    """Returns how many critical packets of the sender the receiver has delivered."""
    return _copies(side.lab, side.receiver, side.sender, "delivered")


def _copies(lab: Lab, host: str, peer: str, name: str) -> int:
    with contextlib.closing(Tables(observe.pins(lab, host), writable=False)) as tables:
        return int(tables.copies[name][lab.fabric.config.host(peer).id])


def _from_attacker(side: Side, frame: bytes) -> bytes:
    packet = Ether(frame)
    packet[IPv6].src = str(side.plan(side.attacker).addresses[_PLANE])
    return bytes(packet)


def _plain(side: Side) -> list[bytes]:
    """Returns SRv6 packets without MRC headers, for the SID at which the receiver's kernel decapsulates IPv4."""
    (smac, dmac), source = side.ends(), str(side.plan(side.sender).addresses[_PLANE])
    sids = [with_function(path.segments[-1], srv6.UDT4) for path in side.paths() if len(path.segments) == 1]
    return [bytes(Ether(src=smac, dst=dmac) / IPv6(src=source, dst=str(sid)) / _inner(side)) for sid in sids if sid]


def _errors(side: Side, quoted: Packet) -> list[bytes]:
    """Returns errors to the sender of a recorded packet that quote it with another number and without its tag."""
    smac, dmac = side.ends()
    frames = []
    for step in range(1, 65):
        packet = quoted.copy()
        packet[MRC].seq += step
        packet[MRC].tx_ns += step * 1000
        packet[MRC].auth ^= step
        error = IPv6(src="fd10:ffff::1", dst=packet[IPv6].src) / ICMPv6DestUnreach(code=0)
        frames.append(bytes(Ether(src=smac, dst=dmac) / error / Raw(bytes(packet[IPv6])[:200])))
    return frames


def _last_data(recorded: Sequence[bytes]) -> Packet | None:
    for frame in reversed(recorded):
        packet = Ether(frame)
        if MRC in packet and packet[MRC].type == wire.DATA:
            return packet
    return None


def record(side: Side, seconds: float, meanwhile: Callable[[float], None]) -> list[bytes]:
    """Returns packets that the sender sends on the plane within this time. `meanwhile` gets times to spend.

    Datagrams to PORT are among them, to which no socket listens yet: if one arrives later, it arrived by a replay.
    """
    with side.lab.inside(side.sender):
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # A NIC would write the checksum later than the tap sees the packet.
        datagrams.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _TAP_BYTES)
        tap.bind((side.lab.fabric.nodes[side.sender].ports[_PLANE].name, _ETH_P_ALL))
    found: list[bytes] = []
    end = time.monotonic() + seconds
    with tap, datagrams:
        while time.monotonic() < end:
            datagrams.sendto(b"recorded" * 20, (side.lab.fabric.address(side.receiver), PORT))
            meanwhile(0.001)
            while select.select([tap], [], [], 0)[0]:
                frame, address = tap.recvfrom(1 << 16)
                if address[2] == _OUTGOING and len(frame) < 2000 and len(found) < _RECORDED_MOST:
                    found.append(frame)
    return found


def replayed(side: Side, recorded: Sequence[bytes]) -> Attack:
    """Returns the recorded packets as the attacker sends them."""
    smac, dmac = (bytes.fromhex(mac.replace(":", "")) for mac in side.ends())
    return Attack("replay", side.attacker, tuple(dmac + smac + frame[12:] for frame in recorded), True)


def read_drops(lab: Lab, host: str) -> dict[str, int]:
    """Returns reason → packets dropped since the data plane was attached."""
    with contextlib.closing(Tables(observe.pins(lab, host), writable=False)) as tables:
        return tables.drops()


def grown_drops(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Returns reason → packets dropped between two readings, without zeros."""
    return {reason: n - before.get(reason, 0) for reason, n in after.items() if n > before.get(reason, 0)}
