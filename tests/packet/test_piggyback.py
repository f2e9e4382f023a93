# SPDX-License-Identifier: BSD-2-Clause
"""Tests probe requests that packets of the traffic carry: when, on which EV, their bytes, and what pays for them."""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
from scapy.layers.l2 import GRE, Ether
from scapy.packet import Packet, Raw

from labkit.faults import tc_hook
from labkit.traffic.wire import DATA, ECT_0, MRC, PROBE_REQUEST, MRCProbe, MRCReport
from mrcd.config.cluster_file import Encapsulation, Health
from mrcd.kernel import abi, libbpf
from tests.packet.clock import MS, advance, now
from tests.packet.packets import ETHERNET, EVS, H0, H2, H5, PLANES, SLOTS, datagram, ip, popped
from tests.packet.rig import Bench, Setup
from tests.packet.wires import SECONDS, Frame, Gso, Priorities, Sender, Tap, needs_tcx, until

pytestmark = pytest.mark.root


IPV4, IPV6 = ip(tos=0xB8, id=7), ip(6, tos=2)
ESP, SCTP = socket.IPPROTO_ESP, socket.IPPROTO_SCTP
COUNTS_BYTES = abi.BALLAST + 8 * EVS
PACKETS_PER_REQUEST = 16
KEPT_BYTES = 512  # a packet up to this length follows its request whole; KEPT_PACKET_MAX of bpf/piggyback.h
HEALTH = Health()
NO_DUP_ACKS = "[overlay]\ndup_ack_us = 0\n"  # copies are tested in test_critical.py
NO_TIMER_PROBES = f"probe_late_ms = 10000\nprobe_packets = {PACKETS_PER_REQUEST}"
ONE_SECOND_GAP = Setup(health=f"{NO_TIMER_PROBES}\nprobe_gap_us = 1000000\nloss_window_ms = 60000")


def no_timer_probes(encapsulation: Encapsulation = "usid", evs: int = EVS) -> Setup:
    """Returns a host that sends requests by the number of packets, and none because time has passed."""
    return Setup(encapsulation, f"{NO_TIMER_PROBES}\nprobe_gap_us = 150", evs, more=NO_DUP_ACKS)


@dataclass
class TrafficWithProbes:
    """The sender at mrc0 and the taps on the wires of a host whose traffic carries probe requests."""

    bench: Bench
    stack: Sender
    wires: list[Tap]

    def make_probe_due(self) -> None:
        self.bench.reports(H2)["requested_ns"], self.bench.reports(H2)["cursor"] = 0, 0

    def send(self, packet: Packet, gso: Gso | None = None) -> tuple[list[Frame], list[Frame]]:
        self.stack.send(ETHERNET / packet, gso)
        return self.sent_packets()

    def sent_packets(self) -> tuple[list[Frame], list[Frame]]:
        """Returns the data packets and the requests on the wires since the last call, by plane."""
        found = [f for wire in self.wires for f in wire.frames()]
        kinds = [Ether(f.data)[MRC].type for f in found]
        assert set(kinds) <= {DATA, PROBE_REQUEST}
        sent, requests = ([f for f, k in zip(found, kinds, strict=True) if k == kind] for kind in (DATA, PROBE_REQUEST))
        return sent, requests

    def sends_with_request(self, packet: Packet, gso: Gso | None = None, **mrc: int) -> Frame:
        """Sends a packet when a request is due. Asserts each byte of both, and returns the request."""
        self.make_probe_due()
        (sent,), (request,) = self.send(packet, gso)
        self.assert_data(sent, packet, **mrc)
        assert_request(self.bench, request, packet, burst=gso is not None)
        assert self.bench.drops() == {}
        return request

    def sends_alone(self, packet: Packet) -> None:
        """Sends a packet, and asserts that it goes out unchanged and that it carries no request."""
        (sent,), requests = self.send(packet)
        assert requests == []
        self.assert_data(sent, packet)

    def assert_data(self, frame: Frame, packet: Packet, **mrc: int) -> None:
        seen = Ether(frame.data)[MRC]
        assert frame.data == bytes(self.bench.sent(H2, seen.ev, packet, seq=seen.seq, tx_ns=seen.tx_ns, **mrc))

    def carriers(self, packet: Packet, packets: int, *, answered: bool = False) -> list[int]:
        """Sends packets a millisecond apart. Returns the numbers of those that carry requests."""
        found, reports = [], self.bench.reports(H2)
        for n in range(1, packets + 1):
            advance(MS)
            found += [n] * len(self.send(packet)[1])
            reports["applied_seq"] = reports["report_seq"] if answered else reports["applied_seq"]
        return found


@pytest.fixture
def traffic(bench: Bench) -> TrafficWithProbes:
    """Traffic with probes on the bench, just after a request for a report: none is due."""
    stack, wires = bench.attach_push(), bench.wires()
    bench.attach_probe()
    bench.reports(H2)["requested_ns"] = now()
    return TrafficWithProbes(bench, stack, wires)


without_timer_probes = pytest.mark.parametrize("bench", [no_timer_probes()], indirect=True, ids=["usid"])
all_encapsulations = pytest.mark.parametrize(
    "bench",
    [no_timer_probes(), no_timer_probes("srh"), no_timer_probes("ecmp")],
    indirect=True,
    ids=["usid", "srh", "ecmp"],
)


def assert_request(bench: Bench, frame: Frame, packet: Packet, *, burst: bool = False) -> MRC:
    """Asserts each byte of a request made of `packet`: a small packet follows it whole, a larger one is cut."""
    seen = Ether(frame.data)
    mrc: MRC = seen[MRC]
    probe = seen[MRCProbe]
    expected = MRCProbe(seq=probe.seq, report_seq=probe.report_seq, counts=EVS, tx_ns=mrc.tx_ns, **bench.told())
    room = COUNTS_BYTES + (abi.SRH_MAX if bench.setup.encapsulation == "srh" else 0)  # a reply may need a longer SRH
    length = len(ETHERNET / packet)
    if not burst and length <= KEPT_BYTES and length + len(expected) + room <= bench.plan.inner_mtu:
        carried = bytes(room) + bytes(packet)
    else:
        carried = bytes(packet)[:room].ljust(room, b"\0")
    fields = {"type": PROBE_REQUEST, "seq": mrc.seq, "tx_ns": mrc.tx_ns}
    sent = bench.sent(H2, mrc.ev, Raw(bytes(expected) + carried), **fields)
    # The DSCP of the packet: the request then waits in the same queues.
    sent[IPv6].tc = (packet.tos if IP in packet else packet.tc) & ~3 | ECT_0
    assert frame.data == bytes(sent)
    return mrc


CARRIERS = [
    IPV4 / UDP(sport=1, dport=2) / b"",
    IPV4 / UDP(sport=1, dport=2) / Raw(bytes(i & 0xFF for i in range(1000))),
    IPV4 / TCP(sport=1, dport=2, flags="A") / b"",
    IPV4 / TCP(sport=1, dport=2, flags="A", options=[("NOP", None)] * 40) / Raw(bytes(1200)),
    ip(options=[IPOption(b"\x01")] * 20) / TCP(flags="A") / Raw(bytes(300)),
    IPV6 / UDP(sport=1, dport=2) / b"six",
    IPV4 / ICMP() / Raw(bytes(300)),
    *(family / Raw(bytes(i & 0xFF for i in range(300))) for family in (ip(proto=ESP), ip(6, nh=ESP), ip(proto=SCTP))),
    IPV6 / TCP(sport=1, dport=2, flags="A") / Raw(bytes(i & 0xFF for i in range(1000))),
    # The checksum of an inner header may lie far behind, but it is written already.
    ip(options=[IPOption(b"\x01")] * 24) / UDP() / Raw(bytes(300)),
    *(IPV4 / GRE() / IPV4 / UDP() / Raw(bytes(length)) for length in (300, 1000)),
    *(IPV6 / IPv6ExtHdrDestOpt() / UDP() / Raw(bytes(length)) for length in (300, 1000)),
    *(IPV4 / UDP(sport=1, dport=2) / Raw(bytes(COUNTS_BYTES - 28 + extra)) for extra in (-1, 0, 1)),
    # As long as, and longer than, what fits into the inner MTU behind a request.
    *(IPV4 / UDP(sport=1, dport=2) / Raw(bytes(1420 - 14 - 32 - COUNTS_BYTES - 28 + extra)) for extra in (0, 1)),
]


# ---- bytes ----


@all_encapsulations
@pytest.mark.parametrize("packet", CARRIERS, ids=lambda p: f"{p.summary().split()[0]}{len(p)}")
def test_a_request_is_made_of_a_packet(traffic: TrafficWithProbes, bench: Bench, packet: Packet) -> None:
    mrc = Ether(traffic.sends_with_request(packet).data)[MRC]
    assert (mrc.ev, mrc.seq, mrc[MRCProbe].report_seq) == (0, 1, 1)
    assert bench.reports(H2)["report_seq"] == 1
    assert bench.reports(H2)["requested_ns"] == bench.reports(H2)["sent_ns"][1] == mrc.tx_ns
    assert (bench.ev(H2, 0)["probe_seq"], bench.path_stats(H2, 0)["probe_ns"]) == (1, mrc.tx_ns)
    # The request is made before its packet is counted as sent.
    assert (bench.ev(H2, 0)["tx_packets"], bench.path_stats(H2, 0)["noted_tx"]) == (1, 0)


def unfinished(length: int) -> Packet:
    return IPV6 / IPV6 / UDP(sport=1, dport=2) / Raw(bytes(length))


IN_IPV6 = Gso("none", 0, 94)


@without_timer_probes
def test_a_long_packet_whose_checksum_is_to_be_written_behind_the_ballast_carries_no_request(
    traffic: TrafficWithProbes,
) -> None:
    traffic.make_probe_due()
    (sent,), requests = traffic.send(unfinished(1000), IN_IPV6)
    assert requests == []
    traffic.assert_data(sent, unfinished(1000))
    assert len(traffic.send(CARRIERS[0])[1]) == 1  # the next suitable packet carries the request


@without_timer_probes
def test_a_small_packet_whose_checksum_is_to_be_written_carries_a_request(
    traffic: TrafficWithProbes, bench: Bench
) -> None:
    traffic.make_probe_due()
    (sent,), (request,) = traffic.send(unfinished(300), IN_IPV6)
    traffic.assert_data(sent, unfinished(300))
    assert_request(bench, request, unfinished(300))


def tap_with_offloads(plane: int) -> socket.socket:
    """Returns a raw socket that sees the frames of a plane with their pending offloads (virtio_net_hdr)."""
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    s.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
    s.settimeout(SECONDS)
    s.bind((f"w{plane}", 3))
    return s


@all_encapsulations
@pytest.mark.parametrize(
    ("packet", "gso"),
    [
        (IPV4 / TCP(sport=1, dport=2, flags="A") / Raw(bytes(3000)), Gso("tcp4", 1000, 34)),
        (
            IPV6 / TCP(sport=1, dport=2, flags="A", options=[("NOP", None)] * 40) / Raw(bytes(3000)),
            Gso("tcp6", 1000, 54),
        ),
        (IPV6 / UDP(sport=1, dport=2) / Raw(bytes(3000)), Gso("udp", 1000, 54)),
    ],
    ids=["tcp4", "tcp6", "udp"],
)
def test_the_nic_writes_the_checksum_of_a_burst_into_the_ballast(
    traffic: TrafficWithProbes, packet: Packet, gso: Gso
) -> None:
    with tap_with_offloads(0) as tap:
        request = traffic.sends_with_request(packet, gso, segments=3).data
        while (seen := tap.recv(1 << 16))[10:] != request:
            pass
    flags, kind, _, _, start, offset = struct.unpack("BBHHHH", seen[:10])
    assert kind == 0  # not a burst
    assert flags & 1
    ballast = len(request) - len(Ether(request)[MRCReport])
    assert ballast <= start + offset <= ballast + abi.BALLAST - 2


@without_timer_probes
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_burst_as_long_as_a_request_carries_one(traffic: TrafficWithProbes, extra: int) -> None:
    packet = IPV4 / TCP(sport=1, dport=2, flags="A") / Raw(bytes(COUNTS_BYTES - 40 + extra))
    traffic.sends_with_request(packet, Gso("tcp4", 100, 34), segments=2)


@all_encapsulations
def test_requests_on_a_vlan_plane_are_tagged(traffic: TrafficWithProbes, bench: Bench) -> None:
    bench.tables.planes["vlan"][0] = 100
    traffic.make_probe_due()
    sent, requests = traffic.send(CARRIERS[1])
    assert [f.vlan for f in sent + requests] == [100, 100]
    assert_request(bench, requests[0], CARRIERS[1])
    traffic.assert_data(sent[0], CARRIERS[1])


@without_timer_probes
def test_without_a_probe_interface_there_are_no_requests(traffic: TrafficWithProbes, bench: Bench) -> None:
    bench.tables.node["probe_ifindex"] = 0
    traffic.make_probe_due()
    traffic.sends_alone(CARRIERS[0])
    assert bench.reports(H2)["report_seq"] == 0


@without_timer_probes
def test_a_request_that_cannot_be_made_is_counted_and_its_packet_goes_on(
    traffic: TrafficWithProbes, bench: Bench
) -> None:
    bench.reports(H2)["requested_ns"], bench.reports(H2)["cursor"] = 0, 1
    bench.ev(H2, 4)["configured"] = 0
    traffic.sends_alone(CARRIERS[0])
    assert bench.drops() == {"probe_failed": 1}


@pytest.mark.parametrize("bench", [Setup(more=NO_DUP_ACKS)], indirect=True, ids=["usid"])
@pytest.mark.parametrize("packet", CARRIERS[:6:2], ids=lambda p: f"{p.summary().split()[0]}{len(p)}")
def test_packets_carry_requests_in_packet_granularity(bench: Bench, packet: Packet) -> None:
    traffic = TrafficWithProbes(bench, bench.attach_push("packet"), bench.wires())
    bench.attach_probe()
    traffic.sends_with_request(packet)


def test_packets_of_the_kernel_pass_mrc_probe_unchanged(bench: Bench) -> None:
    bench.attach_push()
    bench.attach_probe()
    tap = bench.tap("m0", "m0p")
    for packet in (CARRIERS[0], IPV4 / ICMP()):
        frame = bytes(Ether(src=ETHERNET.dst, dst=ETHERNET.src) / packet)
        tap.send(frame)
        assert [f.data for f in tap.frames()] == [frame]
    assert bench.drops() == {}


# ---- when, and on which EV ----


@without_timer_probes
def test_one_packet_in_sixteen_carries_a_request(traffic: TrafficWithProbes) -> None:
    assert traffic.carriers(CARRIERS[0], 4 * PACKETS_PER_REQUEST) == [n * PACKETS_PER_REQUEST for n in (1, 2, 3, 4)]


@pytest.fixture
def left(traffic: TrafficWithProbes, bench: Bench) -> Iterator[Callable[[], list[tuple[int, int]]]]:
    """Returns MRC type and priority of the packets that have left since the last call."""
    bench.tables.node["overlay_ifindex"] = bench.ifindex["m0"]
    with contextlib.ExitStack() as stack:
        taps = [Priorities(f"n{plane}") for plane in range(PLANES)]
        for tap in taps:
            stack.callback(tap.close)
        yield lambda: [(Ether(data)[MRC].type, priority) for tap in taps for data, priority in tap.read()]


LARGE = datagram(H0, H2, size=1000)


@pytest.mark.parametrize(
    ("large", "piggybacked", "swept"), [([], 6, 0), ([0], 0, 0), ([2], 2, 2), ([2, 65538], 65538, 65538)], ids=str
)
@without_timer_probes
def test_requests_have_the_priority_of_large_packets(
    traffic: TrafficWithProbes,
    bench: Bench,
    left: Callable[[], list[tuple[int, int]]],
    large: list[int],
    piggybacked: int,
    swept: int,
) -> None:
    """In a queue of this host they do not overtake what they ask for. Data keeps its own priority."""
    for priority in large:
        traffic.stack.send(ETHERNET / LARGE, priority=priority)
        assert left() == [(DATA, priority)]
    for _ in range(2):  # a request of a small packet changes nothing
        traffic.make_probe_due()
        for _ in range(PACKETS_PER_REQUEST):
            advance(MS)
            traffic.stack.send(ETHERNET / CARRIERS[0], priority=6)
        assert sorted(left()) == [(DATA, 6)] * PACKETS_PER_REQUEST + [(PROBE_REQUEST, piggybacked)]
    advance(MS)
    bench.dataplane.sweep(H2)
    assert set(left()) == {(PROBE_REQUEST, swept)}


@needs_tcx
@without_timer_probes
def test_a_request_made_of_a_paced_packet_is_not_paced(traffic: TrafficWithProbes, bench: Bench) -> None:
    """Its stamp is of no clock, too. Else the timer packet would get the time of day as a stamp that fq reads."""
    with contextlib.ExitStack() as undo:
        program = libbpf.program_fd(undo.enter_context(tc_hook.loaded("stamped")), "lab_stamped")
        for plane in range(PLANES):
            undo.callback(os.close, libbpf.create_link(program, bench.ifindex[f"n{plane}"], libbpf.TCX_EGRESS))
        traffic.make_probe_due()
        for _ in range(PACKETS_PER_REQUEST):
            traffic.stack.send(ETHERNET / CARRIERS[0], leaves_ns=time.monotonic_ns() + 10**9)
        sent, requests = traffic.sent_packets()
        assert sent == []  # they have stamps
        assert len(requests) == 1


@without_timer_probes
def test_only_packets_to_the_same_peer_count(traffic: TrafficWithProbes, bench: Bench) -> None:
    other = datagram(H0, H5)
    bench.reports(H5)["requested_ns"] = now()
    for _ in range(PACKETS_PER_REQUEST - 1):
        advance(MS)
        assert not traffic.send(CARRIERS[0])[1]
        assert not traffic.send(other)[1]
    assert [Ether(f.data)[MRC].receiver for f in traffic.send(CARRIERS[0])[1]] == [H2]
    assert [Ether(f.data)[MRC].receiver for f in traffic.send(other)[1]] == [H5]


@pytest.mark.parametrize("bench", [Setup(health="probe_packets = 1")], indirect=True, ids=[""])
def test_an_idle_timeout_event_follows_the_end_of_dense_traffic(traffic: TrafficWithProbes, bench: Bench) -> None:
    hosts: list[int] = []

    def has_timed_out() -> bool:
        hosts.extend(int(e["host_id"]) for e in bench.dataplane.events() if e["ev"] == abi.EVENT_IDLE_TIMEOUT)
        return bool(hosts)

    bench.events()
    advance(MS)
    assert len(traffic.send(CARRIERS[0])[1]) == 1
    until("the idle timeout expires", has_timed_out)
    assert hosts == [H2]


ONE_SECOND_WINDOW = Setup(health=f"{NO_TIMER_PROBES}\nreorder_us = 1000000\noverdue_ms = 1000")


@pytest.mark.parametrize("bench", [ONE_SECOND_GAP], indirect=True, ids=[""])
@pytest.mark.parametrize(
    ("carrier", "gaps"),
    [(CARRIERS[0], 1), (CARRIERS[1], 2), (CARRIERS[2], 2), (CARRIERS[2] / b"data", 1)],
    ids=["small", "large", "acknowledgements", "small with data"],
)
def test_requests_are_a_gap_apart(traffic: TrafficWithProbes, bench: Bench, carrier: Packet, gaps: int) -> None:
    """The gap is doubled for large packets and for acknowledgements that are pushed.

    Received acknowledgements then carry the request first, where there are any.
    """
    for _ in range(2 * PACKETS_PER_REQUEST):
        assert not traffic.send(carrier)[1]
    for _ in range(gaps):
        assert not traffic.send(carrier)[1]
        advance(1000 * MS)
    assert len(traffic.send(carrier)[1]) == 1
    assert not traffic.send(carrier)[1]


@pytest.mark.parametrize("bench", [ONE_SECOND_WINDOW], indirect=True, ids=[""])
def test_requests_are_a_reordering_window_apart(traffic: TrafficWithProbes, bench: Bench) -> None:
    for _ in range(2 * PACKETS_PER_REQUEST):
        assert not traffic.send(CARRIERS[0])[1]
    advance(1000 * MS)
    assert len(traffic.send(CARRIERS[0])[1]) == 1


@pytest.mark.parametrize(
    ("bench", "chunks"),
    [(no_timer_probes(), 1), (no_timer_probes(evs=256), 2)],
    indirect=["bench"],
    ids=["a chunk", "two"],
)
def test_unanswered_reports_are_limited(traffic: TrafficWithProbes, bench: Bench, chunks: int) -> None:
    most = abi.REPORTS_KEPT * chunks
    assert len(traffic.carriers(CARRIERS[0], PACKETS_PER_REQUEST * (most + 3))) == most
    bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    assert len(traffic.send(CARRIERS[0])[1]) == 1
    # After a long time one more is sent: all earlier ones may be lost.
    bench.reports(H2)["applied_seq"] -= 100
    assert not traffic.send(CARRIERS[0])[1]
    advance(10_000 * MS)
    assert len(traffic.send(CARRIERS[0])[1]) == 1


@without_timer_probes
def test_a_request_of_another_cpu_in_the_near_future_delays_the_next(traffic: TrafficWithProbes, bench: Bench) -> None:
    bench.reports(H2)["requested_ns"] = now() + 1000 * MS
    for _ in range(2 * PACKETS_PER_REQUEST):
        assert not traffic.send(CARRIERS[0])[1]
    assert bench.reports(H2)["report_seq"] == 0


@without_timer_probes
def test_requests_visit_usable_evs_in_order(traffic: TrafficWithProbes, bench: Bench) -> None:
    bench.set_usable(H2, 4, False)
    found = []
    for _ in range(EVS):
        bench.reports(H2)["requested_ns"] = 0
        bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]  # answered
        (frame,) = traffic.send(CARRIERS[0])[1]
        found.append(assert_request(bench, frame, CARRIERS[0]).ev)
    expected = [plane * SLOTS + slot for slot in range(SLOTS) for plane in range(PLANES)]
    assert found == [5 if ev == 4 else ev for ev in expected]


@without_timer_probes
def test_a_burst_counts_as_its_wire_packets(traffic: TrafficWithProbes, bench: Bench) -> None:
    bench.reports(H2)["requested_ns"] = now() - MS
    burst = IPV4 / TCP(sport=1, dport=2, flags="A") / Raw(bytes((PACKETS_PER_REQUEST - 1) * 1000))
    assert [len(found) for found in traffic.send(burst, Gso("tcp4", 1000, 34))] == [1, 0]
    assert bench.tables.evs["tx_packets"][H2].sum() == PACKETS_PER_REQUEST - 1
    assert [len(found) for found in traffic.send(CARRIERS[2])] == [1, 1]


# ---- what pays for them ----


@pytest.mark.parametrize("size", [100, 1000])
@without_timer_probes
def test_without_budget_67_packets_and_134_bytes_per_byte_pay_for_a_request(
    traffic: TrafficWithProbes, bench: Bench, size: int
) -> None:
    packet = IPV4 / UDP(sport=1, dport=2) / Raw(bytes(size))
    request_bytes = 14 + 40 + 8 + 32 + 32 + COUNTS_BYTES  # Ethernet, IPv6, UDP, MRC, probe, and the report
    request_bytes += len(ETHERNET / packet) if len(ETHERNET / packet) <= KEPT_BYTES else 0
    bench.tables.clock["budget"] = HEALTH.idle_probes // 8
    each = max(67, -(-134 * request_bytes // len(packet)))
    assert traffic.carriers(packet, 2 * each + 1, answered=True) == [each, 2 * each]
    assert bench.tables.clock["budget"] == HEALTH.idle_probes // 8


@without_timer_probes
def test_the_host_budget_pays_for_requests_that_traffic_does_not_cover(
    traffic: TrafficWithProbes, bench: Bench
) -> None:
    bench.tables.clock["budget"] = HEALTH.idle_probes // 8 + 2  # an eighth is reserved for the tick
    assert traffic.carriers(CARRIERS[0], 4 * PACKETS_PER_REQUEST) == [PACKETS_PER_REQUEST, 2 * PACKETS_PER_REQUEST]
    assert bench.tables.clock["budget"] == HEALTH.idle_probes // 8


@without_timer_probes
def test_requests_paid_by_traffic_are_counted_and_limited_between_ticks(
    traffic: TrafficWithProbes, bench: Bench
) -> None:
    """The limit, 1.5 times the rate of an idle host, keeps the CPU free for other work."""
    bench.tables.clock["budget"] = 0
    bench.tables.clock["refilled_ns"] = now() + 10_000 * MS  # no time has passed since the tick
    assert traffic.carriers(CARRIERS[1], 6 * 67, answered=True) == [67, 2 * 67, 3 * 67, 4 * 67]
    assert libbpf.lookup_elem(bench.map_fd("mrc_paid"), bytes(4), 4) == struct.pack("I", 4)


@pytest.mark.parametrize(("paid", "more"), [(0, 80), (30, 50), (60, 20), (90, 30), (900, 40)])
def test_the_tick_subtracts_requests_paid_by_traffic_from_the_budget(bench: Bench, paid: int, more: int) -> None:
    """An idle host may send 80 in 20 ms; where traffic pays for more, the tick adds a third of that, at least 40."""
    bench.tables.peers["configured"] = 0  # the tick sends nothing
    libbpf.update_elem(bench.map_fd("mrc_paid"), bytes(4), struct.pack("I", paid))
    bench.tables.clock["budget"], bench.tables.clock["refilled_ns"] = 0, now() - 20 * MS
    bench.dataplane.tick()
    assert more <= bench.tables.clock["budget"] <= more + 8  # 8: for the time that the test itself takes


# ---- made of received packets ----


ACK = ip(4, H2, H0, id=9) / TCP(sport=2, dport=1, flags="A")


def requests_on_receipt(traffic: TrafficWithProbes, inlet: Tap, packet: Packet, **mrc: int) -> list[Frame]:
    """Delivers a packet of h2, asserts that the stack gets it unchanged, and returns the requests that go out."""
    inlet.send(traffic.bench.arriving("h2", 5, packet, **mrc))
    (frame,) = inlet.frames()
    assert frame.data == popped(packet, 1)
    sent, requests = traffic.sent_packets()
    assert sent == []
    return requests


def push_packets(traffic: TrafficWithProbes, packets: int) -> None:
    """Pushes `packets` packets after a request for a report; none of them carries a request."""
    traffic.bench.reports(H2)["requested_ns"] = now()
    for _ in range(packets):
        assert not traffic.send(CARRIERS[0])[1]


@pytest.mark.parametrize("bench", [ONE_SECOND_GAP], indirect=True, ids=[""])
@pytest.mark.parametrize("packet", [ACK, ACK / Raw(bytes(512 - 54)), ip(4, H2, H0) / GRE()], ids=len)
def test_a_received_acknowledgement_carries_a_request(traffic: TrafficWithProbes, bench: Bench, packet: Packet) -> None:
    inlet = bench.attach_pop(1, 4)
    push_packets(traffic, PACKETS_PER_REQUEST)
    assert requests_on_receipt(traffic, inlet, packet) == []  # the gap is not over
    advance(1000 * MS)
    (frame,) = requests_on_receipt(traffic, inlet, packet)
    assert assert_request(bench, frame, packet).receiver == H2
    assert requests_on_receipt(traffic, inlet, packet) == []
    assert bench.drops() == {}


@pytest.mark.parametrize("bench", [ONE_SECOND_GAP], indirect=True, ids=[""])
def test_a_received_packet_that_is_not_small_carries_no_request(traffic: TrafficWithProbes, bench: Bench) -> None:
    inlet = bench.attach_pop(1, 4)
    push_packets(traffic, PACKETS_PER_REQUEST)
    advance(1000 * MS)
    assert requests_on_receipt(traffic, inlet, ACK / Raw(bytes(513 - 54))) == []
    assert len(requests_on_receipt(traffic, inlet, ACK)) == 1


@pytest.mark.parametrize("bench", [ONE_SECOND_GAP], indirect=True, ids=[""])
def test_a_received_acknowledgement_carries_no_request_before_enough_packets_were_sent(
    traffic: TrafficWithProbes, bench: Bench
) -> None:
    inlet = bench.attach_pop(1, 4)
    push_packets(traffic, PACKETS_PER_REQUEST - 1)
    advance(1000 * MS)
    assert requests_on_receipt(traffic, inlet, ACK) == []
