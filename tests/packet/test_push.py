# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_push: a packet of the stack in, the packet on the wire out."""

import itertools
import socket
import subprocess
from collections import Counter

import numpy as np
import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import MRC
from mrcd.kernel.enums import EvState
from tests.packet.clock import now, running
from tests.packet.model_host import pair_offset
from tests.packet.packets import (
    ETHERNET,
    EVS,
    H0,
    H1,
    H2,
    H5,
    PLANES,
    SLOTS,
    all_encapsulations,
    datagram,
    ip,
    versions,
)
from tests.packet.rig import Bench, Setup, give_prefixes
from tests.packet.wires import Tap, backlog, held_queue, qdisc, qdiscs, release, until

pytestmark = pytest.mark.root


def to_h2(version: int = 4, size: int = 100, tos: int = 0) -> Packet:
    return datagram(H0, H2, version, size, tos)


def pushed(bench: Bench, packet: Packet) -> tuple[int, MRC]:
    """Pushes a packet that must go out, and asserts each byte. Returns its EV and MRC header."""
    verdict, out = bench.push(packet)
    assert verdict == "redirect"
    mrc = Ether(out)[MRC]
    assert mrc.tx_ns == now()
    dst = packet[IP].dst if IP in packet else packet[IPv6].dst
    peer = int(dst.replace(":", ".").rpartition(".")[2]) - 1
    assert out == bytes(bench.sent(peer, mrc.ev, packet, seq=mrc.seq, tx_ns=mrc.tx_ns))
    return mrc.ev, mrc


def spread(bench: Bench, packets: int) -> Counter[int]:
    return Counter(pushed(bench, to_h2())[0] for _ in range(packets))


def per_plane(evs: Counter[int]) -> list[int]:
    return [sum(n for ev, n in evs.items() if ev // SLOTS == plane) for plane in range(PLANES)]


@versions
@all_encapsulations
def test_pushed_bytes_equal_those_that_scapy_builds(bench: Bench, version: int) -> None:
    evs = [pushed(bench, to_h2(version))[0] for _ in range(EVS)]
    assert sorted(evs) == list(range(EVS))
    assert bench.drops() == {}


@all_encapsulations
def test_a_peer_under_the_same_t0_has_one_path_per_plane(bench: Bench) -> None:
    evs = Counter(pushed(bench, datagram(H0, H1))[0] for _ in range(2 * PLANES))
    assert evs == {plane * SLOTS: 2 for plane in range(PLANES)}


@pytest.mark.parametrize("tos", [0x00, 0x01, 0x02, 0x03, 0xB8, 0xBA, 0x2B, 0xFC, 0xFF])
@versions
def test_dscp_and_ecn_are_copied(bench: Bench, version: int, tos: int) -> None:
    _, out = bench.push(to_h2(version, tos=tos))
    assert Ether(out)[IPv6].tc == tos


def test_an_empty_payload_and_options_are_carried(bench: Bench) -> None:
    for packet in (
        ip(proto=59),
        ip(options=[("NOP"), ("NOP"), ("NOP"), ("EOL")]) / TCP(flags="A") / b"x",
        ip(6, nh=59),
    ):
        pushed(bench, packet)


# ---- which EV ----


def test_all_evs_are_used_in_order_and_neighbours_use_different_planes(bench: Bench) -> None:
    evs = [pushed(bench, to_h2())[0] for _ in range(10 * EVS)]
    assert Counter(evs) == dict.fromkeys(range(EVS), 10)
    planes = [ev // SLOTS for ev in evs]
    assert planes == [i % PLANES for i in range(len(planes))]


@pytest.mark.parametrize(
    ("unusable", "more"),
    [
        ([9], dict.fromkeys((8, 10, 11), 4)),
        ([4, 5, 7], {6: 12}),
        ([4, 5, 6, 7], dict.fromkeys((0, 1, 2, 3, *range(8, EVS)), 4)),
    ],
    ids=["an EV", "all but one EV of a plane", "a plane"],
)
def test_the_packets_of_unusable_evs_go_to_their_plane_or_else_to_all_others(
    bench: Bench, unusable: list[int], more: dict[int, int]
) -> None:
    bench.set_state(H2, EvState.DENIED, *unusable)
    assert spread(bench, 12 * PLANES) == {ev: more.get(ev, 3) for ev in range(EVS) if ev not in unusable}


@pytest.mark.parametrize("plane", range(PLANES))
@pytest.mark.parametrize("side", ["here", "there"])
def test_a_plane_without_a_link_gets_no_packets(bench: Bench, side: str, plane: int) -> None:
    record = bench.tables.node if side == "here" else bench.peer(H2)
    record["plane_mask"] = 0xFFFF & ~(1 << plane)
    assert per_plane(spread(bench, 12)) == [0 if p == plane else 4 for p in range(PLANES)]


def test_peers_have_rotations_of_their_own(bench: Bench) -> None:
    turns = [(pushed(bench, to_h2())[0], pushed(bench, datagram(H0, H5))[0]) for _ in range(EVS)]
    assert all(a == b for a, b in turns)
    assert {a for a, _ in turns} == set(range(EVS))


def test_first_packets_to_peers_use_different_planes(bench: Bench) -> None:
    """The first plane and slot depend on both host ids, so that packets to many peers fill all planes alike."""
    bench.set_rotations(0)
    for host in (H1, H2, H5):
        turn = pair_offset(H0, host, PLANES * int(bench.peer(host)["slots"]))
        first = turn % PLANES * SLOTS + turn // PLANES
        evs = [pushed(bench, datagram(H0, host))[0] for _ in range(EVS)]
        assert evs[:2] == [first, (first + SLOTS) % EVS]
        assert set(evs) == set(bench.usable(host))
    bench.set_rotations(0)
    bench.tables.peers["slots"][H5] = 1  # a peer may have fewer EVs than its table row
    assert pushed(bench, datagram(H0, H5))[0] == pair_offset(H0, H5, PLANES) * SLOTS


# ---- counters ----


def test_sequence_and_counters_of_each_ev(bench: Bench) -> None:
    sizes = itertools.cycle([0, 1, 99, 1000])
    expected: dict[int, list[int]] = {ev: [] for ev in range(EVS)}
    for _ in range(4 * EVS + 3):
        packet = to_h2(size=next(sizes))
        ev, mrc = pushed(bench, packet)
        assert mrc.seq == len(expected[ev])
        expected[ev].append(len(packet))
    for ev, lengths in expected.items():
        record = bench.ev(H2, ev)
        assert (record["tx_packets"], record["tx_bytes"]) == (len(lengths), sum(lengths))
        assert record["probe_seq"] == 0
    assert not bench.tables.evs["tx_packets"][[H1, H5]].any()


def test_the_sequence_wraps_but_the_counter_does_not(bench: Bench) -> None:
    bench.tables.evs["tx_packets"][H2] = 2**32 - 1
    seqs = [pushed(bench, to_h2())[1].seq for _ in range(2 * EVS)]
    assert Counter(seqs) == {2**32 - 1: EVS, 0: EVS}
    assert (bench.tables.evs["tx_packets"][H2] == 2**32 + 1).all()


@pytest.mark.parametrize(
    ("bench", "by_flow"),
    [(Setup(e, source_port="flow"), e != "ecmp") for e in ("usid", "srh", "ecmp")],
    indirect=["bench"],
    ids=["usid", "srh", "ecmp"],
)
def test_the_source_port_is_the_flow_s_unless_switches_hash_it(bench: Bench, by_flow: bool) -> None:
    found: dict[int, set[int]] = {}
    for n in range(16 * EVS):
        port = 1000 + n % 16
        _, out = bench.push(ip() / UDP(sport=port, dport=2000) / Raw(bytes(60)))
        outer = Ether(out)[UDP]
        assert 0xC000 <= outer.sport <= 0xFFFF
        found.setdefault(port, set()).add(outer.sport)
    if by_flow:
        assert {len(ports) for ports in found.values()} == {1}
        assert len(set.union(*found.values())) > 8  # 16 flows, 16,384 ports
    else:
        assert set.union(*found.values()) == {0xC000 + ev for ev in range(EVS)}


# ---- drops ----


def dropped(bench: Bench, packet: Packet, reason: str) -> None:
    """Asserts that the packet is dropped with exactly this reason, and nothing else is counted."""
    before = bench.counted()
    assert bench.push(packet)[0] == "drop"
    assert bench.drops() == {reason: 1}
    assert bench.counted() == before


@versions
@all_encapsulations
def test_the_largest_packet_is_sent_and_one_byte_more_is_dropped(bench: Bench, version: int) -> None:
    size = bench.plan.inner_mtu - len(to_h2(version, size=0))
    pushed(bench, to_h2(version, size=size))
    assert len(bench.push(to_h2(version, size=size))[1]) == 14 + bench.config.cluster.mtu
    dropped(bench, to_h2(version, size=size + 1), "too_big")


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (ip(to=3) / UDP(), "no_peer"),
        (ip(to=H0) / UDP(), "no_peer"),
        (ip(6, to=3) / UDP(), "no_peer"),
        (IPv6(src="fd00:99::1", dst="::a63:3") / UDP(), "no_peer"),
        (IPv6(src="fd00:99::1", dst="ff02::1") / UDP(), "no_peer"),
        (ARP(psrc="10.99.0.1", pdst="10.99.0.3", hwsrc="02:00:00:00:00:01"), "not_ip"),
        (Raw(b""), "not_ip"),
    ],
    ids=["ipv4", "ourselves", "ipv6", "ipv4-compatible", "multicast", "arp", "nothing"],
)
def test_packets_to_no_peer_are_dropped(bench: Bench, packet: Packet, reason: str) -> None:
    dropped(bench, packet, reason)


def test_packets_without_a_usable_ev_are_dropped(bench: Bench) -> None:
    bench.set_state(H2, EvState.DENIED, *range(EVS))
    dropped(bench, to_h2(), "no_usable_ev")
    pushed(bench, datagram(H0, H5))  # other peers have usable EVs


@pytest.mark.parametrize(("here", "there"), [(0, 0xFFFF), (0b1111, 0), (0b0011, 0b1100)])
def test_packets_without_a_plane_with_both_links_are_dropped(bench: Bench, here: int, there: int) -> None:
    bench.tables.node["plane_mask"], bench.peer(H2)["plane_mask"] = here, there
    dropped(bench, to_h2(), "no_usable_ev")


# ---- prefixes ----


def receiver(bench: Bench, dst: str) -> int | None:
    """Returns the host to which a packet goes."""
    sent = bench.tables.evs["tx_packets"].sum(axis=1)
    head = IPv6(src="fd00:99::1", dst=dst) if ":" in dst else IP(src="10.99.0.1", dst=dst)
    verdict, _ = bench.push(head / UDP())
    grown = np.flatnonzero(bench.tables.evs["tx_packets"].sum(axis=1) - sent).tolist()
    assert (verdict, len(grown)) in (("redirect", 1), ("drop", 0))
    return grown[0] if grown else None


def test_the_longest_prefix_wins(bench: Bench) -> None:
    wanted = {"10.0.0.0/8": H1, "10.7.0.0/16": H2, "10.7.7.0/24": H5, "10.7.7.7/32": H1}
    give_prefixes(bench, wanted | {"fd00:99:2::/48": H2, "fd00:99:2::/64": H5, "fd00:99:2::9/128": H1})
    owners = {
        "10.8.0.1": H1,
        "10.7.8.1": H2,
        "10.7.7.6": H5,
        "10.7.7.7": H1,
        "fd00:99:2:1::1": H2,
        "fd00:99:2::1": H5,
        "fd00:99:2::9": H1,
        "11.0.0.1": None,
        "fd00:99:3::1": None,
    }
    assert {dst: receiver(bench, dst) for dst in owners} == owners


@pytest.mark.parametrize("dst", ["10.99.0.3", "fd00:99::3"])
def test_a_change_of_the_trie_invalidates_the_destination_cache(bench: Bench, dst: str) -> None:
    for host in (H2, H1, None, H5):
        if host is None:
            bench.dataplane.set_prefixes({})
        else:
            give_prefixes(bench, {dst: host})
        assert [receiver(bench, dst) for _ in range(3)] == [host] * 3
    assert bench.drops() == {"no_peer": 3}


def test_two_destinations_in_one_cache_slot_are_distinguished(bench: Bench) -> None:
    """The slot of dst_slot(): the last 12 bits of the address and the 12 before them, folded."""
    give_prefixes(bench, {"10.99.16.2": H1})
    assert [receiver(bench, dst) for _ in range(5) for dst in ("10.99.0.3", "10.99.16.2")] == [
        H2,
        H1,
    ] * 5  # _ in range(5)] == [H2, H1] * 5


# ---- real packets ----


def test_packets_leave_by_their_planes_nic(bench: Bench) -> None:
    stack, wires = bench.attach_push(), bench.wires()
    packet = to_h2()
    for _ in range(EVS):
        stack.send(ETHERNET / packet)
    for plane, wire in enumerate(wires):
        frames = [f.data for f in wire.frames()]
        assert [Ether(f)[MRC].ev for f in frames] == [plane * SLOTS + slot for slot in range(SLOTS)]
        for data in frames:
            mrc = Ether(data)[MRC]
            assert data == bytes(bench.sent(H2, mrc.ev, packet, tx_ns=mrc.tx_ns))
    assert bench.drops() == {}


@all_encapsulations
def test_a_vlan_plane_gets_its_tag_and_the_others_none(bench: Bench) -> None:
    bench.tables.planes["vlan"][2] = 100
    stack, wires = bench.attach_push(), bench.wires()
    packet = to_h2(6)
    for _ in range(PLANES):
        stack.send(ETHERNET / packet)
    for plane, wire in enumerate(wires):
        (frame,) = wire.frames()
        assert frame.vlan == (100 if plane == 2 else None)
        tx_ns = Ether(frame.data)[MRC].tx_ns
        assert frame.data == bytes(bench.sent(H2, plane * SLOTS, packet, tx_ns=tx_ns))


@pytest.mark.parametrize("bench", [Setup(granularity="packet"), Setup()], indirect=True, ids=lambda s: s.granularity)
def test_a_priority_reaches_the_queue_of_the_nic(bench: Bench, wires: list[Tap]) -> None:
    """pfifo_fast sends priority 6 before 0."""
    stack, bulk, urgent = bench.attach_push_twice(), to_h2(size=1300), to_h2(size=9)
    with held_queue("n0", "pfifo_fast"):
        for packet, priority in (*[(bulk, 0)] * 20, (urgent, 6)):
            for _ in range(PLANES):
                stack.send(ETHERNET / packet, priority=priority)
        release("n0", "1gbit")
        for _ in range(PLANES):
            stack.send(ETHERNET / bulk)
        until("the queue is empty", lambda: not backlog("n0"))
    lengths = [len(f.data) for f in wires[0].frames()]
    assert len(lengths) == 22
    assert lengths.index(min(lengths)) < 10


@pytest.mark.parametrize("bench", [Setup(granularity="packet"), Setup()], indirect=True, ids=lambda s: s.granularity)
def test_xps_chooses_the_queue_of_the_nic(bench: Bench) -> None:
    """A socket keeps the number of its queue, but not that of a single one. m0 has a single one, and so has mrc0."""
    bench.attach_push_twice()
    bench.namespace.ip("addr", "add", "10.99.0.1/24", "dev", "m0")
    bench.namespace.ip("neigh", "replace", "10.99.0.3", "lladdr", "02:00:00:00:00:09", "dev", "m0")
    subprocess.run(["ethtool", "-L", "n0", "tx", "2"], check=True)
    xps = "mount -t sysfs sysfs /sys; echo 3 >/sys/class/net/n0/queues/tx-1/xps_cpus"
    subprocess.run(["unshare", "--mount", "sh", "-c", xps], check=True)
    qdisc("n0", "add", "handle 1: mq")
    try:
        for _ in range(32):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.connect(("10.99.0.3", 9))
                for _ in range(PLANES):
                    s.send(b"any")
        sent = {q["parent"]: q["packets"] for q in qdiscs("n0") if q["kind"] != "mq"}
    finally:
        qdisc("n0", "del")
        subprocess.run(["ethtool", "-L", "n0", "tx", "1"], check=True)
        bench.namespace.ip("addr", "flush", "dev", "m0")
    assert sent == {"1:1": 0, "1:2": 32}


def test_a_packet_is_not_dated_before_a_pause_of_the_cpu(bench: Bench) -> None:
    """If a CPU stops between the choice of the EV and the count, the other CPUs must not take the count for old."""
    with running():
        _, out = bench.push(to_h2())
    mrc = Ether(out)[MRC]
    assert mrc.tx_ns < bench.ev(H2, mrc.ev)["last_tx_ns"] <= now()
