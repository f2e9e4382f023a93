# SPDX-License-Identifier: BSD-2-Clause
"""Makes the target, the sentence and the next step of a cause that is concluded from EVs. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum

import numpy as np

from mrcd.health.diagnosis.causes import Cause, Confidence, Kind, Share
from mrcd.health.diagnosis.cover import Element, Place
from mrcd.health.diagnosis.facts import Facts


class Nature(Enum):
    """The effect of an element on the EVs that cross it: the words for it, and for them."""

    FAILED = "lets nothing through", "have failed"
    LOSSY = "loses packets", "were left for their loss"
    SMALL_MTU = "has too small an MTU", "lose all full-size packets, and no small ones"
    SLOW = "delays packets", "are slower than the fastest to the same peer by 2 ms or more"
    DENIED = "is denied", "are denied"

    @property
    def verb(self) -> str:
        """Returns what the element does."""
        return self.value[0]

    @property
    def state(self) -> str:
        """Returns what has become of the EVs."""
        return self.value[1]


_KINDS = {
    Place.PLANE: Kind.OWN_CABLE, Place.UPLINKS: Kind.OWN_T0, Place.T0: Kind.T0, Place.T1: Kind.T1,
    Place.LINK: Kind.LINK, Place.NIC: Kind.PEER_NIC, Place.PEER: Kind.PEER_DOWN, Place.SOME: Kind.UNKNOWN,
}  # fmt: skip
_KINDS_BY_NATURE = {
    Nature.LOSSY: Kind.LOSS, Nature.SMALL_MTU: Kind.SMALL_MTU, Nature.SLOW: Kind.CONGESTION,
    Nature.DENIED: Kind.DENIED,
}  # fmt: skip
_OF_OWN_NIC = (Nature.FAILED, Nature.LOSSY, Nature.SMALL_MTU)  # and not of the plane
_WHOLE_PLANE = (Place.PLANE, Place.UPLINKS)
_TELLS, _CONFIRMS = "tells which it is", "confirms it"  # what a trace does


def cause(facts: Facts, e: Element, nature: Nature) -> Cause:
    """Returns the cause that an element is, by the nature of its bad EVs."""
    is_slow_plane = nature is Nature.SLOW and e.place in _WHOLE_PLANE
    is_ambiguous = bool(e.or_targets) and nature is not Nature.DENIED and not is_slow_plane
    confidence = Confidence.AMBIGUOUS if is_ambiguous else Confidence.LIKELY
    return Cause(
        Kind.SLOW_PLANE if is_slow_plane else _KINDS_BY_NATURE.get(nature, _KINDS[e.place]),
        target(facts, e, nature),
        _sentence(facts, e, nature),
        _next_step(facts, e, nature),
        Confidence.CERTAIN if nature is Nature.DENIED else confidence,
        share(e),
        since_ns(facts, e),
        e.or_targets if is_ambiguous else (),
    )


def by_switch(facts: Facts, found: Iterable[Cause]) -> list[Cause]:
    """Returns causes with one for each T1 that fails on several planes: rails share it (Cluster.t1_planes)."""
    cluster, causes = facts.plan.config.cluster, list(found)
    of_switch: dict[tuple[Kind, int, str], list[tuple[int, Cause]]] = {}
    for c in causes:
        word, *numbers = c.target.split(":")
        if word == "t1":
            plane, t1 = int(numbers[0]), numbers[1]
            of_switch.setdefault((c.kind, cluster.t1_planes(plane).start, t1), []).append((plane, c))
    for (_, plane, t1), same in of_switch.items():
        planes, of_plane = zip(*same, strict=True)
        if len(same) > 1 or plane != planes[0]:  # all hosts name a switch alike
            one = _of_planes(planes, of_plane) if len(same) > 1 else of_plane[0]
            causes = [c for c in causes if c not in of_plane] + [replace(one, target=f"t1:{plane}:{t1}")]
    return causes


def _of_planes(planes: Sequence[int], of_plane: Sequence[Cause]) -> Cause:
    """Returns the cause of a T1 on several planes. That links to it have failed on all would take as many faults."""
    first, shares = of_plane[0], [c.share for c in of_plane]
    evs, of_evs = sum(s.evs for s in shares), sum(s.of_evs for s in shares)
    most = max(shares, key=lambda s: s.peers)
    sentence = first.sentence.replace(f"Plane {planes[0]}:", f"Planes {', '.join(map(str, planes))}:")
    for before, after in zip(
        _counts(first.share), _counts(total := replace(most, evs=evs, of_evs=of_evs)), strict=True
    ):
        sentence = sentence.replace(before, after)
    since = [c.since_ns for c in of_plane if c.since_ns is not None]
    sure = Confidence.CERTAIN if first.confidence is Confidence.CERTAIN else Confidence.LIKELY
    return replace(
        first,
        sentence=sentence,
        do=first.do.replace(_TELLS, _CONFIRMS),
        share=total,
        since_ns=min(since, default=None),
        confidence=sure,
        or_targets=(),
    )


def _counts(part: Share) -> tuple[str, str]:
    return f"{part.evs} of {part.of_evs} EVs", f"to {part.peers} of {part.of_peers} peers"


def share(e: Element) -> Share:
    """Returns how much an element explains."""
    evs, of_evs = int(e.bad.sum()), int(e.known.sum())
    return Share(evs, of_evs, int(e.bad.any(axis=1).sum()), int(e.known.any(axis=1).sum()))


def since_ns(facts: Facts, e: Element) -> int | None:
    """Returns the median of the times at which the bad EVs were left: a single older failure does not matter."""
    columns = slice(None) if e.place is Place.PEER else facts.columns(e.plane)
    times = facts.since_ns[e.rows, columns][e.bad]
    times = times[times > 0]
    return int(np.partition(times, len(times) // 2)[len(times) // 2]) if len(times) else None


def _example(facts: Facts, e: Element) -> tuple[str, int]:
    """Returns the peer and the number of the first of the bad EVs."""
    row, column = (int(i) for i in np.unravel_index(int(e.bad.argmax()), e.bad.shape))
    return facts.names[e.rows[row]], column if e.place is Place.PEER else facts.columns(e.plane).start + column


def target(facts: Facts, e: Element, nature: Nature) -> str:
    """Returns the words that name the element for `mrcctl deny`; host:NAME for this host."""
    peer, ev = _example(facts, e)
    if e.place is Place.PLANE and nature in _OF_OWN_NIC:
        return f"nic:{facts.host}:{e.plane}"
    if e.place is Place.PLANE or (e.place is Place.UPLINKS and nature is Nature.SLOW):
        return f"plane:{e.plane}"
    if e.place is Place.SOME:
        if e.bad.sum() == 1:
            return f"ev:{peer}:{ev}"
        return f"plane:{e.plane}" if e.bad.any(axis=1).sum() > 1 else f"peer:{peer} plane:{e.plane}"
    return {
        Place.UPLINKS: f"t0:{e.plane}:{facts.t0}",
        Place.T0: f"t0:{e.plane}:{e.t0}",
        Place.T1: f"t1:{e.plane}:{e.t1}",
        Place.LINK: f"link:{e.plane}:{e.t0}:{e.t1}",
        Place.NIC: f"nic:{peer}:{e.plane}",
        Place.PEER: f"peer:{peer}",
    }[e.place]


def _sentence(facts: Facts, e: Element, nature: Nature) -> str:
    peer, _ = _example(facts, e)
    part = share(e)
    which, to = _counts(part)
    if e.place is Place.PEER:
        return f"{peer}: {which} to it {nature.state}, on all planes"
    if e.place is Place.SOME:
        more = ""
        if facts.encapsulation == "ecmp":
            more = "; with encapsulation ecmp the switches choose the T1, so mrcd cannot name it"
        return f"Plane {e.plane}: {which} {nature.state}, {to}, and no switch or link explains them{more}"
    if nature is Nature.SLOW and e.place in _WHOLE_PLANE:
        via = "all its paths" if e.place is Place.PLANE else "all its paths through T1s"
        return f"Plane {e.plane}: {via} delay packets: {which} {nature.state}, {to}"
    if e.place is Place.NIC:
        of = f"NIC of {peer}, or its port," if nature is Nature.SMALL_MTU else f"NIC or cable of {peer}"
        return f"Plane {e.plane}: the {of} {nature.verb}: {which} to it {nature.state}"
    own_port = f"T0 {facts.t0}, this host's own, or its port to this host,"  # the MTU of the NIC is known
    subject = {
        Place.PLANE: f"this host's NIC, its cable or T0 {facts.t0}" if nature is not Nature.SMALL_MTU else own_port,
        Place.UPLINKS: f"T0 {facts.t0}, this host's own, on its way to the T1s",
        Place.T0: f"T0 {e.t0}",
        Place.T1: f"T1 {e.t1}",
        Place.LINK: f"the link between T0 {e.t0} and T1 {e.t1}",
    }[e.place]
    return f"Plane {e.plane}: {subject} {nature.verb}: {which} through it {nature.state}, {to}"


def _next_step(facts: Facts, e: Element, nature: Nature) -> str:
    peer, ev = _example(facts, e)
    if nature is Nature.DENIED:
        return "`mrcctl denials` says by whom and until when"
    if nature is Nature.SLOW:
        return f"look for a full or long link: `mrcctl paths --peer {peer}`, column RTT"
    if nature is Nature.SMALL_MTU:
        mtu = facts.plan.config.cluster.mtu
        confirm = f"`mrcctl probe {peer} --ev {ev} --size {mtu}` confirms it"
        return f"set the MTU of its ports to {mtu}, as [cluster] mtu says; {confirm}"
    if facts.encapsulation == "ecmp":
        return f"`mrcctl probe {peer} --ev {ev}` confirms it"
    count = " --count 500" if nature is Nature.LOSSY else ""
    use = _TELLS if _is_told_by_trace(facts, e) else _CONFIRMS
    return f"`mrcctl trace {peer} --ev {ev}{count}` {use}"


def _is_told_by_trace(facts: Facts, e: Element) -> bool:
    """Returns whether loops by a second T1 of the plane tell a T1 from its links."""
    t1s = facts.plan.paths.t1s[:, facts.columns(e.plane)]
    has_other = bool(((t1s >= 0) & (t1s != e.t1)).any())
    return e.place in (Place.T1, Place.LINK) and bool(e.or_targets) and has_other and facts.encapsulation == "usid"
