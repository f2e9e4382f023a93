# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_pop and mrc_pop_xdp on VLAN planes: tags inline, and in the packet's metadata."""

import pytest
from scapy.layers.l2 import Dot1Q, Ether

from tests.packet.arrivals import both_hooks, inner, popped, untouched
from tests.packet.cluster import H2, SLOTS, all_encapsulations, nic_mac
from tests.packet.rig import Bench, Hook, Protocol
from tests.packet.wires import Frame, changed

pytestmark = pytest.mark.root


def test_xdp_removes_an_inline_tag(bench: Bench) -> None:
    bench.tables.planes["vlan"][1] = 100
    frame = bench.arriving("h2", 7, inner(), vlan=100)
    assert bench.pop_xdp(frame, bench.ifindex["n1"]) == ("pass", popped(inner(), 1))
    assert bench.rx(H2, 7) == (1, len(inner()), 0)


@pytest.mark.parametrize(("vlan", "tagged"), [(0, 100), (100, 101), (100, 0)])
def test_xdp_passes_other_vlans(bench: Bench, vlan: int, tagged: int) -> None:
    bench.tables.planes["vlan"][1] = vlan
    frame = bench.arriving("h2", 7, inner(), vlan=tagged)
    untouched(bench, "xdp", frame, 1)


def test_the_priority_bits_of_a_tag_do_not_matter(bench: Bench) -> None:
    bench.tables.planes["vlan"][1] = 100
    frame = changed(bench.arriving("h2", 7, inner(), vlan=100), Dot1Q, prio=5)
    assert bench.pop_xdp(frame, bench.ifindex["n1"]) == ("pass", popped(inner(), 1))


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
