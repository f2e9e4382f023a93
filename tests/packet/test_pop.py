# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_pop and mrc_pop_xdp: a packet of the fabric in, the inner packet out."""

import pytest
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Ether

from mrcd.fabric.wire import MRC, PROBE_REPLY, PROBE_REQUEST, MRCProbe
from tests.packet.arrivals import both_hooks, inner, popped
from tests.packet.cluster import EVS, H1, H2, SLOTS, all_encapsulations
from tests.packet.rig import Bench, Hook, Protocol, Xdp
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


@pytest.mark.parametrize("version", [4, 6])
@all_encapsulations
def test_xdp_pops_without_tc(bench: Bench, version: int) -> None:
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
@all_encapsulations
def test_packets_to_the_plane_address_are_popped_too(bench: Bench, hook: Hook) -> None:
    frame = changed(bench.arriving("h2", 6, inner()), IPv6, dst=str(bench.plan.addresses[1]))
    assert bench.pop(hook, frame, 1) == ("pass", popped(inner(), 1))


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


@both_hooks
def test_an_srh_is_popped_whatever_the_encapsulation(bench: Bench, hook: Hook) -> None:
    """Loaded without SRH support, the host still removes the SRH of a peer."""
    frame = bench.arriving("h2", 0, inner())
    srh = IPv6ExtHdrSegmentRouting(nh=17, addresses=["5f00::1"], segleft=0, lastentry=0)
    head = Ether(src=frame.src, dst=frame.dst) / changed(frame, IPv6, nh=43, plen=None)[IPv6].copy()
    head[IPv6].remove_payload()
    assert bench.pop(hook, head / srh / frame[UDP]) == ("pass", popped(inner()))


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


@pytest.mark.parametrize(("plane", "xdp"), XDP_PLANES)
@pytest.mark.parametrize("field", ["version", "sender", "ev"])
def test_real_packets_are_dropped_once(bench: Bench, field: str, plane: int, xdp: Xdp | None) -> None:
    wire = bench.attach_pop(plane, "ipv4", xdp)
    wire.send(changed(bench.arriving("h2", plane * SLOTS, inner()), MRC, **{field: 99}))
    assert wire.frames() == []
    assert bench.drops() == {{"version": "bad_version", "sender": "unknown_sender", "ev": "bad_ev"}[field]: 1}


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
@all_encapsulations
def test_ecn_is_folded_into_the_inner_header(bench: Bench, hook: Hook, version: int, dscp: int) -> None:
    marked = 0
    for before, row in RFC6040.items():
        for outer_ecn, after in row.items():
            packet = inner(version, dscp << 2 | before)
            frame = changed(
                bench.arriving("h2", 0, packet), IPv6, tc=0x28 | outer_ecn
            )  # another DSCP in the outer header
            marked += outer_ecn == CE and before != CE  # otherwise the packet was marked before the push
            verdict, out = bench.pop(hook, frame)
            if after is DROP:
                assert verdict == "drop"
            else:  # scapy computes the IPv4 checksum
                assert (verdict, out) == ("pass", popped(inner(version, dscp << 2 | after)))
    assert bench.drops() == {"ce_not_ect": 1}
    # The dropped packet arrived on this path, so it is counted.
    assert bench.rx(H2, 0) == (16, 16 * len(inner(version)), marked)
