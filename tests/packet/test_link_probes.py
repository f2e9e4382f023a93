# SPDX-License-Identifier: BSD-2-Clause
"""Tests link probes: the packets that mrc_probe_links sends, and what mrc_pop counts when they come back."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from labkit.traffic.wire import HOP_LIMIT, MRC
from mrcd.config.cluster_file import Health
from mrcd.fabric import links
from mrcd.kernel.enums import ProbeKind
from tests.packet.clock import MS, advance
from tests.packet.packets import ALL_PLANES, H0, H2, PLANES, SLOTS, both_hooks, nic_mac, wire_mac
from tests.packet.rig import Bench, BenchPlane, Hook, dropped
from tests.packet.ticks import probes_by_kind, requests
from tests.packet.wires import Tap

pytestmark = pytest.mark.root

ALL = links.number(0, SLOTS)  # numbers of the table up to the last T1's
PLANE, T1 = 2, 1
NIC_LINK, T1_LINK = links.number(PLANE, None), links.number(PLANE, T1)
SHARE = Health().idle_probes // 8  # by which link probes may overdraw the budget
MRC_AT = 14 + 40 + 8  # offset of the MRC header


def probe(bench: Bench, first: int = 0, count: int = ALL) -> int:
    """Runs mrc_probe_links 100 ms after the last time."""
    advance(100 * MS)
    return bench.dataplane.probe_links(first, count)


def seen(wires: list[Tap]) -> dict[int, Packet]:
    """Returns link → probe on the wire."""
    return {packet[MRC].ev: packet for packet in requests(wires)[0]}


def returned(bench: Bench, frame: Packet, plane: int = PLANE) -> Packet:
    """Returns a probe as the last switch sends it back to this host."""
    back = frame.copy()
    back[Ether].src, back[Ether].dst = wire_mac(plane), nic_mac(plane)
    back[IPv6].dst, back[IPv6].hlim = str(bench.plan.sids[plane]), HOP_LIMIT - 2
    return back


def counts(bench: Bench, number: int) -> tuple[int, int, int, int]:
    row = bench.tables.links[number]
    return int(row["sent"]), int(row["received"]), int(row["lost"]), int(row["unanswered"])


def sent(bench: Bench, wires: list[Tap], number: int = T1_LINK) -> Packet:
    assert probe(bench, number, 1) == 1
    return seen(wires)[number]


def test_a_probe_leaves_on_each_link_and_turns_round_at_its_end(bench: Bench, wires: list[Tap]) -> None:
    before = probes_by_kind(bench).get(ProbeKind.LINK.text, 0)
    assert probe(bench) == PLANES * (1 + SLOTS)
    found = seen(wires)
    wanted = {link.number: str(link.carrier) for link in links.links(bench.plan)}
    assert {number: f[IPv6].dst for number, f in found.items()} == wanted
    assert wanted[NIC_LINK] == "5f00:0:5000:c800::"
    assert wanted[T1_LINK] == "5f00:0:5000:9001:5000:c800::"
    assert {(f[MRC].sender, f[MRC].receiver) for f in found.values()} == {(H0, H0)}
    assert {f.dst for f in found.values()} == {wire_mac(plane) for plane in range(PLANES)}
    assert {f[IPv6].src for f in found.values()} == {str(a) for a in bench.plan.addresses}
    assert len({f[MRC].seq for f in found.values()}) == len(found)
    assert all(f[UDP].dport == bench.config.cluster.udp_port for f in found.values())
    assert probes_by_kind(bench)[ProbeKind.LINK.text] - before == len(found)


@pytest.mark.parametrize("bench", ["srh", "ecmp"], indirect=True)
def test_no_link_is_probed_where_carriers_do_not_name_the_switches(bench: Bench, wires: list[Tap]) -> None:
    assert probe(bench) == 0
    assert seen(wires) == {}


@both_hooks
@pytest.mark.parametrize("number", [NIC_LINK, T1_LINK])
def test_a_probe_that_comes_back_is_counted_on_its_link_alone(
    bench: Bench, wires: list[Tap], hook: Hook, number: int
) -> None:
    others, peers = bench.tables.links.copy(), [bench.tables.evs.copy(), bench.tables.rxs.copy()]
    for n in range(1, 4):
        back = returned(bench, sent(bench, wires, number))
        advance(MS)
        assert bench.pop(hook, back, PLANE)[0] == "drop"  # consumed
        assert counts(bench, number) == (n, n, 0, 0)
    row = bench.tables.links[number]
    assert row["rtt_ns"] == MS
    assert row["rx_ns"] >= row["tx_ns"] > 0
    assert bench.drops() == {}
    assert [(table == before).all() for table, before in zip((bench.tables.evs, bench.tables.rxs), peers, strict=True)]
    others[number] = row
    assert others.tobytes() == bench.tables.links.tobytes()


def test_a_probe_is_lost_when_the_next_one_leaves_before_it_is_back(bench: Bench, wires: list[Tap]) -> None:
    first = sent(bench, wires)
    assert counts(bench, T1_LINK) == (1, 0, 0, 1)
    sent(bench, wires)
    assert counts(bench, T1_LINK) == (2, 0, 1, 2)
    late = returned(bench, first)
    bench.pop("tc", late, PLANE)
    last = sent(bench, wires)  # the first one was only late
    assert counts(bench, T1_LINK) == (3, 1, 1, 1)
    bench.pop("tc", returned(bench, last), PLANE)
    sent(bench, wires)
    assert counts(bench, T1_LINK) == (4, 2, 1, 1)


@both_hooks
def test_a_forged_probe_counts_nothing(bench: Bench, wires: list[Tap], hook: Hook) -> None:
    frame = bytes(returned(bench, sent(bench, wires)))
    before = bench.tables.links.tobytes()
    for at in range(MRC_AT + 8, MRC_AT + 32 + 32):  # from the number on to the end of the probe, with the tag
        if at in range(MRC_AT + 14, MRC_AT + 16):
            continue  # the receiver: then it is a packet for another host
        forged = bytearray(frame)
        forged[at] ^= 0x01
        dropped(bench, bytes(forged), "bad_tag", PLANE, hook)
    assert (bench.drops(), bench.tables.links.tobytes()) == ({"bad_tag": 54}, before)
    bench.pop(hook, frame, PLANE)
    assert counts(bench, T1_LINK) == (1, 1, 0, 0)


@both_hooks
def test_a_probe_of_another_link_or_plane_counts_nothing(bench: Bench, wires: list[Tap], hook: Hook) -> None:
    frame = sent(bench, wires)
    before = bench.tables.links.tobytes()
    other, unknown = returned(bench, frame), returned(bench, frame)
    other[MRC].ev, unknown[MRC].ev = NIC_LINK, 0xFFFF
    dropped(bench, other, "bad_tag", PLANE, hook)
    dropped(bench, unknown, "bad_ev", PLANE, hook)
    dropped(bench, returned(bench, frame, 0), "wrong_plane", 0, hook)
    assert bench.tables.links.tobytes() == before


def test_a_recorded_probe_counts_once(bench: Bench, wires: list[Tap]) -> None:
    recorded = [returned(bench, sent(bench, wires)) for _ in range(3)]
    for n in (0, 2, 1):
        bench.pop("tc", recorded[n], PLANE)
    assert counts(bench, T1_LINK)[:2] == (3, 3)
    for frame in recorded:
        bench.pop("tc", frame, PLANE)
    assert counts(bench, T1_LINK)[:2] == (3, 3)
    assert bench.drops() == {"replayed": 3}


def test_a_probe_that_comes_back_after_a_second_counts_as_lost(bench: Bench, wires: list[Tap]) -> None:
    frame = returned(bench, sent(bench, wires))
    advance(1000 * MS)
    assert bench.pop("tc", frame, PLANE)[0] == "drop"
    assert counts(bench, T1_LINK)[:2] == (1, 0)
    assert bench.drops() == {}


def test_a_link_is_probed_once_in_80_ms_at_most(bench: Bench, wires: list[Tap]) -> None:
    assert probe(bench) == PLANES * (1 + SLOTS)
    assert bench.dataplane.probe_links(0, ALL) == 0
    assert probe(bench) == PLANES * (1 + SLOTS)


def test_link_probes_take_what_other_probes_leave_of_the_budget(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.clock["budget"] = 2 - SHARE
    assert probe(bench) == 2
    assert int(bench.tables.clock["budget"]) == -SHARE
    assert probe(bench) == 0
    assert len(seen(wires)) == 2
    bench.tables.clock["budget"] = 100
    assert probe(bench) == PLANES * (1 + SLOTS)
    assert int(bench.tables.clock["budget"]) == 100 - PLANES * (1 + SLOTS)


def test_a_plane_without_a_link_is_not_probed(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.node["plane_mask"] = ALL_PLANES & ~(1 << PLANE)
    assert probe(bench) == (PLANES - 1) * (1 + SLOTS)
    assert NIC_LINK not in seen(wires)
    assert counts(bench, NIC_LINK) == (0, 0, 0, 0)


def test_probes_of_a_vlan_are_tagged(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.planes["vlan"][PLANE] = 100
    assert probe(bench) == PLANES * (1 + SLOTS)
    vlans: Counter[Any] = Counter((p, f.vlan) for p, wire in enumerate(wires) for f in wire.frames())
    assert vlans == {(p, 100 if p == PLANE else None): 1 + SLOTS for p in range(PLANES)}


@pytest.fixture
def full_queue(bench: Bench) -> Iterator[None]:
    bench.attach_unsent()
    subprocess.run(["tc", "qdisc", "add", "dev", "n0", "root", "bfifo", "limit", "50"], check=True, timeout=10)
    yield
    subprocess.run(["tc", "qdisc", "del", "dev", "n0", "root"], check=True, timeout=10)


@pytest.mark.usefixtures("full_queue")
def test_probes_that_a_queue_of_this_host_drops_are_not_sent(bench: Bench, wires: list[Tap]) -> None:
    for _ in range(3):
        probe(bench)
    assert all(f[MRC].receiver == H0 for f in seen(wires).values())
    assert counts(bench, links.number(0, None)) == (0, 0, 0, 0)
    assert counts(bench, links.number(1, None)) == (3, 0, 2, 3)


def test_a_probe_request_of_a_peer_is_no_link_probe(bench: Bench, wires: list[Tap]) -> None:
    frame = returned(bench, sent(bench, wires))
    before = bench.tables.links.tobytes()
    frame[MRC].sender = H2
    bench.pop("tc", frame, PLANE)
    assert bench.tables.links.tobytes() == before


def test_the_key_is_another_one_after_each_load(bench: Bench, wires: list[Tap]) -> None:
    if not BenchPlane.changeable:
        pytest.skip("the programs would have to be loaded again")
    frame = bytes(returned(bench, sent(bench, wires)))
    bench.use(bench.setup)
    assert bench.pop("tc", frame, PLANE)[0] == "drop"
    assert bench.drops() == {"bad_tag": 1}
