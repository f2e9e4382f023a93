# SPDX-License-Identifier: BSD-2-Clause
"""Predicts where the losses of one host's NIC are counted: in the sums of that host. Pure."""

from collections.abc import Mapping

import numpy as np

from mrcd.fleet_links.counts import Floats, HostSums, Ints
from mrcd.fleet_links.elements import Direction, Element, Kind
from mrcd.fleet_links.grid import NIC_CLUMP, Grid, shares
from mrcd.fleet_links.likelihood import Fit, Views


class Sender:
    """The sums of one host under the T0 `t0`."""

    def __init__(self, sums: HostSums, t0: int, t0_of_host: Ints, noise: float) -> None:
        self.sums = sums
        self._t0, self._t0_of_host = t0, t0_of_host
        self._grids = [Grid(s, noise, NIC_CLUMP) for s in (sums.uplink, sums.peer_t0, sums.peer)]
        self._t1_share = shares(sums.uplink.sent, 1)  # (planes, T1s)
        self._plane_share = shares(sums.peer_t0.sent.sum(axis=1), 0)  # (planes,)

    def views(self, plane: int, chosen: Mapping[Element, Fit], margin: float) -> Views:
        """Returns the cells of a plane, with what the chosen elements explain of them."""
        uplink, peer_t0, peer = self._grids
        explained, t0_of_peer = self._explained(chosen), self._t0_of_host[self.sums.peers]
        for grid, values in zip(self._grids, explained, strict=True):
            grid.explained, grid.margin = values, margin
        return Views(
            uplink.cells(plane, uplink.sent[plane]),
            peer_t0.cells(plane, peer_t0.sent[plane], np.arange(peer_t0.sent.shape[1]) != self._t0),
            peer.cells(slice(None), peer.sent * self._plane_share[plane], t0_of_peer != self._t0),
        )

    def _explained(self, chosen: Mapping[Element, Fit]) -> list[Floats]:
        found = [np.zeros_like(grid.sent) for grid in self._grids]
        up, to_t0, to_peer = found
        t0s, is_far = np.arange(to_t0.shape[1]), np.arange(to_t0.shape[1]) != self._t0
        t0_of_peer = self._t0_of_host[self.sums.peers]
        for e, fit in chosen.items():
            p = e.plane
            if e.is_sender:
                continue
            if e.kind is Kind.NIC:
                mine, t = self.sums.peers == e.host, int(self._t0_of_host[e.host])
                sent = float(self.sums.peer.sent[mine].sum()) * self._plane_share[p]
                to_peer[mine] += fit.pair_ratio * sent
                to_t0[p, t] += fit.ratio * sent
                up[p] += fit.ratio * sent * self._t1_share[p] * (t != self._t0)
                continue
            # the T0s of receivers whose packets cross the element, and the T1s by which they do
            if e.kind is Kind.T1:
                to = is_far
            elif e.direction is Direction.DOWN:
                to = is_far & (t0s == e.t0)
            else:
                to = (is_far | (e.kind is Kind.T0)) & (e.t0 == self._t0)
            share = 1.0 if e.kind is Kind.T0 else float(self._t1_share[p, e.t1])
            via = slice(None) if e.kind is Kind.T0 else slice(e.t1, e.t1 + 1)
            crossing = self.sums.peer_t0.sent[p] * to
            to_t0[p] += fit.ratio * share * crossing
            up[p, via] += fit.ratio * float((crossing * is_far).sum()) * self._t1_share[p, via]
            to_peer += fit.pair_ratio * share * self._plane_share[p] * self.sums.peer.sent * to[t0_of_peer]
        return found
