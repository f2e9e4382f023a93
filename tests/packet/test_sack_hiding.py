# SPDX-License-Identifier: BSD-2-Clause
"""Tests SACK hiding: selective acknowledgements of reordered data are hidden while planes differ in delay."""

import random
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet

from tests.packet.arrivals import both_hooks, popped
from tests.packet.clock import MS, advance
from tests.packet.cluster import H2
from tests.packet.rig import Bench, Hook, give_prefixes

pytestmark = pytest.mark.root

APART_NS = 2_000_000_000
"""A difference in delay between planes that is longer than a test."""
NOPS = [("NOP", None), ("NOP", None)]
SACK = [*NOPS, ("SAck", (2000, 3000, 4000, 5000))]
TIMESTAMP = [*NOPS, ("Timestamp", (7, 8))]
UNKNOWN = 253


def ack(number: int = 1000, options: Any = SACK, version: int = 4, port: int = 5, source: int = 3) -> Packet:
    """Returns an acknowledgement of h2's TCP with SACK blocks behind a gap."""
    ip: Any = IP(src=f"10.99.0.{source}", dst="10.99.0.1")
    if version == 6:
        ip = IPv6(src=f"fd00:99::{source}", dst="fd00:99::1")
    made: Packet = type(ip)(bytes(ip / TCP(sport=port, dport=6, flags="A", ack=number, options=options)))
    return made


def seen(bench: Bench, packet: Packet, hook: Hook = "tc") -> bytes:
    """Returns the packet as the stack receives it, from the IP header on."""
    verdict, out = bench.pop(hook, bench.arriving("h2", 0, packet), 0)
    assert verdict == "pass"
    return out[14:]


def with_sack_hidden(packet: Packet) -> bytes:
    """Returns the packet with the option's kind changed, and the right checksum."""
    raw = bytearray(bytes(packet))
    at = raw.index(b"\x01\x01\x05") + 2
    raw[at] = UNKNOWN
    made = type(packet)(bytes(raw))
    del made[TCP].chksum
    return bytes(made)


@both_hooks
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("options", [SACK, TIMESTAMP + SACK], ids=["sack", "timestamp"])
def test_sack_blocks_are_hidden_while_planes_differ_in_delay(
    bench: Bench, version: int, options: Any, hook: Hook
) -> None:
    packet = ack(options=options, version=version)
    bench.peer(H2)["plane_skew_ns"] = APART_NS
    assert seen(bench, packet, hook) == with_sack_hidden(packet)
    assert seen(bench, packet, hook) == with_sack_hidden(packet)
    assert bench.rx(H2, 0)[0] == 2
    assert bench.drops() == {}


def test_planes_of_equal_delay_hide_no_sack_blocks(bench: Bench) -> None:
    bench.peer(H2)["plane_skew_ns"] = 500_000
    assert seen(bench, ack()) == bytes(ack())


def test_a_lasting_gap_is_shown(bench: Bench) -> None:
    """The data is then lost: 1.5 × 10 ms after the gap was first seen, not sooner."""
    bench.peer(H2)["plane_skew_ns"] = 10_000_000
    assert seen(bench, ack(1200)) == with_sack_hidden(ack(1200))
    advance(15 * MS - 1)
    assert seen(bench, ack(1200)) == with_sack_hidden(ack(1200))
    advance(1)
    assert seen(bench, ack(1200)) == bytes(ack(1200))
    assert seen(bench, ack(1500)) == with_sack_hidden(ack(1500))  # the next gap


def test_flows_have_gaps_of_their_own(bench: Bench) -> None:
    bench.peer(H2)["plane_skew_ns"] = 10_000_000
    assert seen(bench, ack()) == with_sack_hidden(ack())
    advance(16 * MS)
    assert seen(bench, ack()) == bytes(ack())
    assert seen(bench, ack(port=77)) == with_sack_hidden(ack(port=77))
    assert seen(bench, ack()) == bytes(ack())


@pytest.mark.parametrize("version", [4, 6])
def test_flows_with_equal_ports_have_gaps_of_their_own(bench: Bench, version: int) -> None:
    """Two addresses, whose flows have the same ports; both have a gap."""
    give_prefixes(bench, {"10.99.0.4/32" if version == 4 else "fd00:99::4/128": H2})
    bench.peer(H2)["plane_skew_ns"] = 10_000_000
    lost = [ack(1000 * n, version=version, source=n) for n in (3, 4)]
    assert [seen(bench, packet) for packet in lost] == [with_sack_hidden(packet) for packet in lost]
    advance(16 * MS)
    assert [seen(bench, packet) for packet in lost] == [bytes(packet) for packet in lost]


def test_flows_in_one_slot_hide_less(bench: Bench) -> None:
    """They never hide a longer loss by resetting each other's time."""
    bench.peer(H2)["plane_skew_ns"] = APART_NS
    packets = [ack(port=port) for port in random.Random(1).sample(range(1024, 65536), 400)]
    shown = [seen(bench, p) == bytes(p) for p in packets]
    assert 0 < sum(shown) < 100
    assert [seen(bench, p) == bytes(p) for p in packets] == shown


OTHERS: list[Any] = [[], TIMESTAMP, NOPS * 2, [("MSS", 1400), *SACK]]


@pytest.mark.parametrize("options", OTHERS, ids=["none", "timestamp", "nops", "mss"])
@pytest.mark.parametrize("version", [4, 6])
def test_other_packets_pass_unchanged(bench: Bench, version: int, options: Any) -> None:
    bench.peer(H2)["plane_skew_ns"] = APART_NS
    packet = ack(options=options, version=version)
    assert seen(bench, packet) == popped(packet)[14:]
