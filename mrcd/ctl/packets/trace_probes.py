# SPDX-License-Identifier: BSD-2-Clause
"""Plans the packets of `mrcctl trace`: loopback probes for the hops of a path, and cross-checks. Pure.

A switch forwards to the next uSID of the carrier, which may name the host that sent it. So the carrier T0 · own host
comes back from the T0, T0 · T1 · T0 · own host from the T1, and so on. No switch CPU takes part: the loss and the round
trip of a loopback probe are those of the switches' data planes. The far host is a hop of its own; it answers a probe
request.

Loopback probes that go out through one T1 and return through another distinguish the two directions of a link, and a
switch from its links: each passes a known set of links and switches (locate.py).
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network

from mrcd.errors import UsageError
from mrcd.fabric.srv6 import Hop
from mrcd.fabric.topology import carrier

PER_CARRIER = 6  # uSIDs


@dataclass(frozen=True)
class Node:
    """A node of a path. `usid` is None for the far host, which no loopback probe passes."""

    name: str
    target: str  # as `mrcctl deny` takes it
    usid: int | None = None


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


def segments(block: IPv6Network, usids: Sequence[int], *, one_each: bool) -> tuple[IPv6Address, ...]:
    """Return the fewest carriers for the uSIDs; with `one_each` a segment per uSID, for switches without carriers."""
    size = 1 if one_each else PER_CARRIER
    return tuple(carrier(block, list(usids[i : i + size])) for i in range(0, len(usids), size))


def switch(hop: Hop) -> Node:
    """Return the node of a T0 or a T1."""
    return Node(f"{hop.kind.upper()} {hop.number}", f"{hop.kind}:{hop.plane}:{hop.number}", hop.usid)


def path_nodes(hops: Sequence[Hop], me: str, own_usid: int, peer: str) -> list[Node]:
    """Return the nodes of a path, from this host to the peer. Raises UsageError unless it is T0 [· T1 · T0] · host."""
    if [h.kind for h in hops] not in (["t0", "host"], ["t0", "t1", "t0", "host"]):
        raise UsageError(
            "trace supports paths of the form T0 · T1 · T0 · host only, and this path is "
            + (" · ".join(str(h.destination) if h.usid is None else f"{h.usid:04x}" for h in hops) or "no uSIDs"),
            hint="`mrcctl probe` measures any path as a whole",
        )
    plane = hops[0].plane
    own, far = Node(me, f"nic:{me}:{plane}", own_usid), Node(peer, f"nic:{peer}:{plane}")
    return [own, *map(switch, hops[:-1]), far]


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
