# SPDX-License-Identifier: BSD-2-Clause
"""Holds the sums of sent and lost packets of a fleet, from which lossy links are found. Pure.

Each lost packet is in each of three sums: by uplink, by the T0 of its receiver, and by its receiver. Sources are summed
per T0, because all hosts under a T0 use the same links beyond it. Single hosts have only totals; their own sums are
read for those few that may have a lossy NIC.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Sums:
    """Sent and lost packets of one shape."""

    sent: Floats
    lost: Floats

    def copy(self) -> "Sums":
        """Returns a copy that can be changed."""
        return Sums(self.sent.copy(), self.lost.copy())


@dataclass(frozen=True)
class HostSums:
    """The sums of one host: by uplink (planes, T1s), by peer's T0 (planes, T0s), and by peer (peers,).

    `peers` are the indexes of the latter.
    """

    uplink: Sums
    peer_t0: Sums
    peer: Sums
    peers: Ints


@dataclass(frozen=True)
class Fleet:
    """The sums of all hosts. T0s, T1s and hosts are given by their index.

    uplink   (planes, source T0s, T1s)                 peer_t0  (planes, source T0s, T0s of receivers)
    peer     (pairs,): from the T0 `peer_source` to the host `peer_host`, over all planes
    host     (hosts, planes) what a host sent in all    t0_of_host  (hosts,)
    read     returns the sums of single hosts
    """

    uplink: Sums
    peer_t0: Sums
    peer: Sums
    peer_source: Ints
    peer_host: Ints
    host: Sums
    t0_of_host: Ints
    read: Callable[[Sequence[int]], list[HostSums]]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Returns the number of planes, T0s, T1s and hosts."""
        planes, t0s, t1s = self.uplink.sent.shape
        return planes, t0s, t1s, len(self.t0_of_host)
