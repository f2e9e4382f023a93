# SPDX-License-Identifier: BSD-2-Clause
"""Tests classes: traffic that does not tolerate reordering keeps its EV, by destination, port or DSCP."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from scapy.layers.inet import TCP, UDP
from scapy.layers.inet6 import IPv6ExtHdrFragment
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import MRC
from mrcd.kernel.enums import EvState
from tests.packet.clock import US, advance
from tests.packet.packets import ETHERNET, EVS, H2, H5, ip, versions
from tests.packet.rig import Bench, Setup

pytestmark = pytest.mark.root

CLASSES = Setup(
    more="""
[[classes]]
policy = "pinned"
ports = [4791, "6000-6009"]
[[classes]]
policy = "spray"
ports = [6005]
[[classes]]
policy = "pinned"
dscp = [46]
[[classes]]
policy = "pinned"
prefixes = ["10.99.0.6/32"]
[[classes]]
policy = "spray"
prefixes = ["fd00:99::6/128"]
"""
)
WIDE = Setup(evs=256, more='[[classes]]\npolicy = "pinned"\nports = [4791]\n')
FLOWLETS = '[[classes]]\npolicy = "flowlet"\ndscp = [10]\n'
LONG = Setup(more=f"[overlay]\nflowlet_us = 1000000\n{FLOWLETS}")
SHORT = Setup(more=f"[overlay]\nflowlet_us = 1\n{FLOWLETS}")
classes = pytest.mark.parametrize("bench", [CLASSES], indirect=True)


def packet(sport: int = 1000, dport: int = 2000, dscp: int = 0, host: int = H2, version: int = 4) -> Packet:
    return ip(version, to=host, tos=dscp << 2) / UDP(sport=sport, dport=dport) / Raw(bytes(60))


def ev(bench: Bench, what: Packet) -> int:
    verdict, out = bench.push(what)
    assert verdict == "redirect", bench.drops()
    return int(Ether(out)[MRC].ev)


def evs(bench: Bench, what: Packet, times: int = EVS) -> Counter[int]:
    return Counter(ev(bench, what) for _ in range(times))


@classes
@versions
@pytest.mark.parametrize(("field", "value"), [("dport", 4791), ("sport", 4791), ("dport", 6009), ("dscp", 46)])
def test_a_pinned_flow_keeps_its_ev(bench: Bench, version: int, field: str, value: int) -> None:
    assert len(evs(bench, packet(version=version, **{field: value}))) == 1


@classes
@pytest.mark.parametrize("what", [packet(), packet(dport=4790), packet(dport=6010), packet(dscp=45)])
def test_traffic_outside_of_all_classes_is_sprayed(bench: Bench, what: Packet) -> None:
    assert set(evs(bench, what).values()) == {1}


@pytest.mark.parametrize("bench", [CLASSES, WIDE], indirect=True, ids=["", "partly filled table"])
def test_pinned_flows_are_spread_over_the_evs(bench: Bench) -> None:
    used = Counter(_pinned(bench, range(40 * EVS)).values())
    assert sorted(used) == np.flatnonzero(bench.tables.evs["configured"][H2]).tolist()
    assert max(used.values()) < 3 * min(used.values()), used


@classes
def test_a_pinned_flow_leaves_an_ev_that_has_failed_and_comes_back(bench: Bench) -> None:
    what = packet(dport=4791)
    (first,) = evs(bench, what)
    bench.set_usable(H2, first, False)
    (other,) = evs(bench, what)
    assert other != first
    assert other // 4 == first // 4  # in the same plane
    bench.set_usable(H2, first, True)
    assert set(evs(bench, what)) == {first}


def _pinned(bench: Bench, flows: Iterable[int]) -> dict[int, int]:
    """Returns flow → its EV. Scapy is too slow for so many packets, so the source port and the EV are bytes here."""
    frame, found = bytearray(bytes(ETHERNET / packet(dport=4791))), {}
    for n in flows:
        frame[34:36] = (10_000 + n).to_bytes(2, "big")
        verdict, out = bench.push(bytes(frame))
        assert verdict == "redirect"
        found[n] = int.from_bytes(out[68:70], "big")  # behind Ethernet, IPv6 and UDP, at the third word of MRC
    return found


@pytest.mark.long
@classes
@pytest.mark.parametrize("others_dead", [0, 1])
def test_the_flows_of_a_failed_ev_are_spread_over_its_plane(bench: Bench, others_dead: int) -> None:
    bench.set_state(H2, EvState.DENIED, *range(1, 1 + others_dead))
    before = _pinned(bench, range(200 * EVS))
    mine = [n for n in before if before[n] == 0]
    bench.set_usable(H2, 0, False)
    after = _pinned(bench, [*mine, *range(10 * EVS)])
    assert all(after[n] == before[n] for n in range(10 * EVS) if n not in mine)
    moved = Counter(after[n] for n in mine)
    assert sorted(moved) == list(range(1 + others_dead, 4)), moved
    assert max(moved.values()) < 2 * min(moved.values()), moved
    bench.set_usable(H2, 3, False)  # the failure of a third EV moves no other flow
    stay = [n for n in after if after[n] != 3]
    assert _pinned(bench, stay) == {n: after[n] for n in stay}


@pytest.mark.long
@classes
def test_the_flows_of_a_plane_without_paths_are_spread_over_the_other_planes(bench: Bench) -> None:
    flows = range(160 * EVS)
    before = _pinned(bench, flows)
    bench.set_state(H2, EvState.DENIED, *range(4))
    after = _pinned(bench, flows)
    assert all(after[n] == before[n] for n in flows if before[n] >= 4)
    moved = Counter(after[n] for n in flows if before[n] < 4)
    assert sorted(moved) == list(range(4, EVS)), moved
    by_plane = Counter(e // 4 for e in moved.elements())
    assert max(by_plane.values()) < 1.5 * min(by_plane.values()), by_plane


@classes
def test_the_first_matching_class_wins_destinations_before_ports_before_dscp(bench: Bench) -> None:
    assert len(evs(bench, packet(dport=6005))) == 1  # the range comes first
    assert len(evs(bench, packet(host=H5))) == 1
    assert len(evs(bench, packet(dport=4791, dscp=46, host=H5, version=6), 4)) == 4
    assert len(evs(bench, packet(dport=4791, dscp=0))) == 1


@classes
def test_later_fragments_have_no_ports(bench: Bench) -> None:
    data = bytes([0x12, 0xB7] * 40)  # 4791 where ports would be
    v4 = ip(proto=17, frag=100) / Raw(data)
    v6 = ip(6) / IPv6ExtHdrFragment(nh=17, offset=100) / Raw(data)
    for what in (v4, v6):
        assert len(evs(bench, what)) == EVS
    # As the first fragment has ports and DSCP, a class of DSCP keeps the parts of a packet together.
    v4.tos = 46 << 2
    assert len(evs(bench, v4)) == 1


@classes
def test_tcp_ports_count_and_others_have_none(bench: Bench) -> None:
    assert len(evs(bench, ip() / TCP(sport=1000, dport=4791) / Raw(bytes(60)))) == 1
    assert len(evs(bench, ip(proto=253) / Raw(bytes([0x12, 0xB7] * 30)))) == EVS


@classes
def test_a_new_flow_label_does_not_move_a_pinned_flow(bench: Bench) -> None:
    """TCP changes the flow label after a timeout, so that the kernel hashes the flow again."""
    flow = [ip(6, fl=fl) / TCP(sport=1000, dport=4791) for fl in range(16)]
    assert len({ev(bench, what / Raw(bytes(60))) for what in flow}) == 1
    assert len({ev(bench, packet(sport=sport, dport=4791, version=6)) for sport in range(1000, 1032)}) > EVS // 2


@pytest.mark.parametrize("bench", [LONG], indirect=True)
def test_a_flowlet_stays_until_its_ev_fails(bench: Bench) -> None:
    (first,) = evs(bench, packet(dscp=10))
    assert len(evs(bench, packet(dscp=0))) > 1
    bench.set_usable(H2, first, False)
    (other,) = evs(bench, packet(dscp=10))
    assert other != first
    bench.set_usable(H2, first, True)
    assert set(evs(bench, packet(dscp=10))) == {other}


@pytest.mark.parametrize("bench", [SHORT], indirect=True)
def test_after_a_pause_a_flowlet_is_sprayed_to_a_new_ev(bench: Bench) -> None:
    taken = []
    for _ in range(EVS):
        advance(2 * US)
        taken.append(ev(bench, packet(dscp=10)))
    assert sorted(taken) == list(range(EVS))
