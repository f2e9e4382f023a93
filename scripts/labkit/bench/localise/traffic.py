# SPDX-License-Identifier: BSD-2-Clause
"""Draws the traffic of a fabric: training jobs on random hosts, each host sending to a few others of its job. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

PEERS = 8  # that a host sends to
PACKETS_PER_S = 1_000_000  # of a host: 70 Gbit/s in packets of 9,000 bytes
SECONDS = 60
_JOB_SIZES = (64, 128, 256, 512, 1024)  # hosts
_BLOCK = 16  # hosts of a job that are neighbours: schedulers keep them together, but not whole jobs

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fabric:
    """Sizes of a two-tier fabric. `slots`: EVs of a pair of hosts in each plane."""

    planes: int
    t0s: int
    t1s: int
    hosts_per_t0: int
    slots: int

    @property
    def hosts(self) -> int:
        """Returns the number of hosts, each with a NIC of as many ports as there are planes."""
        return self.t0s * self.hosts_per_t0


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
