# SPDX-License-Identifier: BSD-2-Clause
"""Lists the single faults that can explain what trace probes show, with the targets that `mrcctl deny` takes. Pure."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mrcd.ctl.packets.trace_probes import HOST, T0, Node, TraceProbe, kind, link

_NUMBER = 0x7FF  # bits of a switch's number in its uSID; its plane is in the three bits above


@dataclass(frozen=True)
class Fault:
    """A link, a direction of a link, or a node. `parts` are those of TraceProbe.passes that it affects."""

    name: str
    parts: frozenset[str]
    target: str


@dataclass(frozen=True)
class Known:
    """A fault that a host has noticed itself, such as a NIC without a carrier."""

    text: str
    parts: frozenset[str]
    target: str


def faults(path: Sequence[Node], probes: Sequence[TraceProbe]) -> list[Fault]:
    """Return the faults that some probe can meet, those of the path first."""
    pairs = list(itertools.pairwise(path))
    found = {link(a, b): frozenset({link(a, b)}) for a, b in pairs + [(b, a) for a, b in pairs]}
    found |= {f"{a.name} – {b.name}, both ways": frozenset({link(a, b), link(b, a)}) for a, b in pairs}
    found |= {n.name: frozenset({n.name}) for n in path[1:]}
    known = set().union(*found.values())
    seen = {part for t in probes for part in t.passes}
    found |= {part: frozenset({part}) for part in sorted(seen - known)}
    targets = _targets(path, probes)
    return [Fault(name, parts, targets[min(parts)]) for name, parts in found.items() if parts & seen]


def forward(path: Sequence[Node]) -> set[str]:
    """Return the parts that packets to the peer pass."""
    return {link(a, b) for a, b in itertools.pairwise(path)} | {n.name for n in path[1:]}


def plane_of(path: Sequence[Node]) -> int:
    """Return the plane of a path, from the uSID of its first switch."""
    return (path[1].usid or 0) >> 11 & 7


def nic(path: Sequence[Node], *, far: bool, text: str) -> Known:
    """Return the fault of the NIC at an end of the path: this host's, or the peer's if `far`."""
    end, switch = (path[-1], path[-2]) if far else (path[0], path[1])
    parts = {link(end, switch), link(switch, end)} | ({end.name} if far else set())
    return Known(text, frozenset(parts), f"nic:{end.name}:{plane_of(path)}")


def of_diagnosis(path: Sequence[Node], causes: Sequence[Mapping[str, Any]]) -> list[Known]:
    """Return the faults at the ends of the path of which the host's diagnosis, as in GET /v1/status, is sure."""
    here, there, plane = path[0].name, path[-1].name, plane_of(path)
    found = []
    for cause in causes:
        target = cause["target"]
        if cause["confidence"] == "ambiguous" or cause["severity"] == "ok":
            continue
        if target in (f"nic:{here}:{plane}", f"nic:{there}:{plane}"):
            found.append(nic(path, far=target != f"nic:{here}:{plane}", text=cause["sentence"]))
        elif target == f"peer:{there}":
            found.append(replace(nic(path, far=True, text=cause["sentence"]), target=target))
    return found


def named(found: Sequence[Fault]) -> str:
    """Return faults as text, by target: "t1:1:2 (T1 2)"."""
    names: dict[str, list[str]] = {}
    for fault in found:
        names.setdefault(fault.target, []).append(fault.name)
    text = " or ".join(f"{target} ({'; '.join(some)})" for target, some in names.items())
    return f"one of {text}, which these packets cannot distinguish" if len(found) > 1 else text


def _targets(path: Sequence[Node], probes: Sequence[TraceProbe]) -> dict[str, str]:
    """Return the target of each part."""
    plane, found = plane_of(path), dict[str, str]()
    for nodes in (path, *(t.nodes for t in probes)):
        found |= {n.name: _node(plane, n) for n in nodes}
        for a, b in itertools.pairwise(nodes):
            found[link(a, b)] = found[link(b, a)] = _link(plane, a, b)
    return found


def _node(plane: int, node: Node) -> str:
    if _is_host(node):
        return f"nic:{node.name}:{plane}"
    return f"{'t0' if kind(node.usid or 0) == T0 else 't1'}:{plane}:{(node.usid or 0) & _NUMBER}"


def _link(plane: int, a: Node, b: Node) -> str:
    for end in (a, b):
        if _is_host(end):
            return _node(plane, end)
    t0, t1 = (a, b) if kind(a.usid or 0) == T0 else (b, a)
    return f"link:{plane}:{(t0.usid or 0) & _NUMBER}:{(t1.usid or 0) & _NUMBER}"


def _is_host(node: Node) -> bool:
    return node.usid is None or kind(node.usid) == HOST
