# SPDX-License-Identifier: BSD-2-Clause
"""Tests that mrc_pop and mrc_pop_xdp drop malformed packets with the reason: headers, lengths, SRHs, inner packets."""

from collections.abc import Callable

import pytest
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.packet import Packet, Raw

from mrcd.fabric.wire import MRC
from tests.packet.arrivals import both_hooks, dropped, inner, popped, udp_only
from tests.packet.cluster import EVS, H2, SLOTS, all_encapsulations
from tests.packet.rig import Bench, Hook
from tests.packet.wires import Frame, changed

pytestmark = pytest.mark.root

ETHERNET, IPV6, L4 = 14, 40, 40  # bytes; L4: UDP and MRC


@both_hooks
@pytest.mark.parametrize("size", [0, 1, 31])
def test_packets_without_room_for_the_mrc_header_are_dropped(bench: Bench, hook: Hook, size: int) -> None:
    dropped(bench, hook, udp_only(str(bench.plan.sids[0]), size), "truncated")


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
@pytest.mark.parametrize("version", [4, 6])
def test_an_inner_packet_shorter_than_its_header_is_dropped(bench: Bench, hook: Hook, version: int) -> None:
    packet, need = bytes(inner(version)), 20 if version == 4 else 40
    for length in range(need):
        assert bench.pop(hook, bench.arriving("h2", 0, Raw(packet[:length])))[0] == "drop"
        assert bench.drops() == {"truncated": length + 1}
    frame = bench.arriving("h2", 0, Raw(packet[:need]))
    assert bench.pop(hook, frame)[0] == "pass"  # short by its own length field: left to the stack


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


@both_hooks
def test_padding_behind_the_packet_is_ignored(bench: Bench, hook: Hook) -> None:
    frame = bench.arriving("h2", 0, inner())
    verdict, out = bench.pop(hook, bytes(frame) + bytes(6))
    assert (verdict, out[: len(popped(inner()))]) == ("pass", popped(inner()))


def test_malformed_packets_pass_xdp_and_are_counted_once(bench: Bench) -> None:
    """mrc_pop judges what XDP cannot recognise."""
    frame = bytes(udp_only(str(bench.plan.sids[0]), 10))
    assert bench.pop_xdp(frame, bench.ifindex["n0"]) == ("pass", frame)
    assert bench.drops() == {}
    assert bench.pop("tc", frame)[0] == "drop"
    assert bench.drops() == {"truncated": 1}
