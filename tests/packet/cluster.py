# SPDX-License-Identifier: BSD-2-Clause
"""Defines the cluster of the bench's host, and the MAC addresses of its links."""

from dataclasses import dataclass

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet, Raw

from mrcd.config import cluster_file
from mrcd.config.cluster_file import Encapsulation
from mrcd.fabric import topology
from tests.cluster_files import dual

PLANES, SLOTS = 4, 4
EVS = PLANES * SLOTS
ALL_PLANES = (1 << PLANES) - 1

H0, H1, H2, H5 = 0, 1, 2, 5


@dataclass(frozen=True)
class Setup:
    """A cluster to load the programs for.

    Encapsulation, width of a peer's table, T1s per plane, lines of [health], more lines, and whether tests set the
    clock of the programs.
    """

    encapsulation: Encapsulation = "usid"
    health: str = ""
    evs: int = EVS
    t1s: int = SLOTS
    more: str = ""
    test_clock: bool = True

    @property
    def text(self) -> str:
        """Returns the configuration file."""
        fabric = f"[cluster]\nplanes = {PLANES}\nt0s = 2\nt1s = {self.t1s}\nmtu = 1500\nevs_per_peer = {self.evs}\n"
        hosts = dual(H0, 0, 0) + dual(H1, 0, 1) + dual(H2, 1, 0) + dual(H5, 1, 1)
        return f'{fabric}encapsulation = "{self.encapsulation}"\n{hosts}[health]\n{self.health}\n{self.more}'

    def plan(self, host: str = "h0") -> topology.Plan:
        """Returns the plan of one of the hosts."""
        return topology.plan(cluster_file.parse(self.text), host)


def nic_mac(plane: int) -> str:
    """Returns the MAC address of this host's NIC."""
    return f"02:00:00:00:00:{plane:02x}"


def wire_mac(plane: int) -> str:
    """Returns the MAC address of the T0 at the other end."""
    return f"02:00:00:00:01:{plane:02x}"


def datagram(source: int, to: int, version: int = 4, size: int = 100, tos: int = 0) -> Packet:
    """Returns a UDP packet between two hosts' applications: `size` bytes of data, `tos` or traffic class."""
    if version == 4:
        ip = IP(src=f"10.99.0.{source + 1}", dst=f"10.99.0.{to + 1}", tos=tos, id=7, ttl=63)
    else:
        ip = IPv6(src=f"fd00:99::{source + 1}", dst=f"fd00:99::{to + 1}", tc=tos, fl=0x12345, hlim=63)
    return ip / UDP(sport=1000, dport=2000) / Raw(bytes(i & 0xFF for i in range(size)))


all_encapsulations = pytest.mark.parametrize("bench", ["usid", "srh", "ecmp"], indirect=True)
