# SPDX-License-Identifier: BSD-2-Clause
"""Predicts where the losses of an element are counted. Pure.

Packets are spread evenly. So of the packets from a T0, a T1 takes the share that it has of that T0's uplinks, and a
plane takes its share of all packets.
"""

import numpy as np
from numpy.typing import NDArray

from mrcd.fleet_links.counts import Fleet, Floats, HostSums, Ints, Sums
from mrcd.fleet_links.elements import Direction, Element, Kind
from mrcd.fleet_links.grid import NIC_CLUMP, Grid, shares, usual_noise, usual_of_planes
from mrcd.fleet_links.likelihood import NOTHING, Fit, Views
from mrcd.fleet_links.sender import Sender

_LEAST_SPREAD, _MOST_SPREAD = 0.1, 1.0
_CONGESTED = 3.0  # times the usual noise: a T0 that loses as much on all planes has busy receivers
_LEAST_PLANES = 2  # with one plane, what is lost on all planes says nothing


class Model:
    """The lost packets of a fleet, and what the chosen elements explain of them.

    uplink, peer_t0, peer   the sums of the fleet    pairs   (T0s, T0s): peer, summed over the hosts of a T0

    Many attributes because each sum has its own arrays.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.planes, self.t0s, self.t1s, self.hosts = fleet.shape
        self.noise = usual_noise(fleet.uplink if fleet.uplink.sent.any() else fleet.peer_t0)
        self._t0_of_pair = fleet.t0_of_host[fleet.peer_host]
        self.uplink, self.peer_t0 = Grid(fleet.uplink, self.noise), Grid(fleet.peer_t0, self.noise)
        self.peer = Grid(fleet.peer, self.noise, NIC_CLUMP)
        self.pairs = Grid(Sums(self._per_t0(fleet.peer.sent), self._per_t0(fleet.peer.lost)), self.noise)
        self.t1_share = shares(fleet.uplink.sent, 2)  # (planes, T0s, T1s)
        self.plane_share = shares(fleet.peer_t0.sent.sum(axis=2), 0)  # (planes, T0s)
        self._far = ~np.eye(self.t0s, dtype=bool)
        self._by_host = np.argsort(fleet.peer_host, kind="stable")
        self._host_bounds = np.searchsorted(fleet.peer_host[self._by_host], np.arange(self.hosts + 1))
        self._by_source = np.lexsort((fleet.peer_host, fleet.peer_source))
        self._source_bounds = np.searchsorted(fleet.peer_source[self._by_source], np.arange(self.t0s + 1))
        self._senders: dict[int, Sender] = {}
        self.chosen: dict[Element, Fit] = {}

    def measure_noise(self) -> None:
        """Takes what a receiver, or the hosts under a T0, lose on all planes for noise: a fault has one plane.

        What chosen elements explain does not count.
        """
        if self.planes < _LEAST_PLANES:
            return
        left = np.maximum(self.peer_t0.lost - self.peer_t0.explained, 0.0)
        of_t0 = np.maximum(usual_of_planes(self.peer_t0.sent.sum(axis=1), left.sum(axis=1)), self.noise)
        self.peer_t0.set_noise(np.maximum(usual_of_planes(self.peer_t0.sent, left), of_t0))
        self.pairs.set_noise(of_t0)
        # A receiver cannot lose more on all planes than its T0 does.
        left = np.maximum(self.peer.lost - self.peer.explained, 0.0)
        sent, lost = (np.bincount(self.fleet.peer_host, v, self.hosts) for v in (self.peer.sent, left))
        beyond = np.maximum(of_t0 - _CONGESTED * self.noise, 0.0)
        most = (np.bincount(self.fleet.t0_of_host, sent, self.t0s) * beyond)[self.fleet.t0_of_host]
        ratio = np.minimum(lost, most) / np.maximum(sent, 1.0)
        self.peer.set_noise(np.maximum(self.noise, ratio)[self.fleet.peer_host])

    def _per_t0(self, values: Floats) -> Floats:
        cell = self.fleet.peer_source * self.t0s + self._t0_of_pair
        return np.bincount(cell, values, self.t0s * self.t0s).reshape(self.t0s, self.t0s).astype(float)

    def _pairs_to(self, host: int) -> Ints:
        return np.asarray(self._by_host[self._host_bounds[host] : self._host_bounds[host + 1]])

    def _pairs_from(self, t0: int) -> Ints:
        return np.asarray(self._by_source[self._source_bounds[t0] : self._source_bounds[t0 + 1]])

    def read(self, hosts: list[int]) -> None:
        """Reads the sums of hosts that are not known yet."""
        new = [h for h in hosts if h not in self._senders]
        for h, sums in zip(new, self.fleet.read(new) if new else [], strict=True):
            self._senders[h] = Sender(sums, int(self.fleet.t0_of_host[h]), self.fleet.t0_of_host, self.noise)

    def _sender(self, host: int) -> Sender:
        self.read([host])
        return self._senders[host]

    def measure_margin(self) -> None:
        """Sets the margin by how exact the explanation is: pairs of hosts use some T1s only, so shares differ."""
        self.pairs.errors()
        grids = (self.uplink, self.peer_t0, self.peer)
        error = np.concatenate([grid.errors() for grid in grids])
        spread = float(np.median(error)) if len(error) else 0.0
        for grid in (*grids, self.pairs):
            grid.margin = 1 + 2 * min(max(spread, _LEAST_SPREAD), _MOST_SPREAD)

    # ---- where an element's losses are counted ----

    def views(self, e: Element) -> Views:
        """Returns the cells that an element touches, summed where it touches all in the same way."""
        p, t = e.plane, e.t0
        if e.kind is Kind.T1:
            return self._of_t1(p, e.t1)
        if e.kind is Kind.NIC and e.direction is Direction.UP:
            return self._sender(e.host).views(p, self.chosen, self.uplink.margin)
        if e.kind is Kind.NIC:
            return self._of_receiver(p, e.host)
        far = self._far[t]
        if e.kind is Kind.T0 and e.direction is Direction.UP:
            return Views(
                self.uplink.cells((p, t), self.uplink.sent[p, t]),
                self.peer_t0.cells((p, t), self.peer_t0.sent[p, t], far),
                self.pairs.cells(t, self.pairs.sent[t] * self.plane_share[p, t], far),
            )
        if e.direction is Direction.UP:
            share = self.t1_share[p, t, e.t1]
            return Views(
                self.uplink.cells((p, t, e.t1), self.uplink.sent[p, t, e.t1]),
                self.peer_t0.cells((p, t, far), self.peer_t0.sent[p, t, far] * share),
                self.pairs.cells((t, far), self.pairs.sent[t, far] * self.plane_share[p, t] * share),
            )
        sent, of_pairs = self.peer_t0.sent[p, far, t], self.pairs.sent[far, t] * self.plane_share[p, far]
        if e.kind is Kind.T0:
            return Views(
                self.uplink.summed((p, far), sent[:, None] * self.t1_share[p, far]),
                self.peer_t0.cells((p, far, t), sent),
                self.pairs.cells((far, t), of_pairs),
            )
        share_of = self.t1_share[p, far, e.t1]
        return Views(
            self.uplink.cells((p, far, e.t1), sent * share_of),
            self.peer_t0.cells((p, far, t), sent * share_of),
            self.pairs.cells((far, t), of_pairs * share_of),
        )

    def _of_t1(self, p: int, t1: int) -> Views:
        far, share = self._far, self.t1_share[p, :, t1]
        of_pairs = self.pairs.sent * (self.plane_share[p] * share)[:, None] * far
        return Views(
            self.uplink.cells((p, slice(None), t1), self.uplink.sent[p, :, t1]),
            self.peer_t0.summed(p, self.peer_t0.sent[p] * share[:, None] * far, far),
            self.pairs.summed(slice(None), of_pairs, far),
        )

    def _of_receiver(self, p: int, host: int) -> Views:
        pairs, t = self._pairs_to(host), int(self.fleet.t0_of_host[host])
        sources = self.fleet.peer_source[pairs]
        sent, is_far = self.peer.sent[pairs] * self.plane_share[p, sources], sources != t
        by_t1 = (sent * is_far)[:, None] * self.t1_share[p, sources]
        return Views(
            self.uplink.summed((p, sources), by_t1, is_far[:, None]),
            self.peer_t0.cells((p, sources, t), sent, is_far),
            self.peer.cells(pairs, sent, is_far),
        )

    def likelihood(self, p: int) -> float:
        """Returns by how much the chosen elements raise the log likelihood of a plane, as the mean of the views."""
        views = (self.uplink.likelihood(p), self.peer_t0.likelihood(p), self.peer.likelihood())
        return sum(views) / len(views) + sum(f.gain for e, f in self.chosen.items() if e.is_sender and e.plane == p)

    # ---- what chosen elements explain ----

    def set(self, e: Element, fit: Fit) -> None:
        """Chooses an element, changes its losses, or takes it out again with NOTHING."""
        before = self.chosen.pop(e, NOTHING)
        if e.is_sender and (fit.lost > 0) != (before.lost > 0):
            others = [(o, f) for o, f in self.chosen.items() if not o.is_sender]
            for other, f in others:  # what they explain depends on what is sent
                self._add(other, -f.ratio, -f.pair_ratio)
            self._take_out(e, sign=-1.0 if fit.lost else 1.0)
            for other, f in others:
                self._add(other, f.ratio, f.pair_ratio)
        elif not e.is_sender:
            self._add(e, fit.ratio - before.ratio, fit.pair_ratio - before.pair_ratio)
        if fit.lost:
            self.chosen[e] = fit

    def _add(self, e: Element, ratio: float, pair_ratio: float) -> None:
        """Adds losses to what is explained: a share of the packets by uplink and T0, and one of those by peer."""
        p, t, far, every = e.plane, e.t0, self._far, np.ones(self.t0s, bool)
        uplink, peer_t0 = self.uplink.explained, self.peer_t0.explained
        if e.kind is Kind.T1:
            share = self.t1_share[p, :, e.t1]
            uplink[p, :, e.t1] += ratio * self.uplink.sent[p, :, e.t1]
            peer_t0[p] += ratio * self.peer_t0.sent[p] * share[:, None] * far
            of_source = pair_ratio * self.plane_share[p] * share
            is_far = self._t0_of_pair != self.fleet.peer_source
            self.peer.explained += self.peer.sent * of_source[self.fleet.peer_source] * is_far
            self.pairs.explained += self.pairs.sent * of_source[:, None] * far
        elif e.kind is Kind.NIC:
            self._add_receiver(p, e.host, ratio, pair_ratio)
        elif e.direction is Direction.UP:
            to, via = (every, slice(None)) if e.kind is Kind.T0 else (far[t], slice(e.t1, e.t1 + 1))
            part = 1.0 if e.kind is Kind.T0 else float(self.t1_share[p, t, e.t1])
            uplink[p, t, via] += ratio * self.uplink.sent[p, t, via]
            peer_t0[p, t, to] += ratio * part * self.peer_t0.sent[p, t, to]
            self._add_pairs_from(pair_ratio * part * self.plane_share[p, t], t, to)
        else:
            via = slice(None) if e.kind is Kind.T0 else slice(e.t1, e.t1 + 1)
            of_t1s = self.t1_share[p, :, via]
            share = far[t] * (1.0 if e.kind is Kind.T0 else of_t1s.sum(axis=1))
            uplink[p, :, via] += ratio * (self.peer_t0.sent[p, :, t] * far[t])[:, None] * of_t1s
            peer_t0[p, :, t] += ratio * self.peer_t0.sent[p, :, t] * share
            self._add_pairs_to(pair_ratio * self.plane_share[p] * share, t)

    def _add_pairs_from(self, ratio: float, source: int, to: NDArray[np.bool_]) -> None:
        """Adds losses of the packets of a T0 to all hosts under some T0s."""
        pairs = self._pairs_from(source)
        pairs = pairs[to[self._t0_of_pair[pairs]]]
        self.peer.explained[pairs] += ratio * self.peer.sent[pairs]
        self.pairs.explained[source, to] += ratio * self.pairs.sent[source, to]

    def _add_pairs_to(self, ratio_of_source: Floats, target: int) -> None:
        """Adds losses of the packets of all T0s to all hosts under one T0."""
        pairs = np.flatnonzero(self._t0_of_pair == target)
        self.peer.explained[pairs] += ratio_of_source[self.fleet.peer_source[pairs]] * self.peer.sent[pairs]
        self.pairs.explained[:, target] += ratio_of_source * self.pairs.sent[:, target]

    def _add_receiver(self, p: int, host: int, ratio: float, pair_ratio: float) -> None:
        pairs, t = self._pairs_to(host), int(self.fleet.t0_of_host[host])
        sources = self.fleet.peer_source[pairs]
        sent = self.peer.sent[pairs] * self.plane_share[p, sources]
        self.peer_t0.explained[p, sources, t] += ratio * sent
        self.uplink.explained[p, sources] += ratio * (sent * (sources != t))[:, None] * self.t1_share[p, sources]
        self.peer.explained[pairs] += pair_ratio * sent
        self.pairs.explained[sources, t] += pair_ratio * sent

    def _take_out(self, e: Element, sign: float) -> None:
        """Takes the packets of a sender out of the sums, or puts them back: its own counts are known exactly."""
        sums: HostSums = self._sender(e.host).sums
        p, s = e.plane, int(self.fleet.t0_of_host[e.host])
        pairs = self._pairs_from(s)
        at = pairs[np.searchsorted(self.fleet.peer_host[pairs], sums.peers)]
        for way in ("sent", "lost"):
            getattr(self.uplink, way)[p, s] += sign * getattr(sums.uplink, way)[p]
            getattr(self.peer_t0, way)[p, s] += sign * getattr(sums.peer_t0, way)[p]
            of_planes = getattr(sums.peer_t0, way).sum(axis=1)
            mine = sign * getattr(sums.peer, way) * of_planes[p] / max(of_planes.sum(), 1.0)
            getattr(self.peer, way)[at] += mine
            np.add.at(getattr(self.pairs, way)[s], self.fleet.t0_of_host[sums.peers], mine)
