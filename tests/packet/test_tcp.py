# SPDX-License-Identifier: BSD-2-Clause
"""Tests SACK blocks, which are hidden from TCP while planes differ in delay."""

import random
from typing import Any

import pytest
from scapy.layers.inet import TCP
from scapy.packet import Packet

from tests.packet.clock import MS, advance
from tests.packet.packets import H0, H2, both_hooks, ip, popped, versions
from tests.packet.rig import Bench, Hook, give_prefixes

pytestmark = pytest.mark.root


# ---- SACK hiding ----


NOPS = [("NOP", None), ("NOP", None)]
APART_NS = 2_000_000_000
"""A difference in delay between planes that is longer than a test."""
BLOCKS = [*NOPS, ("SAck", (2000, 3000, 4000, 5000))]
TIMESTAMP = [*NOPS, ("Timestamp", (7, 8))]
UNKNOWN = 253


def gap_ack(number: int = 1000, options: Any = BLOCKS, version: int = 4, port: int = 5, source: int = H2) -> Packet:
    head = ip(version, source, H0)
    made: Packet = type(head)(bytes(head / TCP(sport=port, dport=6, flags="A", ack=number, options=options)))
    return made


def seen(bench: Bench, packet: Packet, hook: Hook = "tc") -> bytes:
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
@versions
@pytest.mark.parametrize("options", [BLOCKS, TIMESTAMP + BLOCKS], ids=["sack", "timestamp"])
def test_sack_blocks_are_hidden_while_planes_differ_in_delay(
    bench: Bench, version: int, options: Any, hook: Hook
) -> None:
    packet = gap_ack(options=options, version=version)
    bench.peer(H2)["plane_skew_ns"] = APART_NS
    assert [seen(bench, packet, hook) for _ in range(2)] == [with_sack_hidden(packet)] * 2
    assert (bench.rx(H2, 0)[0], bench.drops()) == (2, {})


def test_planes_of_equal_delay_hide_no_sack_blocks(bench: Bench) -> None:
    bench.peer(H2)["plane_skew_ns"] = 500_000
    assert seen(bench, gap_ack()) == bytes(gap_ack())


def test_a_lasting_gap_is_shown(bench: Bench) -> None:
    """The data is then lost: 1.5 × 10 ms after the gap was first seen, not sooner."""
    bench.peer(H2)["plane_skew_ns"] = 10_000_000
    for ns in (15 * MS - 1, 1):
        assert seen(bench, gap_ack(1200)) == with_sack_hidden(gap_ack(1200))
        advance(ns)
    assert seen(bench, gap_ack(1200)) == bytes(gap_ack(1200))


def test_a_gap_that_heals_is_never_shown(bench: Bench) -> None:
    """Each is the late data of a slow plane, and the next one has a window of its own."""
    bench.peer(H2)["plane_skew_ns"] = 10_000_000
    for number in range(1000, 1800, 100):
        assert seen(bench, gap_ack(number)) == with_sack_hidden(gap_ack(number))
        advance(10 * MS)
        assert seen(bench, gap_ack(number)) == with_sack_hidden(gap_ack(number))


def test_a_flow_that_loses_packets_is_shown_all_gaps(bench: Bench) -> None:
    """For 64 windows: otherwise each packet of several would be repaired a window after the one before it."""
    bench.peer(H2)["plane_skew_ns"] = 10_000_000
    lost = [gap_ack(number) for number in (1000, 1500, 2999)]
    assert seen(bench, lost[0]) == with_sack_hidden(lost[0])
    advance(15 * MS)
    assert [seen(bench, packet) for packet in lost] == [bytes(packet) for packet in lost]
    advance(64 * 15 * MS - 1)
    assert [seen(bench, packet) for packet in lost] == [bytes(packet) for packet in lost]
    advance(1)
    assert seen(bench, lost[2]) == with_sack_hidden(lost[2])


def test_a_report_of_a_duplicate_is_told_and_begins_no_gap(bench: Bench) -> None:
    """By it, TCP finds that it need not have sent a packet again (RFC 2883)."""
    bench.peer(H2)["plane_skew_ns"] = 10_000_000
    duplicate, overtaken = (gap_ack(4000, [*NOPS, ("SAck", edges)]) for edges in ((500, 600), (5000, 6000)))
    assert seen(bench, duplicate) == bytes(duplicate)
    advance(20 * MS)
    assert seen(bench, overtaken) == with_sack_hidden(overtaken)


def entry(packet: Packet) -> int:
    """Returns the index of an ACK's flow in mrc_sack_gaps (bpf/sack_hiding.h), of IPv4."""
    source, destination, ports = (int.from_bytes(bytes(packet)[at : at + 4], "little") for at in (12, 16, 20))
    flow = (ports ^ destination ^ source * 0x85EBCA6B) * 0x9E3779B1 & 0xFFFFFFFF
    return flow >> 20


def test_a_flow_that_loses_packets_keeps_its_entry(bench: Bench) -> None:
    bench.peer(H2)["plane_skew_ns"] = 10_000_000
    lossy = gap_ack()
    assert seen(bench, lossy) == with_sack_hidden(lossy)
    others = (gap_ack(port=port) for port in range(1024, 65536))
    sharing = next(packet for packet in others if entry(packet) == entry(lossy))
    assert seen(bench, sharing) == bytes(sharing)
    advance(15 * MS)
    assert seen(bench, lossy) == bytes(lossy)
    advance(16 * MS)
    assert [seen(bench, packet) for packet in (sharing, gap_ack(1500))] == [bytes(sharing), bytes(gap_ack(1500))]


def test_flows_have_gaps_of_their_own(bench: Bench) -> None:
    bench.peer(H2)["plane_skew_ns"] = 10_000_000
    assert seen(bench, gap_ack()) == with_sack_hidden(gap_ack())
    advance(16 * MS)
    assert seen(bench, gap_ack()) == bytes(gap_ack())
    assert seen(bench, gap_ack(port=77)) == with_sack_hidden(gap_ack(port=77))
    assert seen(bench, gap_ack()) == bytes(gap_ack())


@versions
def test_flows_with_equal_ports_have_gaps_of_their_own(bench: Bench, version: int) -> None:
    """Two addresses, whose flows have the same ports; both have a gap."""
    give_prefixes(bench, {"10.99.0.4/32" if version == 4 else "fd00:99::4/128": H2})
    bench.peer(H2)["plane_skew_ns"] = 10_000_000
    lost = [gap_ack(1000 * n, version=version, source=n) for n in (H2, 3)]
    assert [seen(bench, packet) for packet in lost] == [with_sack_hidden(packet) for packet in lost]
    advance(16 * MS)
    assert [seen(bench, packet) for packet in lost] == [bytes(packet) for packet in lost]


def test_flows_in_one_slot_hide_less(bench: Bench) -> None:
    """They never hide a longer loss by resetting each other's time."""
    bench.peer(H2)["plane_skew_ns"] = APART_NS
    packets = [gap_ack(port=port) for port in random.Random(1).sample(range(1024, 65536), 400)]
    shown = [seen(bench, p) == bytes(p) for p in packets]
    assert 0 < sum(shown) < 100
    assert [seen(bench, p) == bytes(p) for p in packets] == shown


OTHERS: list[Any] = [[], TIMESTAMP, NOPS * 2, [("MSS", 1400), *BLOCKS]]


@pytest.mark.parametrize("options", OTHERS, ids=["none", "timestamp", "nops", "mss"])
@versions
def test_other_packets_pass_unchanged(bench: Bench, version: int, options: Any) -> None:
    bench.peer(H2)["plane_skew_ns"] = APART_NS
    packet = gap_ack(options=options, version=version)
    assert seen(bench, packet) == popped(packet)[14:]
