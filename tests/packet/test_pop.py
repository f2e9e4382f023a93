# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_pop and mrc_pop_xdp: a packet of the fabric in, the inner packet out; what is dropped, and what passes."""

from ipaddress import IPv6Address
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import CRITICAL, MRC, PROBE_REPLY, PROBE_REQUEST, MRCProbe
from tests.packet.packets import (
    EVS,
    H2,
    SLOTS,
    all_encapsulations,
    both_hooks,
    inner,
    nic_mac,
    popped,
    versions,
    wire_mac,
)
from tests.packet.rig import Bench, Hook, Xdp, dropped, untouched
from tests.packet.wires import Frame, changed

pytestmark = pytest.mark.root


@both_hooks
@versions
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
@versions
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
@versions
@all_encapsulations
def test_real_packets_are_popped_once(bench: Bench, version: int, plane: int, xdp: Xdp | None) -> None:
    wire = bench.attach_pop(plane, version, xdp)
    packet = inner(version)
    for slot in range(SLOTS):
        wire.send(bench.arriving("h2", plane * SLOTS + slot, packet))
    assert wire.frames() == [Frame(popped(packet, plane))] * SLOTS
    assert [bench.rx(H2, plane * SLOTS + slot) for slot in range(SLOTS)] == [(1, len(packet), 0)] * SLOTS
    assert bench.drops() == {}


@pytest.mark.parametrize(("plane", "xdp"), XDP_PLANES)
@all_encapsulations
def test_real_probes_are_answered_behind_xdp(bench: Bench, plane: int, xdp: Xdp | None) -> None:
    inlet, wires = bench.attach_pop(plane, 6, xdp), bench.wires()
    inlet.send(bench.arriving("h2", plane * SLOTS, MRCProbe(seq=1), type=PROBE_REQUEST))
    (frame,) = wires[plane].frames()
    assert Ether(frame.data)[MRC].type == PROBE_REPLY
    assert bench.drops() == {}


# ---- VLANs ----


@versions
@all_encapsulations
def test_tc_removes_a_real_tag(bench: Bench, version: int) -> None:
    bench.tables.planes["vlan"][1] = 100
    wire = bench.attach_pop(1, version)
    packet = inner(version)
    wire.send(bench.arriving("h2", 7, packet, vlan=100))
    assert wire.frames() == [Frame(popped(packet, 1))]
    assert bench.rx(H2, 7) == (1, len(packet), 0)
    assert bench.drops() == {}


@pytest.mark.parametrize(("vlan", "tagged"), [(0, 100), (100, 101), (100, 0)])
def test_tc_passes_other_vlans(bench: Bench, vlan: int, tagged: int) -> None:
    bench.tables.planes["vlan"][1] = vlan
    wire, before = bench.attach_pop(1, 4), bench.counted()
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
            wire = bench.attach_pop(0, 4)
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
    """A packet too short to be recognised passes unchanged; a longer one is dropped, never popped.

    One with all outer headers tells its path, and has arrived there.
    """
    frame = bytes(bench.arriving("h2", 0, inner()))
    srh = bench.plan.overhead - IPV6 - L4
    for length in range(ETHERNET if hook == "xdp" else ETHERNET + IPV6, len(frame)):
        if length < ETHERNET + IPV6 + srh + 8:
            untouched(bench, frame[:length], 0, hook)
        elif length < ETHERNET + bench.plan.overhead:
            dropped(bench, frame[:length], "truncated", 0, hook)
        else:
            dropped(bench, frame[:length], "trimmed", 0, hook, counts=True)
    assert bench.pop(hook, frame)[0] == "pass"


@all_encapsulations
def test_frames_too_short_for_an_ip_header_pass(bench: Bench) -> None:
    """Real packets, because BPF_PROG_TEST_RUN refuses them."""
    wire, before = bench.attach_pop(0, 6), bench.counted()
    frame = bytes(bench.arriving("h2", 0, inner()))
    for length in range(ETHERNET, ETHERNET + IPV6):
        wire.send(frame[:length])
    assert wire.frames() == [Frame(frame[:length]) for length in range(ETHERNET, ETHERNET + IPV6)]
    assert (bench.counted(), bench.drops()) == (before, {})


@both_hooks
@pytest.mark.parametrize("first", [0x00, 0x15, 0x55, 0x75, 0xF0])
def test_an_inner_packet_that_is_not_ip_is_dropped(bench: Bench, hook: Hook, first: int) -> None:
    frame = bench.arriving("h2", 0, Raw(bytes([first]) + bytes(inner())[1:]))
    dropped(bench, frame, "bad_inner", 0, hook, counts=True)
    assert bench.rx(H2, 0) == (1, 128, 0)  # it arrived on this path


WRONG: list[tuple[str, type[Packet], str, list[Any]]] = [
    ("bad_version", MRC, "version", [0, 1, 2]),
    ("bad_type", MRC, "type", [0, 4, 255]),
    ("wrong_receiver", MRC, "receiver", [1, 2, 65535]),  # another host of its T0, the sender, the largest
    ("unknown_sender", MRC, "sender", [0, 3, 6, 65535]),  # ourselves, a hole, beyond the table
    ("bad_ev", MRC, "ev", [EVS, 65535]),
    ("wrong_plane", MRC, "ev", [SLOTS, EVS - 1]),
    ("wrong_source", MRC, "sender", [1]),
    ("wrong_source", IPv6, "src", ["fd10:0:1:1::3", "::", "fd10:0:0:1::2"]),  # of another plane, nobody, off by a bit
    ("truncated", UDP, "len", [0, 7, 8, 8 + 32 + 127, 8 + 32 + 129, 65535]),
    ("truncated", IPv6, "plen", [0, 65535]),
]


@both_hooks
@all_encapsulations
@pytest.mark.parametrize(("reason", "layer", "field", "values"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_wrong_headers_are_dropped_with_their_reason(
    bench: Bench, hook: Hook, reason: str, layer: type[Packet], field: str, values: list[Any]
) -> None:
    for value in values:
        dropped(bench, changed(bench.arriving("h2", 1, inner()), layer, **{field: value}), reason, 0, hook)


@both_hooks
@all_encapsulations
@pytest.mark.parametrize(
    ("udp", "beyond", "reason"),
    [(39, -129, "truncated"), (8 + 32 + 129, 1, "trimmed")],
    ids=["a byte short", "beyond the end"],
)
def test_wrong_lengths_that_agree_are_dropped(bench: Bench, hook: Hook, udp: int, beyond: int, reason: str) -> None:
    frame = bench.arriving("h2", 1, inner())
    frame = changed(changed(frame, UDP, len=udp), IPv6, plen=len(frame[IPv6].payload) + beyond)
    dropped(bench, frame, reason, 0, hook, counts=reason == "trimmed")


@both_hooks
@pytest.mark.parametrize("bench", ["srh"], indirect=True)
def test_no_wrong_srh_is_popped(bench: Bench, hook: Hook) -> None:
    """The true length is 6 (× 8 bytes: three segments). No other leads to a pop."""
    frame = bench.arriving("h2", 1, inner())
    for left in (1, 3, 255):
        dropped(bench, changed(frame, IPv6ExtHdrSegmentRouting, segleft=left), "bad_srh", 0, hook)
    wrong = bytearray(bytes(frame))
    for length in (n for n in range(256) if n != 6):
        wrong[ETHERNET + IPV6 + 1] = length
        if length % 2 or length > 10:
            dropped(bench, bytes(wrong), "bad_srh", 0, hook)
        else:  # the bytes then read as UDP have another port
            untouched(bench, bytes(wrong), 0, hook)


# ---- packet trimming ----


@both_hooks
@versions
@all_encapsulations
@pytest.mark.parametrize("rewritten", [False, True], ids=["lengths-kept", "lengths-rewritten"])
@pytest.mark.parametrize("left", [0, 19, 39, 64, 127], ids="{}-left".format)
def test_a_trimmed_packet_has_arrived_and_found_congestion(
    bench: Bench, hook: Hook, version: int, left: int, *, rewritten: bool
) -> None:
    whole = bench.arriving("h2", 1, inner(version))
    cut = len(inner(version)) - left
    if rewritten:
        whole = changed(changed(whole, UDP, len=8 + 32 + left), IPv6, plen=len(whole[IPv6].payload) - cut)
    dropped(bench, bytes(whole)[:-cut], "trimmed", 0, hook, counts=True)
    assert bench.rx(H2, 1) == (1, left, 1)


@both_hooks
def test_a_trimmed_copy_leaves_the_other_one_to_be_delivered(bench: Bench, hook: Hook) -> None:
    packet, copy = (bytes(bench.arriving("h2", ev, inner(), flags=CRITICAL, seq=9)) for ev in (0, SLOTS))
    dropped(bench, packet[:-1], "trimmed", 0, hook, counts=True)
    assert bench.pop(hook, copy, 1) == ("pass", popped(inner(), 1))


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
    untouched(bench, packet, 0, hook)


@both_hooks
@all_encapsulations
def test_packets_to_other_addresses_pass_unchanged(bench: Bench, hook: Hook) -> None:
    frame = bench.arriving("h2", 1, inner())
    untouched(bench, frame, 1, hook)  # by an interface where this address is not ours
    next_sid = str(IPv6Address(int(bench.plan.sids[0]) + (0xE006 << 64)))
    for layer, field, value in (
        (IPv6, "dst", ELSEWHERE),
        (IPv6, "dst", next_sid),
        (UDP, "dport", 4798),
        (IPv6, "nh", 132),  # SCTP, or so it says
    ):
        untouched(bench, changed(frame, layer, **{field: value}), 0, hook)


@both_hooks
def test_addresses_are_compared_in_full(bench: Bench, hook: Hook) -> None:
    frame = bench.arriving("h2", 1, inner())
    source, destination = (int(IPv6Address(address)) for address in (frame[IPv6].src, frame[IPv6].dst))
    for bit in (1 << 8 * octet for octet in range(16)):
        untouched(bench, changed(frame, IPv6, dst=str(IPv6Address(destination ^ bit))), 0, hook)
        dropped(bench, changed(frame, IPv6, src=str(IPv6Address(source ^ bit))), "wrong_source", 0, hook)


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
    untouched(bench, head / srh / payload, 0, hook)


@both_hooks
@pytest.mark.parametrize("bench", ["usid", "srh"], indirect=True)
def test_packets_of_other_programs_to_the_same_port_pass_unchanged(bench: Bench, hook: Hook) -> None:
    """A host may route SRv6 of its own: long lists, TLVs, UDP in them. Short packets have no room for an MRC header."""
    head, udp = Ether(src=wire_mac(0), dst=nic_mac(0)), UDP(sport=1, dport=4797, chksum=0)
    for fields in ({"segleft": 1}, {"len": 3}, {"len": 12}, {"len": 255}):
        srh = IPv6ExtHdrSegmentRouting(
            **{"nh": 17, "addresses": ["fd10::1"] * 2, "segleft": 0, "lastentry": 1, **fields}
        )
        untouched(bench, head / IPv6(src="fd10::3", dst=ELSEWHERE) / srh / udp / Raw(bytes(300)), 0, hook)
    for size in (0, 1, 31):
        untouched(bench, head / IPv6(src="fd10:0:0:1::3", dst=ELSEWHERE) / udp / Raw(bytes(size)), 0, hook)
