# SPDX-License-Identifier: BSD-2-Clause
"""Tests the help for TCP: acknowledgements by two EVs, and SACK blocks hidden while planes differ in delay."""

import random
from collections import Counter
from itertools import count
from typing import Any

import pytest
from scapy.layers.inet import TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import DATA, MRC, PROBE_REQUEST
from mrcd.config.cluster_file import Granularity
from mrcd.kernel.enums import EvState
from tests.packet.clock import MS, advance, now
from tests.packet.packets import ETHERNET, EVS, H0, H2, SLOTS, both_hooks, ip, popped, versions
from tests.packet.rig import Bench, Hook, Setup, give_prefixes
from tests.packet.wires import Sender, Tap, until

pytestmark = pytest.mark.root


# ---- ACK copies ----


IPV4, IPV6 = ip(tos=0xB8, id=7), ip(6, tos=2)
QUIET = "probe_late_ms = 10000"
LONG = Setup(health=QUIET, more="[overlay]\ndup_ack_us = 1000000\n")
PORTS = count(20000)  # source ports: each packet starts a new flow
NOPS = [("NOP", None), ("NOP", None)]
TIME, SACK = [*NOPS, ("Timestamp", (1, 2))], [*NOPS, ("SAck", (5, 9))]  # option layouts of real TCPs

long = pytest.mark.parametrize("bench", [LONG], indirect=True)


def ack(head: Packet = IPV4, payload: bytes = b"", **tcp: object) -> Packet:
    return head / TCP(**{"sport": next(PORTS), "dport": 2, "flags": "A", "seq": 1, "ack": 5} | tcp) / Raw(payload)


def ready(bench: Bench, granularity: Granularity = "burst") -> tuple[Sender, list[Tap]]:
    stack, wires = bench.attach_push(granularity), bench.wires()
    bench.attach_probe()
    bench.reports(H2)["requested_ns"] = now()
    return stack, wires


def out(bench: Bench, side: tuple[Sender, list[Tap]], packet: Packet) -> list[int]:
    """Sends a packet. Returns the EVs on which it goes out, whole and counted."""
    before = bench.tables.evs["tx_packets"][H2].sum()
    side[0].send(ETHERNET / packet)
    until("the packet is pushed", lambda: bool(bench.tables.evs["tx_packets"][H2].sum() > before))
    found = []
    for frame in [f for wire in side[1] for f in wire.frames()]:
        seen = Ether(frame.data)[MRC]
        assert frame.data == bytes(bench.sent(H2, seen.ev, packet, seq=seen.seq, tx_ns=seen.tx_ns))
        found.append(int(seen.ev))
    assert bench.drops() == {}
    return found


@pytest.mark.parametrize(
    "bench",
    [LONG, Setup("srh", health=QUIET, more=LONG.more), Setup("ecmp", health=QUIET, more=LONG.more)],
    indirect=True,
)
@pytest.mark.parametrize("granularity", ["burst", "packet"])
@pytest.mark.parametrize(
    "packet",
    [ack(), ack(IPV6), ack(options=TIME), *(ack(flags=flags) for flags in ("AE", "AC", "AEC", "AECN"))],
    ids=["ipv4", "ipv6", "timestamp", "ece", "cwr", "ace-3", "ace-7"],
)
def test_a_single_acknowledgement_is_copied_to_another_plane(
    bench: Bench, granularity: Granularity, packet: Packet
) -> None:
    packet[TCP].sport = next(PORTS)
    evs = out(bench, ready(bench, granularity), packet)
    assert len(evs) == 2
    assert len({ev // SLOTS for ev in evs}) == 2
    assert [int(bench.ev(H2, ev)["tx_packets"]) for ev in evs] == [1, 1]
    assert int(bench.peer(H2)["dup_acks"]) == 1


@long
def test_an_acknowledgement_soon_after_another_is_sent_once(bench: Bench) -> None:
    side, first = ready(bench), ack()
    later = first.copy()
    later[TCP].ack = 9
    sent = []
    for packet in (first, later, ack()):
        sent.append(len(out(bench, side, packet)))
        advance(20_000)  # as the limit of one CPU allows
    assert sent == [2, 1, 2]
    assert int(bench.peer(H2)["dup_acks"]) == 2


@pytest.mark.parametrize("bench", [Setup(health=QUIET, more="[overlay]\ndup_ack_us = 1\n")], indirect=True)
def test_an_acknowledgement_long_after_another_is_copied_again(bench: Bench) -> None:
    side, packet = ready(bench), ack()
    for _ in range(3):
        assert len(out(bench, side, packet)) == 2
        advance(20_000)  # as the limit of one CPU allows


@pytest.mark.parametrize(
    ("bench", "packet"),
    [
        *((LONG, ack(flags=flags)) for flags in ("S", "SA", "FA", "RA", "PA", "SEC", "UA")),
        (LONG, ack(payload=b"x")),
        (LONG, ack(options=SACK)),  # TCP counts these as duplicate ACKs
        (LONG, ack(IPV6, options=TIME + SACK)),
        (LONG, IPV4 / UDP(sport=1, dport=2)),
        (LONG, ip(frag=1, proto=6) / Raw(bytes(ack()[TCP]))),
        (Setup(health=QUIET, more="[overlay]\ndup_ack_us = 0\n"), ack()),
        (Setup(health=QUIET, more=f'{LONG.more}[[classes]]\npolicy = "pinned"\nports = [2]\n'), ack()),
        (Setup(health=QUIET, more=f'{LONG.more}[[classes]]\npolicy = "flowlet"\nports = [2]\n'), ack()),
    ],
    indirect=["bench"],
    ids=[
        "syn",
        "syn-ack",
        "fin",
        "rst",
        "psh",
        "syn-ece",
        "urg",
        "data",
        "sack",
        "sack6",
        "udp",
        "fragment",
        "off",
        "pinned",
        "flowlet",
    ],
)
def test_what_is_no_pure_acknowledgement_or_keeps_its_ev_is_not_copied(bench: Bench, packet: Packet) -> None:
    assert len(out(bench, ready(bench), packet)) == 1


@long
def test_without_a_probe_interface_no_acknowledgement_is_copied(bench: Bench) -> None:
    side = ready(bench)
    bench.tables.node["probe_ifindex"] = 0
    assert len(out(bench, side, ack())) == 1


@long
def test_acknowledgement_copies_of_many_flows_are_rate_limited(bench: Bench) -> None:
    side, packets = ready(bench), [bytes(ETHERNET / ack()) for _ in range(200)]
    for packet in packets:
        side[0].send(packet)
        advance(5_000)
    sent = len([f for wire in side[1] for f in wire.frames()])
    assert sent == 200 + 1 + 200 * 5 // 20  # one CPU copies one in 20 us


@long
def test_a_copied_acknowledgement_can_carry_a_request(bench: Bench) -> None:
    side, packet = ready(bench), ack()
    bench.reports(H2)["requested_ns"] = 0
    side[0].send(ETHERNET / packet)
    kinds = Counter(int(Ether(f.data)[MRC].type) for wire in side[1] for f in wire.frames())
    assert (kinds, bench.drops()) == ({DATA: 2, PROBE_REQUEST: 1}, {})


@long
def test_with_one_usable_ev_both_copies_use_it(bench: Bench) -> None:
    bench.set_state(H2, EvState.DENIED, *range(1, EVS))
    assert out(bench, ready(bench), ack()) == [0, 0]


@long
def test_without_a_usable_ev_the_packet_is_dropped_once(bench: Bench) -> None:
    side = ready(bench)
    bench.set_state(H2, EvState.DENIED, *range(EVS))
    with pytest.raises(OSError, match="No buffer space"):  # the sender sees this error
        side[0].send(ETHERNET / ack())
    assert [f for wire in side[1] for f in wire.frames()] == []
    assert bench.drops() == {"no_usable_ev": 1}


# ---- SACK hiding ----


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


def test_each_of_several_lost_packets_is_shown_when_the_first_is(bench: Bench) -> None:
    """Otherwise each would be repaired a window after the one before it."""
    bench.peer(H2)["plane_skew_ns"] = 10_000_000
    holes = [gap_ack(number) for number in (1000, 1500, 2999)]  # before data up to 3000, which has arrived
    assert seen(bench, holes[0]) == with_sack_hidden(holes[0])
    advance(16 * MS)
    assert [seen(bench, packet) for packet in holes] == [bytes(packet) for packet in holes]
    advance(104 * MS)
    assert seen(bench, holes[2]) == bytes(holes[2])
    assert seen(bench, holes[1]) == with_sack_hidden(holes[1])  # another so late: sequence numbers may have wrapped
    younger = gap_ack(3000)  # before data of which nothing is known at that time
    assert seen(bench, younger) == with_sack_hidden(younger)


def test_a_gap_is_as_old_as_it_is_although_duplicates_are_told_first(bench: Bench) -> None:
    bench.peer(H2)["plane_skew_ns"] = 10_000_000
    packet, repaired = (gap_ack(n, [*NOPS, ("SAck", (500, 600, 4000, 5000))]) for n in (1000, 3000))
    assert seen(bench, packet) == with_sack_hidden(packet)
    advance(16 * MS)
    assert [seen(bench, p) for p in (packet, repaired)] == [bytes(packet), bytes(repaired)]


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
