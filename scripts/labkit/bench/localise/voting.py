# SPDX-License-Identifier: BSD-2-Clause
"""Names links by votes: the idea of 007 (NSDI 2018), with more data than hosts export: the losses of each EV. Pure.

Each EV that has lost at least three packets shares one vote equally among the links that it crosses; fewer may be
chance. The link with most votes is named, and all EVs that cross it are taken out. This goes on while a link has a
least share of the votes that are left. It names links in a direction, and no switches.
"""

import numpy as np

from labkit.bench.localise.simulate import Losses, Simulation
from labkit.bench.localise.traffic import Ints
from mrcd.fleet_links.counts import Direction, Element, Kind

_LEAST_LOST = 3.0  # packets of an EV
SHARES = (0.01, 0.003)  # of the votes: what 007 takes, and what fits a fabric of 1,024 NICs
_MOST = 64  # links


def vote(simulation: Simulation, losses: Losses, noise: Losses, least_share: float) -> set[Element]:
    """Returns the links that lossy EVs name. `noise`: EVs that lost packets without a fault."""
    pair, plane, t1 = (np.concatenate([getattr(losses, n), getattr(noise, n)]) for n in ("pair", "plane", "t1"))
    lossy = np.concatenate([losses.lost, noise.lost]) >= _LEAST_LOST
    links = _links(simulation, pair[lossy], plane[lossy], t1[lossy])
    weights = np.where(links[:, 1] >= 0, 0.25, 0.5)
    size, named = int(links.max(initial=0)) + 1, set[Element]()
    left = np.ones(len(links), bool)
    while len(named) < _MOST and left.any():
        votes = np.zeros(size)
        for column in links.T:
            used = left & (column >= 0)
            votes += np.bincount(column[used], weights[used], size)
        best = int(votes.argmax())
        if votes[best] < least_share * votes.sum():
            break
        named.add(_element(simulation, best))
        left &= ~(links == best).any(axis=1)
    return named


def _links(simulation: Simulation, pair: Ints, plane: Ints, t1: Ints) -> Ints:
    """Returns the numbers of the four links of each EV, (EVs, 4): -1 where both hosts are under one T0."""
    f, t = simulation.fabric, simulation.traffic
    nics, links = f.planes * f.hosts, f.planes * f.t0s * f.t1s
    up = 2 * nics + (plane * f.t0s + simulation.source_t0[pair]) * f.t1s + t1
    down = 2 * nics + links + (plane * f.t0s + simulation.target_t0[pair]) * f.t1s + t1
    return np.stack([
        plane * f.hosts + t.source[pair],
        np.where(t1 < 0, -1, up),
        np.where(t1 < 0, -1, down),
        nics + plane * f.hosts + t.target[pair],
    ], axis=1)  # fmt: skip


def _element(simulation: Simulation, number: int) -> Element:
    f = simulation.fabric
    nics, links = f.planes * f.hosts, f.planes * f.t0s * f.t1s
    if number < 2 * nics:
        way, rest = divmod(number, nics)
        plane, host = divmod(rest, f.hosts)
        return Element(Kind.NIC, Direction.DOWN if way else Direction.UP, plane, host=host)
    way, rest = divmod(number - 2 * nics, links)
    plane, rest = divmod(rest, f.t0s * f.t1s)
    return Element(Kind.LINK, Direction.DOWN if way else Direction.UP, plane, *divmod(rest, f.t1s))
