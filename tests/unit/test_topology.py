# SPDX-License-Identifier: BSD-2-Clause
"""Tests addresses, uSIDs, EVs and MTUs of plans, and the numbering of uSIDs read backwards."""

import itertools
from ipaddress import IPv6Address, IPv6Network

import pytest

from mrcd.config import cluster_file
from mrcd.ctl.commands.paths import hop
from mrcd.fabric import topology
from mrcd.fabric.srv6 import hops
from mrcd.fabric.topology import EV, Peer, Plan
from tests.cluster_files import host

BLOCK = IPv6Network("5f00::/32")


def cluster(settings: str = "", places: str = "0:0 0:1 1:0 1:1", paths: str = "") -> cluster_file.Config:
    """Returns a cluster of hosts h0, h1, … at `places`: T0:port each."""
    hosts = ""
    for i, place in enumerate(places.split()):
        t0, port = place.split(":")
        hosts += host(i, t0=t0, port=port)
    return cluster_file.parse(f"[cluster]\nt0s = 512\n{settings}\n{hosts}{paths}")


def peer(plan: Plan, name: str) -> Peer:
    return next(p for p in plan.peers if p.host.name == name)


def evs(c: cluster_file.Config, source: str, to: str) -> tuple[EV, ...]:
    return peer(topology.plan(c, source), to).evs


# ---- uSIDs ----


@pytest.mark.parametrize(
    ("usid", "value"),
    [
        (topology.t0_usid(0, 0), 0x4000),
        (topology.t0_usid(3, 5), 0b01_011_000_0000_0101),
        (topology.t0_usid(7, 511), 0x79FF),
        (topology.t1_usid(0, 0), 0x8000),
        (topology.t1_usid(3, 5), 0b10_011_000_0000_0101),
        (topology.t1_usid(7, 511), 0xB9FF),
        (topology.host_usid(0, 0), 0xC000),
        (topology.host_usid(3, 5), 0b110_011_00_0000_0101),
        (topology.host_usid(7, 1023), 0xDFFF),
        (topology.t0_usid(8, 0), 0x4400),
        (topology.t0_usid(15, 511), 0x7DFF),
        (topology.t1_usid(11, 5), 0b10_011_100_0000_0101),
        (topology.host_usid(8, 0), 0x2000),
        (topology.host_usid(15, 1023), 0x3FFF),
    ],
)
def test_usids_by_hand(usid: int, value: int) -> None:
    assert usid == value


def test_no_two_usids_of_the_largest_fabric_are_alike() -> None:
    """512 T0s and 512 T1s in 16 planes, 1024 ports under each T0: 16 bits for each, none 0, none a function."""
    kinds = [(topology.t0_usid, 512), (topology.t1_usid, 512), (topology.host_usid, 1024)]
    usids = [make(plane, i) for make, count in kinds for plane in range(16) for i in range(count)]
    assert len(set(usids)) == len(usids) == 16 * 2048
    # 0 ends a carrier (RFC 9800 §4.1); from 0xe000 on stand the functions of the node itself.
    assert min(usids) > 0
    assert max(usids) < 0xE000 <= min(topology.UDT4, topology.UDT6)
    assert topology.UDT4 != topology.UDT6
    assert max(topology.UDT4, topology.UDT6) <= 0xFFFF


@pytest.mark.parametrize(
    ("usids", "address"),
    [
        ([0x4000], "5f00:0:4000::"),
        ([0x4000, 0x8001, 0x4002, 0xC003], "5f00:0:4000:8001:4002:c003::"),
        ([1, 2, 3, 4, 5, 6], "5f00:0:1:2:3:4:5:6"),
    ],
)
def test_a_carrier_is_the_block_and_its_usids_in_travel_order(usids: list[int], address: str) -> None:
    assert topology.carrier(BLOCK, usids) == IPv6Address(address)


# ---- addresses ----


def test_addresses_on_the_planes() -> None:
    plan = topology.plan(cluster(places="0:0 1:0 511:1023"), "h2")
    assert [str(a) for a in plan.addresses] == [
        "fd10:0:0:1ff::3", "fd10:0:1:1ff::3", "fd10:0:2:1ff::3", "fd10:0:3:1ff::3",
    ]  # fmt: skip
    for plane, address in enumerate(plan.addresses):
        assert address in topology.plane_network(IPv6Network("fd10::/32"), plane, 511)
        assert address in topology.plane_network(IPv6Network("fd10::/32"), plane)
        assert address not in topology.plane_network(IPv6Network("fd10::/32"), plane + 1)
        assert address not in topology.plane_network(IPv6Network("fd10::/32"), plane, 510)
    assert peer(topology.plan(cluster(places="0:0 1:0 511:1023"), "h0"), "h2").addresses == plan.addresses


def test_packets_arrive_with_the_host_s_usid_alone() -> None:
    """The carrier is consumed hop by hop: the host sees the last uSID behind the block."""
    plan = topology.plan(cluster(places="0:7 1:1"), "h0")
    assert [str(s) for s in plan.sids] == ["5f00:0:c007::", "5f00:0:c407::", "5f00:0:c807::", "5f00:0:cc07::"]
    ecmp = topology.plan(cluster('encapsulation = "ecmp"', places="0:7 1:1"), "h0")
    assert ecmp.sids == ecmp.addresses


# ---- EVs ----


def test_across_t0s_an_ev_is_t0_t1_t0_host() -> None:
    found = evs(cluster(), "h0", "h3")
    assert len(found) == 4 * 4
    e = found[1 * 4 + 3]  # plane 1, T1 3
    assert (e.peer, e.peer_id, e.plane, e.slot, e.t1) == ("h3", 3, 1, 3, 3)
    assert e.usids == (0x4800, 0x8803, 0x4801, 0xC401)
    assert e.segments == (IPv6Address("5f00:0:4800:8803:4801:c401::"),)
    assert [(e.plane, e.t1) for e in found] == list(itertools.product(range(4), range(4)))


THIN = "planes = 4\nt1s = 64\nevs_per_peer = 32"  # 8 of 64 T1s in each plane


def test_both_directions_of_a_pair_number_the_same_t1s_alike() -> None:
    """A receiver answers on the mirror of a path: the EV of the same number must pass the same T1."""
    c = cluster(THIN)
    for a, b in itertools.combinations(("h0", "h1", "h2", "h3"), 2):
        forth, back = evs(c, a, b), evs(c, b, a)
        assert [(e.ev, e.plane, e.t1) for e in forth] == [(e.ev, e.plane, e.t1) for e in back]
        for e, mirror in zip(forth, back, strict=True):
            assert e.usids[:-1] == mirror.usids[:-1][::-1]


def test_pairs_and_planes_choose_different_t1s_and_use_all_of_them() -> None:
    c = cluster(THIN, places=" ".join(f"{i}:0" for i in range(12)))
    plans = {h.name: topology.plan(c, h.name) for h in c.hosts}
    chosen = {
        (a, b, plane): tuple(e.t1 for e in peer(plans[a], b).evs if e.plane == plane)
        for a, b in itertools.combinations(plans, 2)
        for plane in range(4)
    }
    assert len(set(chosen.values())) == len(chosen) == 66 * 4
    for plane in range(4):
        used = [t1 for (_, _, p), t1s in chosen.items() if p == plane for t1 in t1s]
        assert set(used) == set(range(64))
        # 66 pairs × 8 of 64: 8.25 on average. With a large deviation some links would carry the cluster's traffic.
        assert max(used.count(t1) for t1 in range(64)) <= 3 * 8.25


def test_the_choice_is_the_same_in_every_version() -> None:
    """Hosts of two versions must agree during an upgrade: these numbers change only with the wire version."""
    found = evs(cluster(THIN), "h0", "h2")
    assert [e.t1 for e in found if e.plane == 0] == [12, 17, 20, 21, 35, 46, 54, 56]
    assert [e.t1 for e in found if e.plane == 3] == [9, 10, 22, 25, 36, 42, 45, 50]


# ---- explicit paths ----


def explicit(plane: int, *segments: str, source: str = "h0", to: str = "h2", label: str = "") -> str:
    listed = ", ".join(f'"{s}"' for s in segments)
    return f'[[paths]]\nsource = "{source}"\npeer = "{to}"\nplane = {plane}\nsegments = [{listed}]\nlabel = "{label}"\n'


# ---- sizes ----


LONGEST = explicit(0, *(f"5f00:0:{i}::" for i in range(1, 7)))  # six segments


@pytest.mark.parametrize(
    ("encapsulation", "places", "paths", "overhead"),
    [
        ("usid", "0:0 1:0", "", 40 + 8 + 32),
        ("usid", "0:0 0:1", "", 80),
        ("ecmp", "0:0 1:0", "", 80),
        ("srh", "0:0 1:0", "", 80 + 8 + 3 * 16),  # four segments, the first in the destination
        ("srh", "0:0 0:1", "", 80 + 8 + 1 * 16),
        ("srh", "0:0 0:1 1:0", "", 80 + 56),  # the longest path counts
        ("usid", "0:0", "", 80),  # no peer yet
        *((encapsulation, "0:0 0:1 1:0", LONGEST, 80 + 8 + 5 * 16) for encapsulation in ("usid", "srh", "ecmp")),
    ],
)
def test_the_inner_mtu_leaves_room_for_the_longest_headers(
    encapsulation: str, places: str, paths: str, overhead: int
) -> None:
    """Even the smallest planes carry IPv6, which needs 1280 bytes on every link (RFC 8200 §5)."""
    for mtu in (1500, 9000):
        plan = topology.plan(cluster(f'encapsulation = "{encapsulation}"\nmtu = {mtu}', places, paths), "h0")
        assert (plan.overhead, plan.inner_mtu) == (overhead, mtu - overhead)
        assert plan.inner_mtu >= 1280


# ---- read backwards ----


FAR = host(0, t0=1, port=3) + host(1, t0=4, port=9)


def far_cluster(encapsulation: str, hosts: str = FAR) -> topology.Plan:
    text = f'[cluster]\nplanes = 3\nt0s = 5\nt1s = 7\nencapsulation = "{encapsulation}"\n{hosts}'
    return topology.plan(cluster_file.parse(text), "h0")


@pytest.mark.parametrize("encapsulation", ["usid", "srh"])
def test_every_planned_path_is_read_back(encapsulation: str) -> None:
    (peer,) = far_cluster(encapsulation).peers
    assert len(peer.evs) == 21
    for ev in peer.evs:
        found = hops(ev.segments, BLOCK)
        kinds = [("t0", 1), ("t1", ev.t1), ("t0", 4), ("host", 9)]
        assert [(h.kind, h.number) for h in found] == kinds
        assert {h.plane for h in found} == {ev.plane}
        assert [h.usid for h in found] == list(ev.usids)
        assert [h.segment for h in found] == ([0, 1, 2, 3] if encapsulation == "srh" else [0, 0, 0, 0])


def test_the_destination_is_what_the_hop_receives() -> None:
    found = hops([IPv6Address("5f00:0:4003:8002:4007:c001::")], BLOCK)
    assert [str(h.destination) for h in found] == [
        "5f00:0:4003:8002:4007:c001::",
        "5f00:0:8002:4007:c001::",
        "5f00:0:4007:c001::",
        "5f00:0:c001::",
    ]
    assert " → ".join(hop(h.document(), 0) for h in found) == "T0 3 → T1 2 → T0 7 → host port 1"
    assert hop(found[0].document(), 1) == "T0 3 (of plane 0)"


def test_six_usids_fill_a_carrier() -> None:
    found = hops([IPv6Address("5f00:0:1:4001:8001:4801:e006:c001")], BLOCK)
    assert [h.kind for h in found] == ["other", "t0", "t1", "t0", "other", "host"]
    assert [hop(h.document(), 0) for h in found][:4] == ["uSID 0001", "T0 1", "T1 1", "T0 1 (of plane 1)"]
    assert found[4].document() == {
        "segment": 0, "destination": "5f00:0:e006:c001::", "usid": "e006", "kind": "other", "plane": None,
        "number": None,
    }  # fmt: skip


def test_an_ecmp_path_is_only_an_address() -> None:
    (peer,) = far_cluster("ecmp").peers
    (only,) = hops(peer.evs[0].segments, BLOCK)
    assert (only.kind, only.usid, only.plane) == ("address", None, None)
    assert hop(only.document(), 0) == f"any way to {peer.addresses[0]}"
