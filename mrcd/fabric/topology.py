"""Fabric → uSIDs → EVs. Pure arithmetic: the same file gives the same tables on every host.

The numbering is srv6.py's, the arithmetic over many EVs paths.py's.
"""

from dataclasses import dataclass, field
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
    """Another host. `number` is its place among the peers; what else it has is made when it is asked for."""

    host: Host
    number: int
    _paths: Paths = field(repr=False, compare=False)

    @property
    def addresses(self) -> tuple[IPv6Address, ...]:
        """Its addresses on the planes."""
        (found,) = self._paths.addresses(np.array([self.number]))
        return tuple(IPv6Address(a.tobytes()) for a in found)

    @property
    def evs(self) -> tuple[EV, ...]:
        """The EVs to it, ordered by their number. Made anew now and then: `==` holds, `is` does not."""
        return self._paths.evs(self.number)

    def some_evs(self, numbers: list[int]) -> tuple[EV, ...]:
        """Those of its EVs that have one of these numbers: less work than all."""
        return self._paths.some(self.number, numbers)

    def place(self, number: int) -> tuple[int, int | None] | None:
        """Plane and T1 of one of its EVs; None if it has none of that number."""
        return self._paths.place(self.number, number)

    @property
    def ev_count(self) -> int:
        """How many EVs there are to it."""
        return int(self._paths.counts[self.number])

    @property
    def evs_per_plane(self) -> list[int]:
        """The same by plane."""
        return self._paths.per_plane(self.number)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The numbers of its EVs, ascending."""
        return self._paths.numbers(self.number)

    @property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same as (planes, slots)."""
        planes, slots = np.divmod(self.numbers, self._paths.shape[1])
        return planes, slots

    @property
    def explicit(self) -> bool:
        """Whether its paths are listed in the file, not computed."""
        return self._paths.is_explicit(self.number)


@dataclass(frozen=True)
class Plan:
    """What one host installs."""

    config: Config
    host: Host
    interfaces: tuple[str, ...]
    addresses: tuple[IPv6Address, ...]
    sids: tuple[IPv6Address, ...]  # the destination of packets that arrive, per plane
    peers: tuple[Peer, ...]
    paths: Paths = field(repr=False, compare=False)

    @property
    def overhead(self) -> int:
        """Bytes in front of the inner packet on the longest path."""
        return _IPV6 + srh_bytes(self.paths.most_segments) + _UDP + _MRC

    @property
    def inner_mtu(self) -> int:
        """Largest inner packet: the planes' MTU less the overhead."""
        return self.config.cluster.mtu - self.overhead

    @property
    def needs_srh(self) -> bool:
        """Whether some path does."""
        return self.paths.most_segments > 1

    @property
    def ev_count(self) -> int:
        """EVs to all peers."""
        return int(self.paths.counts.sum())


def plan(config: Config, host_name: str) -> Plan:
    """Compute everything that one host installs. Raises ConfigError if the host is not in the file."""
    me = config.host(host_name)
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
