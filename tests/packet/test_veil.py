"""Selective acknowledgements of what was only overtaken: hidden while planes differ in delay, as long as that takes."""

from typing import Any

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet

from tests.packet.arrivals import both_hooks, popped
from tests.packet.cluster import H2
from tests.packet.rig import Bench, Hook
from tests.packet.wires import until

pytestmark = pytest.mark.root

APART_NS = 2_000_000_000
"""Planes that differ by longer than a test takes."""
NOPS = [("NOP", None), ("NOP", None)]
SACK = [*NOPS, ("SAck", (2000, 3000, 4000, 5000))]
TIMESTAMP = [*NOPS, ("Timestamp", (7, 8))]
UNKNOWN = 253


def ack(number: int = 1000, options: Any = SACK, version: int = 4, port: int = 5) -> Packet:
    """What h2's TCP has got, behind a gap."""
    ip = IP(src="10.99.0.3", dst="10.99.0.1") if version == 4 else IPv6(src="fd00:99::3", dst="fd00:99::1")
    made: Packet = type(ip)(bytes(ip / TCP(sport=port, dport=6, flags="A", ack=number, options=options)))
    return made


def seen(bench: Bench, packet: Packet, hook: Hook = "tc") -> bytes:
    """What the stack gets to see of it, from the IP header on."""
    verdict, out = bench.pop(hook, bench.arriving("h2", 0, packet), 0)
    assert verdict == "pass"
    return out[14:]


def veiled(packet: Packet) -> bytes:
    """The packet with the option's kind changed, and a checksum that is right."""
    raw = bytearray(bytes(packet))
    at = raw.index(b"\x01\x01\x05") + 2
    raw[at] = UNKNOWN
    made = type(packet)(bytes(raw))
    del made[TCP].chksum
    return bytes(made)


@both_hooks
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("options", [SACK, TIMESTAMP + SACK], ids=["sack", "timestamp"])
def test_it_is_hidden_while_planes_differ(bench: Bench, version: int, options: Any, hook: Hook) -> None:
    packet = ack(options=options, version=version)
    bench.pace(H2, apart_ns=APART_NS)
    assert seen(bench, packet, hook) == veiled(packet)
    assert seen(bench, packet, hook) == veiled(packet)
    assert bench.rx(H2, 0)[0] == 2
    assert bench.drops() == {}


def test_planes_that_are_alike_hide_nothing(bench: Bench) -> None:
    bench.pace(H2, apart_ns=500_000)
    assert seen(bench, ack()) == bytes(ack())


def test_a_gap_that_stays_is_shown(bench: Bench) -> None:
    """Then the data is lost: 1.5 × 10 ms after the gap was first seen, not sooner."""
    bench.pace(H2, apart_ns=10_000_000)
    assert seen(bench, ack(1200)) == veiled(ack(1200))
    until("the option is shown", lambda: seen(bench, ack(1200)) == bytes(ack(1200)))
    assert seen(bench, ack(1500)) == veiled(ack(1500))  # the next gap


def test_flows_have_gaps_of_their_own(bench: Bench) -> None:
    bench.pace(H2, apart_ns=10_000_000)
    until("the option is shown", lambda: seen(bench, ack()) == bytes(ack()))
    assert seen(bench, ack(port=77)) == veiled(ack(port=77))
    assert seen(bench, ack()) == bytes(ack())


OTHERS: list[Any] = [[], TIMESTAMP, NOPS * 2, [("MSS", 1400), *SACK]]


@pytest.mark.parametrize("options", OTHERS, ids=["none", "timestamp", "nops", "mss"])
@pytest.mark.parametrize("version", [4, 6])
def test_other_packets_stay_as_they_are(bench: Bench, version: int, options: Any) -> None:
    bench.pace(H2, apart_ns=APART_NS)
    packet = ack(options=options, version=version)
    assert seen(bench, packet) == popped(packet)[14:]
