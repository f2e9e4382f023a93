# SPDX-License-Identifier: BSD-2-Clause
"""Draws the traffic and the faults of a fabric, the packets that are lost, and the sums that hosts would export. Pure.

Hosts leave an EV that loses packets, as mrcd does: after so many losses it carries only probes for the hold-down, which
doubles each time. So an EV through a fault loses a bounded number of packets, however much it would carry.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mrcd.config.cluster_file import t1_planes
from mrcd.fleet_links.counts import Direction, Element, Fleet, HostSums, Kind, Sums

PEERS = 8  # that a host sends to
PACKETS_PER_S = 1_000_000  # of a host: 70 Gbit/s in packets of 9,000 bytes
SECONDS = 60
_JOB_SIZES = (64, 128, 256, 512, 1024)  # hosts
_BLOCK = 16  # hosts of a job that are neighbours: schedulers keep them together, but not whole jobs

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fabric:
    """Sizes of a two-tier fabric. `slots`: EVs of a pair of hosts in each plane. `rails` share T1s."""

    planes: int
    t0s: int
    t1s: int
    hosts_per_t0: int
    slots: int
    rails: int = 1

    @property
    def hosts(self) -> int:
        """Returns the number of hosts, each with a port in each plane."""
        return self.t0s * self.hosts_per_t0

    def planes_of(self, e: Element) -> range:
        """Returns the planes of an element."""
        return t1_planes(e.plane, self.planes, self.rails) if e.kind is Kind.T1 else range(e.plane, e.plane + 1)


@dataclass(frozen=True)
class Traffic:
    """The pairs of hosts that exchange packets: arrays (pairs,), ordered by source. `packets`: on each plane."""

    source: Ints
    target: Ints
    packets: Floats


def draw(fabric: Fabric, rng: Generator) -> Traffic:
    """Draws jobs that fill the fabric. A host sends to two neighbours of a ring and to random others of its job."""
    blocks = rng.permutation(-(-fabric.hosts // _BLOCK))
    order = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
    order = order[order < fabric.hosts]
    sources, targets = [], []
    start = 0
    while start < len(order):
        members = order[start : start + int(rng.choice(_JOB_SIZES))]
        start += len(members)
        if len(members) < 2:
            continue
        size = len(members)
        place = np.arange(size)
        steps = [np.full(size, 1), np.full(size, size - 1)]
        steps += [rng.integers(1, size, size) for _ in range(PEERS - 2)]
        for step in steps:
            sources.append(members)
            targets.append(members[(place + step) % size])
    source, target = np.concatenate(sources), np.concatenate(targets)
    key = np.unique(source * fabric.hosts + target)
    source, target = np.divmod(key, fabric.hosts)
    weights = rng.lognormal(0.0, 0.5, len(key))
    total = np.bincount(source, weights, fabric.hosts)
    packets = weights / total[source] * PACKETS_PER_S * SECONDS / fabric.planes
    return Traffic(source.astype(np.int64), target.astype(np.int64), packets)


NOISE = 1e-6  # mean loss ratio of a NIC's last hop without a fault: what congestion costs
MOST_NOISE = 1e-5  # of one NIC
_NOISE_SPREAD = 1.0  # of a log-normal distribution over NICs
_LEFT_AFTER = 10  # losses of an EV after which it is left
_STAYS = 6  # times that an EV is used again in a minute: hold-downs of 1, 2, 4, … s
_PROBES = SECONDS  # of an EV that is out of use: one per second
LEAVES_ABOVE = 1.001e-3  # grey_ratio, and a little: up to it, a loss is no reason to leave a path


@dataclass(frozen=True)
class Fault:
    """An element that loses a ratio of its packets."""

    element: Element
    ratio: float


def directions(e: Element) -> tuple[Direction, ...]:
    """Returns the directions in which an element is named."""
    if e.direction is not Direction.BOTH or e.kind is Kind.T1:
        return (e.direction,)
    return Direction.UP, Direction.DOWN


@dataclass(frozen=True)
class Losses:
    """Lost packets of EVs through faults: arrays (EVs,). `unsent`: what would have been sent, had it not been left."""

    pair: Ints
    plane: Ints
    t1: Ints  # -1: both hosts are under the same T0
    lost: Floats
    unsent: Floats


class Simulation:
    """A fabric with traffic. `observe` returns what its hosts count under faults."""

    def __init__(self, fabric: Fabric, traffic: Traffic, rng: Generator) -> None:
        self.fabric, self.traffic, self._rng = fabric, traffic, rng
        self.t0_of_host = np.arange(fabric.hosts) // fabric.hosts_per_t0
        self.source_t0, self.target_t0 = self.t0_of_host[traffic.source], self.t0_of_host[traffic.target]
        self.is_far = self.source_t0 != self.target_t0
        noise = rng.lognormal(np.log(NOISE) - _NOISE_SPREAD**2 / 2, _NOISE_SPREAD, (fabric.planes, fabric.hosts))
        self.noise_of_nic = np.minimum(noise, MOST_NOISE)
        self._read_seed = int(rng.integers(1 << 32))
        self._salt = rng.integers(1 << 63, size=len(traffic.source), dtype=np.uint64)
        self._bounds = np.searchsorted(traffic.source, np.arange(fabric.hosts + 1))
        self._group = max(1, fabric.t1s // fabric.slots)  # each slot takes one T1 of so many
        self._uplink_sent = np.stack([self._sent_by_uplinks(p) for p in range(fabric.planes)])

    @property
    def slots(self) -> int:
        """Returns the EVs of a far pair on a plane."""
        return self.fabric.t1s // self._group

    def t1s_of(self, pairs: Ints, plane: int, slot: Ints) -> Ints:
        """Returns the T1s of EVs of far pairs: pairs take different T1s."""
        salt = np.uint64((plane + 1) * 0x9E3779B97F4A7C15 % 2**64)
        mixed = (self._salt[pairs] ^ salt) + slot.astype(np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
        return slot * self._group + ((mixed >> np.uint64(33)) % np.uint64(self._group)).astype(np.int64)

    def _sent_by_uplinks(self, plane: int) -> Floats:
        """Returns the packets of a plane by uplink, without faults, (T0s, T1s)."""
        f, far = self.fabric, np.flatnonzero(self.is_far)
        base, packets = self.source_t0[far] * f.t1s, self.traffic.packets[far] / self.slots
        if self._group == 1:
            return np.repeat(_count(self.source_t0[far], packets, (f.t0s, 1)), f.t1s, axis=1)
        found = np.zeros(f.t0s * f.t1s)
        for slot in range(self.slots):
            cell = base + self.t1s_of(far, plane, np.full(1, slot))
            found += np.bincount(cell, packets, f.t0s * f.t1s)
        return found.reshape(f.t0s, f.t1s)

    # ---- faults ----

    def draw_faults(self, count: int, ratio: float) -> list[Fault]:
        """Draws faults of different parts that carry traffic, but nothing at a switch that is faulty."""
        found: list[Fault] = []
        while len(found) < count:
            e = self._draw_element()
            is_new = not any(self._has_all_of(f.element, e) or self._has_all_of(e, f.element) for f in found)
            ways = [replace(e, direction=d) for d in directions(e)]
            if is_new and all(len(self._evs_through(way)) for way in ways):
                found.append(Fault(e, ratio))
        return found

    def _has_all_of(self, switch: Element, e: Element) -> bool:
        """Returns whether all packets that cross `e` cross the switch, or both are the same part."""
        if switch.part == e.part:
            return True
        is_t0, is_t1 = switch.kind is Kind.T0 and switch.t0 == e.t0, switch.kind is Kind.T1 and switch.t1 == e.t1
        return e.plane in self.fabric.planes_of(switch) and (is_t0 or is_t1)

    def _draw_element(self) -> Element:
        """Draws a NIC or a link in one direction or both, or now and then a switch."""
        rng, f = self._rng, self.fabric
        kind = rng.choice([Kind.NIC, Kind.LINK, Kind.T1, Kind.T0], p=[0.4, 0.4, 0.1, 0.1])
        direction = Direction(str(rng.choice([d.value for d in Direction], p=[0.4, 0.4, 0.2])))
        p, t0, t1, host = (int(rng.integers(n)) for n in (f.planes, f.t0s, f.t1s, f.hosts))
        if kind == Kind.NIC:
            return Element(Kind.NIC, direction, p, host=host)
        if kind == Kind.LINK:
            return Element(Kind.LINK, direction, p, t0, t1)
        if kind == Kind.T0:
            return Element(Kind.T0, Direction.BOTH, p, t0)
        return Element(Kind.T1, Direction.BOTH, t1_planes(p, f.planes, f.rails).start, t1=t1)

    def losses(self, faults: Sequence[Fault]) -> Losses:
        """Draws the losses of all EVs through faults."""
        keys, survival = np.zeros(0, np.int64), np.zeros(0)
        for fault in faults:
            mine = self._evs_through(fault.element)
            keys = np.concatenate([keys, mine])
            survival = np.concatenate([survival, np.full(len(mine), np.log(max(1e-30, 1 - fault.ratio)))])
        keys, of_key = np.unique(keys, return_inverse=True)
        pair, rest = np.divmod(keys, self.fabric.planes * (self.fabric.t1s + 1))
        plane, t1 = np.divmod(rest, self.fabric.t1s + 1)
        return self._left(pair, plane, t1 - 1, -np.expm1(np.bincount(of_key, survival, len(keys))))

    def _evs_through(self, e: Element) -> Ints:
        """Returns the EVs that cross an element, as numbers of (pair, plane, T1 + 1)."""
        return np.concatenate([self._evs_in_plane(replace(e, plane=p)) for p in self.fabric.planes_of(e)])

    def _evs_in_plane(self, e: Element) -> Ints:
        up, down = e.direction is not Direction.DOWN, e.direction is not Direction.UP
        source, target = self.traffic.source, self.traffic.target
        if e.kind is Kind.NIC:
            crossing = (up & (source == e.host)) | (down & (target == e.host))
        elif e.kind is Kind.T0:
            crossing = (up & (self.source_t0 == e.t0)) | (down & self.is_far & (self.target_t0 == e.t0))
        elif e.kind is Kind.T1:
            crossing = self.is_far
        else:
            crossing = self.is_far & ((up & (self.source_t0 == e.t0)) | (down & (self.target_t0 == e.t0)))
        pairs = np.flatnonzero(crossing)
        far, near = pairs[self.is_far[pairs]], pairs[~self.is_far[pairs]]
        if e.t1 >= 0:
            far = far[self.t1s_of(far, e.plane, np.full(1, e.t1 // self._group)) == e.t1]
            t1, near = np.full(len(far), e.t1), near[:0]
        else:
            slot, far = np.tile(np.arange(self.slots), len(far)), np.repeat(far, self.slots)
            t1 = self.t1s_of(far, e.plane, slot)
        pairs, t1 = np.concatenate([far, near]), np.concatenate([t1 + 1, np.zeros(len(near), np.int64)])
        return np.asarray((pairs * self.fabric.planes + e.plane) * (self.fabric.t1s + 1) + t1)

    def _left(self, pair: Ints, plane: Ints, t1: Ints, ratio: Floats) -> Losses:
        """Draws the losses of EVs that are left when they lose packets."""
        rng = self._rng
        packets = self.traffic.packets[pair] / np.where(t1 < 0, 1, self.slots)
        stays = 1 + rng.binomial(_STAYS - 1, (1 - ratio) ** 10)  # ten probes in a row must arrive
        sent = np.where(ratio > LEAVES_ABOVE, np.minimum(packets, stays * _LEFT_AFTER / ratio), packets)
        probes = np.where(sent < packets, _PROBES, 0)
        lost = rng.binomial((sent + probes).astype(np.int64), ratio).astype(float)
        return Losses(pair, plane, t1, lost, packets - sent - probes)

    # ---- what hosts count ----

    def observe(self, losses: Losses) -> Fleet:
        """Returns the sums of all hosts: drawn noise, and these losses."""
        f, t, rng = self.fabric, self.traffic, self._rng
        planes, t0s, t1s = f.planes, f.t0s, f.t1s
        far = losses.t1 >= 0
        cell = (losses.plane * t0s + self.source_t0[losses.pair]) * t1s + losses.t1
        uplink = Sums(self._uplink_sent.copy(), _count(cell[far], losses.lost[far], (planes, t0s, t1s)))
        to_t0 = (losses.plane * t0s + self.source_t0[losses.pair]) * t0s + self.target_t0[losses.pair]
        peer_t0 = Sums(np.zeros((planes, t0s, t0s)), _count(to_t0, losses.lost, (planes, t0s, t0s)))
        pair_cell = self.source_t0 * t0s + self.target_t0
        sender = losses.plane * f.hosts + t.source[losses.pair]
        host = Sums(np.zeros((planes, f.hosts)), _count(sender, losses.lost, (planes, f.hosts)))
        key, pair_of = np.unique(self.source_t0 * f.hosts + t.target, return_inverse=True)
        peer_source, peer_host = np.divmod(key, f.hosts)
        size = (len(key),)
        peer = Sums(
            _count(pair_of, t.packets * planes, size) - _count(pair_of[losses.pair], losses.unsent, size),
            _count(pair_of[losses.pair], losses.lost, size),
        )
        for p in range(planes):
            noise = t.packets * self.noise_of_nic[p, t.target]
            even = self._uplink_sent[p] / self._uplink_sent[p].sum(axis=1, keepdims=True).clip(1)
            by_uplink = _count(self.source_t0, noise * self.is_far, (t0s, 1)) * even
            uplink.lost[p] += rng.poisson(by_uplink)
            peer_t0.lost[p] += rng.poisson(_count(pair_cell, noise, (t0s, t0s)))
            host.lost[p] += rng.poisson(_count(t.source, noise, (f.hosts,)))
            peer.lost += rng.poisson(_count(pair_of, noise, size))
        peer_t0.sent += _count(pair_cell, t.packets, (t0s, t0s))
        host.sent += _count(t.source, t.packets, (f.hosts,))
        uplink.sent -= _count(cell[far], losses.unsent[far], (planes, t0s, t1s))
        peer_t0.sent -= _count(to_t0, losses.unsent, (planes, t0s, t0s))
        host.sent -= _count(sender, losses.unsent, (planes, f.hosts))
        for sums in (uplink, peer_t0, peer, host):
            np.maximum(sums.sent, sums.lost, out=sums.sent)
        by_source = np.argsort(t.source[losses.pair], kind="stable")
        bounds = np.searchsorted(t.source[losses.pair][by_source], np.arange(f.hosts + 1))

        def read(hosts: Sequence[int]) -> list[HostSums]:
            return [self._read(h, losses, by_source[bounds[h] : bounds[h + 1]]) for h in hosts]

        sent_by_host = Sums(host.sent.T.copy(), host.lost.T.copy())
        return Fleet(uplink, peer_t0, peer, peer_source, peer_host, sent_by_host, self.t0_of_host, read, rails=f.rails)

    def _read(self, host: int, losses: Losses, mine: Ints) -> HostSums:
        """Returns the sums of one host. `mine`: its EVs through faults."""
        f, t = self.fabric, self.traffic
        rng = np.random.default_rng([self._read_seed, host])  # which hosts are read must not change later faults
        pairs = np.arange(self._bounds[host], self._bounds[host + 1])
        far = pairs[self.is_far[pairs]]
        uplink, peer_t0 = ((np.zeros((f.planes, n)), np.zeros((f.planes, n))) for n in (f.t1s, f.t0s))
        peer = (t.packets[pairs] * f.planes, np.zeros(len(pairs)))
        for p in range(f.planes):
            noise = rng.poisson(t.packets[pairs] * self.noise_of_nic[p, t.target[pairs]])
            np.add.at(peer_t0[0][p], self.target_t0[pairs], t.packets[pairs])
            np.add.at(peer_t0[1][p], self.target_t0[pairs], noise)
            peer[1][:] += noise
            slot = np.tile(np.arange(self.slots), len(far))
            of_slot = np.repeat(far, self.slots)
            t1 = self.t1s_of(of_slot, p, slot)
            np.add.at(uplink[0][p], t1, t.packets[of_slot] / self.slots)
            lost = int(noise[self.is_far[pairs]].sum())
            if len(t1):
                np.add.at(uplink[1][p], rng.choice(t1, lost), 1.0)
        pair, plane, t1, lost, unsent = (getattr(losses, name)[mine] for name in Losses.__annotations__)
        for n, values, sign in ((0, unsent, -1.0), (1, lost, 1.0)):
            np.add.at(peer_t0[n], (plane, self.target_t0[pair]), sign * values)
            np.add.at(uplink[n], (plane[t1 >= 0], t1[t1 >= 0]), sign * values[t1 >= 0])
            np.add.at(peer[n], pair - self._bounds[host], sign * values)
        by_uplink, by_t0, by_peer = (Sums(np.maximum(sent, lost), lost) for sent, lost in (uplink, peer_t0, peer))
        return HostSums(by_uplink, by_t0, by_peer, t.target[pairs])


def _count(cells: Ints, values: Floats, shape: tuple[int, ...]) -> Floats:
    """Returns the sums of values per cell."""
    return np.bincount(cells, values, int(np.prod(shape))).reshape(shape).astype(float)
