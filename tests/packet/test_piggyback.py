"""Requests that ride on traffic: made of the clone of a packet that is pushed, which itself goes on as ever."""

import socket
import struct
from dataclasses import dataclass

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from mrcd.bpf import libbpf
from mrcd.config.cluster_file import Encapsulation, Health
from mrcd.fabric.wire import DATA, ECT_0, MRC, PROBE_REQUEST, MRCProbe, MRCReport
from mrcd.tables import abi
from tests.packet.cluster import EVS, H2, H5, PLANES, SLOTS, Setup, nic_mac, wire_mac
from tests.packet.reports import MS, now
from tests.packet.rig import Bench
from tests.packet.wires import SECONDS, Frame, Gso, Sender, Tap, until

pytestmark = pytest.mark.root

ETHERNET = Ether(src="02:00:00:00:02:00", dst="02:00:00:00:02:01")
IPV4 = IP(src="10.99.0.1", dst="10.99.0.3", id=7, tos=0xB8)
IPV6 = IPv6(src="fd00:99::1", dst="fd00:99::3", tc=2)
COUNTS = abi.BALLAST + 8 * EVS
EACH = 16
KEPT = 512  # bytes of a packet that stays behind a request; KEPT_PACKET_MAX of bpf/send_probe.h
HEALTH = Health()
ALONE = "[overlay]\ntwin_us = 0\n"  # without dup_acks (test_twin.py)
CALM = f"probe_late_ms = 10000\nprobe_packets = {EACH}"


def patient(encapsulation: Encapsulation = "usid", evs: int = EVS) -> Setup:
    """A host that asks after so many packets, and not because time has passed."""
    return Setup(encapsulation, f"{CALM}\nprobe_gap_us = 150", evs, more=ALONE)


@dataclass
class Ridden:
    """The stack's side and the wires of a host whose traffic carries requests."""

    bench: Bench
    stack: Sender
    wires: list[Tap]

    def due(self) -> None:
        """As if nothing had been asked for a long time, and never anything on EVs other than 0."""
        self.bench.reports(H2)["requested_ns"], self.bench.reports(H2)["cursor"] = 0, 0

    def send(self, packet: Packet, gso: Gso | None = None) -> tuple[list[Frame], list[Frame]]:
        """What goes out for a packet of the stack: data and requests."""
        self.stack.send(ETHERNET / packet, gso)
        return self.out()

    def out(self) -> tuple[list[Frame], list[Frame]]:
        """What has gone out: data and requests, plane by plane."""
        found = [f for wire in self.wires for f in wire.frames()]
        kinds = [Ether(f.data)[MRC].type for f in found]
        assert set(kinds) <= {DATA, PROBE_REQUEST}
        sent, asked = ([f for f, k in zip(found, kinds, strict=True) if k == kind] for kind in (DATA, PROBE_REQUEST))
        return sent, asked


@pytest.fixture
def ridden(bench: Bench) -> Ridden:
    """Nothing is due yet: the last report was asked for just now."""
    stack, wires = bench.attach_push(), bench.wires()
    bench.attach_probe()
    bench.reports(H2)["requested_ns"] = now()
    return Ridden(bench, stack, wires)


quiet = pytest.mark.parametrize("bench", [patient()], indirect=True, ids=["usid"])
all_encapsulations = pytest.mark.parametrize(
    "bench", [patient(), patient("srh"), patient("ecmp")], indirect=True, ids=["usid", "srh", "ecmp"]
)


def request(bench: Bench, frame: Frame, packet: Packet, *, burst: bool = False) -> MRC:
    """A request that has ridden on a packet, byte by byte: a small one is behind it, of others it is made itself."""
    seen = Ether(frame.data)
    mrc: MRC = seen[MRC]
    probe = seen[MRCProbe]
    own = {name: int(bench.tables.node[name]) for name in ("plane_mask", "status", "generation")}
    expected = MRCProbe(seq=probe.seq, report_seq=probe.round, counts=EVS, tx_ns=mrc.tx_ns, **own)
    room = COUNTS + (abi.SRH_MAX if bench.setup.encapsulation == "srh" else 0)  # a reply may need a longer SRH
    length = len(ETHERNET / packet)
    if not burst and length <= KEPT and length + len(expected) + room <= bench.plan.inner_mtu:
        carried = bytes(room) + bytes(packet)
    else:
        carried = bytes(packet)[:room].ljust(room, b"\0")
    fields = {"type": PROBE_REQUEST, "seq": probe.seq, "tx_ns": mrc.tx_ns}
    sent = bench.sent(H2, mrc.ev, Raw(bytes(expected) + carried), **fields)
    sent[IPv6].tc = (packet.tos if IP in packet else packet.tc) & ~3 | ECT_0  # in the same queues as the packet
    assert frame.data == bytes(sent)
    return mrc


def data(bench: Bench, frame: Frame, packet: Packet, **mrc: int) -> None:
    """A data packet as if nothing had ridden on it."""
    seen = Ether(frame.data)[MRC]
    assert frame.data == bytes(bench.sent(H2, seen.ev, packet, seq=seen.seq, tx_ns=seen.tx_ns, **mrc))


CARRIERS = [
    IPV4 / UDP(sport=1, dport=2) / b"",
    IPV4 / UDP(sport=1, dport=2) / Raw(bytes(i & 0xFF for i in range(1000))),
    IPV4 / TCP(sport=1, dport=2, flags="A") / b"",
    IPV4 / TCP(sport=1, dport=2, flags="A", options=[("NOP", None)] * 40) / Raw(bytes(1200)),
    IP(src="10.99.0.1", dst="10.99.0.3", options=[IPOption(b"\x01")] * 20) / TCP() / Raw(bytes(300)),
    IPV6 / UDP(sport=1, dport=2) / b"six",
    IPV6 / TCP(sport=1, dport=2, flags="A") / Raw(bytes(i & 0xFF for i in range(1000))),
    *(IPV4 / UDP(sport=1, dport=2) / Raw(bytes(COUNTS - 28 + extra)) for extra in (-1, 0, 1)),
    *(IPV4 / UDP(sport=1, dport=2) / Raw(bytes(1420 - 14 - 32 - COUNTS - 28 + extra)) for extra in (0, 1)),  # inner MTU
]


@all_encapsulations
@pytest.mark.parametrize("packet", CARRIERS, ids=lambda p: f"{p.summary().split()[0]}{len(p)}")
def test_a_request_rides_on_a_packet(ridden: Ridden, bench: Bench, packet: Packet) -> None:
    ridden.due()
    sent, asked = ridden.send(packet)
    assert (len(sent), len(asked), bench.drops()) == (1, 1, {})
    data(bench, sent[0], packet)
    mrc = request(bench, asked[0], packet)
    assert (mrc.ev, mrc.seq, mrc[MRCProbe].round) == (0, 1, 1)
    assert bench.reports(H2)["report_seq"] == 1
    assert bench.reports(H2)["requested_ns"] == bench.reports(H2)["sent_ns"][1] == mrc.tx_ns
    assert (bench.ev(H2, 0)["probe_seq"], bench.path_stats(H2, 0)["probe_ns"]) == (1, mrc.tx_ns)
    # The packet itself was not sent yet when the request was made of it.
    assert (bench.ev(H2, 0)["tx_packets"], bench.path_stats(H2, 0)["noted_tx"]) == (1, 0)


@quiet
@pytest.mark.parametrize(
    "packet",
    [
        IP(src="10.99.0.1", dst="10.99.0.3", options=[IPOption(b"\x01")] * 24) / UDP() / Raw(bytes(300)),
        IPV4 / ICMP() / Raw(bytes(300)),
        IPV6 / IPv6ExtHdrDestOpt() / UDP() / Raw(bytes(300)),
    ],
    ids=["options", "icmp", "extension header"],
)
def test_what_has_no_checksum_in_the_ballast_carries_nothing(ridden: Ridden, bench: Bench, packet: Packet) -> None:
    ridden.due()
    sent, asked = ridden.send(packet)
    assert (len(sent), asked) == (1, [])
    data(bench, sent[0], packet)
    assert len(ridden.send(CARRIERS[0])[1]) == 1  # the next that can does


def offloaded(plane: int) -> socket.socket:
    """What leaves by a plane, with what the NIC has yet to do to it."""
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
def test_the_nic_writes_its_checksum_into_the_ballast(ridden: Ridden, bench: Bench, packet: Packet, gso: Gso) -> None:
    ridden.due()
    with offloaded(0) as tap:
        sent, asked = ridden.send(packet, gso)
        assert (len(sent), len(asked), bench.drops()) == (1, 1, {})
        data(bench, sent[0], packet, segments=3)
        request(bench, asked[0], packet, burst=True)
        while (seen := tap.recv(1 << 16))[10:] != asked[0].data:
            pass
    flags, kind, _, _, start, offset = struct.unpack("BBHHHH", seen[:10])
    assert kind == 0  # not a burst
    assert flags & 1
    ballast = len(asked[0].data) - len(Ether(asked[0].data)[MRCReport])
    assert ballast <= start + offset <= ballast + abi.BALLAST - 2


@quiet
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_burst_of_just_a_requests_length(ridden: Ridden, bench: Bench, extra: int) -> None:
    packet = IPV4 / TCP(sport=1, dport=2, flags="A") / Raw(bytes(COUNTS - 40 + extra))
    ridden.due()
    sent, asked = ridden.send(packet, Gso("tcp4", 100, 34))
    assert (len(sent), len(asked), bench.drops()) == (1, 1, {})
    data(bench, sent[0], packet, segments=2)
    request(bench, asked[0], packet, burst=True)


# ---- when ----


@quiet
def test_one_packet_in_sixteen_carries_a_request(ridden: Ridden, bench: Bench) -> None:
    found = []
    for n in range(1, 4 * EACH + 1):
        bench.age(MS)
        if ridden.send(CARRIERS[0])[1]:
            found.append(n)
    assert found == [EACH, 2 * EACH, 3 * EACH, 4 * EACH]


@pytest.mark.parametrize("size", [100, 1000])
@quiet
def test_without_budget_67_packets_and_134_bytes_per_byte_pay_for_a_request(
    ridden: Ridden, bench: Bench, size: int
) -> None:
    packet = IPV4 / UDP(sport=1, dport=2) / Raw(bytes(size))
    request_bytes = 14 + 40 + 8 + 32 + 32 + COUNTS  # Ethernet, IPv6, UDP, MRC, probe, and the report
    request_bytes += len(ETHERNET / packet) if len(ETHERNET / packet) <= KEPT else 0
    bench.tables.clock["budget"] = HEALTH.idle_probes // 8
    found = []
    for n in range(1, 800):
        bench.age(MS)
        if ridden.send(packet)[1]:
            found.append(n)
        bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    each = max(67, -(-134 * request_bytes // len(packet)))
    assert found == list(range(each, 800, each))
    assert bench.tables.clock["budget"] == HEALTH.idle_probes // 8


@quiet
def test_the_hosts_budget_pays_for_what_traffic_does_not(ridden: Ridden, bench: Bench) -> None:
    bench.tables.clock["budget"] = HEALTH.idle_probes // 8 + 2  # an eighth is for the tick
    found = []
    for n in range(1, 4 * EACH + 1):
        bench.age(MS)
        if ridden.send(CARRIERS[0])[1]:
            found.append(n)
    assert found == [EACH, 2 * EACH]
    assert bench.tables.clock["budget"] == HEALTH.idle_probes // 8


@quiet
def test_what_traffic_has_paid_for_is_noted(ridden: Ridden, bench: Bench) -> None:
    bench.tables.clock["budget"] = 0
    set_paid(bench, 0)
    packet = IPV4 / UDP(sport=1, dport=2) / Raw(bytes(1000))
    for _ in range(67):
        bench.age(MS)
        ridden.send(packet)
    assert bench.reports(H2)["report_seq"] == 1
    assert struct.unpack("I", libbpf.lookup_elem(paid_map(bench), struct.pack("I", 0), 4) or b"") == (1,)


@pytest.mark.clock
@quiet
def test_traffic_pays_for_no_more_than_a_few_at_once(ridden: Ridden, bench: Bench) -> None:
    """One and a half times what an idle host may send: the rest of a CPU is for others."""
    bench.tables.clock["budget"] = 0
    bench.tables.clock["refilled_ns"] = now() + 10_000 * MS  # no time has passed since the tick
    set_paid(bench, 0)
    packet = IPV4 / UDP(sport=1, dport=2) / Raw(bytes(1000))
    for _ in range(6 * 67):
        bench.age(MS)
        bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
        ridden.send(packet)
    assert bench.reports(H2)["report_seq"] == 4


@pytest.mark.parametrize(("paid", "more"), [(0, 80), (30, 50), (60, 20), (90, 30), (900, 40)])
def test_what_traffic_has_paid_for_is_part_of_what_an_idle_host_may_send(bench: Bench, paid: int, more: int) -> None:
    """In 20 ms that is 80. Where traffic pays for more, a third of it may be sent besides, or 40."""
    bench.tables.peers["configured"] = 0  # the tick sends nothing
    set_paid(bench, paid)
    bench.tables.clock["budget"], bench.tables.clock["refilled_ns"] = 0, now() - 20 * MS
    bench.dataplane.tick()
    assert more <= bench.tables.clock["budget"] <= more + 8  # of the time that this takes


def paid_map(bench: Bench) -> int:
    """What traffic has paid for."""
    return libbpf.map_fd(libbpf.maps_of(bench.dataplane._obj)["mrc_paid"])


def set_paid(bench: Bench, number: int) -> None:
    """As if traffic had paid for so many requests since the last tick."""
    libbpf.update_elem(paid_map(bench), struct.pack("I", 0), struct.pack("I", number))


@quiet
def test_traffic_to_others_does_not_count(ridden: Ridden, bench: Bench) -> None:
    other = IP(src="10.99.0.1", dst="10.99.0.6") / UDP() / b"x"
    bench.reports(H5)["requested_ns"] = now()
    for _ in range(EACH - 1):
        bench.age(MS)
        assert not ridden.send(CARRIERS[0])[1]
        assert not ridden.send(other)[1]
    assert [Ether(f.data)[MRC].receiver for f in ridden.send(CARRIERS[0])[1]] == [H2]
    assert [Ether(f.data)[MRC].receiver for f in ridden.send(other)[1]] == [H5]


@pytest.mark.parametrize("bench", [Setup(health="probe_packets = 1")], indirect=True, ids=[""])
def test_when_dense_traffic_stops_the_daemon_is_told(ridden: Ridden, bench: Bench) -> None:
    told: list[int] = []

    def stalled() -> bool:
        told.extend(int(e["host_id"]) for e in bench.dataplane.events() if e["ev"] == abi.EVENT_IDLE_TIMEOUT)
        return bool(told)

    stalled()
    told.clear()
    assert len(ridden.send(CARRIERS[0])[1]) == 1
    until("the alarm goes off", stalled)
    assert told == [H2]


GAP = Setup(health=f"{CALM}\nprobe_gap_us = 1000000\nloss_window_ms = 60000")
WINDOW = Setup(health=f"{CALM}\nreorder_us = 1000000\noverdue_ms = 1000")


@pytest.mark.clock  # all is sent within a second
@pytest.mark.parametrize("bench", [GAP], indirect=True, ids=[""])
@pytest.mark.parametrize(
    ("carrier", "gaps"),
    [(CARRIERS[0], 1), (CARRIERS[1], 2), (CARRIERS[2], 2), (CARRIERS[2] / b"data", 1)],
    ids=["small", "large", "acknowledgements", "small with data"],
)
def test_a_gap_is_left_between_two(ridden: Ridden, bench: Bench, carrier: Packet, gaps: int) -> None:
    """Twice that for large packets that are pushed, as acknowledgements come first, if any do; and for those."""
    for _ in range(2 * EACH):
        assert not ridden.send(carrier)[1]
    for _ in range(gaps):
        assert not ridden.send(carrier)[1]
        bench.age(1000 * MS)
    assert len(ridden.send(carrier)[1]) == 1
    assert not ridden.send(carrier)[1]


@pytest.mark.clock  # all is sent within a second
@pytest.mark.parametrize("bench", [WINDOW], indirect=True, ids=[""])
def test_the_reordering_window_is_left_between_two(ridden: Ridden, bench: Bench) -> None:
    for _ in range(2 * EACH):
        assert not ridden.send(CARRIERS[0])[1]
    bench.age(1000 * MS)
    assert len(ridden.send(CARRIERS[0])[1]) == 1


@pytest.mark.parametrize(
    ("bench", "chunks"), [(patient(), 1), (patient(evs=256), 2)], indirect=["bench"], ids=["a chunk", "two"]
)
def test_so_many_may_be_under_way_and_no_more(ridden: Ridden, bench: Bench, chunks: int) -> None:
    asked = 0
    for _ in range(EACH * (abi.REPORTS_KEPT * chunks + 3)):
        bench.age(MS)
        asked += len(ridden.send(CARRIERS[0])[1])
    assert asked == abi.REPORTS_KEPT * chunks
    bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    assert len(ridden.send(CARRIERS[0])[1]) == 1
    # And now and then in any case: all of them may have been lost.
    bench.reports(H2)["applied_seq"] -= 100
    assert not ridden.send(CARRIERS[0])[1]
    bench.age(10_000 * MS)
    assert len(ridden.send(CARRIERS[0])[1]) == 1


@pytest.mark.clock  # all is sent within a second
@quiet
def test_another_cpu_that_asked_a_little_later_is_believed(ridden: Ridden, bench: Bench) -> None:
    bench.reports(H2)["requested_ns"] = now() + 1000 * MS
    for _ in range(2 * EACH):
        assert not ridden.send(CARRIERS[0])[1]
    assert bench.reports(H2)["report_seq"] == 0


@quiet
def test_requests_take_usable_evs_in_turn(ridden: Ridden, bench: Bench) -> None:
    bench.set_usable(H2, 4, False)
    found = []
    for _ in range(EVS):
        bench.reports(H2)["requested_ns"], bench.reports(H2)["applied_seq"] = (
            0,
            bench.reports(H2)["report_seq"],
        )  # answered
        (frame,) = ridden.send(CARRIERS[0])[1]
        found.append(request(bench, frame, CARRIERS[0]).ev)
    expected = [plane * SLOTS + slot for slot in range(SLOTS) for plane in range(PLANES)]
    assert found == [5 if ev == 4 else ev for ev in expected]


# ---- on what comes in ----

ACK = IP(src="10.99.0.3", dst="10.99.0.1", id=9) / TCP(sport=2, dport=1, flags="A")


def received(ridden: Ridden, inlet: Tap, packet: Packet, **mrc: int) -> list[Frame]:
    """The requests that go out when a packet has come from host h2, which goes to the stack as ever."""
    inlet.send(ridden.bench.arriving("h2", 5, packet, **mrc))
    (frame,) = inlet.frames()
    assert frame.data == bytes(Ether(src=wire_mac(1), dst=nic_mac(1)) / packet)
    sent, asked = ridden.out()
    assert sent == []
    return asked


def pushed(ridden: Ridden, packets: int) -> None:
    """So many have been pushed since the last report was asked for."""
    ridden.bench.reports(H2)["requested_ns"] = now()
    for _ in range(packets):
        assert not ridden.send(CARRIERS[0])[1]


@pytest.mark.parametrize("bench", [GAP], indirect=True, ids=[""])
@pytest.mark.parametrize("packet", [ACK, ACK / Raw(bytes(512 - 54))], ids=len)
def test_a_request_rides_on_an_acknowledgement(ridden: Ridden, bench: Bench, packet: Packet) -> None:
    inlet = bench.attach_pop(1, "ipv4")
    pushed(ridden, EACH)
    assert received(ridden, inlet, packet) == []  # too soon
    bench.age(1000 * MS)
    (frame,) = received(ridden, inlet, packet)
    assert request(bench, frame, packet).receiver == H2
    assert received(ridden, inlet, packet) == []
    assert bench.drops() == {}


@pytest.mark.parametrize("bench", [GAP], indirect=True, ids=[""])
@pytest.mark.parametrize(
    "packet",
    [ACK / Raw(bytes(513 - 54)), IP(src="10.99.0.3", dst="10.99.0.1") / ICMP()],
    ids=["not small", "icmp"],
)
def test_not_on_everything(ridden: Ridden, bench: Bench, packet: Packet) -> None:
    inlet = bench.attach_pop(1, "ipv4")
    pushed(ridden, EACH)
    bench.age(1000 * MS)
    assert received(ridden, inlet, packet) == []
    assert len(received(ridden, inlet, ACK)) == 1


@pytest.mark.parametrize("bench", [GAP], indirect=True, ids=[""])
def test_not_if_little_was_sent(ridden: Ridden, bench: Bench) -> None:
    inlet = bench.attach_pop(1, "ipv4")
    pushed(ridden, EACH - 1)
    bench.age(1000 * MS)
    assert received(ridden, inlet, ACK) == []


# ---- where ----


@all_encapsulations
def test_a_vlan_plane_gets_its_tag(ridden: Ridden, bench: Bench) -> None:
    bench.tables.planes["vlan"][0] = 100
    ridden.due()
    sent, asked = ridden.send(CARRIERS[1])
    assert [f.vlan for f in sent + asked] == [100, 100]
    request(bench, asked[0], CARRIERS[1])
    data(bench, sent[0], CARRIERS[1])


@quiet
def test_without_a_place_to_make_them_there_are_none(ridden: Ridden, bench: Bench) -> None:
    bench.tables.node["probe_ifindex"] = 0
    ridden.due()
    sent, asked = ridden.send(CARRIERS[0])
    assert (len(sent), asked, bench.reports(H2)["report_seq"]) == (1, [], 0)


@quiet
def test_a_request_that_cannot_be_made_is_counted_and_its_packet_goes_on(ridden: Ridden, bench: Bench) -> None:
    bench.reports(H2)["requested_ns"], bench.reports(H2)["cursor"] = 0, 1
    bench.ev(H2, 4)["configured"] = 0
    sent, asked = ridden.send(CARRIERS[0])
    assert (len(sent), asked, bench.drops()) == (1, [], {"probe_failed": 1})
    data(bench, sent[0], CARRIERS[0])


@pytest.mark.parametrize("bench", [Setup(more=ALONE)], indirect=True, ids=["usid"])
@pytest.mark.parametrize("packet", CARRIERS[:6:2], ids=lambda p: f"{p.summary().split()[0]}{len(p)}")
def test_in_packet_granularity(bench: Bench, packet: Packet) -> None:
    ridden = Ridden(bench, bench.attach_push("packet"), bench.wires())
    bench.attach_probe()
    ridden.due()
    sent, asked = ridden.send(packet)
    assert (len(sent), len(asked), bench.drops()) == (1, 1, {})
    data(bench, sent[0], packet)
    request(bench, asked[0], packet)


def test_what_the_kernel_itself_sends_by_that_interface_passes(bench: Bench) -> None:
    bench.attach_push()
    bench.attach_probe()
    tap = bench._tap("m0", "m0p")
    for packet in (CARRIERS[0], IPV4 / ICMP()):
        tap.send(Ether(src="02:00:00:00:02:01", dst="02:00:00:00:02:00") / packet)
        (frame,) = tap.frames()
        assert frame.data == bytes(Ether(src="02:00:00:00:02:01", dst="02:00:00:00:02:00") / packet)
    assert bench.drops() == {}


@quiet
def test_a_burst_counts_as_the_packets_that_it_is_on_the_wire(ridden: Ridden, bench: Bench) -> None:
    bench.reports(H2)["requested_ns"] = now() - MS
    burst = IPV4 / TCP(sport=1, dport=2, flags="A") / Raw(bytes((EACH - 1) * 1000))
    sent, asked = ridden.send(burst, Gso("tcp4", 1000, 34))
    assert (len(sent), len(asked)) == (1, 0)
    assert int(bench.ev(H2, Ether(sent[0].data)[MRC].ev)["tx_packets"]) == EACH - 1
    sent, asked = ridden.send(IPV4 / TCP(sport=1, dport=2, flags="A") / Raw(bytes(100)))
    assert (len(sent), len(asked)) == (1, 1)
