# SPDX-License-Identifier: BSD-2-Clause
"""Computes the EVs of a host to its peers, as arrays. Pure arithmetic.

A cluster has up to a million EVs; objects are made only for the few that are requested. EV = plane × evs_per_plane +
slot, and is the same on every host because packets carry it.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv6Address, IPv6Network

import numpy as np
from numpy.typing import NDArray

from mrcd.config.cluster_file import Config, Host, Path_
from mrcd.config.sizes import SRH_MAX
from mrcd.errors import ConfigError
from mrcd.fabric import srv6

_USIDS = 4  # the longest computed path: T0, T1, T0, host
NO_T1 = -1
_AT_ONCE = 256  # peers
OBJECTS_KEPT = 32  # peers whose EV objects are cached

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EV:
    """One path to one peer. `segments` are destination addresses in travel order (one = no SRH)."""

    peer: str
    peer_id: int
    ev: int
    plane: int
    slot: int
    t1: int | None  # None: under the same T0, explicit path, or ecmp
    segments: tuple[IPv6Address, ...]
    usids: tuple[int, ...]
    label: str = ""


@dataclass(frozen=True)
class Block:
    """The table contents for the EVs of some peers.

    configured, plane, srh_len   (peers, evs)
    dst                          (peers, evs, 16): uSID carrier, or first segment
    srh                          (peers, evs, SRH_MAX), of which srh_len bytes are used; None if no path has an SRH
    """

    configured: NDArray[np.bool_]
    plane: NDArray[np.uint8]
    dst: NDArray[np.uint8]
    srh_len: NDArray[np.uint8]
    srh: NDArray[np.uint8] | None


class Paths:
    """The EVs of the host `me` to the hosts `others`. A peer is given by its index in `others`.

    Raises ConfigError if a host has no path, or more explicit paths than a plane has EVs.
    """

    def __init__(self, config: Config, me: Host, others: Sequence[Host]) -> None:
        self._c, self._me, self._hosts = config.cluster, me, others
        c = self._c
        self.shape = (c.planes, c.evs_per_plane)  # (planes, slots)
        self._ids = np.array([h.id for h in others], np.int64)
        self._t0s = np.array([h.t0 for h in others], np.int64)
        self._ports = np.array([h.port for h in others], np.int64)
        self._near = self._t0s == me.t0
        far = c.evs_per_plane if c.encapsulation == "ecmp" else min(c.t1s, c.evs_per_plane)
        self._slots = np.where(self._near, 1, far)  # slots in use in each plane
        self._explicit = self._explicit_evs(config.paths)
        self.counts: Ints = self._slots * c.planes
        """Number of EVs of each peer."""
        self.counts[list(self._explicit)] = [len(evs) for evs in self._explicit.values()]
        none = np.flatnonzero(self.counts == 0)
        if len(none):
            raise ConfigError(
                f"there is no path {me.name} → {others[none[0]].name}: they are under different T0s, and t1s = 0",
                hint="set t1s, or add [[paths]] for this pair",
            )
        # No functools.cache on methods: its reference cycle would keep an old plan until a full garbage collection.
        self._thinned: dict[int, NDArray[np.int16]] = {}
        self._kept: dict[int, tuple[EV, ...]] = {}  # in the order of use, the most recent last

    def _explicit_evs(self, paths: Iterable[Path_]) -> dict[int, tuple[EV, ...]]:
        places = {h.name: i for i, h in enumerate(self._hosts)}
        found: dict[int, list[EV]] = {}
        used: dict[tuple[int, int], int] = {}  # (peer, plane) → slots
        c = self._c
        for p in (p for p in paths if p.source == self._me.name):
            i = places[p.peer]
            slot = used[i, p.plane] = used.get((i, p.plane), -1) + 1
            if slot >= c.evs_per_plane:
                raise ConfigError(
                    f"paths: more than {c.evs_per_plane} paths {p.source} → {p.peer} on plane {p.plane}",
                    hint=f"evs_per_peer = {c.evs_per_peer} over {c.planes} planes leaves {c.evs_per_plane} each",
                )
            ev = p.plane * c.evs_per_plane + slot
            name, host_id = self._hosts[i].name, self._hosts[i].id
            found.setdefault(i, []).append(EV(name, host_id, ev, p.plane, slot, None, tuple(p.segments), (), p.label))
        return {i: tuple(sorted(evs, key=lambda e: e.ev)) for i, evs in found.items()}

    @cached_property
    def most_segments(self) -> int:
        """Returns the segments of the longest path; 1 if there is no path."""
        listed = [len(e.segments) for evs in self._explicit.values() for e in evs]
        computed = np.delete(self._near, list(self._explicit))
        if self._c.encapsulation != "srh" or not len(computed):
            return max([1, *listed])
        return max([2 if computed.all() else _USIDS, *listed])

    def per_plane(self, peer: int) -> list[int]:
        """Returns the number of a peer's EVs on each plane."""
        if peer not in self._explicit:
            return [int(self._slots[peer])] * self.shape[0]
        return [sum(e.plane == plane for e in self._explicit[peer]) for plane in range(self.shape[0])]

    def numbers(self, peer: int) -> Ints:
        """Returns the numbers of a peer's EVs, ascending."""
        if peer in self._explicit:
            return np.array([e.ev for e in self._explicit[peer]], np.int64)
        planes, width = self.shape
        return np.asarray((np.arange(planes)[:, None] * width + np.arange(self._slots[peer])).ravel())

    def is_explicit(self, peer: int) -> bool:
        """Returns whether the cluster file lists a peer's paths."""
        return peer in self._explicit

    # ---- EVs as objects ----

    def evs(self, peer: int) -> tuple[EV, ...]:
        """Returns all EVs of a peer, ordered by their number."""
        found = self._kept.pop(peer, None)
        if found is None:
            found = self.some(peer, range(self._c.evs_per_peer))
            for oldest in list(self._kept)[: max(0, len(self._kept) - OBJECTS_KEPT + 1)]:
                self._kept.pop(oldest, None)  # default, because another thread may have removed it
        self._kept[peer] = found
        return found

    def place(self, peer: int, number: int) -> tuple[int, int | None] | None:
        """Returns plane and T1 of a peer's EV without making the EV; None if the peer has no EV of that number."""
        if peer in self._explicit:
            return next(((e.plane, e.t1) for e in self._explicit[peer] if e.ev == number), None)
        (planes, width), (plane, slot) = self.shape, divmod(number, self.shape[1])
        if not 0 <= plane < planes or slot >= self._slots[peer]:
            return None
        if self._c.encapsulation == "ecmp" or self._near[peer]:
            return plane, None
        return plane, slot if self._c.t1s <= width else int(self._thin(peer)[plane, slot])

    def some(self, peer: int, numbers: Iterable[int]) -> tuple[EV, ...]:
        """Returns the EVs of a peer that have these numbers, in the order of `numbers`."""
        if peer in self._explicit:
            by_number = {e.ev: e for e in self._explicit[peer]}
            return tuple(by_number[n] for n in numbers if n in by_number)
        c, host, which = self._c, self._hosts[peer], np.array([peer])
        t1s, usids = self._t1s(which)[0].tolist(), self._usids(which)[0].tolist()
        slots, (planes, width) = int(self._slots[peer]), self.shape
        evs = []
        for number in numbers:
            plane, slot = divmod(number, width)
            if plane >= planes or slot >= slots:
                continue
            path = tuple(u for u in usids[plane][slot] if u)
            if c.encapsulation == "srh":
                segments = tuple(srv6.carrier(c.block, [u]) for u in path)
            elif path:
                segments = (srv6.carrier(c.block, path),)
            else:
                segments = (srv6.plane_address(c.underlay, plane, host),)
            t1 = t1s[plane][slot]
            evs.append(EV(host.name, host.id, number, plane, slot, None if t1 == NO_T1 else t1, segments, path))
        return tuple(evs)

    # ---- EVs as arrays ----

    def addresses(self, which: Ints) -> NDArray[np.uint8]:
        """Returns the addresses of some peers on the planes, (peers, planes, 16)."""
        words = np.zeros((len(which), self.shape[0], 8), ">u2")
        words[..., :2] = _prefix(self._c.underlay)
        words[..., 2] = np.arange(self.shape[0])
        words[..., 3] = self._t0s[which, None]
        number = self._ids[which, None] + 1
        words[..., 6], words[..., 7] = number >> 16, number & 0xFFFF
        return words.view(np.uint8)

    @cached_property
    def t1s(self) -> NDArray[np.int16]:
        """Returns the T1 of each EV, (peers, planes × slots); NO_T1 where there is none, or it is not known.

        It is not known of paths that the cluster file lists, nor with encapsulation ecmp, where switches choose it.
        """
        planes, width = self.shape
        found = np.empty((len(self._hosts), planes * width), np.int16)
        for start in range(0, len(found), _AT_ONCE):  # `_t1s` takes four times the memory of its result
            which = np.arange(start, min(start + _AT_ONCE, len(found)))
            found[which] = self._t1s(which).reshape(len(which), -1)
        found[list(self._explicit)] = NO_T1
        return found

    def _t1s(self, which: Ints) -> NDArray[np.int64]:
        """Returns the T1 of each slot, or NO_T1, (peers, planes, slots).

        If there are more T1s than slots, a hash of (pair, plane) selects some. Both directions of a pair select the
        same T1s, so the mirror of an EV has the same number. Different pairs select different T1s, as MRC's random T1s
        within a plane are different (paper §2).
        """
        found = np.full((len(which), *self.shape), NO_T1, np.int64)
        if self._c.encapsulation == "ecmp":
            return found
        far = np.flatnonzero(~self._near[which])
        if self._c.t1s <= self.shape[1]:
            found[far, :, : self._c.t1s] = np.arange(self._c.t1s)
        else:
            for i in far.tolist():
                found[i] = self._thin(int(which[i]))
        return found

    def _thin(self, peer: int) -> NDArray[np.int16]:
        """Returns the T1s selected for a pair, (planes, slots)."""
        found = self._thinned.get(peer)
        if found is not None:
            return found
        low, high = sorted((self._me.id, self._hosts[peer].id))
        rows = []
        for plane in range(self.shape[0]):
            prefix = hashlib.blake2b(f"{low}-{high}-{plane}-".encode(), digest_size=8)
            ranks = []
            for t1 in range(self._c.t1s):
                ranked = prefix.copy()
                ranked.update(b"%d" % t1)
                ranks.append((ranked.digest(), t1))
            rows.append(sorted(t1 for _, t1 in sorted(ranks)[: self.shape[1]]))
        found = self._thinned[peer] = np.array(rows, np.int16)
        return found

    def _usids(self, which: Ints) -> NDArray[np.int64]:
        """Returns the uSIDs of each slot in travel order, filled up with 0, (peers, planes, slots, 4)."""
        found = np.zeros((len(which), *self.shape, _USIDS), np.int64)
        if self._c.encapsulation == "ecmp":
            return found
        plane = np.arange(self.shape[0])[:, None]
        t1s, near = self._t1s(which), self._near[which]
        used = np.arange(self.shape[1]) < self._slots[which, None]
        there = srv6.t0_usid(plane, self._t0s[which, None, None])
        host = srv6.host_usid(plane, self._ports[which, None, None])
        found[..., 0] = srv6.t0_usid(plane, self._me.t0)
        found[~near, ..., 1] = srv6.t1_usid(plane, t1s[~near])
        found[~near, ..., 2], found[~near, ..., 3] = there[~near], host[~near]
        found[near, ..., 1] = host[near]
        return np.asarray(found * used[:, None, :, None])

    def block(self, which: Ints, evs: int) -> Block:
        """Returns the table contents for the EVs of some peers. The tables have `evs` columns, evs_per_peer or more."""
        c, n, (planes, width) = self._c, len(which), self.shape
        all_evs = (n, evs)
        made = Block(
            np.zeros(all_evs, bool),
            np.zeros(all_evs, np.uint8),
            np.zeros((*all_evs, 16), np.uint8),
            np.zeros(all_evs, np.uint8),
            np.zeros((*all_evs, SRH_MAX), np.uint8) if self.most_segments > 1 else None,
        )
        here = slice(0, planes * width)
        used = np.broadcast_to((np.arange(width) < self._slots[which, None])[:, None, :], (n, *self.shape))
        made.configured[:, here] = used.reshape(n, planes * width)
        made.plane[:, here] = np.arange(planes).repeat(width)
        if c.encapsulation == "ecmp":
            made.dst[:, here] = self.addresses(which).repeat(width, axis=1)
        else:
            usids = self._usids(which).reshape(n, planes * width, _USIDS)
            made.dst[:, here] = self._carriers(usids[..., :1] if c.encapsulation == "srh" else usids)
            if c.encapsulation == "srh" and made.srh is not None:
                self._fill_srhs(made.srh[:, here], made.srh_len[:, here], usids, self._near[which])
        self._fill_explicit(made, which)
        for field in (made.plane, made.dst, made.srh_len, made.srh):
            if field is not None:
                field[~made.configured] = 0
        return made

    def _carriers(self, usids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns the carriers with these uSIDs behind the block: (…, uSIDs) → (…, 16)."""
        words = np.zeros((*usids.shape[:-1], 8), ">u2")
        words[..., :2] = _prefix(self._c.block)
        words[..., 2 : 2 + usids.shape[-1]] = usids
        return words.view(np.uint8)

    def _fill_srhs(
        self, srh: NDArray[np.uint8], srh_len: NDArray[np.uint8], usids: NDArray[np.int64], near: NDArray[np.bool_]
    ) -> None:
        """Fills in the SRHs of segments with one uSID each; the list is in reverse order, without the first segment."""
        for rows, segments in ((near, 2), (~near, _USIDS)):
            size = srv6.srh_bytes(segments)
            backwards = self._carriers(usids[rows][..., segments - 1 : 0 : -1, None])
            srh[rows, :, :8] = np.frombuffer(srv6.srh_header(segments), np.uint8)
            srh[rows, :, 8:size] = backwards.reshape(*backwards.shape[:2], size - 8)
            srh_len[rows] = size

    def _fill_explicit(self, made: Block, which: Ints) -> None:
        for i, peer in enumerate(which.tolist()):
            if peer not in self._explicit:
                continue
            made.configured[i] = False
            for e in self._explicit[peer]:
                srh = srv6.reduced_srh(e.segments)
                made.configured[i, e.ev], made.plane[i, e.ev], made.srh_len[i, e.ev] = True, e.plane, len(srh)
                made.dst[i, e.ev] = np.frombuffer(e.segments[0].packed, np.uint8)
                if made.srh is not None:
                    made.srh[i, e.ev] = np.frombuffer(srh.ljust(SRH_MAX, b"\0"), np.uint8)


def _prefix(network: IPv6Network) -> NDArray[np.uint16]:
    """Returns the first 32 bits of a prefix as two words."""
    return np.frombuffer(network.network_address.packed[:4], ">u2")
