# SPDX-License-Identifier: BSD-2-Clause
"""Names the hosts and planes of the tests' cluster, and builds packets of its applications."""

from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

PLANES, SLOTS = 4, 4
EVS = PLANES * SLOTS
ALL_PLANES = (1 << PLANES) - 1

H0, H1, H2, H5 = 0, 1, 2, 5
ETHERNET = Ether(src="02:00:00:00:02:00", dst="02:00:00:00:02:01")  # of packets of the stack


def nic_mac(plane: int) -> str:
    return f"02:00:00:00:00:{plane:02x}"


def wire_mac(plane: int) -> str:
    return f"02:00:00:00:01:{plane:02x}"


def ip(version: int = 4, source: int = H0, to: int = H2, *, tos: int = 0, **fields: Any) -> Packet:
    """Returns the IP header of a packet between two hosts' applications; IPv6 has a traffic class for `tos`."""
    if version == 4:
        return IP(src=f"10.99.0.{source + 1}", dst=f"10.99.0.{to + 1}", tos=tos, **fields)
    return IPv6(src=f"fd00:99::{source + 1}", dst=f"fd00:99::{to + 1}", tc=tos, **fields)


def datagram(source: int, to: int, version: int = 4, size: int = 100, tos: int = 0) -> Packet:
    """Returns a UDP packet between two hosts' applications: `size` bytes of data."""
    fields = {"id": 7, "ttl": 63} if version == 4 else {"fl": 0x12345, "hlim": 63}
    head = ip(version, source, to, tos=tos, **fields) / UDP(sport=1000, dport=2000)
    return head / Raw(bytes(i & 0xFF for i in range(size)))


all_encapsulations = pytest.mark.parametrize("bench", ["usid", "srh", "ecmp"], indirect=True)
both_hooks = pytest.mark.parametrize("hook", ["tc", "xdp"])
versions = pytest.mark.parametrize("version", [4, 6])


def inner(version: int = 4, tos: int = 0, size: int = 100) -> Packet:
    return datagram(H2, H0, version, size, tos)


def popped(packet: Packet, plane: int = 0) -> bytes:
    """Returns the bytes of an inner packet as the stack receives it."""
    return bytes(Ether(src=wire_mac(plane), dst=nic_mac(plane)) / packet)
