# SPDX-License-Identifier: BSD-2-Clause
"""Tests the routes of a plan, against addresses computed by hand."""

from collections.abc import Mapping
from ipaddress import IPv6Address

import pytest

from mrcd.config import cluster_file
from mrcd.fabric import topology
from mrcd.fabric.topology import Peer, Plan
from mrcd.net import routes
from mrcd.net.messages import Hop, Link, Route
from tests.cluster_files import host
from tests.unit.interfaces import link

NICS = {plane: link(f"p{plane}", 10 + plane) for plane in range(2)}
MRC0 = link("mrc0", 99)


def plan(settings: str = "", *, own: str = '"10.99.0.1/32", "fd00:99::1/128"', paths: str = "") -> Plan:
    """Returns the plan of h0, with h1 under T0 0 and h2 under T0 1; 2 planes × 2 T1s."""
    hosts = [
        host(0, prefixes=f"[{own}]"),
        host(1),
        host(2, t0=1, port=0, prefixes='["10.99.0.3/32", "fd00:99::3/128", "10.98.0.0/24"]'),
    ]
    text = f"[cluster]\nplanes = 2\nt0s = 2\nt1s = 2\nmtu = 9100\n{settings}\n{''.join(hosts)}{paths}"
    return topology.plan(cluster_file.parse(text), "h0")


def peer(p: Plan, name: str) -> Peer:
    return next(x for x in p.peers if x.host.name == name)


def to_peer(
    p: Plan,
    name: str,
    *,
    usable: Mapping[int, bool] | None = None,
    mrc0: Link | None = MRC0,
    nics: Mapping[int, Link] = NICS,
) -> list[Route]:
    if usable is None:
        usable = {e.ev: True for e in peer(p, name).evs}
    return routes.peer_routes(p, peer(p, name), nics, usable, mrc0)


def only(found: list[Route], dst: str, metric: int) -> Route:
    (route,) = [r for r in found if (r.dst, r.metric) == (dst, metric)]
    return route


# ---- functions behind a carrier ----


@pytest.mark.parametrize(
    ("segment", "result"),
    [
        ("5f00:0:c000::", "5f00:0:c000:e006::"),
        ("5f00:0:4000:8000:4001:c000::", "5f00:0:4000:8000:4001:c000:e006:0"),
        ("5f00:0:1:2:3:4:5:0", "5f00:0:1:2:3:4:5:e006"),
        ("5f00:0:1:2:3:4:5:6", None),  # six uSIDs: full
        ("fd10:0:1:1::3", None),  # a plain address ends in something else than zeros
        ("5f00:0:4000:0:8000::", "5f00:0:4000:0:8000:e006::"),  # behind the last one, not in a gap
    ],
)
def test_a_function_stands_behind_the_last_usid(segment: str, result: str | None) -> None:
    found = routes.with_function(IPv6Address(segment), topology.UDT6)
    assert found == (None if result is None else IPv6Address(result))


# ---- the overlay and its fallback ----


def test_a_peer_s_prefixes_go_into_mrc0_and_fall_back_to_srv6() -> None:
    found = to_peer(plan(), "h2")
    assert {(r.dst, r.metric) for r in found} == {
        (dst, metric) for dst in ("10.99.0.3/32", "fd00:99::3/128", "10.98.0.0/24") for metric in (100, 4000)
    }
    overlay = only(found, "fd00:99::3/128", 100)
    assert overlay.hops == (Hop(99),)
    assert (overlay.mtu, overlay.reordering, overlay.source, overlay.local) == (9020, 300, "fd00:99::1", None)
    assert only(found, "10.98.0.0/24", 4000).source == "10.99.0.1"


def test_many_peers_share_one_neighbour_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, gateway in ((2, None), (1, routes.BEHIND_MRC0)):  # there are two
        monkeypatch.setattr(routes, "MAX_NEIGHBOURS", most)
        for dst in ("fd00:99::3/128", "10.99.0.3/32"):
            assert only(to_peer(plan(), "h2"), dst, 100).hops == (Hop(99, gateway),)


def test_fallback_has_a_hop_per_usable_ev_with_the_right_function() -> None:
    usable = {0: True, 1: False, 128: True, 129: True}  # 128 EVs in a plane
    found = to_peer(plan(), "h2", usable=usable)
    assert only(found, "fd00:99::3/128", 4000).hops == (
        Hop(10, "fe80::1", ("5f00:0:4000:8000:4001:c000:e006:0",)),
        Hop(11, "fe80::1", ("5f00:0:4800:8800:4801:c400:e006:0",)),
        Hop(11, "fe80::1", ("5f00:0:4800:8801:4801:c400:e006:0",)),
    )
    # An IPv4 route has no IPv6 gateway; the segment itself leads to the T0.
    assert only(found, "10.99.0.3/32", 4000).hops == (
        Hop(10, None, ("5f00:0:4000:8000:4001:c000:e004:0",)),
        Hop(11, None, ("5f00:0:4800:8800:4801:c400:e004:0",)),
        Hop(11, None, ("5f00:0:4800:8801:4801:c400:e004:0",)),
    )


@pytest.mark.parametrize("usable", [{}, {0: False, 1: False, 128: False}, {2: True, 3: True}])
def test_without_a_usable_ev_there_is_no_fallback(usable: dict[int, bool]) -> None:
    assert [e.ev for e in peer(plan(), "h2").evs] == [0, 1, 128, 129]
    assert {r.metric for r in to_peer(plan(), "h2", usable=usable)} == {100}


def test_a_plane_without_a_nic_has_no_hops() -> None:
    found = to_peer(plan(), "h2", nics={1: NICS[1]})
    assert {h.oif for h in only(found, "fd00:99::3/128", 4000).hops} == {11}
    assert {r.metric for r in to_peer(plan(), "h2", nics={})} == {100}
    found = routes.fabric_routes(plan(), {1: NICS[1]})
    assert {r.dst for r in found if not r.local} == {"fd10:0:1::/48", "5f00:0:4800::/48"}


def test_while_a_peer_must_not_be_sprayed_there_is_only_the_fallback() -> None:
    found = to_peer(plan(), "h2", mrc0=None)
    assert {r.metric for r in found} == {4000}
    assert len(found) == 3
    assert to_peer(plan(), "h2", mrc0=None, usable={}) == []


def test_srh_encapsulation_falls_back_by_the_same_segments() -> None:
    found = to_peer(plan('encapsulation = "srh"'), "h2", usable={129: True})
    assert only(found, "fd00:99::3/128", 4000).hops == (
        Hop(11, "fe80::1", ("5f00:0:4800::", "5f00:0:8801::", "5f00:0:4801::", "5f00:0:c400:e006::")),
    )
    assert only(found, "fd00:99::3/128", 4000).mtu == 9100 - 136 + 40 + 8 + 4 * 16  # which the kernel takes off


def test_explicit_paths_without_room_for_a_function_do_not_fall_back() -> None:
    listed = """
[[paths]]
source = "h0"
peer = "h2"
plane = 0
segments = ["5f00:0:1:2:3:4:5:6"]
[[paths]]
source = "h0"
peer = "h2"
plane = 0
segments = ["2001:db8::1", "5f00:0:c000::"]
"""
    p = plan(paths=listed)
    assert only(to_peer(p, "h2"), "fd00:99::3/128", 4000).hops == (
        Hop(10, "fe80::1", ("2001:db8::1", "5f00:0:c000:e006::")),
    )
    # Their first hops are unknown to the fabric routes otherwise.
    found = {r.dst: r for r in routes.fabric_routes(p, NICS)}
    assert found["5f00:0:1:2:3:4:5:6/128"].hops == (Hop(10, "fe80::1"),)
    assert found["2001:db8::1/128"].hops == (Hop(10, "fe80::1"),)


def test_the_fallback_of_an_explicit_path_of_one_segment_has_a_way_out() -> None:
    listed = '[[paths]]\nsource = "h0"\npeer = "h2"\nplane = 1\nsegments = ["5f00:0:c000::"]\n'
    p = plan(paths=listed)
    ways = {r.dst: r.hops for r in routes.fabric_routes(p, NICS)}
    for version in ("fd00:99::3/128", "10.99.0.3/32"):
        (hop,) = only(to_peer(p, "h2"), version, 4000).hops
        assert ways[f"{hop.segments[0]}/128"] == (Hop(11, "fe80::1"),)


# ---- the fabric ----


def test_fabric_routes() -> None:
    found = {r.dst: r for r in routes.fabric_routes(plan(), NICS)}
    assert {dst: (r.hops, r.local) for dst, r in found.items()} == {
        "fd10::/48": ((Hop(10, "fe80::1"),), None),
        "fd10:0:1::/48": ((Hop(11, "fe80::1"),), None),
        "5f00:0:4000::/48": ((Hop(10, "fe80::1"),), None),  # this host's T0
        "5f00:0:4800::/48": ((Hop(11, "fe80::1"),), None),
        "5f00:0:c000:e004::/64": ((Hop(10),), "End.DX4"),
        "5f00:0:c000:e006::/64": ((Hop(10),), "End.DT6"),
        "5f00:0:c400:e004::/64": ((Hop(11),), "End.DX4"),
        "5f00:0:c400:e006::/64": ((Hop(11),), "End.DT6"),
    }
    assert {r.metric for r in found.values()} == {1024}
    assert all(r.mtu == r.reordering == 0 and r.source is None for r in found.values())


def test_local_sids_are_where_the_peers_fallback_ends() -> None:
    """Shifted hop by hop (RFC 9800 §4.1.1), a peer's packet arrives at one of h2's local SIDs."""
    p = plan()
    there = topology.plan(p.config, "h2")
    local = {r.dst for r in routes.fabric_routes(there, NICS) if r.local}
    for e in peer(p, "h2").evs:
        for function in (topology.UDT4, topology.UDT6):
            at = routes.with_function(e.segments[0], function)
            assert at is not None
            value = int(at)
            for _ in range(3):  # T0, T1, T0
                value = value >> 96 << 96 | (value << 16) % (1 << 96)
            assert f"{IPv6Address(value)}/64" in local


def test_without_srv6_there_is_the_underlay_alone_and_no_fallback() -> None:
    p = plan('encapsulation = "ecmp"')
    assert [r.dst for r in routes.fabric_routes(p, NICS)] == ["fd10::/48", "fd10:0:1::/48"]
    assert [r.metric for r in to_peer(p, "h2")] == [100] * 3


def test_gateway_metrics_and_reordering_are_the_configuration_s() -> None:
    p = plan('[interfaces]\ngateway = "fe80::42"\n[overlay]\nmetric = 7\nfallback_metric = 8\nreordering = 50')
    assert {h.gateway for r in routes.fabric_routes(p, NICS) if not r.local for h in r.hops} == {"fe80::42"}
    found = to_peer(p, "h2")
    assert ({r.metric for r in found}, {r.reordering for r in found}) == ({7, 8}, {50})


def test_no_two_routes_take_the_same_place() -> None:
    for encapsulation in ("usid", "srh", "ecmp"):
        p = plan(f'encapsulation = "{encapsulation}"')
        found = [*routes.fabric_routes(p, NICS), *to_peer(p, "h1"), *to_peer(p, "h2")]
        assert len({r.key for r in found}) == len(found)


# ---- own addresses ----


@pytest.mark.parametrize(
    ("own", "addresses", "v4", "v6"),
    [
        ('"10.99.0.1/32", "fd00:99::1/128"', ["10.99.0.1", "fd00:99::1"], "10.99.0.1", "fd00:99::1"),
        ('"10.0.0.0/24", "10.99.0.1/32", "10.99.0.9/32"', ["10.99.0.1", "10.99.0.9"], "10.99.0.1", None),
        ('"fd00::/64", "fd00:1::7/128"', ["fd00:1::7"], None, "fd00:1::7"),
        ('"10.0.0.0/24"', [], None, None),
    ],
)
def test_own_addresses_are_the_full_length_prefixes(
    own: str, addresses: list[str], v4: str | None, v6: str | None
) -> None:
    p = plan(own=own)
    assert routes.own_addresses(p) == addresses
    assert routes.own_address(p, 4) == v4
    assert routes.own_address(p, 6) == v6
    for r in to_peer(p, "h2"):
        assert r.source == (v6 if ":" in r.dst else v4)
