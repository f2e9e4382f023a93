# SPDX-License-Identifier: BSD-2-Clause
"""Reads targets, selects their EVs, checks targets, and computes which peers fall below their floor. Pure.

A denial keeps its target, not the EVs that the target covered at the time. So it also covers the paths of a later
configuration. A target is a list of words; a path must match all of them:

    plane:P        a plane                          t1:P:S        the T1 number S of plane P
    peer:NAME      everything to a peer             t0:P:T        the T0 number T of plane P
    ev:N           the EVs of this number           link:P:T:S    the link between T0 T and T1 S
    ev:PEER:N      one EV                           nic:HOST:P    a host's NIC on plane P
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mrcd.errors import UsageError, no_peer
from mrcd.fabric.topology import EV, Peer, Plan, t0_usid, t1_usid

Rows = dict[int, list[int]]  # row (host id of the peer) → EVs
Evs = list[tuple[int, int]]  # (row, EV)

REASON_MAX = 200  # characters
LONGEST_S = 366 * 86_400

_FORMS = "t1:PLANE:T1, t0:PLANE:T0, link:PLANE:T0:T1, nic:HOST:PLANE, plane:N, peer:NAME, ev:N or ev:PEER:N"
_PLACE = {
    "t1": re.compile(r"t1:(?P<plane>\d{1,9}):(?P<t1>\d{1,9})", re.ASCII),
    "t0": re.compile(r"t0:(?P<plane>\d{1,9}):(?P<t0>\d{1,9})", re.ASCII),
    "link": re.compile(r"link:(?P<plane>\d{1,9}):(?P<t0>\d{1,9}):(?P<t1>\d{1,9})", re.ASCII),
    "nic": re.compile(r"nic:(?P<host>.+):(?P<plane>\d{1,9})", re.ASCII),
}
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII)


@dataclass(frozen=True)
class Place:
    """A switch, a link or a NIC. A number that its kind does not have is -1."""

    kind: str
    plane: int
    t0: int = -1
    t1: int = -1
    host: str = ""

    def __str__(self) -> str:
        numbers = {"t1": [self.t1], "t0": [self.t0], "link": [self.t0, self.t1]}.get(self.kind, [])
        parts = [self.kind, self.host, self.plane] if self.kind == "nic" else [self.kind, self.plane, *numbers]
        return ":".join(map(str, parts))


@dataclass(frozen=True)
class Target:
    """A set of paths: those that match every field that is not None."""

    place: Place | None = None
    peer: str | None = None
    plane: int | None = None
    ev: int | None = None

    @property
    def words(self) -> list[str]:
        """The words from which `parse` makes this target."""
        given = [("plane", self.plane), ("peer", self.peer), ("ev", self.ev)]
        return [str(self.place)] * bool(self.place) + [f"{k}:{v}" for k, v in given if v is not None]

    def __str__(self) -> str:
        return " ".join(self.words)


# ---- words -----------------------------------------------------------------------------------


def parse(words: Iterable[str]) -> Target:
    """Return the target that these words name, in any order. Raises UsageError."""
    found: dict[str, Any] = {}
    for word in words:
        for name, value in _read(word).items():
            if found.setdefault(name, value) != value:
                raise UsageError(
                    f"{found[name]} and {value}: no path matches both",
                    hint="all words together name one target; deny several targets with several commands",
                )
    target = Target(**found)
    if not found:
        raise UsageError("the target is missing", hint=_FORMS)
    return target


def _read(word: str) -> dict[str, Any]:
    kind, _, rest = word.partition(":")
    if kind in _PLACE and (match := _PLACE[kind].fullmatch(word)):
        at: dict[str, Any] = {k: v if k == "host" else int(v) for k, v in match.groupdict().items()}
        return {"place": Place(kind, **at)}
    if kind == "peer" and rest:
        return {"peer": rest}
    if kind in ("plane", "ev") and _NUMBER.fullmatch(rest):
        return {kind: int(rest)}
    peer, _, number = rest.rpartition(":")
    if kind == "ev" and peer and _NUMBER.fullmatch(number):
        return {"peer": peer, "ev": int(number)}
    raise UsageError(f"{word!r} is not a target", hint=_FORMS)


def duration_s(text: str) -> float:
    """Return the seconds in "90s", "30m", "1h30m" or "2d"; inf for "always". Raises UsageError."""
    if text.strip().lower() == "always":
        return math.inf
    match = _DURATION.fullmatch(text.strip().lower())
    parts = match.groups() if match and text.strip() else ()
    seconds = sum(int(n) * size for n, size in zip(parts, (86_400, 3600, 60, 1), strict=False) if n)
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"{text!r} is not a duration", hint="write 90s, 30m, 1h30m or 2d, at most 366d; or always")
    return float(seconds)


def checked_reason(text: str) -> str:
    """Return a reason without surrounding blanks. Raises UsageError if it is too long or not printable."""
    if len(text) > REASON_MAX or not text.isprintable():
        raise UsageError(f"the reason must be one line of at most {REASON_MAX} printable characters")
    return text.strip()


# ---- targets and paths -----------------------------------------------------------------------


def selected(plan: Plan, target: Target) -> Rows:
    """Return the EVs that a target covers now, by row. Rows without such EVs are left out."""
    found: Rows = {}
    for peer in plan.peers:
        if target.peer in (None, peer.host.name):
            evs = [e.ev for e in peer.evs if _fits(plan, peer, e, target)]
            if evs:
                found[peer.host.id] = evs
    return found


def by_row(at: Evs) -> Rows:
    """Group (row, EV) pairs by row."""
    rows: Rows = {}
    for row, ev in at:
        rows.setdefault(row, []).append(ev)
    return rows


def _fits(plan: Plan, peer: Peer, e: EV, target: Target) -> bool:
    if target.plane not in (None, e.plane) or target.ev not in (None, e.ev):
        return False
    return target.place is None or _goes_by(plan, peer, e, target.place)


def _goes_by(plan: Plan, peer: Peer, e: EV, place: Place) -> bool:
    is_t1 = place.kind == "t1"
    if e.plane not in _planes(plan, place):
        return False
    if place.kind == "nic":
        return place.host in (plan.host.name, peer.host.name)
    at_an_end = place.t0 in (plan.host.t0, peer.host.t0)
    if place.kind == "t0" and at_an_end:
        return True
    if e.usids:  # computed: T0 [· T1 · T0] · host
        return place.kind != "t0" and e.t1 == place.t1 and (is_t1 or at_an_end)
    hops = _hops(plan, peer, e)
    t0, t1 = t0_usid(e.plane, max(place.t0, 0)), t1_usid(e.plane, max(place.t1, 0))
    if place.kind == "link":
        return any({a, b} == {t0, t1} for a, b in itertools.pairwise(hops))
    return (t1 if is_t1 else t0) in hops


def _planes(plan: Plan, place: Place) -> Sequence[int]:
    """Return the planes of a place: one, or for a T1 those of all rails that share it."""
    return plan.config.cluster.t1_planes(place.plane) if place.kind == "t1" else (place.plane,)


def _one_name(plan: Plan, place: Place | None) -> Place | None:
    """Return a place by the first of its planes: rails have several names for one T1."""
    return replace(place, plane=_planes(plan, place)[0]) if place else None


def _hops(plan: Plan, peer: Peer, e: EV) -> list[int]:
    """Return the switches on a listed path as uSIDs. Adds the T0s of both ends, which the list may omit."""
    block = plan.config.cluster.block
    words = [int(s) >> (80 - 16 * i) & 0xFFFF for s in e.segments if s in block for i in range(6)]
    usids = [u for u in words if 0x4000 <= u < 0xC000]
    if not usids:
        return []
    first, last = t0_usid(e.plane, plan.host.t0), t0_usid(e.plane, peer.host.t0)
    return [first] * (usids[0] != first) + usids + [last] * (usids[-1] != last)


def check(plan: Plan, target: Target) -> None:
    """Raise UsageError if no path can ever match the target.

    A switch that no path of this host uses is accepted, because later paths may use it.
    """
    c = plan.config.cluster
    names = [p.host.name for p in plan.peers]
    if target.peer is not None and target.peer not in names:
        raise no_peer(target.peer, sorted(names))
    place = target.place
    plane = target.plane if place is None else place.plane
    if plane is not None and plane >= c.planes:
        raise UsageError(f"there is no plane {plane}", hint=f"planes: 0 to {c.planes - 1}")
    if place is not None:
        _check_place(plan, place)
        if target.plane not in (None, *_planes(plan, place)):
            raise UsageError(f"{place} is not in plane {target.plane}: no path matches both")
    if target.ev is not None and not selected(plan, target):
        raise UsageError(f"no path matches {target}", hint="`mrcctl paths` lists them")


def _check_place(plan: Plan, place: Place) -> None:
    c = plan.config.cluster
    if place.kind == "nic":
        if place.host not in {plan.host.name, *(p.host.name for p in plan.peers)}:
            raise UsageError(f"there is no host {place.host!r}", hint="nic:HOST:PLANE, by the host's name in the file")
        return
    if c.encapsulation == "ecmp" and place.kind in ("t1", "link"):
        raise UsageError(
            f"{place}: with encapsulation ecmp the switches choose the T1, so no EV belongs to one",
            hint="deny a plane, a T0 or a NIC, or take the switch out of the fabric's own routing",
        )
    for name, number, size in (("T0", place.t0, c.t0s), ("T1", place.t1, c.t1s)):
        if number >= size and not selected(plan, Target(place)):  # listed paths may use others
            raise UsageError(f"{place}: the fabric has no {name} {number}", hint=f"{name}s: 0 to {size - 1}")


def covers(plan: Plan, wide: Target, narrow: Target) -> bool:
    """Return whether every path that could match `narrow` also matches `wide`."""
    return _conditions(plan, wide) <= _conditions(plan, narrow) | _implied(plan, narrow)


def _conditions(plan: Plan, t: Target) -> set[tuple[str, object]]:
    given = {"peer": t.peer, "plane": t.plane, "ev": t.ev, "place": _one_name(plan, t.place)}
    if t.place and t.place.kind == "nic" and t.place.host == plan.host.name:
        given |= {"plane": t.place.plane, "place": None}  # all paths of a plane use this host's NIC in it
    return {(k, v) for k, v in given.items() if v is not None}


def _implied(plan: Plan, t: Target) -> set[tuple[str, object]]:
    found: set[tuple[str, object]] = set()
    if t.ev is not None:
        found.add(("plane", t.ev // plan.config.cluster.evs_per_plane))
    if t.place:
        if len(of_place := _planes(plan, t.place)) == 1:
            found.add(("plane", of_place[0]))
        if t.place.kind == "nic" and t.place.host != plan.host.name:
            found.add(("peer", t.place.host))
        if t.place.kind == "link":
            found |= {("place", _one_name(plan, Place("t1", t.place.plane, t1=t.place.t1)))}
            found |= {("place", Place("t0", t.place.plane, t0=t.place.t0))}
    if t.peer is not None:
        planes = [v for k, v in found | {("plane", t.plane)} if k == "plane"]
        found |= {("place", Place("nic", int(str(p)), host=t.peer)) for p in planes if p is not None}
    return found


def described(plan: Plan, rows: Mapping[int, Iterable[int]]) -> list[Target]:
    """Return few targets that together cover exactly these EVs now, for denials whose targets are unknown."""
    left = {(row, ev) for row, evs in rows.items() for ev in evs}
    every = {p.host.name: {(p.host.id, e.ev): e.plane for e in p.evs} for p in plan.peers}
    wide = [Target(plane=p) for p in range(plan.config.cluster.planes)]
    wide += [Target(peer=name) for name in every]
    wide += [Target(peer=name, plane=p) for name in every for p in range(plan.config.cluster.planes)]
    found = []
    for target in wide:
        names = [target.peer] if target.peer else list(every)
        means = {at for n in names for at, plane in every[n].items() if target.plane in (None, plane)}
        if means and means <= left:
            found.append(target)
            left -= means
    names_of = {p.host.id: p.host.name for p in plan.peers}
    return found + [Target(peer=names_of[row], ev=ev) for row, ev in sorted(left) if row in names_of]


# ---- the floor -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Short:
    """A peer that a denial would leave with too few EVs."""

    peer: str
    left: int  # usable ones
    evs: int
    floor: int

    def __str__(self) -> str:
        return f"{self.peer} with {self.left} of {self.evs} (ev_min_active {self.floor})"


@dataclass(frozen=True)
class Standing:
    """The EVs of a peer before a denial."""

    peer: str
    floor: int
    evs: frozenset[int] = field(default_factory=frozenset)
    denied: frozenset[int] = field(default_factory=frozenset)
    well: frozenset[int] = field(default_factory=frozenset)  # GOOD or SKIP


def below_floors(peers: Iterable[tuple[Standing, Iterable[int]]]) -> list[Short]:
    """Return the peers that would fall below their floor if these EVs were denied too.

    Two sets must stay at the floor: the EVs that are well now, and all that are not denied. A set from which the
    denial takes nothing is not checked, so that denying a failed switch needs no force.
    """
    found = []
    for p, wanted in peers:
        new = frozenset(wanted) & p.evs - p.denied
        possible, well = p.evs - p.denied, p.well - p.denied
        if any(now & new and len(now - new) < p.floor for now in (possible, well)):
            found.append(Short(p.peer, len(well - new), len(p.evs), p.floor))
    return found
