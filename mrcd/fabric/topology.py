# SPDX-License-Identifier: BSD-2-Clause
"""Computes what a host installs from the cluster file: its addresses, peers and EVs. Pure arithmetic.

srv6.py defines the numbering; paths.py computes the EVs of many peers at once.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import IPv6Address

import numpy as np
from numpy.typing import NDArray

from mrcd.config.cluster_file import Config, Host
from mrcd.fabric.paths import EV, Paths
from mrcd.fabric.srv6 import (
    UDT4,
    UDT6,
    carrier,
    host_usid,
    plane_address,
    plane_network,
    srh_bytes,
    t0_usid,
    t1_usid,
    usid_prefix,
)

__all__ = [
    "EV", "UDT4", "UDT6", "Peer", "Plan", "carrier", "host_usid", "plan", "plane_address", "plane_network",
    "srh_bytes", "t0_usid", "t1_usid", "usid_prefix",
]  # fmt: skip

# Bytes in front of the inner packet, by encapsulation: IPv6 + [SRH] + UDP + MRC (bpf/mrc_wire.h)
_IPV6, _UDP, _MRC = 40, 8, 32


@dataclass(frozen=True)
class Peer:
    """Another host. `number` is its index among the peers. Its addresses and EVs are computed when they are read."""

    host: Host
    number: int
    _paths: Paths = field(repr=False, compare=False)

    @property
    def addresses(self) -> tuple[IPv6Address, ...]:
        """Returns its addresses on the planes."""
        (found,) = self._paths.addresses(np.array([self.number]))
        return tuple(IPv6Address(a.tobytes()) for a in found)

    @property
    def evs(self) -> tuple[EV, ...]:
        """Returns the EVs to it, ordered by their number. Two calls may return different, equal objects."""
        return self._paths.evs(self.number)

    def some_evs(self, numbers: list[int]) -> tuple[EV, ...]:
        """Returns its EVs that have these numbers. This costs less than `evs`."""
        return self._paths.some(self.number, numbers)

    def place(self, number: int) -> tuple[int, int | None] | None:
        """Returns plane and T1 of one of its EVs; None if it has no EV of that number."""
        return self._paths.place(self.number, number)

    @property
    def ev_count(self) -> int:
        """Returns the number of EVs to it."""
        return int(self._paths.counts[self.number])

    @property
    def evs_per_plane(self) -> list[int]:
        """Returns the number of EVs to it, per plane."""
        return self._paths.per_plane(self.number)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Returns the numbers of its EVs, ascending."""
        return self._paths.numbers(self.number)

    @property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the planes and the slots of its EVs, ordered by their number."""
        planes, slots = np.divmod(self.numbers, self._paths.shape[1])
        return planes, slots

    @property
    def explicit(self) -> bool:
        """Returns whether the cluster file lists its paths."""
        return self._paths.is_explicit(self.number)


@dataclass(frozen=True)
class Plan:
    """Everything that one host installs."""

    config: Config
    host: Host
    interfaces: tuple[str, ...]
    addresses: tuple[IPv6Address, ...]
    sids: tuple[IPv6Address, ...]  # destination of arriving packets, per plane
    peers: tuple[Peer, ...]
    paths: Paths = field(repr=False, compare=False)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The host ids of the peers: their rows in the tables."""
        return np.array([p.host.id for p in self.peers], np.int64)

    @property
    def overhead(self) -> int:
        """Returns the bytes of the outer headers on the longest path."""
        return _IPV6 + srh_bytes(self.paths.most_segments) + _UDP + _MRC

    @property
    def inner_mtu(self) -> int:
        """Returns the largest size of an inner packet: the planes' MTU less the overhead."""
        return self.config.cluster.mtu - self.overhead

    @property
    def needs_srh(self) -> bool:
        """Returns whether any path needs an SRH."""
        return self.paths.most_segments > 1

    @property
    def ev_count(self) -> int:
        """Returns the number of EVs to all peers."""
        return int(self.paths.counts.sum())


def plan(config: Config, host_name: str, before: Plan | None = None) -> Plan:
    """Returns everything that a host installs. Raises ConfigError if the host is not in the file.

    The paths are those of `before`, another plan of this host, if nothing differs of which they are computed.
    """
    me = config.host(host_name)
    if before and all(getattr(before.config, key) == getattr(config, key) for key in ("cluster", "hosts", "paths")):
        return replace(before, config=config, interfaces=tuple(config.interface_names(me)))
    c = config.cluster
    addresses = tuple(plane_address(c.underlay, p, me) for p in range(c.planes))
    if c.encapsulation == "ecmp":
        sids = addresses
    else:
        sids = tuple(carrier(c.block, [host_usid(p, me.port)]) for p in range(c.planes))
    others = [h for h in config.hosts if h.id != me.id]
    paths = Paths(config, me, others)
    peers = tuple(Peer(h, number, paths) for number, h in enumerate(others))
    return Plan(config, me, tuple(config.interface_names(me)), addresses, sids, peers, paths)
