# SPDX-License-Identifier: BSD-2-Clause
"""Predicts where the losses of an element are counted. Pure.

Packets are spread evenly. So of the packets from a T0, a T1 takes the share that it has of that T0's uplinks, and a
plane takes its share of all packets.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mrcd.fleet_links.counts import Direction, Element, Fleet, Floats, HostSums, Ints, Kind, Sums
from mrcd.fleet_links.likelihood import NIC_CLUMP, NOTHING, Fit, Grid, Views, usual_noise, usual_of_planes

_LEAST_SPREAD, _MOST_SPREAD = 0.1, 1.0
_CONGESTED = 3.0  # times the usual noise: a T0 that loses as much on all planes has busy receivers
_DEVIATIONS = 3.0  # of a T1's losses, by chance
_LEAST_PLANES = 2  # with one plane, what is lost on all planes says nothing
_ALL = slice(None)


class Crossing(NamedTuple):
    """Cells of a grid, and the packets in them that cross an element."""

    at: Any
    packets: Floats
    is_far: Any = True  # of each cell: its packets are between different T0s
    is_summed: bool = False  # the element touches all cells of the last dimension but one in the same way


class Model:
    """The lost packets of a fleet, and what the chosen elements explain of them.

    uplink, peer_t0, peer   the sums of the fleet    pairs   (T0s, T0s): peer, summed over the hosts of a T0

    Many attributes because each sum has its own arrays. A model of one host has the row of its T0 only: with `noise`,
    the usual loss ratio, and with `clump` as in Grid.
    """

    def __init__(self, fleet: Fleet, *, noise: float | None = None, clump: float = 1.0) -> None:
        self.fleet = fleet
        self.planes, self.t0s, self.t1s, self.hosts = fleet.shape
        measured = fleet.uplink if fleet.uplink.sent.any() else fleet.peer_t0
        self.noise = usual_noise(measured) if noise is None else noise
        self._t0_of_pair = fleet.t0_of_host[fleet.peer_host]
        self.uplink, self.peer_t0 = Grid(fleet.uplink, self.noise, clump), Grid(fleet.peer_t0, self.noise, clump)
        self.peer = Grid(fleet.peer, self.noise, NIC_CLUMP)
        self.pairs = Grid(Sums(self._per_t0(fleet.peer.sent), self._per_t0(fleet.peer.lost)), self.noise)
        self.t1_share = _shares(fleet.uplink.sent, 2)  # (planes, T0s, T1s)
        self.plane_share = _shares(fleet.peer_t0.sent.sum(axis=2), 0)  # (planes, T0s)
        self._far = fleet.sources[:, None] != np.arange(self.t0s)
        self._by_host = np.argsort(fleet.peer_host, kind="stable")
        self._host_bounds = np.searchsorted(fleet.peer_host[self._by_host], np.arange(self.hosts + 1))
        self._by_source = np.lexsort((fleet.peer_host, fleet.peer_source))
        self._source_bounds = np.searchsorted(fleet.peer_source[self._by_source], np.arange(len(fleet.sources) + 1))
        self._senders: dict[int, tuple[HostSums, Model]] = {}
        self.chosen: dict[Element, Fit] = {}

    def measure_noise(self) -> None:
        """Takes what a receiver, or the hosts under a T0, lose on all planes for noise: only a T1 that rails share
        can have a fault on all.

        What chosen elements explain does not count, nor what some T1s lose more than others: rails share T1s.
        """
        if self.planes < _LEAST_PLANES:
            return
        even = self._even_share()
        left = np.maximum(self.peer_t0.lost - self.peer_t0.explained, 0.0) * even[:, None, None]
        of_t0 = np.maximum(usual_of_planes(self.peer_t0.sent.sum(axis=1), left.sum(axis=1)), self.noise)
        self.peer_t0.set_noise(np.maximum(usual_of_planes(self.peer_t0.sent, left), of_t0))
        self.pairs.set_noise(of_t0)
        # A receiver cannot lose more on all planes than its T0 does.
        by_plane = self.peer_t0.lost.sum(axis=(1, 2))
        left = np.maximum(self.peer.lost - self.peer.explained, 0.0) * (even @ by_plane / max(by_plane.sum(), 1.0))
        sent, lost = (np.bincount(self.fleet.peer_host, v, self.hosts) for v in (self.peer.sent, left))
        beyond = np.maximum(of_t0 - _CONGESTED * self.noise, 0.0)
        most = (np.bincount(self.fleet.t0_of_host, sent, self.t0s) * beyond)[self.fleet.t0_of_host]
        ratio = np.minimum(lost, most) / np.maximum(sent, 1.0)
        self.peer.set_noise(np.maximum(self.noise, ratio)[self.fleet.peer_host])

    def _even_share(self) -> Floats:
        """Returns by plane which share of the lost packets all T1s lose alike, if rails share them."""
        found, planes_with_t1s = np.ones(self.planes), self.planes // self.fleet.rails
        for first in range(planes_with_t1s) if self.fleet.rails > 1 and self.t1s else ():
            p = slice(first, None, planes_with_t1s)
            lost = np.maximum(self.uplink.lost[p] - self.uplink.explained[p], 0.0).sum(axis=(0, 1))
            sent = self.uplink.sent[p].sum(axis=(0, 1))
            used = sent > 0
            usual = np.median(lost[used] / sent[used]) * sent if used.any() else sent
            most = usual + _DEVIATIONS * np.sqrt(usual)  # losses are rare: some T1s have more by chance
            found[p] = (1 + np.minimum(lost, most).sum()) / (1 + lost.sum())
        return found

    def _per_t0(self, values: Floats) -> Floats:
        cell, rows = self.fleet.peer_source * self.t0s + self._t0_of_pair, len(self.fleet.sources)
        return np.bincount(cell, values, rows * self.t0s).reshape(rows, self.t0s).astype(float)

    def _pairs_to(self, host: int) -> Ints:
        return np.asarray(self._by_host[self._host_bounds[host] : self._host_bounds[host + 1]])

    def _pairs_from(self, row: int) -> Ints:
        return np.asarray(self._by_source[self._source_bounds[row] : self._source_bounds[row + 1]])

    def read(self, hosts: list[int]) -> None:
        """Reads the sums of hosts that are not known yet."""
        new = [h for h in hosts if h not in self._senders]
        for h, sums in zip(new, self.fleet.read(new) if new else [], strict=True):
            self._senders[h] = sums, Model(self.fleet.of_host(h, sums), noise=self.noise, clump=NIC_CLUMP)

    def _sender(self, host: int) -> tuple[HostSums, "Model"]:
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
        model = self
        if e.is_sender:
            _, model = self._sender(e.host)
            model.explain(self.chosen, self.uplink.margin)
        grids = (model.uplink, model.peer_t0, model.peer if e.kind is Kind.NIC else model.pairs)
        uplink, peer_t0, by_peer = (g.cells(*crossing) for g, crossing in zip(grids, model.crossings(e), strict=True))
        if len(self.fleet.planes_of(e)) > 1:  # sums by peer have the losses of all T1s that rails share
            by_peer = by_peer._replace(is_far=np.zeros_like(by_peer.is_far)).far()
        return Views(uplink, peer_t0, by_peer)

    def crossings(self, e: Element) -> tuple[Crossing, ...]:
        """Returns the packets that cross an element: by uplink, by receiver's T0, and by pair of T0s; of a NIC by peer.

        None, if they are from a T0 that has no row.
        """
        p: Any = e.plane
        t, via = e.t0, _ALL if e.t1 < 0 else e.t1
        if e.kind is Kind.NIC:
            return self._of_sender(p) if e.is_sender else self._of_receiver(p, e.host)
        rows: Any
        mask: Any = True
        if e.kind is Kind.T1:
            planes = self.fleet.t1_planes(p)
            p = slice(planes.start, None, planes.step)
            rows, mask, share = (_ALL, _ALL), self._far, self.t1_share[p, :, via][..., None] * self._far
            of_plane = self.plane_share[p][..., None]
            uplink = Crossing((p, _ALL, via), self.uplink.sent[p, :, via])
        elif e.direction is Direction.UP:
            found = np.flatnonzero(self.fleet.sources == t)
            if not len(found):
                return ()
            row = int(found[0])
            far = self._far[row]
            rows, mask, share = (
                ((row, _ALL), far, 1.0) if e.kind is Kind.T0 else ((row, far), True, self.t1_share[p, row, via])
            )
            of_plane = self.plane_share[p, row]
            uplink = Crossing((p, row, via), self.uplink.sent[p, row, via])
        else:
            far = self._far[:, t]
            rows, share, of_plane = (far, t), self.t1_share[p, far, via], self.plane_share[p, far]
            sent = self.peer_t0.sent[p, far, t]
            if e.kind is Kind.T0:
                uplink, share = Crossing((p, far), sent[:, None] * share, True, True), 1.0
            else:
                uplink = Crossing((p, far, via), sent * share)
        is_t1 = e.kind is Kind.T1
        of_pairs = (of_plane * share).sum(axis=0) if is_t1 else of_plane * share
        return (
            uplink,
            Crossing((p, *rows), self.peer_t0.sent[(p, *rows)] * share, mask, is_t1),
            Crossing(rows, self.pairs.sent[rows] * of_pairs, mask, is_t1),
        )

    def _of_receiver(self, p: int, host: int) -> tuple[Crossing, ...]:
        pairs, t = self._pairs_to(host), int(self.fleet.t0_of_host[host])
        rows = self.fleet.peer_source[pairs]
        sent, is_far = self.peer.sent[pairs] * self.plane_share[p, rows], self._far[rows, t]
        by_t1 = (sent * is_far)[:, None] * self.t1_share[p, rows]
        return (
            Crossing((p, rows), by_t1, is_far[:, None], True),
            Crossing((p, rows, t), sent, is_far),
            Crossing(pairs, sent, is_far),
        )

    def _of_sender(self, p: int) -> tuple[Crossing, ...]:
        """Returns all packets of the one host that the model has."""
        far = self._far[0]
        return (
            Crossing((p, 0), self.uplink.sent[p, 0]),
            Crossing((p, 0), self.peer_t0.sent[p, 0], far),
            Crossing(_ALL, self.peer.sent * self.plane_share[p, 0], far[self._t0_of_pair]),
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

    def explain(self, chosen: Mapping[Element, Fit], margin: float) -> None:
        """Replaces what is explained by what these elements explain, but for senders."""
        for grid in (self.uplink, self.peer_t0, self.peer, self.pairs):
            grid.explained[...], grid.margin = 0.0, margin
        for e, fit in chosen.items():
            if not e.is_sender:
                self._add(e, fit.ratio, fit.pair_ratio)

    def _add(self, e: Element, ratio: float, pair_ratio: float) -> None:
        """Adds losses to what is explained: a share of the packets by uplink and T0, and one of those by peer."""
        crossings = self.crossings(e)
        if not crossings:
            return
        uplink, peer_t0, by_peer = crossings
        self.uplink.explained[uplink.at] += ratio * uplink.packets
        self.peer_t0.explained[peer_t0.at] += ratio * peer_t0.packets
        if e.kind is Kind.NIC:
            self.peer.explained[by_peer.at] += pair_ratio * by_peer.packets
            self.pairs.explained[peer_t0.at[1:]] += pair_ratio * by_peer.packets
            return
        explained = np.zeros_like(self.pairs.sent)
        explained[by_peer.at] = pair_ratio * by_peer.packets
        self.pairs.explained += explained
        ratios = np.divide(explained, self.pairs.sent, out=np.zeros_like(explained), where=self.pairs.sent > 0)
        if e.kind is Kind.T1:
            pairs: Any = _ALL
        elif e.direction is Direction.UP:
            pairs = self._pairs_from(by_peer.at[0])
        else:
            pairs = np.flatnonzero(self._t0_of_pair == e.t0)
        of_pairs = ratios[self.fleet.peer_source[pairs], self._t0_of_pair[pairs]]
        self.peer.explained[pairs] += of_pairs * self.peer.sent[pairs]

    def _take_out(self, e: Element, sign: float) -> None:
        """Takes the packets of a sender out of the sums, or puts them back: its own counts are known exactly."""
        sums, _ = self._sender(e.host)
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


def _shares(values: Floats, axis: int) -> Floats:
    """Returns values divided by their sum over an axis; 0 where there are none."""
    total = values.sum(axis=axis, keepdims=True)
    return np.asarray(np.divide(values, total, out=np.zeros_like(values), where=total > 0))
