"""What comes in from the fabric, and the three things that may become of it: popped, untouched, dropped."""

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from tests.packet.cluster import nic_mac, wire_mac
from tests.packet.rig import Bench, Hook

both_hooks = pytest.mark.parametrize("hook", ["tc", "xdp"])


def inner(version: int = 4, tos: int = 0, size: int = 100) -> Packet:
    """A packet from host h2 to this one."""
    if version == 4:
        ip = IP(src="10.99.0.3", dst="10.99.0.1", tos=tos, id=7, ttl=63)
    else:
        ip = IPv6(src="fd00:99::3", dst="fd00:99::1", tc=tos, fl=0x12345, hlim=63)
    return ip / UDP(sport=1000, dport=2000) / Raw(bytes(i & 0xFF for i in range(size)))


def udp_only(dst: str, size: int, port: int = 4797) -> Packet:
    """UDP to our port with too little behind it for an MRC header."""
    head = Ether(src=wire_mac(0), dst=nic_mac(0)) / IPv6(src="fd10:0:0:1::3", dst=dst)
    return head / UDP(sport=0xC000, dport=port, chksum=0) / Raw(bytes(size))


def popped(packet: Packet, plane: int = 0) -> bytes:
    """What the stack gets to see of an inner packet."""
    return bytes(Ether(src=wire_mac(plane), dst=nic_mac(plane)) / packet)


def untouched(bench: Bench, hook: Hook, frame: Packet | bytes, plane: int = 0) -> None:
    """The packet is none of ours: it goes on as it is, and nothing is counted."""
    before = bench.counted()
    assert bench.pop(hook, frame, plane) == ("pass", bytes(frame))
    assert bench.drops() == {}
    assert bench.counted() == before


def dropped(bench: Bench, hook: Hook, frame: Packet | bytes, reason: str, plane: int = 0) -> None:
    """The packet is dropped under exactly this reason, and nothing else is counted."""
    before = bench.counted()
    assert bench.pop(hook, frame, plane)[0] == "drop"
    assert bench.drops() == {reason: 1}
    assert bench.counted() == before
