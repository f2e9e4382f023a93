# SPDX-License-Identifier: BSD-2-Clause
"""Finds the fewest elements of one plane that explain its bad EVs: NICs, switches and links. Pure, over arrays.

An element explains bad EVs if nearly all EVs that cross it are bad. It is chosen if it explains a bad EV that those
before it do not. They are tried in this order:

1. the plane: this host's NIC, its cable and its T0, which all EVs cross; else its T0's links to all T1s;
2. T0s of other hosts and T1s, those with the most bad EVs first;
3. NICs of peers;
4. links between T0s and T1s.

All EVs that cross a T1 also cross its link to this host's T0, so these two are never told apart.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from mrcd.health.diagnosis.facts import Facts, Ints
from mrcd.health.snapshot import Bools

_NEARLY_ALL = 0.9  # EVs fail, and return, one after the other


class Place(StrEnum):
    """The kind of an element."""

    PLANE = "plane"  # this host's NIC, its cable and its T0
    UPLINKS = "uplinks"  # of this host's T0 to all T1s
    T0 = "t0"
    T1 = "t1"
    LINK = "link"
    NIC = "nic"
    PEER = "peer"  # on all planes
    SOME = "some"  # EVs that have no element in common


@dataclass(frozen=True)
class Element:
    """An element, and the bad EVs that it explains. Numbers that its place does not have are -1.

    `bad`, `known`: the columns of the plane for the peers `rows`, of the EVs that cross it; `known` includes good ones.
    """

    place: Place
    plane: int
    rows: Ints
    bad: Bools
    known: Bools
    t0: int = -1
    t1: int = -1
    or_targets: tuple[str, ...] = ()


def is_full(bad: Ints, known: Ints) -> Bools:
    """Returns whether nearly all of the known EVs are bad, and there is one."""
    return np.asarray((np.asarray(known) > 0) & (np.asarray(bad) >= _NEARLY_ALL * np.asarray(known)))


@dataclass(frozen=True)
class Full:
    """The elements that nearly only bad EVs cross. Indexes are numbers of T0s, T1s and peers.

    plane    all EVs of the plane are bad           t0, t1, nic, link  (T0s,), (T1s,), (peers,), (T0s, T1s)
    uplinks  all those through T1s are bad, and those to hosts under this host's T0 are not
    bad_of_t0, bad_of_t1  the number of bad EVs
    """

    plane: bool
    uplinks: bool
    t0: Bools
    t1: Bools
    nic: Bools
    link: Bools
    bad_of_t0: Ints
    bad_of_t1: Ints


def find_full(bad: Bools, known: Bools, t0s: Ints, t1s: Ints, own_t0: int, least_t0s: int = 2) -> Full:
    """Returns which elements of a plane are full, from its EVs (peers, columns).

    The uplinks are full only if their EVs lead to `least_t0s` other T0s or more.

    Where most EVs are to hosts under one T0, nearly all EVs of a T1 may be bad because of that T0. So most EVs of
    nearly each of its links must be bad, too. The same holds for the T0s of the plane.
    """
    size = int(t0s.max()) + 1, int(t1s.max()) + 2  # T1 + 1; 0 is for EVs without a T1
    links = t0s[:, None] * size[1] + t1s + 1
    bad_of_link, of_link = (np.bincount(links[c], minlength=size[0] * size[1]).reshape(size) for c in (bad, known))
    bad_of_t0, of_t0, bad_of_t1, of_t1 = (c.sum(axis=a) for a in (1, 0) for c in (bad_of_link, of_link))
    is_mostly_bad = (of_link > 0) & (2 * bad_of_link >= of_link)
    is_t0, is_t1 = is_full(bad_of_t0, of_t0), is_full(bad_of_t1, of_t1)
    is_t1 &= is_full(is_mostly_bad.sum(axis=0), (of_link > 0).sum(axis=0))
    is_far = np.arange(size[0]) != own_t0
    is_known, is_near_bad = (of_t0 > 0) & is_far, bool(is_t0[~is_far].any())
    is_far_bad = bool(
        is_full(bad_of_t0[is_far].sum(), of_t0[is_far].sum())
        & is_full((is_known & (2 * bad_of_t0 >= of_t0)).sum(), is_known.sum())
    )
    has_far, has_near = bool(is_known.any()), bool(of_t0[~is_far].any())
    return Full(
        plane=(is_far_bad or not has_far) and (is_near_bad or not has_near),
        uplinks=is_far_bad and bool(is_known.sum() >= least_t0s and (of_t1[1:] > 0).sum() > 1),
        t0=is_t0 & is_far,  # this host's own is part of Place.PLANE
        t1=is_t1[1:],
        nic=is_full(bad.sum(axis=1), known.sum(axis=1)),
        link=is_full(bad_of_link, of_link)[:, 1:],
        bad_of_t0=bad_of_t0,
        bad_of_t1=bad_of_t1[1:],
    )


class Cover:
    """The elements of a plane that explain its bad EVs.

    `bad`, `good`: (peers, columns of the plane); EVs in neither say nothing. `left`: bad EVs that nothing explains.
    """

    def __init__(self, facts: Facts, plane: int, bad: Bools, good: Bools, least_t0s: int = 2) -> None:
        self._facts, self._plane, self._bad, self._known = facts, plane, bad, bad | good
        self._t0s, self._t1s = facts.t0s, np.asarray(facts.plan.paths.t1s[:, facts.columns(plane)])
        self._full = find_full(bad, self._known, self._t0s, self._t1s, facts.t0, least_t0s)
        self.left = bad.copy()
        self.elements: list[Element] = []
        self._find()

    def _find(self) -> None:
        full = self._full
        if full.plane:
            self._add(Place.PLANE, np.arange(len(self._t0s)))
        elif full.uplinks:
            self._add(Place.UPLINKS, np.flatnonzero(self._t0s != self._facts.t0))
        else:
            self._find_switches()
        if self.left.any():
            for i in np.flatnonzero(full.nic & self.left.any(axis=1)).tolist():
                self._add(Place.NIC, np.array([i]))
        if self.left.any():
            for t0, t1 in zip(*(a.tolist() for a in np.nonzero(full.link)), strict=True):
                self._add(Place.LINK, np.flatnonzero(self._t0s == t0), t0=t0, t1=t1)

    def _find_switches(self) -> None:
        full = self._full
        found = [(-int(full.bad_of_t0[n]), Place.T0, n) for n in np.flatnonzero(full.t0).tolist()]
        found += [(-int(full.bad_of_t1[n]), Place.T1, n) for n in np.flatnonzero(full.t1).tolist()]
        for _, place, n in sorted(found, key=lambda f: f[0]):
            if place is Place.T0:
                self._add(place, np.flatnonzero(self._t0s == n), t0=n)
            else:
                self._add(place, np.arange(len(self._t0s)), t1=n)

    def _add(self, place: Place, rows: Ints, t0: int = -1, t1: int = -1) -> None:
        """Adds an element, if it explains an EV that is left."""
        crosses = True if t1 < 0 else self._t1s[rows] == t1
        bad, known = self._bad[rows] & crosses, self._known[rows] & crosses
        if not (self.left[rows] & bad).any():
            return
        self.left[rows] &= ~bad
        or_targets = tuple(self._others(place, rows, bad, t1))
        self.elements.append(Element(place, self._plane, rows, bad, known, t0, t1, or_targets))

    def _others(self, place: Place, rows: Ints, bad: Bools, t1: int) -> list[str]:
        """Returns the targets that would explain the same bad EVs."""
        facts, p = self._facts, self._plane
        peers = rows[bad.any(axis=1)]
        t0s, t1s = set(self._t0s[peers].tolist()), set(self._t1s[rows][bad].tolist())
        t0, peer = next(iter(t0s)), int(peers[0])
        found = []
        is_only_far_t0 = place is Place.T0 and set(self._t0s.tolist()) <= {facts.t0, t0}
        if place is Place.PLANE or is_only_far_t0:  # all EVs to the only other T0 also leave by this host's
            found.append(f"t0:{p}:{facts.t0}")
        if place is Place.T1:
            found.append(f"link:{p}:{facts.t0}:{t1}")
        if place is not Place.T0 and len(t0s) == 1 and self._full.t0[t0]:
            found.append(f"t0:{p}:{t0}")
        if len(t1s) == 1 and (other := t1s.pop()) >= 0:
            if place is not Place.T1 and self._full.t1[other]:
                found.append(f"t1:{p}:{other}")
            if place is not Place.LINK and len(t0s) == 1 and self._full.link[t0, other]:
                found.append(f"link:{p}:{t0}:{other}")
        if place is not Place.NIC and len(peers) == 1 and self._full.nic[peer]:
            found.append(f"nic:{facts.names[peer]}:{p}")
        return found
