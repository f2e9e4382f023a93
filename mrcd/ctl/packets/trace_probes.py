# SPDX-License-Identifier: BSD-2-Clause
"""Plans the packets of `mrcctl trace`: loopback probes for the hops of a path, and cross-checks. Pure.

A switch forwards to the next uSID of the carrier, which may name the host that sent it. So the carrier T0 · own host
comes back from the T0, T0 · T1 · T0 · own host from the T1, and so on. No switch CPU takes part: the loss and the round
trip of a loopback probe are those of the switches' data planes. The far host is a hop of its own; it answers a probe
request.

Loopback probes that go out through one T1 and return through another distinguish the two directions of a link, and a
switch from its links: each passes a known set of links and switches (diagnosis.py).
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network

from mrcd.errors import UsageError
from mrcd.fabric.topology import carrier

PER_CARRIER = 6  # uSIDs
T0, T1, HOST, _LOCAL = 1, 2, 3, 7  # the first bits of a uSID (mrcd/fabric/topology.py)


@dataclass(frozen=True)
class Node:
    """A node of a path. `usid` is None for the far host, which no loopback probe passes."""

    name: str
    usid: int | None


@dataclass(frozen=True)
class TraceProbe:
    """One kind of packet: its nodes in travel order, from this host on."""

    name: str
    is_hop: bool  # it measures a hop of the path; else it is a cross-check
    nodes: tuple[Node, ...]
    is_answered: bool = False  # the far host answers it, on an EV of its own choice; else it is a loopback probe

    @property
    def usids(self) -> list[int]:
        """The uSIDs of the carrier."""
        return [n.usid for n in self.nodes[1:] if n.usid is not None]

    @property
    def passes(self) -> Counter[str]:
        """How often the packet passes each link direction, and each node that forwards or answers it."""
        nodes = self.nodes
        parts = [link(a, b) for a, b in itertools.pairwise(nodes)] + [n.name for n in nodes[1:-1]]
        if self.is_answered:
            parts += [nodes[-1].name, link(nodes[-1], nodes[-2]), link(nodes[1], nodes[0])]
        return Counter(parts)


def link(a: Node, b: Node) -> str:
    """Return the name of a link in one direction."""
    return f"{a.name} → {b.name}"


def usids_of(segments: Sequence[IPv6Address], block_bits: int = 32) -> list[int]:
    """Return the uSIDs of a path's segments in travel order."""
    found = []
    for s in segments:
        rest = int(s) & ((1 << (128 - block_bits)) - 1)
        for shift in range(128 - block_bits - 16, -1, -16):
            usid = rest >> shift & 0xFFFF
            if not usid:
                break
            found.append(usid)
    return found


def kind(usid: int) -> int:
    """Return the kind of a uSID by its first bits: 1 T0, 2 T1, 3 host, 7 a function of the node itself."""
    return _LOCAL if usid >> 13 == _LOCAL else usid >> 14


def segments(block: IPv6Network, usids: Sequence[int], *, one_each: bool) -> tuple[IPv6Address, ...]:
    """Return the fewest carriers for the uSIDs; with `one_each` a segment per uSID, for switches without carriers."""
    size = 1 if one_each else PER_CARRIER
    return tuple(carrier(block, list(usids[i : i + size])) for i in range(0, len(usids), size))


def path_nodes(usids: Sequence[int], me: str, own_usid: int, peer: str) -> list[Node]:
    """Return the nodes of a path, from this host to the peer. Raises UsageError unless it is T0 [· T1 · T0] · host."""
    kinds = [kind(u) for u in usids]
    if kinds not in ([T0, HOST], [T0, T1, T0, HOST]):
        raise UsageError(
            "trace supports paths of the form T0 · T1 · T0 · host only, and this path is "
            + (" · ".join(f"{u:04x}" for u in usids) or "no uSIDs"),
            hint="`mrcctl probe` measures any path as a whole",
        )
    names = [f"{'T0' if k == T0 else 'T1'} {u & 0x7FF}" for k, u in zip(kinds, usids, strict=True)][:-1]
    switches = [Node(n, u) for n, u in zip(names, usids, strict=False)]
    return [Node(me, own_usid), *switches, Node(peer, None)]


def plan(path: Sequence[Node], witness: Node | None) -> list[TraceProbe]:
    """Return the probes for a path: its hops in order, then the cross-checks through the T1 `witness`, if any."""
    me, t0, *others = path
    hops = [TraceProbe(t0.name, True, (me, t0, me))]
    if len(others) == 1:
        return [*hops, TraceProbe(others[0].name, True, (me, t0, others[0]), is_answered=True)]
    t1, far, peer = others
    hops.append(TraceProbe(t1.name, True, (me, t0, t1, t0, me)))
    hops.append(TraceProbe(_distinct(far, t0), True, (me, t0, t1, far, t1, t0, me)))
    hops.append(TraceProbe(peer.name, True, (me, t0, t1, far, peer), is_answered=True))
    if witness is None:
        return hops
    w = witness
    checks = [
        (f"out by {t1.name}, back by {w.name}", (me, t0, t1, far, w, t0, me)),
        (f"out by {w.name}, back by {t1.name}", (me, t0, w, far, t1, t0, me)),
        (f"by {w.name} to {_distinct(far, t0)}, to {t1.name} and back", (me, t0, w, far, t1, far, w, t0, me)),
        (f"out and back by {w.name}", (me, t0, w, far, w, t0, me)),
    ]
    found = [TraceProbe(name, False, nodes) for name, nodes in checks]
    return [*hops, *found, TraceProbe(f"{peer.name} by {w.name}", False, (me, t0, w, far, peer), is_answered=True)]


def _distinct(node: Node, other: Node) -> str:
    return node.name if node.name != other.name else f"{node.name} (far)"
