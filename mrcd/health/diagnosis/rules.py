# SPDX-License-Identifier: BSD-2-Clause
"""Diagnoses: returns the fewest causes that explain what is wrong. Pure.

What is told first-hand comes first: this host's own interfaces, what peers say of themselves, peers that answer
nothing. EVs that these explain say nothing of others. What is left is explained plane by plane (cover.py). Packets that
this host refuses tell a wrong key, file or cable from a dead peer or cable (memory.py).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mrcd.config.cluster_file import AGREED, FABRIC
from mrcd.health.diagnosis import memory
from mrcd.health.diagnosis.causes import Cause, Confidence, Kind, Severity, Share
from mrcd.health.diagnosis.cover import Cover, Element, Place, is_full
from mrcd.health.diagnosis.facts import NOT_TOLD, SAME_FILE, Facts, Ints, OwnPlane, Verdict
from mrcd.health.diagnosis.sentences import Nature, by_switch, cause, share, since_ns, target
from mrcd.health.snapshot import Bools
from mrcd.kernel.enums import Drop
from mrcd.kernel.pinned import CHANGING, wire_of
from mrcd.net.link_state import LinkState
from mrcd.net.nic_rates import rate_words

_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.OK: 2}
_ONE_PEER = Share(0, 0, 1, 1)
_AGREED = " or ".join((", ".join((*AGREED, *FABRIC[:-1])), FABRIC[-1]))
_LATER_NS = 1_000_000_000
_NAMED = 8  # peers with another file or version: while a new one goes round, they are many
_PLAIN = "traffic between them takes the kernel's own routes"


def diagnose(facts: Facts) -> list[Cause]:
    """Returns what is wrong, the most urgent first, then what explains the most EVs; nothing if all is well."""
    verdicts = facts.verdicts.copy()  # EVs that are explained become NOTHING
    found = list(_own_planes(facts, verdicts))
    found += _other_routes(facts)
    found += _undelivered(facts)
    if facts.is_host_detached:
        found.append(_detached(facts))
    elif any(p.is_usable for p in facts.own_planes) and len(facts.names):
        found += _peers(facts, verdicts)
        found += _files(facts, verdicts)
        found += _peer_planes(facts, verdicts)
        found += _deaf_nics(facts, verdicts)
        found += _small_mtus(facts, verdicts)
        if (verdicts > Verdict.GOOD).any():
            found += by_switch(facts, _evs(facts, verdicts))
    return sorted(found, key=lambda c: (_ORDER[c.kind.severity], -c.share.evs))


# ---- what is known first-hand ----------------------------------------------------------------


def _detached(facts: Facts) -> Cause:
    sentence = f"{facts.host} is detached: its traffic takes the kernel's own routes, and no path is watched"
    return Cause(
        Kind.DETACHED, f"host:{facts.host}", sentence, "`mrcctl attach` resumes spraying", Confidence.CERTAIN, Share()
    )


def _other_routes(facts: Facts) -> Iterator[Cause]:
    """Yields one cause if the kernel takes another program's route to some peers, or none."""
    if not facts.ways:
        return
    (name, way), n, of = next(iter(facts.ways.items())), len(facts.ways), len(facts.names)
    which = f"{n} of {of} peers, such as {name}," if n > 1 else name
    sentence = f"Traffic to {which} does not take the route of mrcd: the kernel {way.words}"
    do = f"`{way.command}` shows it, `ip rule` the rules: delete what is not meant"
    yield Cause(Kind.OTHER_ROUTE, f"host:{facts.host}", sentence, do, Confidence.CERTAIN, Share(0, 0, n, of))


def _undelivered(facts: Facts) -> Iterator[Cause]:
    """Yields a cause if something else on this host drops what mrc0 sends or has received."""
    mrc0 = facts.plan.config.overlay.interface
    if said := memory.named(facts.refused, memory.UNDELIVERED):
        which = "sends or has received" if facts.refused.get(Drop.OTHER_PROGRAM) else "has received"
        sentence = f"{facts.host} drops packets that {mrc0} {which}: {said} in the last seconds"
        programs = f"`mrcctl status`, line other BPF, and `tc filter show dev {mrc0} egress` (`ingress`)"
        commands = "`nft list ruleset`", f"`sysctl net.ipv4.conf.{mrc0}.rp_filter`", programs
        shows = [c for reason, c in zip(memory.UNDELIVERED, commands, strict=True) if facts.refused.get(reason)]
        do = f"{' and '.join(shows)}: let {mrc0} pass, unless it is meant"
        yield Cause(Kind.UNDELIVERED, f"host:{facts.host}", sentence, do, Confidence.CERTAIN, Share())


def _own_planes(facts: Facts, verdicts: Ints) -> Iterator[Cause]:
    """Yields a cause for each plane on which this host cannot send, or not packets of full size."""
    for plane, own in enumerate(facts.own_planes):
        if not own.is_usable or own.link is LinkState.SMALL_MTU:
            yield _own_plane(facts, plane, own)
            of_plane = verdicts[:, facts.columns(plane)]
            of_plane[(of_plane == Verdict.LOSSY) | (not own.is_usable)] = Verdict.NOTHING


def _own_plane(facts: Facts, plane: int, own: OwnPlane) -> Cause:
    nic, t0, name = f"nic:{facts.host}:{plane}", f"t0:{plane}:{facts.t0}", own.interface
    is_neighbour = (facts.t0s == facts.t0) & (facts.heard_ns > 0) & ~facts.is_silent
    is_up_there = facts.planes_up >> plane & 1 != 0
    kind, target, or_targets = Kind.OWN_NIC, nic, tuple[str, ...]()
    if own.link is LinkState.MISSING:
        why, do = f"interface {name} does not exist", "compare `ip link` with [interfaces] in the cluster file"
    elif own.link is LinkState.DISABLED:
        why, do = f"interface {name} is switched off", f"`ip link set {name} up`"
    elif own.link is LinkState.NO_IPV6:
        why, do = f"IPv6 is switched off on {name} (disable_ipv6)", f"`sysctl net.ipv6.conf.{name}.disable_ipv6=0`"
    elif own.link is LinkState.SMALL_MTU:
        mtu = facts.plan.config.cluster.mtu
        why, do = f"the MTU of {name} is less than the {mtu} of [cluster] mtu", f"`ip link set {name} mtu {mtu}`"
    elif own.link is LinkState.NO_CARRIER:
        why, do, kind = f"interface {name} has no carrier", f"check cable and T0 port; `ethtool {name}`", Kind.OWN_CABLE
        neighbours = int(is_neighbour.sum())
        if neighbours and not is_up_there[is_neighbour].any():
            why += f", and neither have the {neighbours} other hosts under T0 {facts.t0}"
            kind, target = Kind.OWN_T0, t0
            or_targets = (nic,) * (neighbours == 1)  # whose NIC may have failed at another time
        elif not neighbours:
            or_targets = (t0,)
    else:
        why = f"{name} has a carrier, but T0 {facts.t0} does not answer as first hop"
        kind, target, do = Kind.OWN_T0, t0, f"check the T0's address and port; `ip -6 neigh show dev {name}`"
    e = _element(facts, plane, np.arange(len(facts.names)))
    confidence = Confidence.AMBIGUOUS if or_targets else Confidence.CERTAIN
    return Cause(kind, target, f"Plane {plane}: {why}", do, confidence, share(e), since_ns(facts, e), or_targets)


def _element(facts: Facts, plane: int, rows: Ints) -> Element:
    """Returns the EVs of a plane to some peers."""
    verdicts = facts.verdicts[rows, facts.columns(plane)]
    return Element(Place.PLANE, plane, rows, _is_bad(verdicts), np.asarray(verdicts != Verdict.NOTHING))


def _is_bad(verdicts: Ints) -> Bools:
    return np.asarray((verdicts == Verdict.FAILED) | (verdicts == Verdict.LOSSY))


def _peers(facts: Facts, verdicts: Ints) -> Iterator[Cause]:
    """Yields a cause for each peer that is detached or answers nothing; one for all if none answers."""
    yield from _versions(facts)
    for i in np.flatnonzero(facts.is_away).tolist():
        name = facts.names[i]
        sentence = f"{name} says that it is detached: traffic to it takes the kernel's own routes"
        do = f"on {name}: `mrcctl attach`"
        yield Cause(Kind.PEER_DETACHED, f"peer:{name}", sentence, do, Confidence.CERTAIN, _ONE_PEER)
    verdicts[facts.is_away] = Verdict.NOTHING
    own = sum(1 << p for p, plane in enumerate(facts.own_planes) if plane.is_usable)
    is_linked = (facts.planes_up & own != 0) & ~facts.is_away
    is_down = facts.is_silent & is_linked
    rows, mismatch = np.flatnonzero(is_down), _mismatch(facts)
    works = bool(len(rows)) and _is_heard_later(facts, facts.is_away, is_down)
    is_only = bool(is_linked.sum() == 1) and not works
    if len(rows) > 1 and len(rows) == is_linked.sum() and not works:
        yield _no_peer_answers(facts, len(rows), mismatch)
    else:
        if len(rows) and mismatch:
            yield _refused_peer(facts, rows, mismatch, is_only=is_only)
        if len(rows) > 1 or not mismatch:
            for i in rows.tolist():
                yield _peer_down(facts, i, is_only=is_only)
    verdicts[facts.is_silent] = Verdict.NOTHING


def _versions(facts: Facts) -> Iterator[Cause]:
    """Yields the peers that speak another wire version than this host; this host, if most of them do."""
    wires, own, n = wire_of(facts.peers["status"]), facts.wire, len(facts.names)
    rows = np.flatnonzero(facts.speaks_other & ~facts.is_silent & (wires != CHANGING))
    kind = Kind.CONFIG_DIFFERS
    do = "install the same version of mrcd on both: `mrcctl version`"
    then = "there is no traffic between them" if facts.encapsulation == "ecmp" else _PLAIN
    if 2 * len(rows) > max(2, n):
        others = ", ".join(map(str, np.unique(wires[rows]).tolist()))
        sentence = f"{len(rows)} of {n} peers speak another wire version ({others}), {facts.host} {own}: {then}"
        yield Cause(kind, f"host:{facts.host}", sentence, do, Confidence.CERTAIN, Share(0, 0, len(rows), n))
        return
    for i in rows[:_NAMED].tolist():
        name, more = facts.names[i], f" ({len(rows)} peers speak another one)" if len(rows) > 1 else ""
        sentence = f"{name} speaks wire version {wires[i]}, {facts.host} {own}{more}: {then}"
        yield Cause(kind, f"peer:{name}", sentence, do, Confidence.CERTAIN, _ONE_PEER)


def _is_heard_later(facts: Facts, some: Bools, others: Bools) -> bool:
    """Returns whether one of some peers was heard later than all others: so this host's NICs and programs work."""
    if not some.any():
        return False
    newest, newest_other = (int(facts.heard_ns[which].max()) for which in (some, others))
    return newest > newest_other + _LATER_NS


def _mismatch(facts: Facts) -> tuple[Kind, str] | None:
    """Returns why this host refuses packets of hosts that it does not hear, and which; None if it refuses none."""
    for kind, reasons, why in (
        (Kind.WRONG_KEY, memory.WRONG_KEY, "the hosts have different secrets"),
        (Kind.CONFIG_DIFFERS, memory.CONFIG_DIFFERS, "the hosts have different cluster files or versions"),
    ):
        if said := memory.named(facts.refused, reasons):
            return kind, f"packets are refused here ({said} in 10 s): {why}"
    return None


_COMPARE = {
    Kind.WRONG_KEY: "`mrcctl keys status` on both; give {} the secret file of the others, then `mrcctl reload` there",
    Kind.CONFIG_DIFFERS: "`mrcctl config show` and `mrcctl version` on both; give {} the file of the others, then "
    "`mrcctl reload` there (`--force` if it refuses)",
}


def _no_peer_answers(facts: Facts, n: int, mismatch: tuple[Kind, str] | None) -> Cause:
    """Returns the cause that none of `n` peers answers."""
    mismatch = mismatch or _for_other_addresses(facts)
    kind, why = mismatch or (Kind.HOST, "the fault may be in this host's programs, NICs or file")
    do = _COMPARE[kind].format(facts.host) if mismatch else "`mrcctl doctor` checks this host"
    sentence = f"None of {n} peers answers on any plane" + (f", and {why}" if mismatch else f": {why}")
    since = int(facts.heard_ns.max()) or None
    return Cause(kind, f"host:{facts.host}", sentence, do, Confidence.LIKELY, Share(0, 0, n, n), since)


def _for_other_addresses(facts: Facts) -> tuple[Kind, str] | None:
    """Returns why packets for addresses that this host does not have arrive on all its planes; None if they do not."""
    usable = [own for own in facts.own_planes if own.is_usable]
    if not all(own.unroutable for own in usable):
        return None
    said = ", ".join(f"{own.unroutable} on {own.interface}" for own in usable)
    why = f"packets for other addresses than its own arrive on each plane ({said} in 10 s): this host's cluster file "
    return Kind.CONFIG_DIFFERS, why + "differs ([cluster] block, or its t0 and port), or its cables lead to other ports"


def _refused_peer(facts: Facts, rows: Ints, mismatch: tuple[Kind, str], *, is_only: bool) -> Cause:
    """Returns the cause that one of the silent peers `rows` has another key, or another file."""
    (kind, why), first = mismatch, int(rows[0])
    name, others = facts.names[first], tuple(f"peer:{facts.names[i]}" for i in rows[1:].tolist())
    others += (f"host:{facts.host}",) * is_only
    which = f"{name} answers" if len(rows) == 1 else f"One of {len(rows)} silent peers answers"
    return Cause(
        kind, f"peer:{name}", f"{which} on no plane, and {why}", _COMPARE[kind].format(name),
        Confidence.AMBIGUOUS if others else Confidence.LIKELY, _ONE_PEER, int(facts.heard_ns[first]) or None, others,
    )  # fmt: skip


def _peer_down(facts: Facts, i: int, *, is_only: bool) -> Cause:
    name, heard_ns = facts.names[i], int(facts.heard_ns[i])
    sentence = f"{name} answers on no plane" if heard_ns else f"{name} has never answered, on any plane"
    do = f"is {name} up? there: `systemctl status mrcd`, `mrcctl doctor` (file, keys); here: `mrcctl probe {name}`"
    or_targets = (f"host:{facts.host}",) * is_only
    has_one_plane = sum(own.is_usable for own in facts.own_planes) == 1  # the T0 there would explain the same
    sure = Confidence.LIKELY if has_one_plane else Confidence.CERTAIN
    confidence = Confidence.AMBIGUOUS if is_only else sure
    return Cause(Kind.PEER_DOWN, f"peer:{name}", sentence, do, confidence, _ONE_PEER, heard_ns or None, or_targets)


def _files(facts: Facts, verdicts: Ints) -> Iterator[Cause]:
    """Yields the peers that say that they have another cluster file; this host, if more hosts have the same other."""
    is_told = (facts.files != NOT_TOLD) & (facts.heard_ns > 0) & ~facts.is_silent
    differs = is_told & (facts.files != SAME_FILE)
    rows, told = np.flatnonzero(differs), int(is_told.sum())
    if not len(rows):
        return
    verdicts[differs] = Verdict.NOTHING  # EVs may have other numbers there
    kind, here, alike = Kind.CONFIG_DIFFERS, f"host:{facts.host}", 1 + told - len(rows)
    others = int(np.unique(facts.files[differs], return_counts=True)[1].max())
    if others > alike:
        sentence = f"{others} of {told} peers say that they have another cluster file, the same one: {_AGREED} differ"
        do = _COMPARE[kind].format(facts.host)
        yield Cause(kind, here, sentence, do, Confidence.CERTAIN, Share(0, 0, len(rows), told))
        return
    or_targets = (here,) * (others == alike)
    confidence = Confidence.AMBIGUOUS if or_targets else Confidence.CERTAIN
    for i in rows[:_NAMED].tolist():
        name, more = facts.names[i], f" ({len(rows)} of {told} peers say so)" if len(rows) > 1 else ""
        sentence = f"{name} says that it has another cluster file{more}: {_AGREED} differ"
        yield Cause(
            kind, f"peer:{name}", sentence, _COMPARE[kind].format(name), confidence, _ONE_PEER, or_targets=or_targets
        )


def _peer_planes(facts: Facts, verdicts: Ints) -> Iterator[Cause]:
    """Yields the NICs that peers say are down; a T0, if all peers under it say so."""
    own_up = sum(1 << p for p, own in enumerate(facts.own_planes) if own.is_usable)
    # A peer without a plane in common is silent, and what it said last still explains it.
    can_tell = ~facts.is_silent | (facts.planes_up & own_up == 0)
    is_active = can_tell & ~facts.is_away & (facts.heard_ns > 0)
    for plane, own in enumerate(facts.own_planes):
        is_down = is_active & (facts.planes_up >> plane & 1 == 0) & own.is_usable
        if not is_down.any():
            continue
        down, active = (np.bincount(facts.t0s[which], minlength=facts.t0s.max() + 1) for which in (is_down, is_active))
        is_t0 = (down == active) & (down > 1)
        is_t0[facts.t0 : facts.t0 + 1] = False  # this host reaches it
        for t0 in np.flatnonzero(is_t0).tolist():
            rows = np.flatnonzero(is_down & (facts.t0s == t0))
            sentence = f"Plane {plane}: all {len(rows)} peers under T0 {t0} say that their NICs are down"
            do = f"check T0 {t0}; on {facts.names[rows[0]]}: `mrcctl status`"
            yield _said(facts, Kind.T0, f"t0:{plane}:{t0}", sentence, do, plane, rows, Confidence.LIKELY)
        for i in np.flatnonzero(is_down & ~is_t0[facts.t0s]).tolist():
            name = facts.names[i]
            sentence = (
                f"Plane {plane}: {name} says that its NIC is down or has a small MTU, or its first hop does not answer"
            )
            do, target = f"on {name}: `mrcctl status`", f"nic:{name}:{plane}"
            yield _said(facts, Kind.PEER_NIC, target, sentence, do, plane, np.array([i]), Confidence.CERTAIN)
        verdicts[is_down, facts.columns(plane)] = Verdict.NOTHING


def _said(
    facts: Facts, kind: Kind, target: str, sentence: str, do: str, plane: int, rows: Ints, confidence: Confidence
) -> Cause:
    """Returns a cause that the peers `rows` tell of a plane."""
    e = _element(facts, plane, rows)
    return Cause(kind, target, sentence, do, confidence, share(e), since_ns(facts, e))


# ---- what EVs say ----------------------------------------------------------------------------


def _small_mtus(facts: Facts, verdicts: Ints) -> Iterator[Cause]:
    """Yields what lets only small packets through, and lets the EVs that it explains say nothing more."""
    is_small = facts.passes(full_size=False) & (verdicts != Verdict.NOTHING)
    is_full = facts.passes(full_size=True)
    for plane, own in enumerate(facts.own_planes):
        columns = facts.columns(plane)
        small, full, is_suspected = is_small[:, columns], is_full[:, columns], facts.is_suspected[:, columns]
        if not (small & is_suspected).any() or own.link is LinkState.SMALL_MTU:
            continue
        of_plane, t1s = verdicts[:, columns], facts.plan.paths.t1s[:, columns]
        cover = Cover(facts, plane, small, full)
        for e in [*cover.elements, *_rest(plane, cover.left, small | full)]:
            yield cause(facts, e, Nature.SMALL_MTU)
            others = is_suspected[e.rows] & ~full[e.rows]  # that cross it, and were not probed
            if e.t1 >= 0:
                others &= t1s[e.rows] == e.t1
            explained = e.bad if e.place is Place.SOME else e.bad | others
            of_plane[e.rows] = np.where(explained, Verdict.NOTHING, of_plane[e.rows])


def _evs(facts: Facts, verdicts: Ints) -> Iterator[Cause]:
    """Yields the causes that are concluded from EVs: failures, then delays and denials."""
    bad = _is_bad(verdicts)
    if bad.any():
        yield from _whole_peers(facts, verdicts, bad)
    is_denied = verdicts == Verdict.DENIED
    if is_denied.any():
        yield from _denied_peers(facts, verdicts, is_denied)
    for plane in range(len(facts.own_planes)):
        of_plane = verdicts[:, facts.columns(plane)]
        if (of_plane <= Verdict.GOOD).all():
            continue
        yield from _failures(facts, plane, of_plane)
        is_alive = (of_plane != Verdict.NOTHING) & (of_plane != Verdict.DENIED)
        is_slow, is_denied = of_plane == Verdict.SLOW, of_plane == Verdict.DENIED
        if is_slow.any():
            is_quick = (of_plane == Verdict.GOOD) | (of_plane == Verdict.IDLE)
            cover = Cover(facts, plane, is_slow, is_quick, least_t0s=1)
            if why := facts.why_slower(plane):
                yield _own_slow_nic(facts, plane, is_slow, is_slow | is_quick, why)
            else:
                yield from (cause(facts, e, Nature.SLOW) for e in cover.elements)
        if is_denied.any():
            cover = Cover(facts, plane, is_denied, is_alive)
            elements = [*cover.elements, *_rest(plane, cover.left, is_denied | is_alive)]
            yield from (cause(facts, e, Nature.DENIED) for e in elements)


def _own_slow_nic(facts: Facts, plane: int, is_slow: Bools, known: Bools, why: str) -> Cause:
    """Returns the cause that this host's NIC on a plane is slower than its others: that explains all."""
    name, rate = facts.own_planes[plane].interface, facts.slow_bits_per_s(plane)
    carries = f", and carries {rate_words(rate)}" if rate else ""
    e = Element(Place.PLANE, plane, np.arange(len(known)), is_slow, known)
    sentence = f"Plane {plane}: this host's NIC {name} {why}{carries}: flows use it little"
    do, target = f"`tc -statistics qdisc show dev {name}`, `ethtool {name}`", f"nic:{facts.host}:{plane}"
    return Cause(Kind.SLOW_PLANE, target, sentence, do, Confidence.LIKELY, share(e), since_ns(facts, e))


def _whole_peers(facts: Facts, verdicts: Ints, bad: Bools) -> Iterator[Cause]:
    """Yields the peers to which all EVs on all planes are bad, and lets these EVs say nothing more.

    Not those whose T0s explain it with fewer causes, and none if the cables of all planes are wrong.
    """
    known = (verdicts != Verdict.NOTHING) & (verdicts != Verdict.DENIED)
    planes = len(facts.own_planes)
    planes_of_peer = known.reshape(len(known), planes, -1).any(axis=2).sum(axis=1)
    is_known, is_bad = planes_of_peer > 0, is_full(bad.sum(axis=1), known.sum(axis=1)) & (planes_of_peer > 1)
    if is_bad.sum() > 1 and (is_bad == is_known).all():
        if any(_for_other_nics(facts, plane) for plane in range(planes)):
            return  # each plane has its own cause
        e = Element(Place.PEER, -1, np.arange(len(known)), bad, known)
        all_of = share(e)
        which = f"{all_of.evs} of {all_of.of_evs} EVs"
        sentence = f"{which} have failed, on all planes to all {all_of.peers} peers: this host, or the whole fabric"
        target, do = f"host:{facts.host}", "`mrcctl doctor` checks this host"
        yield Cause(Kind.HOST, target, sentence, do, Confidence.LIKELY, all_of, since_ns(facts, e))
        verdicts[:] = Verdict.NOTHING
        return
    size = facts.t0s.max() + 1
    bad_of_t0, known_of_t0 = (np.bincount(facts.t0s[which], minlength=size) for which in (is_bad, is_known))
    is_by_t0 = (bad_of_t0 == known_of_t0) & (bad_of_t0 > planes)
    is_by_t0[facts.t0 : facts.t0 + 1] = False
    is_far = is_known & (facts.t0s != facts.t0)
    if is_bad[is_far].all() and is_far.sum() > planes:  # this host's T0s have lost all T1s
        is_by_t0[:] = np.arange(size) != facts.t0
    for i in np.flatnonzero(is_bad & ~is_by_t0[facts.t0s]).tolist():
        others = (f"host:{facts.host}",) * bool(is_known.sum() == 1)
        rows = np.array([i])
        e = Element(Place.PEER, -1, rows, bad[rows], known[rows], or_targets=others)
        yield cause(facts, e, _nature(facts, e))
        verdicts[i] = Verdict.NOTHING


def _denied_peers(facts: Facts, verdicts: Ints, is_denied: Bools) -> Iterator[Cause]:
    """Yields the peers to which all EVs on all planes are denied, and lets these EVs say nothing more."""
    known = verdicts != Verdict.NOTHING
    for i in np.flatnonzero(is_denied.any(axis=1) & (is_denied == known).all(axis=1)).tolist():
        yield cause(
            facts, Element(Place.PEER, -1, np.array([i]), is_denied[i : i + 1], known[i : i + 1]), Nature.DENIED
        )
        verdicts[i] = Verdict.NOTHING


def _failures(facts: Facts, plane: int, verdicts: Ints) -> Iterator[Cause]:
    """Yields the causes of failed and lossy EVs of a plane.

    An idle EV shows that its path forwards, but not that its path loses nothing.
    """
    is_lossy, is_failed = verdicts == Verdict.LOSSY, verdicts == Verdict.FAILED
    is_loaded = (verdicts == Verdict.GOOD) | (verdicts == Verdict.SLOW)
    left, elements = is_lossy | is_failed, list[Element]()
    known = (verdicts != Verdict.NOTHING) & (verdicts != Verdict.DENIED)
    if is_failed.any():
        cover = Cover(facts, plane, left, is_loaded | (verdicts == Verdict.IDLE))
        left, elements = cover.left, cover.elements
    if (left & is_lossy).any():
        cover = Cover(facts, plane, left & is_lossy, is_loaded)
        left, elements = (left & is_failed) | cover.left, elements + cover.elements
    for e in [*elements, *_rest(plane, left, known)]:
        nature = _nature(facts, e)
        found = cause(facts, _narrowed(facts, e) if nature is Nature.FAILED else e, nature)
        said = _for_other_nics(facts, plane)
        yield _wrong_cable(facts, found, plane, said) if said and found.kind is Kind.OWN_CABLE else found


def _for_other_nics(facts: Facts, plane: int) -> str:
    """Returns which packets for other NICs arrive on a plane; nothing if none do.

    The programs count those for other hosts, the kernel those for this host's addresses on other planes.
    """
    found = [memory.named(facts.refused, memory.WRONG_CABLE)]
    own = facts.own_planes[plane]
    found += [f"{own.unroutable} without a route on {own.interface}"] if own.unroutable else []
    return ", ".join(words for words in found if words)


def _wrong_cable(facts: Facts, found: Cause, plane: int, said: str) -> Cause:
    """Returns the cause of a plane on which nothing gets through, while packets for other NICs arrive."""
    sentence = f"Plane {plane}: nothing gets through, and packets for other NICs arrive here ({said} in 10 s): "
    sentence += "two cables are swapped, or lead to the wrong ports"
    do = f"compare the cable of {facts.own_planes[plane].interface} and its T0 port with the plan; `mrcctl config show`"
    return replace(found, kind=Kind.WRONG_CABLE, sentence=sentence, do=do, confidence=Confidence.LIKELY, or_targets=())


def _nature(facts: Facts, e: Element) -> Nature:
    columns = slice(None) if e.place is Place.PEER else facts.columns(e.plane)
    lossy = (facts.verdicts[e.rows, columns] == Verdict.LOSSY) & e.bad
    return Nature.LOSSY if 2 * lossy.sum() > e.bad.sum() else Nature.FAILED


def _rest(plane: int, left: Bools, known: Bools) -> Iterator[Element]:
    """Yields the EVs that nothing explains, as one element."""
    if left.any():
        rows = np.flatnonzero(left.any(axis=1))
        yield Element(Place.SOME, plane, rows, left[rows], known[rows])


# ---- what link probes tell --------------------------------------------------------------------

# A link probe turns round at this host's T0 or at a T1 (bpf/link_probe.h). One that came back after the EVs had failed
# shows that what it crossed works. If none came back since then, the cause is on its way.

_AFTER_NS = 500_000_000  # the median EV has failed: others fail until then
UNANSWERED = 5
"""Probes in a row on a link that shows that it, or what is before it, is dead."""


def _deaf_nics(facts: Facts, verdicts: Ints) -> Iterator[Cause]:
    """Yields the planes whose EVs work, as peers answer by other planes, but whose NIC receives nothing."""
    for plane, own in enumerate(facts.own_planes if facts.links is not None else ()):
        assert facts.links is not None
        link, of_plane = facts.links[0, plane], verdicts[:, facts.columns(plane)]
        is_silent = link["rx_ns"] and link["unanswered"] >= UNANSWERED
        if not (own.is_usable and is_silent and (of_plane == Verdict.GOOD).any()) or _is_bad(of_plane).any():
            continue
        sentence = f"Plane {plane}: packets leave by {own.interface}, but none of its link probes comes back"
        do = f"check cable and T0 port; `mrcctl status`, line other BPF: a program may drop what {own.interface} gets"
        nic, t0 = f"nic:{facts.host}:{plane}", f"t0:{plane}:{facts.t0}"
        yield Cause(Kind.OWN_CABLE, nic, sentence, do, Confidence.AMBIGUOUS, Share(), int(link["rx_ns"]), (t0,))


def _narrowed(facts: Facts, e: Element) -> Element:
    """Returns the element, or the first of its alternatives that is left; as it was if nothing is left."""
    since = since_ns(facts, e)
    if facts.links is None or since is None or e.place in (Place.PEER, Place.SOME):
        return e
    named = [target(facts, e, Nature.FAILED), *e.or_targets]
    excluded = set(_excluded(facts, e.plane, named, since))
    left = [t for t in named if t not in excluded]
    if not left or len(left) == len(named):
        return e
    return replace(_element_of(facts, e, left[0]) if left[0] != named[0] else e, or_targets=tuple(left[1:]))


def _excluded(facts: Facts, plane: int, named: list[str], since: int) -> Iterator[str]:
    """Yields the targets that link probes rule out."""
    nic, t0 = f"nic:{facts.host}:{plane}", f"t0:{plane}:{facts.t0}"
    assert facts.links is not None
    for row, links in enumerate(facts.links):
        t1 = row - 1
        # A T0 that sends probes back may still have lost its links to all T1s.
        works = {nic} if not row else {nic, t0, f"link:{plane}:{facts.t0}:{t1}", f"t1:{plane}:{t1}"}
        crossed = works | {t0}
        if links["rx_ns"][plane] > since + _AFTER_NS and links["unanswered"][plane] < UNANSWERED:
            yield from works
        elif links["rx_ns"][plane] and links["unanswered"][plane] >= UNANSWERED and not crossed.isdisjoint(named):
            yield from (t for t in named if t not in crossed)


def _element_of(facts: Facts, e: Element, chosen: str) -> Element:
    """Returns the element that a target names, with the same EVs."""
    word, *numbers = chosen.split(":")
    if word == "nic":
        return replace(e, place=Place.PLANE if numbers[0] == facts.host else Place.NIC, t0=-1, t1=-1)
    if word == "t1":
        return replace(e, place=Place.T1, t0=-1, t1=int(numbers[1]))
    if word == "link":
        return replace(e, place=Place.LINK, t0=int(numbers[1]), t1=int(numbers[2]))
    own = int(numbers[1]) == facts.t0
    return replace(e, place=Place.UPLINKS if own else Place.T0, t0=int(numbers[1]), t1=-1)
