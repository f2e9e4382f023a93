# SPDX-License-Identifier: BSD-2-Clause
"""Builds packets from the fabric, and asserts that they are popped, passed unchanged, or dropped."""

import pytest
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from tests.packet.cluster import H0, H2, datagram, nic_mac, wire_mac
from tests.packet.rig import Bench, Hook

both_hooks = pytest.mark.parametrize("hook", ["tc", "xdp"])


def inner(version: int = 4, tos: int = 0, size: int = 100) -> Packet:
    """Returns a packet from host h2 to this one."""
    return datagram(H2, H0, version, size, tos)


def udp_only(dst: str, size: int, port: int = 4797) -> Packet:
    """Returns UDP to mrcd's port with too little payload for an MRC header."""
    head = Ether(src=wire_mac(0), dst=nic_mac(0)) / IPv6(src="fd10:0:0:1::3", dst=dst)
    return head / UDP(sport=0xC000, dport=port, chksum=0) / Raw(bytes(size))


def popped(packet: Packet, plane: int = 0) -> bytes:
    """Returns the bytes of an inner packet as the stack receives it."""
    return bytes(Ether(src=wire_mac(plane), dst=nic_mac(plane)) / packet)


def untouched(bench: Bench, hook: Hook, frame: Packet | bytes, plane: int = 0) -> None:
    """Asserts that the packet passes unchanged, and that nothing is counted."""
    before = bench.counted()
    assert bench.pop(hook, frame, plane) == ("pass", bytes(frame))
    assert bench.drops() == {}
    assert bench.counted() == before


def dropped(bench: Bench, hook: Hook, frame: Packet | bytes, reason: str, plane: int = 0) -> None:
    """Asserts that the packet is dropped with exactly this reason, and nothing else is counted."""
    before = bench.counted()
    assert bench.pop(hook, frame, plane)[0] == "drop"
    assert bench.drops() == {reason: 1}
    assert bench.counted() == before
