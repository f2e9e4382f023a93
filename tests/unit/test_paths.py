# SPDX-License-Identifier: BSD-2-Clause
"""Tests the computation of many EVs at once against a reference of single EVs, and the sizes of tables."""

import gc
import hashlib
import weakref
from ipaddress import IPv6Address
from typing import cast

import numpy as np
import pytest

from mrcd.config import cluster_file
from mrcd.config.cluster_file import Config, Host
from mrcd.daemon import write_tables
from mrcd.fabric import srv6, topology
from mrcd.fabric.topology import EV, Peer, plan
from mrcd.kernel import abi, pinned
from mrcd.kernel.settings import rows_for
from tests.cluster_files import host
from tests.unit.arrays import Arrays

EXPLICIT = """
[[paths]]
source = "h0"
peer = "h4"
plane = 1
segments = ["5f00:0:1::", "5f00:0:2::", "5f00:0:3::"]
label = "long way"
[[paths]]
source = "h0"
peer = "h4"
plane = 0
segments = ["5f00:0:9::"]
"""
SHAPES = [
    "planes = 4\nt1s = 4",
    "planes = 1\nt1s = 1\nevs_per_peer = 1",
    "planes = 4\nt1s = 64\nevs_per_peer = 256",
    "planes = 3\nt1s = 512\nevs_per_peer = 256",  # thinned, and one EV left over
    "planes = 8\nt1s = 9\nevs_per_peer = 64",
    'encapsulation = "srh"\nplanes = 2\nt1s = 3\nevs_per_peer = 10',
    'encapsulation = "srh"\nplanes = 2\nt1s = 16\nevs_per_peer = 8\n'
    'underlay = "fdab:cdef::/32"\nblock = "fcbb:bb00::/32"',
    'encapsulation = "ecmp"\nplanes = 2\nevs_per_peer = 32',
]


def cluster(settings: str, paths: str = "") -> Config:
    """Returns hosts under three T0s, with ids that differ from their positions."""
    hosts = "".join(host(i, id=i * 7919 % 60_000, t0=i % 3 * 200, port=i * 40) for i in range(9))
    return cluster_file.parse(f"[cluster]\nt0s = 512\n{settings}\n{hosts}{paths}")


def reference(c: Config, me: Host, other: Host) -> tuple[EV, ...]:
    """Returns the EVs to a host, one by one."""
    explicit = [p for p in c.paths if p.source == me.name and p.peer == other.name]
    k, width, evs = c.cluster, c.cluster.evs_per_plane, []
    if explicit:
        for plane in range(k.planes):
            for slot, p in enumerate(p for p in explicit if p.plane == plane):
                number = plane * width + slot
                evs.append(EV(other.name, other.id, number, plane, slot, None, tuple(p.segments), (), p.label))
        return tuple(evs)
    for plane in range(k.planes):
        if k.encapsulation == "ecmp":
            address = srv6.plane_address(k.underlay, plane, other)
            for slot in range(width if me.t0 != other.t0 else 1):
                evs.append(EV(other.name, other.id, plane * width + slot, plane, slot, None, (address,), ()))
            continue
        for slot, t1 in enumerate([None] if me.t0 == other.t0 else chosen(k.t1s, width, me, other, plane)):
            middle = [] if t1 is None else [srv6.t1_usid(plane, t1), srv6.t0_usid(plane, other.t0)]
            usids = [srv6.t0_usid(plane, me.t0), *middle, srv6.host_usid(plane, other.port)]
            lists = [[u] for u in usids] if k.encapsulation == "srh" else [usids]
            segments = tuple(srv6.carrier(k.block, one) for one in lists)
            evs.append(EV(other.name, other.id, plane * width + slot, plane, slot, t1, segments, tuple(usids)))
    return tuple(evs)


def chosen(t1s: int, width: int, me: Host, other: Host, plane: int) -> list[int]:
    low, high = sorted((me.id, other.id))

    def rank(t1: int) -> bytes:
        return hashlib.blake2b(f"{low}-{high}-{plane}-{t1}".encode(), digest_size=8).digest()

    return sorted(sorted(range(t1s), key=rank)[:width])


def explicit_too(settings: str) -> list[Config]:
    found = [cluster(settings)]
    if "planes = 1" not in settings:
        found.append(cluster(settings, EXPLICIT))
    return found


@pytest.mark.parametrize("settings", SHAPES)
def test_evs_are_those_of_the_reference(settings: str) -> None:
    for c in explicit_too(settings):
        plan = topology.plan(c, "h0")
        assert [p.host.name for p in plan.peers] == [f"h{i}" for i in range(1, 9)]
        for peer in plan.peers:
            wanted = reference(c, plan.host, peer.host)
            assert peer.evs == wanted
            assert peer.ev_count == len(wanted)
            assert peer.evs_per_plane == [sum(e.plane == p for e in wanted) for p in range(c.cluster.planes)]
            some = sorted({e.ev for e in wanted[::3]} | {255})
            assert peer.some_evs(some) == tuple(e for e in wanted if e.ev in some)
        longest = max(len(e.segments) for p in plan.peers for e in reference(c, plan.host, p.host))
        assert plan.paths.most_segments == longest
        assert plan.ev_count == sum(len(p.evs) for p in plan.peers)


@pytest.mark.parametrize("settings", SHAPES)
def test_tables_hold_what_the_reference_says(settings: str) -> None:
    for c in explicit_too(settings):
        plan = topology.plan(c, "h0")
        t = Arrays(max(h.id for h in c.hosts) + 1, c.cluster.evs_per_peer)
        write_tables.write_peers(cast(pinned.Tables, t), plan, lambda row: None)
        assert np.flatnonzero(t.peers["configured"]).tolist() == sorted(p.host.id for p in plan.peers)
        for peer in plan.peers:
            wanted = {e.ev: e for e in reference(c, plan.host, peer.host)}
            row = peer.host.id
            assert np.flatnonzero(t.evs["configured"][row]).tolist() == sorted(wanted)
            check_addresses(t, c, peer)
            for number, e in wanted.items():
                record, srh = t.evs[row, number], srv6.reduced_srh(e.segments)
                assert record["dst"].tobytes() == e.segments[0].packed
                assert (record["plane"], record["srh_len"], record["weight"]) == (e.plane, len(srh), abi.WEIGHT_FULL)
                stored = t.srhs["bytes"][row * c.cluster.evs_per_peer + number]
                assert stored[: len(srh)].tobytes() == srh
        assert write_tables.write_peers(cast(pinned.Tables, t), plan, lambda row: None) == []


def check_addresses(t: Arrays, c: Config, peer: Peer) -> None:
    found = tuple(IPv6Address(a.tobytes()) for a in t.peers["address"][peer.host.id][: c.cluster.planes])
    wanted = tuple(srv6.plane_address(c.cluster.underlay, plane, peer.host) for plane in range(c.cluster.planes))
    assert found == wanted == peer.addresses


def test_an_unused_plan_is_freed_at_once() -> None:
    """The daemon collects only young garbage, and a plan is large, so it must have no reference cycle."""
    c = cluster(SHAPES[2])
    made = plan(c, "h0")
    assert all(p.evs for p in made.peers[:40])  # what is kept for next time is part of it
    gone = weakref.ref(made), weakref.ref(made.paths), weakref.ref(c)
    gc.disable()
    try:
        del made, c
        assert [r() for r in gone] == [None] * 3
    finally:
        gc.enable()


def test_places_are_those_of_the_evs() -> None:
    for shape in SHAPES:
        c = cluster(shape)
        for peer in plan(c, "h0").peers:
            assert {e.ev: (e.plane, e.t1) for e in peer.evs} == {
                n: place for n in range(-1, c.cluster.evs_per_peer + 9) if (place := peer.place(n)) is not None
            }


# ---- how many rows tables have ----


@pytest.mark.parametrize(
    ("needed", "have", "rows"),
    [
        (1, 0, 64), (64, 0, 64), (65, 0, 72), (4097, 0, 4104), (65_535, 0, 65_536),  # new
        (4097, 4112, 4112), (4112, 4112, 4112), (2100, 4112, 4112), (65, 128, 128), (3, 128, 128),  # enough
        (65, 64, 80), (4113, 4112, 4632), (1000, 512, 1128),  # grown, with room
        (3, 8192, 64), (2000, 8192, 2000),  # far too much
    ],
)  # fmt: skip
def test_tables_are_kept_while_they_are_large_enough(needed: int, have: int, rows: int) -> None:
    assert rows_for(needed, have) == rows
    assert rows_for(needed, rows) == rows  # the next start keeps them
