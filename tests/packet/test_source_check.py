# SPDX-License-Identifier: BSD-2-Clause
"""Tests `source_check`: which inner sources and destinations are pushed, and which are delivered."""

import contextlib
import ipaddress

import pytest
from scapy.packet import Packet

from tests.packet.packets import ETHERNET, H0, H1, H2, both_hooks, datagram, popped, versions
from tests.packet.rig import Bench, Hook, Setup, dropped, give_prefixes
from tests.packet.wires import Gso

pytestmark = pytest.mark.root

EV, PLANE = 5, 1
SIZE = 1000
STRICT, OFF = (Setup(more=f'[overlay]\nsource_check = "{value}"') for value in ("strict", "off"))
UNKNOWN_HOST = {4: "192.0.2.9", 6: "2001:db8::9"}
checked = pytest.mark.parametrize("bench", [STRICT], indirect=True, ids=["strict"])
unchecked = pytest.mark.parametrize("bench", [OFF], indirect=True, ids=["off"])


def packet(version: int, source: int | str | None, target: int | str | None, size: int = 100) -> Packet:
    made = datagram(source if isinstance(source, int) else H0, target if isinstance(target, int) else H0, version, size)
    for field, address in (("src", source), ("dst", target)):
        if not isinstance(address, int):
            setattr(made, field, address or UNKNOWN_HOST[version])
    return made


@checked
@both_hooks
@versions
def test_addresses_within_wide_prefixes_belong_to_their_host(bench: Bench, hook: Hook, version: int) -> None:
    """Those of containers, for example. The longest prefix counts."""
    ours, theirs, part = (
        ("10.100.0.0/24", "10.100.2.0/24", "10.100.2.128/25")
        if version == 4
        else ("fd00:100::/64", "fd00:100:0:2::/64", "fd00:100:0:2:8000::/65")
    )
    give_prefixes(bench, {ours: H0, theirs: H2, part: H1})
    our, their, other = (str(ipaddress.ip_network(text)[9]) for text in (ours, theirs, part))
    inner = packet(version, their, our)
    for _ in range(2):  # the second time by the destination cache
        assert bench.pop(hook, bench.arriving("h2", EV, inner), PLANE) == ("pass", popped(inner, PLANE))
        assert bench.push(packet(version, our, their))[0] == "redirect"
    assert bench.drops() == {}
    frame = bench.arriving("h2", EV, packet(version, other, our))
    dropped(bench, frame, "wrong_inner_source", PLANE, hook, counts=True)


@checked
@both_hooks
@versions
def test_a_change_of_the_prefixes_applies_at_once(bench: Bench, hook: Hook, version: int) -> None:
    """The destination cache holds the answers of before."""
    inner = packet(version, 2, 0)
    frame = bench.arriving("h2", EV, inner)
    assert bench.pop(hook, frame, PLANE)[0] == "pass"
    for address in (inner.src, inner.dst):
        give_prefixes(bench, {address: H1})
        assert bench.pop(hook, frame, PLANE)[0] == "drop"
    assert bench.push(packet(version, 0, 2))[0] == "drop"
    assert bench.drops() == {"wrong_inner_source": 1, "wrong_inner_destination": 1, "foreign_source": 1}
    give_prefixes(bench, {})
    assert bench.pop(hook, frame, PLANE)[0] == "pass"
    assert bench.push(packet(version, 0, 2))[0] == "redirect"


@checked
@both_hooks
@pytest.mark.parametrize(
    ("version", "source", "target", "reason"),
    [
        (6, "fe80::1", 0, "wrong_inner_source"),
        (6, 2, "ff02::1", "wrong_inner_destination"),
        (4, "169.254.0.1", 0, "wrong_inner_source"),
        (4, 2, "224.0.0.1", "wrong_inner_destination"),
        (4, "0.0.0.0", 0, "wrong_inner_source"),
        (6, "::ffff:10.99.0.3", 0, "wrong_inner_source"),
        (6, 2, "::ffff:10.99.0.1", "wrong_inner_destination"),
    ],
)
def test_link_local_multicast_and_mapped_addresses_belong_to_no_host(
    bench: Bench, hook: Hook, version: int, source: int | str, target: int | str, reason: str
) -> None:
    dropped(bench, bench.arriving("h2", EV, packet(version, source, target)), reason, PLANE, hook, counts=True)


@checked
@versions
@pytest.mark.parametrize("source", [1, 2])
def test_a_burst_is_checked_as_one_packet_and_counted_as_its_packets(bench: Bench, version: int, source: int) -> None:
    inner = packet(version, source, 0, 3 * SIZE)
    frame = bench.arriving("h2", 0, inner, segments=3)
    wire = bench.attach_pop(0, version)
    wire.send(frame, Gso("udp", 32 + len(inner) - 2 * SIZE, 54))
    assert len(wire.frames()) == (1 if source == 2 else 0)
    assert bench.drops() == ({} if source == 2 else {"wrong_inner_source": 1})
    refused = bench.tables.peers["refused"]
    assert (refused[H2], refused.sum()) == ((0, 0) if source == 2 else (3, 3))
    assert bench.rx(H2, 0) == (3, len(inner), 0)


@checked
@pytest.mark.parametrize(
    ("version", "source", "target", "reason"),
    [
        *((version, host, 2, "foreign_source") for version in (4, 6) for host in (1, 2, None)),
        (6, "fe80::1", 2, "foreign_source"),
        (6, "::", 2, "foreign_source"),
        (4, "0.0.0.0", 2, "foreign_source"),
        (6, "::ffff:10.99.0.1", 2, "foreign_source"),
        (6, "fe80::1", "ff02::1", "no_peer"),
        (4, None, None, "no_peer"),
    ],
)
def test_sources_of_other_hosts_are_not_pushed_and_the_destination_is_looked_up_first(
    bench: Bench, version: int, source: int | str | None, target: int | str | None, reason: str
) -> None:
    """The messages of a neighbour or multicast protocol are still counted as before."""
    assert bench.push(packet(version, source, target))[0] == "drop"
    assert bench.drops() == {reason: 1}


@checked
@versions
@pytest.mark.parametrize("source", [0, 1])
def test_a_burst_is_pushed_from_an_own_source_only(bench: Bench, version: int, source: int) -> None:
    stack, wires = bench.attach_push(), bench.wires()
    burst = packet(version, source, 2, 3 * SIZE)
    with contextlib.suppress(OSError):  # ENOBUFS, if it is dropped
        stack.send(ETHERNET / burst, Gso("udp", SIZE, 14 + (20 if version == 4 else 40)))
    assert sum(len(wire.frames()) for wire in wires) == (1 if source == 0 else 0)
    assert bench.drops() == ({} if source == 0 else {"foreign_source": 1})


@versions
@unchecked
def test_without_the_check_every_source_is_pushed(bench: Bench, version: int) -> None:
    assert bench.push(packet(version, None, 2))[0] == "redirect"
