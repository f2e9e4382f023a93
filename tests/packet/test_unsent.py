# SPDX-License-Identifier: BSD-2-Clause
"""Tests that data dropped by the queueing discipline of a plane's NIC is counted, and not as a loss of its path."""

import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator

import pytest
from scapy.layers.inet import TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from labkit.traffic.wire import DATA, MRC
from mrcd.kernel import libbpf
from tests.packet.clock import now
from tests.packet.packets import ETHERNET, EVS, H0, H2, PLANES, SLOTS, datagram, ip
from tests.packet.reports import LAGGING, Reporter, state
from tests.packet.rig import Bench
from tests.packet.wires import ETH_P_ALL, Gso, Sender, Tap, backlog, held_queue, qdisc, release, until

pytestmark = pytest.mark.root

SMALL, LARGE, LONG = (datagram(H0, H2, size=n) for n in (10, 900, 1300))
BURST = (ip() / TCP(sport=1, dport=2, flags="A") / Raw(bytes(10_000)), Gso("tcp4", 1000, 34))
SEGMENTS = 10
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
NO_ROOM = "bfifo limit 700"  # bytes: longer packets are dropped


@pytest.fixture
def stack(bench: Bench) -> Iterator[Sender]:
    """Returns a sender whose packets are pushed. The queue of plane 0's NIC has no room for long packets."""
    bench.attach_unsent()
    qdisc("n0", "add", NO_ROOM)
    yield bench.attach_push()
    qdisc("n0", "del")


def arrived(wires: list[Tap]) -> Counter[int]:
    mrcs = [Ether(f.data)[MRC] for wire in wires for f in wire.frames()]
    return Counter(m.ev for m in mrcs if m.type == DATA)


def test_drops_of_a_nic_queue_are_no_loss_of_the_path(bench: Bench, wires: list[Tap], stack: Sender) -> None:
    r, before = Reporter(bench), bench.tables.unsent_packets()[0]
    arrived(wires)
    for _ in range(3 * EVS):
        stack.send(ETHERNET / SMALL)
    for _ in range(EVS):
        stack.send(ETHERNET / LARGE)
    found = arrived(wires)
    assert found == {ev: 3 if ev < SLOTS else 4 for ev in range(EVS)}
    assert bench.tables.unsent_packets()[0] - before == SLOTS
    for ev, n in found.items():
        r.packets[ev] += n
    r.report()
    assert [ev for ev in range(EVS) if state(bench, ev) == LAGGING] == []
    stack.send(ETHERNET / SMALL)  # but a loss in the fabric is
    (lost,) = arrived(wires)
    r.report()
    assert state(bench, lost) == LAGGING


def test_a_burst_counts_its_packets(bench: Bench, wires: list[Tap], stack: Sender) -> None:
    before = bench.tables.unsent_packets()
    for _ in range(PLANES):
        stack.send(ETHERNET / BURST[0], BURST[1])
    dropped = [n - b for n, b in zip(bench.tables.unsent_packets(), before, strict=True)]
    assert dropped == [SEGMENTS] + [0] * (len(dropped) - 1)
    assert bench.tables.path_stats["offset"][H2, :SLOTS].sum() == SEGMENTS


@pytest.mark.parametrize("kind", ["fq_codel target 1ms interval 1ms noecn", "pfifo_fast"], ids=lambda k: k.split()[0])
def test_packets_freed_without_a_reason_are_no_loss_of_the_path(bench: Bench, wires: list[Tap], kind: str) -> None:
    """fq_codel frees late packets so before Linux 6.14, pfifo_fast frees all when it is replaced."""
    bench.attach_unsent()
    stack, before, sent = bench.attach_push(), bench.tables.unsent_packets(), 30
    with held_queue("n0", kind):
        for _ in range((sent - 1) * PLANES):
            stack.send(ETHERNET / LONG)
        assert bench.tables.unsent_packets() == before
        if kind == "pfifo_fast":
            qdisc("n0", "replace", "handle 11: bfifo limit 100000", at="parent 1:")
        release("n0", "1mbit")
        for _ in range(PLANES):
            stack.send(ETHERNET / LONG)
        until("the queue is empty", lambda: not backlog("n0"))
    n = len(wires[0].frames())
    dropped = [n - b for n, b in zip(bench.tables.unsent_packets(), before, strict=True)]
    assert n < sent
    assert dropped == [sent - n] + [0] * (len(dropped) - 1)
    assert bench.tables.path_stats["offset"][H2, :SLOTS].sum() == sent - n


@pytest.mark.parametrize("end", ["n0", "w0"], ids=["set down", "no carrier"])
def test_drops_of_a_nic_without_a_link_are_a_loss_of_the_path(
    bench: Bench, wires: list[Tap], stack: Sender, end: str
) -> None:
    """Otherwise a path would be healthy on which nothing can be sent."""
    before = bench.tables.unsent_packets()
    bench.namespace.ip("link", "set", end, "down")
    try:
        for _ in range(PLANES):
            stack.send(ETHERNET / LARGE)
        assert bench.tables.unsent_packets() == before
        assert bench.tables.evs["tx_packets"][H2, :SLOTS].sum() == 1
    finally:
        bench.namespace.ip("link", "set", end, "up")
        wires[0].clear_error()


def test_copies_dropped_by_a_capture_count_as_sent(bench: Bench, wires: list[Tap], stack: Sender) -> None:
    before = bench.tables.unsent_packets()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as capture:
        capture.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        capture.bind(("n0", ETH_P_ALL))
        for _ in range(50 * PLANES):
            stack.send(ETHERNET / SMALL)
        packets, dropped = struct.unpack("II", capture.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
    assert packets - dropped < dropped
    assert sum(arrived(wires).values()) == 50 * PLANES
    assert bench.tables.unsent_packets() == before


def test_packets_dropped_by_the_far_end_of_a_veth_are_lost(bench: Bench, wires: list[Tap], stack: Sender) -> None:
    before = bench.tables.unsent_packets()
    bench.namespace.ip("link", "set", "w1", "mtu", "1280")
    try:
        for _ in range(PLANES):
            stack.send(ETHERNET / LONG)
        assert [len(wire.frames()) for wire in wires[1:]] == [0, 1, 1]
        assert bench.tables.unsent_packets()[1:] == before[1:]
    finally:
        bench.namespace.ip("link", "set", "w1", "mtu", "1500")


def test_dropped_packets_of_other_programs_do_not_count(bench: Bench, wires: list[Tap], stack: Sender) -> None:
    bench.tables.evs["tx_packets"][H2] = 1
    before, counted = bench.tables.unsent_packets(), bench.counted()
    out = Sender("n0")
    for what in (
        bench.arriving("h2", 1, LARGE),  # of another host
        bench.sent(H2, 1, LARGE, version=9, tx_ns=now()),
        bench.sent(H2, 1, LARGE, type=2, tx_ns=now()),
        bench.sent(H2, 1, LARGE, ev=999, tx_ns=now()),
        bench.sent(H2, 1, LARGE, tx_ns=now() - 10**10),  # forged without this host's clock,
        bench.sent(H2, 1, LARGE, tx_ns=now(), seq=77_777),  # or without its counts
        bench.sent(H2, 1, LARGE, receiver=9999, tx_ns=now()),
        ETHERNET / LARGE,
    ):
        with pytest.raises(OSError, match="buffer"):  # dropped
            out.send(what)
    assert bench.tables.unsent_packets() == before
    assert bench.counted() == counted
    with pytest.raises(OSError, match="buffer"):
        out.send(bench.sent(H2, 1, LARGE, tx_ns=now()))  # but this one counts
    out.close()
    assert bench.tables.unsent_packets()[0] == before[0] + 1


_SHOT = bytes.fromhex("b700000002000000 9500000000000000")  # r0 = TC_ACT_SHOT; exit


def test_packets_that_another_program_drops_at_mrc0_are_counted(bench: Bench, stack: Sender) -> None:
    bench.tables.node["overlay_ifindex"] = bench.ifindex["m0"]

    def dropped() -> tuple[int, int]:
        drops = bench.tables.drops()
        return drops["no_peer"], drops["other_program"]

    before = dropped()
    for _ in range(5):
        with pytest.raises(OSError, match="buffer"):
            stack.send(ETHERNET / datagram(H0, 77))
    assert dropped() == (before[0] + 5, before[1])
    program = libbpf.check("load", libbpf.lib().bpf_prog_load(3, b"swallow", b"GPL", _SHOT, 2, None))
    links = [libbpf.create_link(program, bench.ifindex["m0"], libbpf.TCX_EGRESS, 1 << 3)]  # BPF_F_BEFORE
    links.append(libbpf.create_link(program, bench.ifindex["m0"], libbpf.TCX_INGRESS))
    try:
        for _ in range(5):
            with pytest.raises(OSError, match="buffer"):
                stack.send(ETHERNET / SMALL)
        Sender("m0p").send(ETHERNET / SMALL)
        assert dropped() == (before[0] + 5, before[1] + 6)
    finally:
        for fd in (*links, program):
            os.close(fd)
