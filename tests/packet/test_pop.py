# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_pop and mrc_pop_xdp: a packet of the fabric in, the inner packet out; what is dropped, and what passes."""

from collections.abc import Callable
from ipaddress import IPv6Address

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import MRC, PROBE_REPLY, PROBE_REQUEST, MRCProbe
from tests.packet.rig import (
    EVS,
    H2,
    SLOTS,
    Bench,
    Hook,
    Protocol,
    Xdp,
    all_encapsulations,
    both_hooks,
    dropped,
    inner,
    nic_mac,
    popped,
    udp_only,
    untouched,
    wire_mac,
)
from tests.packet.wires import Frame, changed

pytestmark = pytest.mark.root


@both_hooks
@pytest.mark.parametrize("version", [4, 6])
@all_encapsulations
def test_the_inner_packet_comes_out(bench: Bench, hook: Hook, version: int) -> None:
    packet = inner(version)
    for number in range(EVS):
        plane = number // SLOTS
        frame = bench.arriving("h2", number, packet, seq=number)
        assert bench.pop(hook, frame, plane) == ("pass", popped(packet, plane))
        assert bench.rx(H2, number) == (1, len(packet), 0)
    assert bench.tables.rxs["packets"].sum() == EVS
    assert bench.drops() == {}


@both_hooks
@pytest.mark.parametrize("version", [4, 6])
@all_encapsulations
def test_the_largest_packet_is_popped(bench: Bench, hook: Hook, version: int) -> None:
    packet = inner(version, size=bench.plan.inner_mtu - len(inner(version, size=0)))
    assert bench.pop(hook, bench.arriving("h2", 0, packet)) == ("pass", popped(packet))
    assert bench.rx(H2, 0) == (1, bench.plan.inner_mtu, 0)


@both_hooks
def test_checksum_flow_label_hop_limit_and_source_port_do_not_matter(bench: Bench, hook: Hook) -> None:
    frame = bench.arriving("h2", 0, inner())
    frame = changed(changed(frame, IPv6, fl=0xFFFFF, hlim=1), UDP, sport=1, chksum=0xBEEF)
    assert bench.pop(hook, frame) == ("pass", popped(inner()))


# ---- real packets ----

XDP_PLANES: list[tuple[int, Xdp | None]] = [(0, None), (2, "xdp"), (3, "xdp-generic")]


@pytest.mark.parametrize(("plane", "xdp"), XDP_PLANES)
@pytest.mark.parametrize("protocol", ["ipv4", "ipv6"])
@all_encapsulations
def test_real_packets_are_popped_once(bench: Bench, protocol: Protocol, plane: int, xdp: Xdp | None) -> None:
    wire = bench.attach_pop(plane, protocol, xdp)
    packet = inner(4 if protocol == "ipv4" else 6)
    for slot in range(SLOTS):
        wire.send(bench.arriving("h2", plane * SLOTS + slot, packet))
    assert wire.frames() == [Frame(popped(packet, plane))] * SLOTS
    assert [bench.rx(H2, plane * SLOTS + slot) for slot in range(SLOTS)] == [(1, len(packet), 0)] * SLOTS
    assert bench.drops() == {}


@pytest.mark.parametrize(("plane", "xdp"), XDP_PLANES)
@all_encapsulations
def test_real_probes_are_answered_behind_xdp(bench: Bench, plane: int, xdp: Xdp | None) -> None:
    inlet, wires = bench.attach_pop(plane, "ipv6", xdp), bench.wires()
    inlet.send(bench.arriving("h2", plane * SLOTS, MRCProbe(seq=1), type=PROBE_REQUEST))
    (frame,) = wires[plane].frames()
    assert Ether(frame.data)[MRC].type == PROBE_REPLY
    assert bench.drops() == {}


# ---- VLANs ----


@pytest.mark.parametrize("protocol", ["ipv4", "ipv6"])
@all_encapsulations
def test_tc_removes_a_real_tag(bench: Bench, protocol: Protocol) -> None:
    bench.tables.planes["vlan"][1] = 100
    wire = bench.attach_pop(1, protocol)
    packet = inner(4 if protocol == "ipv4" else 6)
    wire.send(bench.arriving("h2", 7, packet, vlan=100))
    assert wire.frames() == [Frame(popped(packet, 1))]
    assert bench.rx(H2, 7) == (1, len(packet), 0)
    assert bench.drops() == {}


@pytest.mark.parametrize(("vlan", "tagged"), [(0, 100), (100, 101), (100, 0)])
def test_tc_passes_other_vlans(bench: Bench, vlan: int, tagged: int) -> None:
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


# ---- malformed packets ----


ETHERNET, IPV6, L4 = 14, 40, 40  # bytes; L4: UDP and MRC


@both_hooks
@all_encapsulations
def test_packets_truncated_at_any_length_are_never_popped(bench: Bench, hook: Hook) -> None:
    """A packet too short to be recognised passes unchanged; a longer one is dropped, never popped."""
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


@all_encapsulations
def test_frames_too_short_for_an_ip_header_pass(bench: Bench) -> None:
    """Real packets, because BPF_PROG_TEST_RUN refuses them."""
    wire, before = bench.attach_pop(0, "ipv6"), bench.counted()
    frame = bytes(bench.arriving("h2", 0, inner()))
    for length in range(ETHERNET, ETHERNET + IPV6):
        wire.send(frame[:length])
    assert wire.frames() == [Frame(frame[:length]) for length in range(ETHERNET, ETHERNET + IPV6)]
    assert (bench.counted(), bench.drops()) == (before, {})


@both_hooks
@pytest.mark.parametrize("first", [0x00, 0x15, 0x55, 0x75, 0xF0])
def test_an_inner_packet_that_is_not_ip_is_dropped(bench: Bench, hook: Hook, first: int) -> None:
    frame = bench.arriving("h2", 0, Raw(bytes([first]) + bytes(inner())[1:]))
    assert bench.pop(hook, frame)[0] == "drop"
    assert bench.drops() == {"bad_inner": 1}
    assert bench.rx(H2, 0) == (1, 128, 0)  # it arrived on this path


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
@all_encapsulations
@pytest.mark.parametrize("case", HEADER)
def test_wrong_headers_are_dropped_with_their_reason(bench: Bench, hook: Hook, case: str) -> None:
    change, reason = HEADER[case]
    dropped(bench, hook, change(bench.arriving("h2", 1, inner())), reason)


@both_hooks
@pytest.mark.parametrize("bench", ["srh"], indirect=True)
@pytest.mark.parametrize("left", [1, 3, 255])
def test_packets_with_segments_left_are_not_popped(bench: Bench, hook: Hook, left: int) -> None:
    dropped(bench, hook, changed(bench.arriving("h2", 1, inner()), IPv6ExtHdrSegmentRouting, segleft=left), "bad_srh")


@both_hooks
@pytest.mark.parametrize("bench", ["srh"], indirect=True)
def test_no_wrong_srh_length_is_popped(bench: Bench, hook: Hook) -> None:
    """The true length is 6 (× 8 bytes: three segments). No other leads to a pop."""
    before, drops = bench.counted(), 0
    for length in (n for n in range(256) if n != 6):
        frame = changed(bench.arriving("h2", 1, inner()), IPv6ExtHdrSegmentRouting, len=length)
        verdict, out = bench.pop(hook, frame)
        if length % 2 or length > 10:
            drops += 1
            assert verdict == "drop", length
        else:  # the bytes then read as UDP have another port
            assert (verdict, out) == ("pass", bytes(frame)), length
    assert bench.drops() == {"bad_srh": drops}
    assert bench.counted() == before


# ---- packets of other programs ----


ELSEWHERE = "fd10::99"


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
def test_other_protocols_pass_unchanged(bench: Bench, hook: Hook, packet: Packet) -> None:
    untouched(bench, hook, packet)


@both_hooks
@all_encapsulations
@pytest.mark.parametrize("what", ["address", "next sid", "port", "interface", "protocol"])
def test_packets_to_other_addresses_pass_unchanged(bench: Bench, hook: Hook, what: str) -> None:
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
@pytest.mark.parametrize(
    "fields",
    [{"nh": 6}, {"nh": 41}, {"nh": 59}, {"type": 0}, {"type": 2}, {"nh": 43}],
    ids=["tcp", "ipv6", "nothing", "type0", "type2", "routing"],
)
def test_other_routing_headers_pass_unchanged(bench: Bench, hook: Hook, fields: dict[str, int]) -> None:
    srh = IPv6ExtHdrSegmentRouting(**{"nh": 17, "addresses": ["fd10::1"], "segleft": 0, "lastentry": 0, **fields})
    payload = UDP(sport=1, dport=4797, chksum=0) / MRC(sender=2) / inner()
    head = Ether(src=wire_mac(0), dst=nic_mac(0)) / IPv6(src="fd10::3", dst=str(bench.plan.sids[0]), nh=43)
    untouched(bench, hook, head / srh / payload)


@both_hooks
@pytest.mark.parametrize("bench", ["usid", "srh"], indirect=True)
@pytest.mark.parametrize("fields", [{"segleft": 1}, {"len": 3}, {"len": 12}, {"len": 255}])
def test_srhs_of_other_programs_pass_unchanged(bench: Bench, hook: Hook, fields: dict[str, int]) -> None:
    """A host may route SRv6 of its own: long lists, TLVs, UDP in them."""
    srh = IPv6ExtHdrSegmentRouting(**{"nh": 17, "addresses": ["fd10::1"] * 2, "segleft": 0, "lastentry": 1, **fields})
    head = Ether(src=wire_mac(0), dst=nic_mac(0)) / IPv6(src="fd10::3", dst=ELSEWHERE)
    untouched(bench, hook, head / srh / UDP(sport=1, dport=4797, chksum=0) / Raw(bytes(300)))


@both_hooks
@pytest.mark.parametrize("size", [0, 1, 31])
def test_short_packets_to_the_same_port_and_another_address_pass_unchanged(bench: Bench, hook: Hook, size: int) -> None:
    untouched(bench, hook, udp_only(ELSEWHERE, size))
