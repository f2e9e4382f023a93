"""mrc_pop and mrc_pop_xdp: a packet of the fabric in, the inner packet out, or a counted drop."""

from collections.abc import Callable
from ipaddress import IPv6Address

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from mrcd.wire import MRC, PROBE_REPLY, PROBE_REQUEST, MRCProbe
from tests.packet.cluster import EVS, H1, H2, SLOTS, all_steerings, nic_mac, wire_mac
from tests.packet.rig import Bench, Hook, Protocol, Xdp
from tests.packet.wires import Frame, changed

pytestmark = pytest.mark.root

ETHERNET, IPV6, L4 = 14, 40, 40  # bytes; L4: UDP and MRC
both_hooks = pytest.mark.parametrize("hook", ["tc", "xdp"])


def inner(version: int = 4, tos: int = 0, size: int = 100) -> Packet:
    """A packet from host h2 to this one."""
    if version == 4:
        ip = IP(src="10.99.0.3", dst="10.99.0.1", tos=tos, id=7, ttl=63)
    else:
        ip = IPv6(src="fd00:99::3", dst="fd00:99::1", tc=tos, fl=0x12345, hlim=63)
    return ip / UDP(sport=1000, dport=2000) / Raw(bytes(i & 0xFF for i in range(size)))


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


# ---- what is good ----


@both_hooks
@pytest.mark.parametrize("version", [4, 6])
@all_steerings
def test_the_inner_packet_comes_out(bench: Bench, hook: Hook, version: int) -> None:
    packet = inner(version)
    for number in range(EVS):
        plane = number // SLOTS
        frame = bench.arriving("h2", number, packet, seq=number)
        assert bench.pop(hook, frame, plane) == ("pass", popped(packet, plane))
        assert bench.rx(H2, number) == (1, len(packet), 0)
    assert bench.tables.rxs["packets"].sum() == EVS
    assert bench.drops() == {}


@pytest.mark.parametrize("version", [4, 6])
@all_steerings
def test_xdp_needs_no_help(bench: Bench, version: int) -> None:
    packet = inner(version)
    out = bench.pop_xdp(bench.arriving("h2", 5, packet), bench.ifindex["n1"])
    assert out == ("pass", popped(packet, 1))
    assert bench.rx(H2, 5) == (1, len(packet), 0)


@both_hooks
def test_counters_add_up_per_sender_and_ev(bench: Bench, hook: Hook) -> None:
    for size in (0, 10, 200):
        bench.pop(hook, bench.arriving("h2", 3, inner(size=size)))
    bench.pop(hook, bench.arriving("h1", 0, inner()))
    assert bench.rx(H2, 3) == (3, 3 * 28 + 210, 0)
    assert bench.rx(H1, 0) == (1, 128, 0)
    assert bench.tables.rxs["packets"].sum() == 4


@both_hooks
@all_steerings
def test_the_plane_address_is_as_good_as_the_sid(bench: Bench, hook: Hook) -> None:
    frame = changed(bench.arriving("h2", 6, inner()), IPv6, dst=str(bench.plan.addresses[1]))
    assert bench.pop(hook, frame, 1) == ("pass", popped(inner(), 1))


@both_hooks
@pytest.mark.parametrize("version", [4, 6])
@all_steerings
def test_the_largest_packet(bench: Bench, hook: Hook, version: int) -> None:
    packet = inner(version, size=bench.plan.inner_mtu - len(inner(version, size=0)))
    assert bench.pop(hook, bench.arriving("h2", 0, packet)) == ("pass", popped(packet))
    assert bench.rx(H2, 0) == (1, bench.plan.inner_mtu, 0)


@both_hooks
def test_checksums_flow_label_hop_limit_and_ports_are_not_looked_at(bench: Bench, hook: Hook) -> None:
    frame = bench.arriving("h2", 0, inner())
    frame = changed(changed(frame, IPv6, fl=0xFFFFF, hlim=1), UDP, sport=1, chksum=0xBEEF)
    assert bench.pop(hook, frame) == ("pass", popped(inner()))


@both_hooks
def test_an_srh_is_popped_whatever_the_steering(bench: Bench, hook: Hook) -> None:
    """Loaded without SRH support of its own, the host still takes off what a peer has put on."""
    frame = bench.arriving("h2", 0, inner())
    srh = IPv6ExtHdrSegmentRouting(nh=17, addresses=["5f00::1"], segleft=0, lastentry=0)
    head = Ether(src=frame.src, dst=frame.dst) / changed(frame, IPv6, nh=43, plen=None)[IPv6].copy()
    head[IPv6].remove_payload()
    assert bench.pop(hook, head / srh / frame[UDP]) == ("pass", popped(inner()))


# ---- real packets ----

XDP_PLANES: list[tuple[int, Xdp | None]] = [(0, None), (2, "xdp"), (3, "xdp-generic")]


@pytest.mark.parametrize(("plane", "xdp"), XDP_PLANES)
@pytest.mark.parametrize("protocol", ["ipv4", "ipv6"])
@all_steerings
def test_real_packets_are_popped_once(bench: Bench, protocol: Protocol, plane: int, xdp: Xdp | None) -> None:
    wire = bench.attach_pop(plane, protocol, xdp)
    packet = inner(4 if protocol == "ipv4" else 6)
    for slot in range(SLOTS):
        wire.send(bench.arriving("h2", plane * SLOTS + slot, packet))
    assert wire.frames() == [Frame(popped(packet, plane))] * SLOTS
    assert [bench.rx(H2, plane * SLOTS + slot) for slot in range(SLOTS)] == [(1, len(packet), 0)] * SLOTS
    assert bench.drops() == {}


@pytest.mark.parametrize(("plane", "xdp"), XDP_PLANES)
@all_steerings
def test_real_probes_are_reflected_behind_xdp(bench: Bench, plane: int, xdp: Xdp | None) -> None:
    inlet, wires = bench.attach_pop(plane, "ipv6", xdp), bench.wires()
    inlet.send(bench.arriving("h2", plane * SLOTS, MRCProbe(seq=1), type=PROBE_REQUEST))
    (frame,) = wires[plane].frames()
    assert Ether(frame.data)[MRC].type == PROBE_REPLY
    assert bench.drops() == {}


@pytest.mark.parametrize(("plane", "xdp"), XDP_PLANES)
@pytest.mark.parametrize("field", ["version", "sender", "ev"])
def test_real_packets_are_dropped_once(bench: Bench, field: str, plane: int, xdp: Xdp | None) -> None:
    wire = bench.attach_pop(plane, "ipv4", xdp)
    wire.send(changed(bench.arriving("h2", plane * SLOTS, inner()), MRC, **{field: 99}))
    assert wire.frames() == []
    assert bench.drops() == {{"version": "bad_version", "sender": "unknown_sender", "ev": "bad_ev"}[field]: 1}


# ---- VLAN ----


def test_xdp_takes_off_an_inline_tag(bench: Bench) -> None:
    bench.tables.planes["vlan"][1] = 100
    frame = bench.arriving("h2", 7, inner(), vlan=100)
    assert bench.pop_xdp(frame, bench.ifindex["n1"]) == ("pass", popped(inner(), 1))
    assert bench.rx(H2, 7) == (1, len(inner()), 0)


@pytest.mark.parametrize(("vlan", "tagged"), [(0, 100), (100, 101), (100, 0)])
def test_xdp_leaves_other_vlans_alone(bench: Bench, vlan: int, tagged: int) -> None:
    bench.tables.planes["vlan"][1] = vlan
    frame = bench.arriving("h2", 7, inner(), vlan=tagged)
    untouched(bench, "xdp", frame, 1)


def test_the_priority_bits_of_a_tag_do_not_matter(bench: Bench) -> None:
    bench.tables.planes["vlan"][1] = 100
    frame = changed(bench.arriving("h2", 7, inner(), vlan=100), Dot1Q, prio=5)
    assert bench.pop_xdp(frame, bench.ifindex["n1"]) == ("pass", popped(inner(), 1))


@pytest.mark.parametrize("protocol", ["ipv4", "ipv6"])
@all_steerings
def test_tc_takes_off_a_real_tag(bench: Bench, protocol: Protocol) -> None:
    bench.tables.planes["vlan"][1] = 100
    wire = bench.attach_pop(1, protocol)
    packet = inner(4 if protocol == "ipv4" else 6)
    wire.send(bench.arriving("h2", 7, packet, vlan=100))
    assert wire.frames() == [Frame(popped(packet, 1))]
    assert bench.rx(H2, 7) == (1, len(packet), 0)
    assert bench.drops() == {}


@pytest.mark.parametrize(("vlan", "tagged"), [(0, 100), (100, 101), (100, 0)])
def test_tc_leaves_other_vlans_alone(bench: Bench, vlan: int, tagged: int) -> None:
    bench.tables.planes["vlan"][1] = vlan
    wire, before = bench.attach_pop(1, "ipv4"), bench.counted()
    wire.send(bench.arriving("h2", 7, inner(), vlan=tagged))
    assert wire.frames() == []
    assert (bench.counted(), bench.drops()) == (before, {})


@both_hooks
def test_planes_that_share_a_nic_are_told_apart_by_their_tags(bench: Bench, hook: Hook) -> None:
    bench.tables.planes["ifindex"][:3] = bench.ifindex["n0"]
    bench.tables.planes["vlan"][:3] = [100, 0, 102]
    for plane, vlan in enumerate([100, 0, 102]):
        if hook == "xdp":
            frame = bench.arriving("h2", plane * SLOTS, inner(), vlan=vlan)
            assert bench.pop_xdp(frame, bench.ifindex["n0"]) == ("pass", popped(inner(), plane))
        else:
            wire = bench.attach_pop(0, "ipv4")
            frame = changed(bench.arriving("h2", plane * SLOTS, inner(), vlan=vlan), Ether, dst=nic_mac(0))
            wire.send(frame)
            assert [f.data[12:] for f in wire.frames()] == [popped(inner())[12:]]
        assert bench.rx(H2, plane * SLOTS) == (1, len(inner()), 0)
    assert bench.drops() == {}


# ---- ECN ----

NOT_ECT, ECT1, ECT0, CE = 0, 1, 2, 3
DROP = None
RFC6040: dict[int, dict[int, int | None]] = {  # figure 4: inner → outer → result
    NOT_ECT: {NOT_ECT: NOT_ECT, ECT0: NOT_ECT, ECT1: NOT_ECT, CE: DROP},
    ECT0: {NOT_ECT: ECT0, ECT0: ECT0, ECT1: ECT1, CE: CE},
    ECT1: {NOT_ECT: ECT1, ECT0: ECT1, ECT1: ECT1, CE: CE},
    CE: {NOT_ECT: CE, ECT0: CE, ECT1: CE, CE: CE},
}


@both_hooks
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("dscp", [0, 46, 63])
@all_steerings
def test_ecn_is_folded_into_the_inner_header(bench: Bench, hook: Hook, version: int, dscp: int) -> None:
    marked = 0
    for before, row in RFC6040.items():
        for outer_ecn, after in row.items():
            packet = inner(version, dscp << 2 | before)
            frame = changed(bench.arriving("h2", 0, packet), IPv6, tc=0x28 | outer_ecn)  # another DSCP outside
            marked += outer_ecn == CE and before != CE  # else the mark is older than the path
            verdict, out = bench.pop(hook, frame)
            if after is DROP:
                assert verdict == "drop"
            else:  # scapy computes the IPv4 checksum
                assert (verdict, out) == ("pass", popped(inner(version, dscp << 2 | after)))
    assert bench.drops() == {"ce_not_ect": 1}
    # The one that was dropped did come by this path.
    assert bench.rx(H2, 0) == (16, 16 * len(inner(version)), marked)


# ---- none of ours ----


@both_hooks
@pytest.mark.parametrize(
    "packet",
    [
        Ether(dst=nic_mac(0)) / ARP(psrc="10.0.0.1", pdst="10.0.0.2", hwsrc=wire_mac(0)) / Raw(bytes(40)),
        Ether(dst=nic_mac(0)) / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(dport=4797) / MRC() / inner(),
        Ether(dst=nic_mac(0)) / IPv6(src="fd00::1", dst="fd00::2", nh=59),
        Ether(dst=nic_mac(0)) / IPv6(src="fd00::1", dst="fd00::2", nh=6) / Raw(bytes(100)),
        Ether(dst=nic_mac(0), type=0x88B5) / Raw(bytes(200)),
    ],
    ids=["arp", "ipv4", "ipv6-empty", "ipv6-tcp", "ethernet"],
)
def test_other_protocols_are_left_alone(bench: Bench, hook: Hook, packet: Packet) -> None:
    untouched(bench, hook, packet)


@both_hooks
@all_steerings
@pytest.mark.parametrize("what", ["address", "next sid", "port", "interface", "protocol"])
def test_what_is_not_addressed_to_us_is_left_alone(bench: Bench, hook: Hook, what: str) -> None:
    frame, plane = bench.arriving("h2", 1, inner()), 0
    if what == "address":
        frame = changed(frame, IPv6, dst="fd10::99")
    elif what == "next sid":
        frame = changed(frame, IPv6, dst=str(IPv6Address(int(bench.plan.sids[0]) + (0xE006 << 64))))
    elif what == "port":
        frame = changed(frame, UDP, dport=4798)
    elif what == "interface":
        plane = 1  # where this address is not ours
    else:
        frame = changed(frame, IPv6, nh=132)  # SCTP, or so it says
    untouched(bench, hook, frame, plane)


@both_hooks
@pytest.mark.parametrize("octet", range(16))
def test_addresses_are_compared_in_full(bench: Bench, hook: Hook, octet: int) -> None:
    frame = bench.arriving("h2", 1, inner())
    flip = 1 << 8 * octet
    untouched(bench, hook, changed(frame, IPv6, dst=str(IPv6Address(int(IPv6Address(frame[IPv6].dst)) ^ flip))))
    dropped(
        bench,
        hook,
        changed(frame, IPv6, src=str(IPv6Address(int(IPv6Address(frame[IPv6].src)) ^ flip))),
        "wrong_source",
    )


@both_hooks
def test_an_interface_that_is_no_plane_is_left_alone(bench: Bench, hook: Hook) -> None:
    bench.tables.planes["ifindex"][0] = 0
    untouched(bench, hook, bench.arriving("h2", 1, inner()))


@both_hooks
@pytest.mark.parametrize(
    "fields",
    [{"nh": 6}, {"nh": 41}, {"nh": 59}, {"type": 0}, {"type": 2}, {"nh": 43}],
    ids=["tcp", "ipv6", "nothing", "type0", "type2", "routing"],
)
def test_other_routing_headers_are_left_alone(bench: Bench, hook: Hook, fields: dict[str, int]) -> None:
    srh = IPv6ExtHdrSegmentRouting(**{"nh": 17, "addresses": ["fd10::1"], "segleft": 0, "lastentry": 0, **fields})
    payload = UDP(sport=1, dport=4797, chksum=0) / MRC(sender=2) / inner()
    head = Ether(src=wire_mac(0), dst=nic_mac(0)) / IPv6(src="fd10::3", dst=str(bench.plan.sids[0]), nh=43)
    untouched(bench, hook, head / srh / payload)


# ---- malformed ----

ELSEWHERE = "fd10::99"


def udp_only(dst: str, size: int, port: int = 4797) -> Packet:
    """UDP to our port with too little behind it for an MRC header."""
    head = Ether(src=wire_mac(0), dst=nic_mac(0)) / IPv6(src="fd10:0:0:1::3", dst=dst)
    return head / UDP(sport=0xC000, dport=port, chksum=0) / Raw(bytes(size))


@both_hooks
@pytest.mark.parametrize("size", [0, 1, 31])
def test_no_room_for_our_header(bench: Bench, hook: Hook, size: int) -> None:
    dropped(bench, hook, udp_only(str(bench.plan.sids[0]), size), "truncated")


@both_hooks
@pytest.mark.parametrize("size", [0, 1, 31])
def test_short_packets_of_others_to_the_same_port_are_left_alone(bench: Bench, hook: Hook, size: int) -> None:
    untouched(bench, hook, udp_only(ELSEWHERE, size))


@both_hooks
@all_steerings
def test_cut_off_at_every_length(bench: Bench, hook: Hook) -> None:
    """As long as it cannot be told to be ours it is passed on as it is, then dropped, never popped."""
    frame = bytes(bench.arriving("h2", 0, inner()))
    srh = bench.plan.overhead - IPV6 - L4
    told = ETHERNET + IPV6 + srh + 8
    before, drops = bench.counted(), 0
    for length in range(ETHERNET if hook == "xdp" else ETHERNET + IPV6, len(frame)):
        verdict, out = bench.pop(hook, frame[:length])
        if length < told:
            assert (verdict, out) == ("pass", frame[:length]), length
        else:
            drops += 1
            assert verdict == "drop", length
    assert bench.drops() == {"truncated": drops}
    assert bench.counted() == before
    assert bench.pop(hook, frame)[0] == "pass"


@all_steerings
def test_frames_too_short_for_an_ip_header_go_on(bench: Bench) -> None:
    """Real ones, because BPF_PROG_TEST_RUN refuses them."""
    wire, before = bench.attach_pop(0, "ipv6"), bench.counted()
    frame = bytes(bench.arriving("h2", 0, inner()))
    for length in range(ETHERNET, ETHERNET + IPV6):
        wire.send(frame[:length])
    assert wire.frames() == [Frame(frame[:length]) for length in range(ETHERNET, ETHERNET + IPV6)]
    assert (bench.counted(), bench.drops()) == (before, {})


@both_hooks
@pytest.mark.parametrize("version", [4, 6])
def test_inner_packet_shorter_than_its_header(bench: Bench, hook: Hook, version: int) -> None:
    packet, need = bytes(inner(version)), 20 if version == 4 else 40
    for length in range(need):
        assert bench.pop(hook, bench.arriving("h2", 0, Raw(packet[:length])))[0] == "drop"
        assert bench.drops() == {"truncated": length + 1}
    frame = bench.arriving("h2", 0, Raw(packet[:need]))
    assert bench.pop(hook, frame)[0] == "pass"  # short by its own length field: the stack's to judge


@both_hooks
@pytest.mark.parametrize("first", [0x00, 0x15, 0x55, 0x75, 0xF0])
def test_inner_packet_neither_ipv4_nor_ipv6(bench: Bench, hook: Hook, first: int) -> None:
    frame = bench.arriving("h2", 0, Raw(bytes([first]) + bytes(inner())[1:]))
    assert bench.pop(hook, frame)[0] == "drop"
    assert bench.drops() == {"bad_inner": 1}
    assert bench.rx(H2, 0) == (1, 128, 0)  # it did come by this path


Change = Callable[[Packet], Packet]
HEADER: dict[str, tuple[Change, str]] = {
    "version 0": (lambda f: changed(f, MRC, version=0), "bad_version"),
    "version 1": (lambda f: changed(f, MRC, version=1), "bad_version"),
    "version 3": (lambda f: changed(f, MRC, version=3), "bad_version"),
    "type 0": (lambda f: changed(f, MRC, type=0), "bad_type"),
    "type 4": (lambda f: changed(f, MRC, type=4), "bad_type"),
    "type 255": (lambda f: changed(f, MRC, type=255), "bad_type"),
    "receiver: its T0's other host": (lambda f: changed(f, MRC, receiver=1), "wrong_receiver"),
    "receiver: the sender": (lambda f: changed(f, MRC, receiver=2), "wrong_receiver"),
    "receiver: the largest": (lambda f: changed(f, MRC, receiver=65535), "wrong_receiver"),
    "sender: ourselves": (lambda f: changed(f, MRC, sender=0), "unknown_sender"),
    "sender: a hole": (lambda f: changed(f, MRC, sender=3), "unknown_sender"),
    "sender: beyond the table": (lambda f: changed(f, MRC, sender=6), "unknown_sender"),
    "sender: the largest": (lambda f: changed(f, MRC, sender=65535), "unknown_sender"),
    "EV: one too many": (lambda f: changed(f, MRC, ev=EVS), "bad_ev"),
    "EV: the largest": (lambda f: changed(f, MRC, ev=65535), "bad_ev"),
    "EV of the next plane": (lambda f: changed(f, MRC, ev=SLOTS), "wrong_plane"),
    "EV of the last plane": (lambda f: changed(f, MRC, ev=EVS - 1), "wrong_plane"),
    "source of another plane": (lambda f: changed(f, IPv6, src="fd10:0:1:1::3"), "wrong_source"),
    "source of another host": (lambda f: changed(f, MRC, sender=1), "wrong_source"),
    "source of nobody": (lambda f: changed(f, IPv6, src="::"), "wrong_source"),
    "source off by a bit": (lambda f: changed(f, IPv6, src="fd10:0:0:1::2"), "wrong_source"),
    "UDP shorter than its header": (lambda f: changed(f, UDP, len=7), "truncated"),
    "UDP without MRC": (lambda f: changed(f, UDP, len=8), "truncated"),
    "UDP one byte short": (lambda f: changed(f, UDP, len=8 + 32 + 127), "truncated"),
    "UDP one byte long": (lambda f: changed(f, UDP, len=8 + 32 + 129), "truncated"),
    "UDP length 0": (lambda f: changed(f, UDP, len=0), "truncated"),
    "UDP length 65535": (lambda f: changed(f, UDP, len=65535), "truncated"),
    "both lengths one byte short of a header": (
        lambda f: changed(changed(f, UDP, len=39), IPv6, plen=len(f[IPv6].payload) - 128 - 1),
        "truncated",
    ),
    "IPv6 length 0": (lambda f: changed(f, IPv6, plen=0), "truncated"),
    "IPv6 length 65535": (lambda f: changed(f, IPv6, plen=65535), "truncated"),
    "both lengths beyond the end": (
        lambda f: changed(changed(f, UDP, len=8 + 32 + 129), IPv6, plen=len(f) - ETHERNET - IPV6 + 1),
        "truncated",
    ),
}


@both_hooks
@all_steerings
@pytest.mark.parametrize("case", HEADER)
def test_wrong_headers_are_dropped_by_their_reason(bench: Bench, hook: Hook, case: str) -> None:
    change, reason = HEADER[case]
    dropped(bench, hook, change(bench.arriving("h2", 1, inner())), reason)


@both_hooks
@pytest.mark.parametrize("bench", ["srh"], indirect=True)
@pytest.mark.parametrize("left", [1, 3, 255])
def test_segments_left(bench: Bench, hook: Hook, left: int) -> None:
    dropped(bench, hook, changed(bench.arriving("h2", 1, inner()), IPv6ExtHdrSegmentRouting, segleft=left), "bad_srh")


@both_hooks
@pytest.mark.parametrize("bench", ["srh"], indirect=True)
def test_every_wrong_length_of_an_srh(bench: Bench, hook: Hook) -> None:
    """The true one is 6 (× 8 bytes: three segments). No other leads to a pop."""
    before, drops = bench.counted(), 0
    for length in (n for n in range(256) if n != 6):
        frame = changed(bench.arriving("h2", 1, inner()), IPv6ExtHdrSegmentRouting, len=length)
        verdict, out = bench.pop(hook, frame)
        if length % 2 or length > 10:
            drops += 1
            assert verdict == "drop", length
        else:  # what is then taken for UDP is not for our port
            assert (verdict, out) == ("pass", bytes(frame)), length
    assert bench.drops() == {"bad_srh": drops}
    assert bench.counted() == before


@both_hooks
@pytest.mark.parametrize("bench", ["usid", "srh"], indirect=True)
@pytest.mark.parametrize("fields", [{"segleft": 1}, {"len": 3}, {"len": 12}, {"len": 255}])
def test_srhs_of_others_are_left_alone(bench: Bench, hook: Hook, fields: dict[str, int]) -> None:
    """A host may route SRv6 of its own: long lists, TLVs, UDP in them."""
    srh = IPv6ExtHdrSegmentRouting(**{"nh": 17, "addresses": ["fd10::1"] * 2, "segleft": 0, "lastentry": 1, **fields})
    head = Ether(src=wire_mac(0), dst=nic_mac(0)) / IPv6(src="fd10::3", dst=ELSEWHERE)
    untouched(bench, hook, head / srh / UDP(sport=1, dport=4797, chksum=0) / Raw(bytes(300)))


@both_hooks
def test_padding_behind_the_packet_is_no_error(bench: Bench, hook: Hook) -> None:
    frame = bench.arriving("h2", 0, inner())
    verdict, out = bench.pop(hook, bytes(frame) + bytes(6))
    assert (verdict, out[: len(popped(inner()))]) == ("pass", popped(inner()))


def test_malformed_packets_pass_xdp_and_are_counted_once(bench: Bench) -> None:
    """What XDP cannot tell to be ours is mrc_pop's to judge."""
    frame = bytes(udp_only(str(bench.plan.sids[0]), 10))
    assert bench.pop_xdp(frame, bench.ifindex["n0"]) == ("pass", frame)
    assert bench.drops() == {}
    assert bench.pop("tc", frame)[0] == "drop"
    assert bench.drops() == {"truncated": 1}
