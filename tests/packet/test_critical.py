# SPDX-License-Identifier: BSD-2-Clause
"""Tests critical packets: they take two EVs, and the first copy is delivered."""

from collections import Counter
from itertools import count

import pytest
from scapy.layers.inet import TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import CRITICAL, DATA, MRC, PROBE_REQUEST
from mrcd.config.cluster_file import Granularity
from mrcd.kernel import abi
from mrcd.kernel.enums import EvState
from tests.packet.clock import MS, advance, now
from tests.packet.packets import ETHERNET, EVS, H2, PLANES, SLOTS, both_hooks, datagram, ip
from tests.packet.rig import Bench, Hook, Setup
from tests.packet.wires import Sender, Tap, until

pytestmark = pytest.mark.root


IPV4, IPV6 = ip(tos=0xB8, id=7), ip(6, tos=2)
QUIET = "probe_late_ms = 10000"
PLAIN = Setup(health=QUIET)
CLASS = Setup(health=QUIET, more='[[classes]]\npolicy = "critical"\nports = [2]\n')
PORTS = count(20000)  # source ports: each packet starts a new flow
NOPS = [("NOP", None), ("NOP", None)]
TIME, SACK = [*NOPS, ("Timestamp", (1, 2))], [*NOPS, ("SAck", (5, 9))]  # option layouts of real TCPs

plain = pytest.mark.parametrize("bench", [PLAIN], indirect=True)


def ack(head: Packet = IPV4, payload: bytes = b"", **tcp: object) -> Packet:
    return head / TCP(**{"sport": next(PORTS), "dport": 2, "flags": "A", "seq": 1, "ack": 5} | tcp) / Raw(payload)


def ready(bench: Bench, granularity: Granularity = "burst") -> tuple[Sender, list[Tap]]:
    stack, wires = bench.attach_push(granularity), bench.wires()
    bench.attach_probe()
    bench.reports(H2)["requested_ns"] = now()
    return stack, wires


def out(bench: Bench, side: tuple[Sender, list[Tap]], packet: Packet) -> list[MRC]:
    """Sends a packet. Returns the MRC headers with which it goes out, whole and counted."""
    before = bench.tables.evs["tx_packets"][H2].sum()
    side[0].send(ETHERNET / packet)
    until("the packet is pushed", lambda: bool(bench.tables.evs["tx_packets"][H2].sum() > before))
    found = []
    for frame in [f for wire in side[1] for f in wire.frames()]:
        seen = Ether(frame.data)[MRC]
        if seen.type != DATA:
            continue
        header = {"seq": seen.seq, "tx_ns": seen.tx_ns, "flags": int(seen.flags)}
        assert frame.data == bytes(bench.sent(H2, seen.ev, packet, **header))
        found.append(seen)
    assert bench.drops() == {}
    return found


def copies(bench: Bench, name: str) -> int:
    return int(bench.tables.copies[name][H2])


# ---- the sender ----


@pytest.mark.parametrize(
    "bench",
    [PLAIN, Setup("srh", health=QUIET), Setup("ecmp", health=QUIET)],
    indirect=True,
)
@pytest.mark.parametrize("granularity", ["burst", "packet"])
@pytest.mark.parametrize("head", [IPV4, IPV6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("flags", ["A", "AE", "AECN", "S", "SA", "SEC", "FA", "R", "RA"])
def test_a_packet_that_is_alone_takes_two_planes_under_one_number(
    bench: Bench, granularity: Granularity, head: Packet, flags: str
) -> None:
    side = ready(bench, granularity)
    first = int(bench.tables.node["generation"])
    for number in range(2):
        advance(MS)  # two flows can share an entry
        sent = out(bench, side, ack(head, flags=flags, options=TIME + SACK if flags == "A" else []))
        assert len({m.ev // SLOTS for m in sent}) == len(sent) == 2
        assert {(m.seq, int(m.flags), m.segments) for m in sent} == {((first + number) % 2**32, CRITICAL, 1)}
    assert int(bench.tables.evs["tx_packets"][H2].sum()) == 4
    assert (copies(bench, "sent"), copies(bench, "sent_once")) == (2, 0)


@pytest.mark.parametrize("bench", [CLASS], indirect=True)
@pytest.mark.parametrize("head", [IPV4, IPV6], ids=["ipv4", "ipv6"])
def test_a_packet_of_a_critical_class_takes_two_planes(bench: Bench, head: Packet) -> None:
    sent = out(bench, ready(bench), head / UDP(sport=1, dport=2) / Raw(bytes(900)))
    assert [int(m.flags) for m in sent] == [CRITICAL] * 2
    assert len({m.ev // SLOTS for m in sent}) == 2


@pytest.mark.parametrize("bench", [CLASS], indirect=True)
def test_copies_take_two_planes_where_others_stand_in_for_one(bench: Bench) -> None:
    """A plane that has just come back leaves most of its turns to the others, and so to the plane of the copy, too."""
    side = ready(bench)
    bench.tables.evs["weight"][H2, SLOTS : 2 * SLOTS] = 1
    for _ in range(40):
        assert len({m.ev // SLOTS for m in out(bench, side, IPV4 / UDP(sport=1, dport=2))}) == 2


@pytest.mark.parametrize("bench", [CLASS], indirect=True)
def test_copies_take_one_plane_where_all_others_are_too_slow(bench: Bench) -> None:
    side, last = ready(bench), PLANES - 1
    bench.peer(H2)["queued"], bench.peer(H2)["slow_planes"] = 1, (1 << last) - 1
    rest = [0] * (abi.MAX_PLANES - PLANES)
    bench.pace(H2, pace_ns=[MS] * PLANES + rest, slow_ns=[40 * MS] * last + [0] + rest)
    for _ in range(4):
        assert [m.ev // SLOTS for m in out(bench, side, IPV4 / UDP(sport=1, dport=2))] == [last] * 2


@pytest.mark.parametrize(
    ("bench", "packet"),
    [
        *((PLAIN, ack(flags=flags)) for flags in ("PA", "UA")),
        (PLAIN, ack(payload=b"x")),
        (PLAIN, IPV4 / UDP(sport=1, dport=2)),
        (PLAIN, ip(frag=1, proto=6) / Raw(bytes(ack(flags="S")[TCP]))),
        (Setup(health=QUIET, more="[overlay]\ndup_ack_us = 0\n"), ack()),
        (Setup(health=QUIET, more="[overlay]\ncopies_per_s = 0\n"), ack(flags="S")),
        (Setup(health=QUIET, more='[[classes]]\npolicy = "pinned"\nports = [2]\n'), ack(flags="S")),
        (Setup(health=QUIET, more='[[classes]]\npolicy = "flowlet"\nports = [2]\n'), ack()),
    ],
    indirect=["bench"],
    ids=["psh", "urg", "data", "udp", "fragment", "no acks", "none", "pinned", "flowlet"],
)
def test_any_other_packet_takes_one_ev(bench: Bench, packet: Packet) -> None:
    assert [int(m.flags) for m in out(bench, ready(bench), packet)] == [0]


@plain
def test_an_acknowledgement_soon_after_another_takes_one_ev(bench: Bench) -> None:
    side, first = ready(bench), ack()
    later = first.copy()
    later[TCP].ack = 9
    assert [len(out(bench, side, packet)) for packet in (first, later)] == [2, 1]
    advance(MS)
    assert len(out(bench, side, later)) == 2


@plain
def test_without_a_probe_interface_a_packet_takes_one_ev(bench: Bench) -> None:
    side = ready(bench)
    bench.tables.node["probe_ifindex"] = 0
    assert [int(m.flags) for m in out(bench, side, ack())] == [0]


CRITICAL_CLASS = '[[classes]]\npolicy = "critical"\nports = [2]\n'
FLOOD = Setup(health=QUIET, more=f"[overlay]\ncopies_per_s = 1000\ndup_ack_us = 1\n{CRITICAL_CLASS}")


@pytest.mark.parametrize("bench", [FLOOD], indirect=True)
@pytest.mark.parametrize(("flags", "ahead"), [("S", 51), ("A", 26), ("PA", 26)])
def test_a_flood_of_critical_packets_takes_one_ev(bench: Bench, flags: str, ahead: int) -> None:
    """All but the segments that open and end connections leave half of the copies to these."""
    side, packet = ready(bench), ack(flags=flags)

    def times(packets: int) -> list[int]:
        sent = []
        for _ in range(packets):
            advance(2_000)
            sent.append(len(out(bench, side, packet)))
        return sent

    assert times(ahead + 2) == [2] * ahead + [1] * 2
    assert (copies(bench, "sent"), copies(bench, "sent_once")) == (ahead, 2)
    advance(10 * MS)
    assert times(12) == [2] * 10 + [1] * 2


@plain
def test_a_critical_packet_can_carry_a_request(bench: Bench) -> None:
    side, packet = ready(bench), ack()
    bench.reports(H2)["requested_ns"] = 0
    side[0].send(ETHERNET / packet)
    kinds = Counter(int(Ether(f.data)[MRC].type) for wire in side[1] for f in wire.frames())
    assert (kinds, bench.drops()) == ({DATA: 2, PROBE_REQUEST: 1}, {})


@plain
def test_with_one_usable_ev_both_copies_use_it(bench: Bench) -> None:
    bench.set_state(H2, EvState.DENIED, *range(1, EVS))
    assert [m.ev for m in out(bench, ready(bench), ack())] == [0, 0]


@plain
def test_without_a_usable_ev_the_packet_is_dropped_once(bench: Bench) -> None:
    side = ready(bench)
    bench.set_state(H2, EvState.DENIED, *range(EVS))
    with pytest.raises(OSError, match="No buffer space"):  # the sender sees this error
        side[0].send(ETHERNET / ack())
    assert [f for wire in side[1] for f in wire.frames()] == []
    assert bench.drops() == {"no_usable_ev": 1}


# ---- the receiver ----


def arrives(bench: Bench, hook: Hook, number: int, ev: int = 0) -> bool:
    """Lets a copy arrive. Returns whether it is delivered; one that is not is eliminated, and no drop."""
    packet = bench.arriving("h2", ev, datagram(H2, 0), flags=CRITICAL, seq=number % 2**32)
    verdict, _ = bench.pop(hook, packet, ev // SLOTS)
    assert bench.drops() == {}
    return verdict != "drop"


@both_hooks
def test_the_copy_that_comes_first_is_delivered(bench: Bench, hook: Hook) -> None:
    order = [7, 8, 8, 7, 9, 6, 5, 9, 6, 5]
    assert [arrives(bench, hook, n, ev) for n, ev in zip(order, [0, 4] * 5, strict=True)] == [
        n not in order[:i] for i, n in enumerate(order)
    ]
    assert (copies(bench, "delivered"), copies(bench, "eliminated")) == (5, 5)
    assert sum(bench.rx(H2, ev)[0] for ev in (0, 4)) == 10  # reports do not know that one was eliminated


@both_hooks
@pytest.mark.parametrize("first", [0, 2**32 - 700])
def test_copies_far_apart_are_still_known(bench: Bench, hook: Hook, first: int) -> None:
    window = 32 * abi.REPLAY_WORDS - 32
    assert all(arrives(bench, hook, first + n) for n in range(0, window, 7))
    assert not any(arrives(bench, hook, first + n) for n in range(0, window, 7))


@both_hooks
def test_after_new_tables_the_peer_numbers_anew(bench: Bench, hook: Hook) -> None:
    assert [arrives(bench, hook, 5) for _ in range(2)] == [True, False]
    bench.peer(H2)["generation"] += 1
    assert [arrives(bench, hook, 5) for _ in range(2)] == [True, False]


@both_hooks
def test_a_packet_too_old_to_tell_is_delivered(bench: Bench, hook: Hook) -> None:
    """Whoever forges numbers of the future (without tags) cannot have genuine packets eliminated."""
    assert arrives(bench, hook, 7)
    assert all(arrives(bench, hook, 100_000 + n) for n in range(0, 32 * abi.REPLAY_WORDS, 32))
    assert [arrives(bench, hook, n) for n in (7, 7, 8)] == [True, True, True]
    assert copies(bench, "unchecked") == 3


def test_other_packets_have_no_number_among_critical_ones(bench: Bench) -> None:
    for _ in range(2):
        assert bench.pop("tc", bench.arriving("h2", 0, datagram(H2, 0), seq=5))[0] == "pass"
    assert (copies(bench, "delivered"), copies(bench, "eliminated")) == (0, 0)
