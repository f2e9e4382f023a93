# SPDX-License-Identifier: BSD-2-Clause
"""Locates a fault from the losses of trace probes. Pure.

A single fault makes a known set of probes lose packets. Each possible fault gets the likelihood of the losses seen;
the best ones are the suspects. Faults that make the same probes lose cannot be told apart and are named together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mrcd.ctl.packets.faults import Known, faults, forward, named, plane_of
from mrcd.ctl.packets.trace_probes import Node, TraceProbe

_STEPS = 100  # loss ratios tried per fault
_NOISE = 0.001  # least loss ratio without a fault, and least delivery ratio of a dead link
_SUSPECT_MARGIN = 3.0  # suspects are within this natural log-likelihood of the best one
_MISFIT_MARGIN = 12.0  # no single fault explains losses whose best fit is worse than this


@dataclass(frozen=True)
class Diagnosis:
    """`suspects` are faults that each explain the losses; empty if none does, or nothing was lost."""

    failing: tuple[str, ...]  # names of probes
    first: str | None  # the first hop that fails, if the fault is on the path to the peer
    suspects: tuple[str, ...]
    targets: tuple[str, ...]  # of the suspects, as `mrcctl deny` takes them
    on_path: bool  # whether the fault affects packets to the peer
    text: str


def failing(counts: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return the probes that fail, from the packets sent and lost of each.

    A probe fails if it lost two packets (or its only one), and at least a quarter of the worst loss ratio.
    """
    shares = {name: lost / sent for name, (sent, lost) in counts.items() if sent}
    worst = max(shares.values(), default=0.0)
    return [n for n, s in shares.items() if s and counts[n][1] >= min(2, counts[n][0]) and s >= worst / 4]


def diagnose(
    path: Sequence[Node],
    probes: Sequence[TraceProbe],
    counts: Mapping[str, tuple[int, int]],
    known: Sequence[Known] = (),
) -> Diagnosis:
    """Return the single faults that make the losses likeliest: a link direction, a link, a switch, the far host.

    `counts` has the packets sent and lost by the probe's name. A `known` fault that can explain the losses is named
    alone.
    """
    lost = set(failing(counts))
    hops = [t for t in probes if t.is_hop]
    first = next((t.name for t in hops if t.name in lost), None)
    names = tuple(t.name for t in probes if t.name in lost)
    if not lost:
        return Diagnosis((), None, (), (), False, "every hop answers")
    plane, possible = plane_of(path), faults(path, probes)
    likely = [(_likelihood(fault.parts, probes, counts), fault) for fault in possible]
    best = max(value for value, _ in likely)
    perfect = sum(_fit(*counts[t.name], counts[t.name][1] / max(1, counts[t.name][0])) for t in probes)
    if best < perfect - _MISFIT_MARGIN:
        causes = [k for k in known if any(not k.parts.isdisjoint(t.passes) for t in probes if t.name in lost)]
        words = (
            f"broken in plane {plane}: {_unexplained(hops, first, lost)}" if first else _unexplained(hops, first, lost)
        )
        words += "".join(f"; {k.target}: {k.text}" for k in causes)
        return Diagnosis(names, first, (), tuple(k.target for k in causes), first is not None, words)
    suspects = [fault for value, fault in likely if value >= best - _SUSPECT_MARGIN]
    for k in known:
        explained = [fault for fault in suspects if fault.parts <= k.parts]
        if explained:
            found = tuple(f.name for f in explained)
            return Diagnosis(names, first, found, (k.target,), first is not None, because(path, k))
    on_path = any(fault.parts & forward(path) for fault in suspects)
    words = f"broken in plane {plane}: {named(suspects)}"
    if not on_path:
        words += f". Packets to {path[-1].name} do not pass it: this path works"
    targets = tuple(dict.fromkeys(fault.target for fault in suspects))
    return Diagnosis(names, first if on_path else None, tuple(f.name for f in suspects), targets, on_path, words)


def because(path: Sequence[Node], known: Known) -> str:
    """Return the verdict about a known fault."""
    return f"broken in plane {plane_of(path)}: {known.target}: {known.text}"


def _likelihood(parts: frozenset[str], probes: Sequence[TraceProbe], counts: Mapping[str, tuple[int, int]]) -> float:
    """Return the natural log-likelihood of the losses under this fault, at its best-fitting loss ratio."""
    passed = [(t.passes, *counts[t.name]) for t in probes]
    crossed = [(sum(n for part, n in p.items() if part in parts), sent, lost) for p, sent, lost in passed]

    def at(ratio: float) -> float:
        return sum(_fit(sent, lost, 1 - (1 - ratio) ** n) for n, sent, lost in crossed)

    return max(at(step / _STEPS) for step in range(1, _STEPS + 1))


def _fit(sent: int, lost: int, ratio: float) -> float:
    ratio = min(max(ratio, _NOISE), 1 - _NOISE)
    return lost * math.log(ratio) + (sent - lost) * math.log(1 - ratio)


def _unexplained(hops: Sequence[TraceProbe], first: str | None, lost: set[str]) -> str:
    if first is None:
        return f"every hop answers; of the cross-checks these fail: {', '.join(sorted(lost))}"
    at = next(i for i, t in enumerate(hops) if t.name == first)
    where = f"behind {hops[at - 1].name}" if at else "at the first hop"
    return f"no single fault explains the losses: there are several. The first hop that fails is {first}, {where}"
