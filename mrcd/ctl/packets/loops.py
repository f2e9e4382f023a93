"""Packets that turn round at a switch and come back by themselves, and what their loss says. Pure.

A switch forwards by the next uSID of the carrier, whichever it is: a carrier T0 · own host comes straight back
from the T0, T0 · T1 · T0 · own host from the T1, and so on. No switch's CPU takes part, so what comes back is the
data plane's own word, and its round trip too. The far host is a hop of its own: there a probe request is answered.

Loops that leave by one T1 and come back by another tell the directions of a link from each other, and a switch from
its links: every packet passes a known set of links and switches, so a single fault shows itself as one pattern of
lost and returned packets. Faults with the same pattern cannot be told apart, and are named together.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network

from mrcd.errors import UsageError
from mrcd.fabric.topology import carrier

PER_CARRIER = 6  # uSIDs
_T0, _T1, _HOST, _LOCAL = 1, 2, 3, 7  # the first bits of a uSID (mrcd/topology.py)


@dataclass(frozen=True)
class Node:
    """A place on a path. `usid` is None for the far host, which is not turned round at."""

    name: str
    usid: int | None


@dataclass(frozen=True)
class Turn:
    """One kind of packet: the nodes in travel order, from this host on."""

    name: str
    hop: bool  # a hop of the path; else a cross-check
    nodes: tuple[Node, ...]
    answered: bool = False  # by the far host, by a T1 of its own choice; else it comes back by itself

    @property
    def usids(self) -> list[int]:
        """What the carrier holds."""
        return [n.usid for n in self.nodes[1:] if n.usid is not None]

    @property
    def passes(self) -> Counter[str]:
        """Links, each in its direction, and nodes that forward or answer it: how often."""
        nodes = self.nodes
        parts = [link(a, b) for a, b in itertools.pairwise(nodes)] + [n.name for n in nodes[1:-1]]
        if self.answered:
            parts += [nodes[-1].name, link(nodes[-1], nodes[-2]), link(nodes[1], nodes[0])]
        return Counter(parts)


def link(a: Node, b: Node) -> str:
    """The name of a link in one direction."""
    return f"{a.name} → {b.name}"


def usids_of(segments: Sequence[IPv6Address], block_bits: int = 32) -> list[int]:
    """The uSIDs of a path's segments in travel order."""
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
    """T0, T1 or host, by its first bits; 7: a function of the node itself."""
    return _LOCAL if usid >> 13 == _LOCAL else usid >> 14


def segments(block: IPv6Network, usids: Sequence[int], *, one_each: bool) -> tuple[IPv6Address, ...]:
    """As few carriers as hold the uSIDs; or, for switches that know no carriers, one segment for each."""
    size = 1 if one_each else PER_CARRIER
    return tuple(carrier(block, list(usids[i : i + size])) for i in range(0, len(usids), size))


def path_nodes(usids: Sequence[int], me: str, own_usid: int, peer: str) -> list[Node]:
    """The nodes of a path, from this host to the peer. Raises UsageError if it is not T0 [· T1 · T0] · host."""
    kinds = [kind(u) for u in usids]
    if kinds not in ([_T0, _HOST], [_T0, _T1, _T0, _HOST]):
        raise UsageError(
            "trace knows paths of the form T0 · T1 · T0 · host, and this one is another: "
            + (" · ".join(f"{u:04x}" for u in usids) or "no uSIDs"),
            hint="`mrcctl probe` measures any path as a whole",
        )
    names = [f"{'T0' if k == _T0 else 'T1'} {u & 0x7FF}" for k, u in zip(kinds, usids, strict=True)][:-1]
    switches = [Node(n, u) for n, u in zip(names, usids, strict=False)]
    return [Node(me, own_usid), *switches, Node(peer, None)]


def plan(path: Sequence[Node], witness: Node | None) -> list[Turn]:
    """The turns for a path: its hops in order, then the cross-checks, by another T1 that is thought to be well."""
    me, t0, *others = path
    hops = [Turn(t0.name, True, (me, t0, me))]
    if len(others) == 1:
        return [*hops, Turn(others[0].name, True, (me, t0, others[0]), answered=True)]
    t1, far, peer = others
    hops.append(Turn(t1.name, True, (me, t0, t1, t0, me)))
    hops.append(Turn(_distinct(far, t0), True, (me, t0, t1, far, t1, t0, me)))
    hops.append(Turn(peer.name, True, (me, t0, t1, far, peer), answered=True))
    if witness is None:
        return hops
    w = witness
    checks = [
        ("there", (me, t0, t1, far, w, t0, me)),
        ("back", (me, t0, w, far, t1, t0, me)),
        ("from the far T0", (me, t0, w, far, t1, far, w, t0, me)),
        ("without it", (me, t0, w, far, w, t0, me)),
    ]
    found = [Turn(f"{t1.name} {what}, {w.name}", False, nodes) for what, nodes in checks]
    return [*hops, *found, Turn(f"{peer.name} by {w.name}", False, (me, t0, w, far, peer), answered=True)]


def _distinct(node: Node, other: Node) -> str:
    return node.name if node.name != other.name else f"{node.name} (far)"


# ---- what the loss says -------------------------------------------------------------------------

_STEPS = 100  # of a fault's loss ratio, when the one that fits best is looked for
_NOISE = 0.001  # loss that needs no fault, and its mirror: packets that a dead link lets by
_APART = 3.0  # natural logarithm of how many times likelier the best suspect is than one that is let go
_FAR = 12.0  # the same, of what no single fault explains against what was seen


@dataclass(frozen=True)
class Diagnosis:
    """`suspects`: each alone explains what was seen; empty if nothing does, or nothing is wrong."""

    failing: tuple[str, ...]  # names of turns
    first: str | None  # the first hop that fails, if the path does
    suspects: tuple[str, ...]
    on_path: bool  # whether what is broken concerns packets to the peer
    text: str


def failing(counts: Mapping[str, tuple[int, int]]) -> list[str]:
    """The turns, given sent and lost of each, that lose as the worst does: two packets and a quarter of its share."""
    shares = {name: lost / sent for name, (sent, lost) in counts.items() if sent}
    worst = max(shares.values(), default=0.0)
    return [n for n, s in shares.items() if s and counts[n][1] >= min(2, counts[n][0]) and s >= worst / 4]


def diagnose(path: Sequence[Node], turns: Sequence[Turn], counts: Mapping[str, tuple[int, int]]) -> Diagnosis:
    """Which single fault makes the losses seen likeliest: a link in one direction or in both, a switch, the far host.

    `counts`: packets sent and lost, by the turn's name.
    """
    lost = set(failing(counts))
    hops = [t for t in turns if t.hop]
    first = next((t.name for t in hops if t.name in lost), None)
    names = tuple(t.name for t in turns if t.name in lost)
    if not lost:
        return Diagnosis((), None, (), False, "every hop answers")
    faults = _faults(path, turns)
    likely = {name: _likelihood(parts, turns, counts) for name, parts in faults.items()}
    best = max(likely.values())
    if best < sum(_fit(*counts[t.name], counts[t.name][1] / max(1, counts[t.name][0])) for t in turns) - _FAR:
        return Diagnosis(names, first, (), first is not None, _unexplained(hops, first, lost))
    suspects = [name for name, value in likely.items() if value >= best - _APART]
    forward = {link(a, b) for a, b in itertools.pairwise(path)} | {n.name for n in path[1:]}
    on_path = any(faults[s] & forward for s in suspects)
    if len(suspects) == 1:
        words = f"broken: {suspects[0]}"
    else:
        words = f"broken: one of {'; '.join(suspects)}, which these packets cannot tell apart"
    if not on_path:
        words += f". Packets to {path[-1].name} do not pass it: this path is well"
    return Diagnosis(names, first if on_path else None, tuple(suspects), on_path, words)


def _faults(path: Sequence[Node], turns: Sequence[Turn]) -> dict[str, frozenset[str]]:
    """Single faults: name → what of `passes` it concerns. Those of the path first."""
    seen = {part for t in turns for part in t.passes}
    pairs = list(itertools.pairwise(path))
    found = {link(a, b): frozenset({link(a, b)}) for a, b in pairs + [(b, a) for a, b in pairs]}
    found |= {f"{a.name} – {b.name}, both ways": frozenset({link(a, b), link(b, a)}) for a, b in pairs}
    found |= {n.name: frozenset({n.name}) for n in path[1:]}
    known = set().union(*found.values())
    found |= {part: frozenset({part}) for part in sorted(seen - known)}
    return {name: parts for name, parts in found.items() if parts & seen}


def _likelihood(parts: frozenset[str], turns: Sequence[Turn], counts: Mapping[str, tuple[int, int]]) -> float:
    """Natural logarithm, at the loss ratio of this fault that fits best."""
    passed = [(t.passes, *counts[t.name]) for t in turns]
    crossed = [(sum(n for part, n in p.items() if part in parts), sent, lost) for p, sent, lost in passed]

    def at(ratio: float) -> float:
        return sum(_fit(sent, lost, 1 - (1 - ratio) ** n) for n, sent, lost in crossed)

    return max(at(step / _STEPS) for step in range(1, _STEPS + 1))


def _fit(sent: int, lost: int, ratio: float) -> float:
    ratio = min(max(ratio, _NOISE), 1 - _NOISE)
    return lost * math.log(ratio) + (sent - lost) * math.log(1 - ratio)


def _unexplained(hops: Sequence[Turn], first: str | None, lost: set[str]) -> str:
    if first is None:
        return f"every hop answers; of the cross-checks these do not: {', '.join(sorted(lost))}"
    at = next(i for i, t in enumerate(hops) if t.name == first)
    where = f"behind {hops[at - 1].name}" if at else "at the first hop"
    return f"no single fault explains it: more than one thing is broken. The first hop that fails is {first}, {where}"
