# SPDX-License-Identifier: BSD-2-Clause
"""Tests that inner packets belong to their hosts: by source and destination, at both ends."""

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet, Raw

from tests.packet.arrivals import both_hooks, popped
from tests.packet.cluster import Setup
from tests.packet.rig import Bench, Hook

pytestmark = pytest.mark.root

EV, PLANE = 5, 1
OFF = Setup(more='[overlay]\nsource_check = "off"')
HOSTS = {4: "10.99.0.{}", 6: "fd00:99::{}"}  # host n has n + 1
STRANGER = {4: "192.0.2.9", 6: "2001:db8::9"}
versions = pytest.mark.parametrize("version", [4, 6])
unchecked = pytest.mark.parametrize("bench", [OFF], indirect=True, ids=["off"])


def packet(version: int, source: int | None, target: int | None) -> Packet:
    """Returns a packet between two hosts; None is an address of no host."""
    src, dst = (STRANGER[version] if h is None else HOSTS[version].format(h + 1) for h in (source, target))
    ip = IP(src=src, dst=dst, id=7) if version == 4 else IPv6(src=src, dst=dst)
    return ip / UDP(sport=1000, dport=2000) / Raw(bytes(100))


@both_hooks
@versions
def test_a_packet_of_the_peer_to_this_host_is_delivered(bench: Bench, hook: Hook, version: int) -> None:
    inner = packet(version, 2, 0)
    assert bench.pop(hook, bench.arriving("h2", EV, inner), PLANE) == ("pass", popped(inner, PLANE))
    assert bench.drops() == {}


@both_hooks
@versions
@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        (1, 0, "wrong_inner_source"),
        (None, 0, "wrong_inner_source"),
        (0, 0, "wrong_inner_source"),
        (2, 1, "wrong_inner_destination"),
        (2, None, "wrong_inner_destination"),
        (2, 2, "wrong_inner_destination"),
    ],
)
def test_a_packet_of_another_host_is_dropped(
    bench: Bench, hook: Hook, version: int, source: int | None, target: int | None, reason: str
) -> None:
    frame = bench.arriving("h2", EV, packet(version, source, target))
    assert bench.pop(hook, frame, PLANE)[0] == "drop"
    assert bench.drops() == {reason: 1}
    assert bench.rx(2, EV)[0] == 1  # it has arrived: its path works


@both_hooks
@versions
@unchecked
def test_without_the_check_every_packet_is_delivered(bench: Bench, hook: Hook, version: int) -> None:
    inner = packet(version, None, 1)
    assert bench.pop(hook, bench.arriving("h2", EV, inner), PLANE) == ("pass", popped(inner, PLANE))


@versions
@pytest.mark.parametrize("source", [1, 2, None])
def test_a_source_of_another_host_is_not_pushed(bench: Bench, version: int, source: int | None) -> None:
    assert bench.push(packet(version, source, 2))[0] == "drop"
    assert bench.drops() == {"foreign_source": 1}


@versions
@unchecked
def test_without_the_check_every_source_is_pushed(bench: Bench, version: int) -> None:
    assert bench.push(packet(version, None, 2))[0] == "redirect"


@versions
def test_a_destination_of_this_host_is_no_peer(bench: Bench, version: int) -> None:
    assert bench.push(packet(version, 0, 0))[0] == "drop"
    assert bench.drops() == {"no_peer": 1}
