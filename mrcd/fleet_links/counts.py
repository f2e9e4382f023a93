# SPDX-License-Identifier: BSD-2-Clause
"""Defines the sums of sent and lost packets of a fleet, and the elements of a fabric that can lose some. Pure.

Each lost packet is in each of three sums: by uplink, by the T0 of its receiver, and by its receiver. Sources are summed
per T0, because all hosts under a T0 use the same links beyond it. Single hosts have only totals; their own sums are
read for those few that may have a lossy NIC.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from mrcd.config.cluster_file import t1_planes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Kind(StrEnum):
    """The kind of an element."""

    LINK = "link"  # between a T0 and a T1
    NIC = "nic"  # a host's NIC, its cable and the T0's port
    T0 = "t0"
    T1 = "t1"


class Direction(StrEnum):
    """The direction of lost packets: those from hosts to T1s (up), or those from T1s to hosts (down).

    A T0 loses packets that come from its hosts (up) or from its T1s (down). A T1 has no direction.
    """

    UP = "up"
    DOWN = "down"
    BOTH = "both"


@dataclass(frozen=True, order=True)
class Element:
    """An element in a direction. Numbers are indexes; those that its kind does not have are -1.

    A T1 that rails share has the first of its planes.
    """

    kind: Kind
    direction: Direction
    plane: int
    t0: int = -1
    t1: int = -1
    host: int = -1

    @property
    def part(self) -> tuple[Kind, int, int, int, int]:
        """Returns what identifies the part of the fabric, in any direction."""
        return self.kind, self.plane, self.t0, self.t1, self.host

    @property
    def is_sender(self) -> bool:
        """Returns whether it loses what one host sends."""
        return self.kind is Kind.NIC and self.direction is Direction.UP

    @property
    def is_downlink(self) -> bool:
        """Returns whether it loses what comes down from a T1 to a T0."""
        return self.kind is Kind.LINK and self.direction is Direction.DOWN


@dataclass
class Sums:
    """Sent and lost packets of one shape."""

    sent: Floats
    lost: Floats


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
    read     returns the sums of single hosts          only         the T0 of the only source, if it is one host
    rails    NICs of a host whose ports lead to the same T1s
    """

    uplink: Sums
    peer_t0: Sums
    peer: Sums
    peer_source: Ints
    peer_host: Ints
    host: Sums
    t0_of_host: Ints
    read: Callable[[Sequence[int]], list[HostSums]]
    only: int | None = None
    rails: int = 1

    def t1_planes(self, plane: int) -> range:
        """Returns the planes that have the T1s of a plane."""
        return t1_planes(plane, self.shape[0], self.rails)

    def planes_of(self, e: Element) -> range:
        """Returns the planes of an element."""
        return self.t1_planes(e.plane) if e.kind is Kind.T1 else range(e.plane, e.plane + 1)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Returns the number of planes, T0s, T1s and hosts."""
        planes, _, t0s = self.peer_t0.sent.shape
        return planes, t0s, self.uplink.sent.shape[2], len(self.t0_of_host)

    @property
    def sources(self) -> Ints:
        """Returns the source T0s."""
        return np.arange(self.shape[1]) if self.only is None else np.array([self.only])

    def of_host(self, host: int, sums: HostSums) -> "Fleet":
        """Returns the sums of one host in the shape of a fleet with one source."""
        uplink, peer_t0 = (Sums(s.sent[:, None], s.lost[:, None]) for s in (sums.uplink, sums.peer_t0))
        source, only = np.zeros_like(sums.peers), int(self.t0_of_host[host])
        return replace(
            self, uplink=uplink, peer_t0=peer_t0, peer=sums.peer, peer_source=source, peer_host=sums.peers, only=only
        )
