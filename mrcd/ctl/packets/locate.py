# SPDX-License-Identifier: BSD-2-Clause
"""Locates a fault from the losses and the round trips of trace probes. Pure.

A single fault makes a known set of probes lose packets, or take longer. Each possible fault is fitted to the results;
those that fit best are the suspects. Faults that affect the same probes cannot be told apart and are named together.

The daemon's diagnosis (mrcd/health/diagnosis) sees only which EVs fail; what it is sure of is a Known fault here.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mrcd.ctl.packets.trace_probes import Node, TraceProbe, link

LEAST_NS = 500_000.0  # a smaller extra delay is not reported: a busy host delays packets as much
_LEAST_FACTOR = 3.0  # nor one below so many times the delay of the other links
_SAME = 0.2  # suspects explain the round trips as well as the best one, up to this part of the extra delay
_STEPS = 100  # loss ratios tried per fault
_NOISE = 0.001  # least loss ratio without a fault, and least delivery ratio of a dead link
_SUSPECT_MARGIN = 3.0  # suspects are within this natural log-likelihood of the best one
_MISFIT_MARGIN = 12.0  # no single fault explains losses whose best fit is worse than this


@dataclass(frozen=True)
class Fault:
    """A link, a direction of a link, or a node. `parts` are those of TraceProbe.passes that it affects."""

    name: str
    parts: frozenset[str]
    target: str  # as `mrcctl deny` takes it


@dataclass(frozen=True)
class Known:
    """A fault that a host has noticed itself, such as a NIC without a carrier."""

    text: str
    parts: frozenset[str]
    target: str


@dataclass(frozen=True)
class Verdict:
    """`suspects` are faults that each explain the results; empty if no single one does, or nothing is wrong."""

    text: str
    suspects: tuple[Fault, ...] = ()
    targets: tuple[str, ...] = ()
    on_path: bool = False  # whether the fault affects packets to the peer
    failing: tuple[str, ...] = ()  # names of probes
    first: str | None = None  # the first hop that fails, if the fault is on the path to the peer
    extra_ns: float | None = None  # the delay that each pass of the fault adds


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


def _targets(path: Sequence[Node], probes: Sequence[TraceProbe]) -> dict[str, str]:
    """Return the target of each part."""
    found: dict[str, str] = {}
    for nodes in (path, *(t.nodes for t in probes)):
        found |= {n.name: n.target for n in nodes}
        for a, b in itertools.pairwise(nodes):
            found[link(a, b)] = found[link(b, a)] = _target_of_link(a, b)
    return found


def _target_of_link(a: Node, b: Node) -> str:
    nics = [end.target for end in (a, b) if end.target.startswith("nic:")]
    if nics:
        return nics[0]
    t0, t1 = sorted((a.target, b.target))  # t0:PLANE:NUMBER, t1:PLANE:NUMBER
    return f"link:{t0.removeprefix('t0:')}:{t1.rpartition(':')[2]}"


def _plane_of(path: Sequence[Node]) -> int:
    return int(path[0].target.rpartition(":")[2])  # nic:HOST:PLANE


# ---- what the hosts know ----


def known_faults(
    path: Sequence[Node], interface: str, has_carrier: bool | None, peer: Mapping[str, Any]
) -> list[Known]:
    """Return what this host knows of its own NIC, and what the peer has said of its NIC in this plane.

    `has_carrier` is None if the interface does not exist; `peer` is its document of GET /v1/peers.
    """
    found = []
    if not has_carrier:
        why = "does not exist" if has_carrier is None else "has no carrier"
        found.append(_nic(path, far=False, text=f"this host's {interface} {why}"))
    if peer["reachable"] and _plane_of(path) not in peer["linked_planes"]:
        found.append(_nic(path, far=True, text=f"{path[-1].name} says that it has no link in this plane"))
    return found


def of_diagnosis(path: Sequence[Node], causes: Sequence[Mapping[str, Any]]) -> list[Known]:
    """Return the faults at the ends of the path of which the host's diagnosis, as in GET /v1/status, is sure."""
    found = []
    for cause in causes:
        if cause["confidence"] == "ambiguous" or cause["severity"] == "ok":
            continue
        if cause["target"] in (path[0].target, path[-1].target):
            found.append(_nic(path, far=cause["target"] != path[0].target, text=cause["sentence"]))
        elif cause["target"] == f"peer:{path[-1].name}":
            found.append(replace(_nic(path, far=True, text=cause["sentence"]), target=cause["target"]))
    return found


def _nic(path: Sequence[Node], *, far: bool, text: str) -> Known:
    """Return the fault of the NIC at an end of the path: this host's, or the peer's if `far`."""
    end, switch = (path[-1], path[-2]) if far else (path[0], path[1])
    parts = {link(end, switch), link(switch, end)} | ({end.name} if far else set())
    return Known(text, frozenset(parts), end.target)


def because(path: Sequence[Node], known: Known) -> str:
    """Return the verdict about a known fault."""
    return f"broken in plane {_plane_of(path)}: {known.target}: {known.text}"


# ---- losses ----


def failing(counts: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return the probes that fail, from the packets sent and lost of each.

    A probe fails if it lost two packets (or its only one), and at least a quarter of the worst loss ratio.
    """
    shares = {name: lost / sent for name, (sent, lost) in counts.items() if sent}
    worst = max(shares.values(), default=0.0)
    return [n for n, s in shares.items() if s and counts[n][1] >= min(2, counts[n][0]) and s >= worst / 4]


def locate_loss(
    path: Sequence[Node],
    probes: Sequence[TraceProbe],
    counts: Mapping[str, tuple[int, int]],
    known: Sequence[Known] = (),
) -> Verdict:
    """Return the single faults that make the losses likeliest: a link direction, a link, a switch, the far host.

    `counts` has the packets sent and lost by the probe's name. A `known` fault that can explain the losses is named
    alone.
    """
    lost = failing(counts)
    if not lost:
        return Verdict("every hop answers")
    failed = [t for t in probes if t.name in lost]
    names, first = tuple(t.name for t in failed), next((t.name for t in failed if t.is_hop), None)
    fits = [(_likelihood(fault.parts, probes, counts), fault) for fault in faults(path, probes)]
    best = max(value for value, _ in fits)
    perfect = sum(_fit_loss(*counts[t.name], counts[t.name][1] / max(1, counts[t.name][0])) for t in probes)
    if best < perfect - _MISFIT_MARGIN:
        causes = [k for k in known if any(not k.parts.isdisjoint(t.passes) for t in failed)]
        words = _unexplained(path, probes, names, first) + "".join(f"; {k.target}: {k.text}" for k in causes)
        targets = tuple(k.target for k in causes)
        return Verdict(words, targets=targets, on_path=first is not None, failing=names, first=first)
    suspects = tuple(fault for value, fault in fits if value >= best - _SUSPECT_MARGIN)
    for k in known:
        explained = tuple(fault for fault in suspects if fault.parts <= k.parts)
        if explained:
            return Verdict(because(path, k), explained, (k.target,), first is not None, names, first)
    found = _about("broken", path, suspects)
    return replace(found, failing=names, first=first if found.on_path else None)


def _likelihood(parts: frozenset[str], probes: Sequence[TraceProbe], counts: Mapping[str, tuple[int, int]]) -> float:
    """Return the natural log-likelihood of the losses under this fault, at its best-fitting loss ratio."""
    crossed = [(_passes(t, parts), *counts[t.name]) for t in probes]

    def at(ratio: float) -> float:
        return sum(_fit_loss(sent, lost, 1 - (1 - ratio) ** n) for n, sent, lost in crossed)

    return max(at(step / _STEPS) for step in range(1, _STEPS + 1))


def _passes(probe: TraceProbe, parts: frozenset[str]) -> int:
    return sum(n for part, n in probe.passes.items() if part in parts)


def _fit_loss(sent: int, lost: int, ratio: float) -> float:
    ratio = min(max(ratio, _NOISE), 1 - _NOISE)
    return lost * math.log(ratio) + (sent - lost) * math.log(1 - ratio)


def _unexplained(path: Sequence[Node], probes: Sequence[TraceProbe], names: Sequence[str], first: str | None) -> str:
    if first is None:
        return f"every hop answers; of the cross-checks these fail: {', '.join(sorted(names))}"
    hops = [t.name for t in probes if t.is_hop]
    where = f"behind {hops[hops.index(first) - 1]}" if first != hops[0] else "at the first hop"
    words = f"no single fault explains the losses: there are several. The first hop that fails is {first}, {where}"
    return f"broken in plane {_plane_of(path)}: {words}"


def _about(what: str, path: Sequence[Node], suspects: Sequence[Fault], more: str = "") -> Verdict:
    """Return the verdict that names the suspects by target: "broken in plane 1: t1:1:2 (T1 2)"."""
    by_target: dict[str, list[str]] = {}
    for fault in suspects:
        by_target.setdefault(fault.target, []).append(fault.name)
    text = " or ".join(f"{target} ({'; '.join(names)})" for target, names in by_target.items())
    text = f"one of {text}, which these packets cannot distinguish" if len(suspects) > 1 else text
    forward = {link(a, b) for a, b in itertools.pairwise(path)} | {n.name for n in path[1:]}
    on_path = any(fault.parts & forward for fault in suspects)
    after = "" if on_path else f". Packets to {path[-1].name} do not pass it: this path works"
    return Verdict(
        f"{what} in plane {_plane_of(path)}: {text}{more}{after}", tuple(suspects), tuple(by_target), on_path
    )


# ---- round trips ----


def locate_delay(path: Sequence[Node], probes: Sequence[TraceProbe], rtts_ns: Mapping[str, int]) -> Verdict | None:
    """Return the slow part of a path; None without one. `rtts_ns`: least round trips by name, of answered probes.

    A round trip is modelled as a delay that all links share, times the number of links, plus an extra delay each time
    that it passes the slow part. Each possible fault gets the best two delays (least squares). The least of many round
    trips has no queueing delay, so a congested link is not a slow one.
    """
    measured = [t for t in probes if t.name in rtts_ns]
    if len(measured) < 2:
        return None
    rtts = [float(rtts_ns[t.name]) for t in measured]
    links = [float((len(t.nodes) - 1) * (1 + t.is_answered)) for t in measured]
    fits = []
    for fault in faults(path, measured):
        link_ns, extra_ns, error = _fit_delay(rtts, links, [float(_passes(t, fault.parts)) for t in measured])
        if extra_ns >= max(LEAST_NS, _LEAST_FACTOR * link_ns):
            fits.append((error, extra_ns, fault))
    if not fits:
        return None
    best, extra_ns, _ = min(fits, key=lambda fit: fit[0])
    scale = _SAME * extra_ns
    if best > scale**2 * len(measured):
        words = f"slow in plane {_plane_of(path)}: several links or switches; no single one explains the round trips"
        return Verdict(words, on_path=True, extra_ns=extra_ns)
    suspects = [fault for error, _, fault in fits if error <= best + scale**2]
    more = f": each pass takes {extra_ns / 1e6:.1f} ms more than other links"
    return replace(_about("slow", path, suspects, more), extra_ns=extra_ns)


def _fit_delay(rtts: Sequence[float], links: Sequence[float], crossed: Sequence[float]) -> tuple[float, float, float]:
    """Return the delay of a link, the extra delay, both at least 0, and the sum of squared errors."""
    a, b, c = _dot(links, links), _dot(links, crossed), _dot(crossed, crossed)
    u, v = _dot(links, rtts), _dot(crossed, rtts)
    determinant = a * c - b * b
    link_ns, extra = u / a, 0.0
    if determinant > 0:
        link_ns, extra = (c * u - b * v) / determinant, (a * v - b * u) / determinant
    if link_ns < 0 and c:
        link_ns, extra = 0.0, v / c
    if extra < 0:
        link_ns, extra = u / a, 0.0
    error = sum((r - link_ns * n - extra * x) ** 2 for r, n, x in zip(rtts, links, crossed, strict=True))
    return link_ns, extra, error


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
