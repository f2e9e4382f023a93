# SPDX-License-Identifier: BSD-2-Clause
"""Tests what mrcd writes by netlink, as iproute2 shows it: routes, veth, addresses, first hops."""

import asyncio
import json
import select
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from mrcd.config.devices import former_names
from mrcd.errors import KernelError, MachineError
from mrcd.net import rps
from mrcd.net.messages import PROTOCOL, Hop, Link, Neighbour, Route, read_link
from mrcd.net.netlink import Netlink, made_with, set_offload
from mrcd.net.route_keeper import RouteWatch
from mrcd.net.routes import BEHIND_MRC0
from tests.packet.wires import Namespace
from tests.packet.witness import GATEWAY, as_root, ensure, eventually, ifindex, mine, run, sync, sync_on

pytestmark = as_root


# ---- routes ----


def test_hops_of_a_fallback_route_are_segment_lists_in_travel_order(ns: Namespace, nics: tuple[int, int]) -> None:
    p0, p1 = nics
    hops = (
        Hop(p0, GATEWAY, ("5f00:0:4000::", "5f00:0:8001::", "5f00:0:c001:e006::")),
        Hop(p0, GATEWAY, ("5f00:0:4000:8002:4001:c000:e006:0",)),
        Hop(p1, GATEWAY, ("5f00:0:4800::", "5f00:0:cc01:e006::")),
    )
    assert sync(Route("fd00:99::3/128", 4000, hops, 9020, 300, "fd00:99::1")) == ["added fd00:99::3/128 metric 4000"]
    route = mine(ns)["fd00:99::3 4000"]
    assert [(h["encap"], h["mode"], h["segs"], h["gateway"], h["dev"]) for h in route["nexthops"]] == [
        ("seg6", "encap.red", ["5f00:0:4000::", "5f00:0:8001::", "5f00:0:c001:e006::"], GATEWAY, "p0"),
        ("seg6", "encap.red", ["5f00:0:4000:8002:4001:c000:e006:0"], GATEWAY, "p0"),
        ("seg6", "encap.red", ["5f00:0:4800::", "5f00:0:cc01:e006::"], GATEWAY, "p1"),
    ]
    assert {h["weight"] for h in route["nexthops"]} == {1}  # every EV the same share
    assert route["metrics"] == [{"mtu": 9020, "reordering": 300}]
    assert route["prefsrc"] == "fd00:99::1"


def test_ipv4_falls_back_over_srv6_too(ns: Namespace, nics: tuple[int, int]) -> None:
    p0, p1 = nics
    hops = (Hop(p0, None, ("5f00:0:4000::", "5f00:0:c001:e004::")), Hop(p1, None, ("5f00:0:4800:e004::",)))
    sync(Route("10.99.0.3/32", 4000, hops, 9020, 300, "10.99.0.1"))
    route = mine(ns, "-4")["10.99.0.3 4000"]
    assert [(h["mode"], h["segs"], h["dev"]) for h in route["nexthops"]] == [
        ("encap.red", ["5f00:0:4000::", "5f00:0:c001:e004::"], "p0"),
        ("encap.red", ["5f00:0:4800:e004::"], "p1"),
    ]
    assert route["metrics"] == [{"mtu": 9020, "reordering": 300}]
    assert route["prefsrc"] == "10.99.0.1"


@pytest.mark.parametrize(("family", "dst", "gateway"), [("-4", "10.99.0.3", None), ("-6", "fd00:99::3", GATEWAY)])
def test_a_route_with_a_single_hop(
    ns: Namespace, nics: tuple[int, int], family: str, dst: str, gateway: str | None
) -> None:
    length = 32 if family == "-4" else 128
    sync(Route(f"{dst}/{length}", 4000, (Hop(nics[1], gateway, ("5f00:0:1::", "5f00:0:2::")),)))
    route = mine(ns, family)[f"{dst} 4000"]
    assert (route["mode"], route["segs"], route["dev"]) == ("encap.red", ["5f00:0:1::", "5f00:0:2::"], "p1")
    assert route.get("gateway") == gateway
    assert "nexthops" not in route


def test_peers_behind_mrc0_are_one_neighbour(ns: Namespace) -> None:
    mrc0, _ = ensure()
    wanted = [Route(dst, 100, (Hop(mrc0, BEHIND_MRC0),)) for dst in ("10.99.0.0/24", "fd00:99::/64")]
    sync(*wanted)
    assert sync(*wanted) == []  # read back as written
    assert mine(ns, "-4")["10.99.0.0/24 100"]["via"] == {"family": "inet6", "host": BEHIND_MRC0}
    assert mine(ns)["fd00:99::/64 100"]["gateway"] == BEHIND_MRC0
    ns.ip("address", "add", "10.98.0.1/32", "dev", "mrc0")
    ns.ip("address", "add", "fd00:98::1/128", "dev", "mrc0", "nodad")
    for family, network in ((socket.AF_INET, "10.99.0."), (socket.AF_INET6, "fd00:99::")):
        with ns.inside(), socket.socket(family, socket.SOCK_DGRAM) as s:
            for n in range(1, 9):
                s.sendto(b"", (f"{network}{n}", 9))
    neighbours = ns.json("neigh", "show", "dev", "mrc0", "nud", "noarp")
    assert {n["dst"] for n in neighbours if not n["dst"].startswith("ff")} == {BEHIND_MRC0}
    ns.ip("route", "add", "10.97.0.0/24", "via", "10.99.0.3")  # IPv4: a peer may be a gateway of others' routes


def test_the_overlay_route_is_before_its_fallback(ns: Namespace, nics: tuple[int, int]) -> None:
    p0, p1 = nics
    for dst in ("10.99.0.3/32", "fd00:99::3/128"):
        gateway = GATEWAY if ":" in dst else None
        overlay = Route(dst, 100, (Hop(p1),), 9020, 300)
        fallback = Route(dst, 4000, (Hop(p0, gateway, ("5f00:0:1::",)),), 9020, 300)
        sync(fallback, overlay)
        assert ns.json("route", "get", dst.split("/")[0])[0]["dev"] == "p1"
        sync(fallback)
        assert ns.json("route", "get", dst.split("/")[0])[0]["dev"] == "p0"


@pytest.mark.parametrize(
    ("action", "dst", "shown"),
    [
        ("End.DT6", "5f00:0:c001:e006::/64", {"action": "End.DT6", "table": "local"}),
        ("End.DX4", "5f00:0:c001:e004::/64", {"action": "End.DX4", "nh4": "0.0.0.0"}),
    ],
)
def test_local_sids(ns: Namespace, nics: tuple[int, int], action: str, dst: str, shown: dict[str, str]) -> None:
    route = Route(dst, 1024, (Hop(nics[0]),), local=action)
    assert sync(route) == [f"added {dst} metric 1024"]
    found = mine(ns)[f"{dst} 1024"]
    assert (found["encap"], found["dev"]) == ("seg6local", "p0")
    assert found.items() >= shown.items()
    assert sync(route) == []
    other = Route(dst, 1024, (Hop(nics[0]),), local="End.DX4" if action == "End.DT6" else "End.DT6")
    assert sync(other) == [f"replaced {dst} metric 1024"]


def variants(nics: tuple[int, int], dst: str) -> list[Route]:
    """All shapes that the routes to one place can have."""
    p0, p1 = nics
    v6 = ":" in dst
    gateway = GATEWAY if v6 else None
    source = "fd00:99::1" if v6 else "10.99.0.1"

    def hop(oif: int, *segments: str) -> Hop:
        return Hop(oif, gateway, segments)

    a, b, c = hop(p0, "5f00:0:1::"), hop(p0, "5f00:0:2::", "5f00:0:3::"), hop(p1, "5f00:0:1::")
    shapes: list[tuple[Hop, ...]] = [(Hop(p0),), (Hop(p1),), (a,), (b,), (c,), (a, c), (c, a), (b, c), (a, b, c)]
    routes = [Route(dst, 4000, hops, 9020, 300, source) for hops in shapes]
    routes += [Route(dst, 4000, (a, c), 9000, 300, source), Route(dst, 4000, (a, c), 9020, 200, source)]
    routes += [Route(dst, 4000, (a, c)), Route(dst, 4000, (a,), 9020, 300)]
    if v6:
        routes.append(Route(dst, 4000, (Hop(p0, GATEWAY),)))
    return routes


@pytest.mark.parametrize("dst", ["10.99.0.3/32", "10.98.0.0/24", "fd00:99::3/128", "fd00:98::/64"])
def test_any_route_can_be_changed_into_any_other(ns: Namespace, nics: tuple[int, int], dst: str) -> None:
    shapes = variants(nics, dst)

    # Each followed by each other one, once: an Eulerian circuit.
    order = [shape for i, a in enumerate(shapes) for b in shapes[i + 1 :] for shape in (a, b)]

    async def work(n: Netlink) -> None:
        assert await sync_on(n, [shapes[0]]) == [f"added {dst} metric 4000"]
        for after in [*order[1:], shapes[0]]:
            assert await sync_on(n, [after]) == [f"replaced {dst} metric 4000"]
            assert await n.routes() == {(dst, 4000): after}
        for shape in shapes[1:]:
            await sync_on(n, [shape])
            assert await sync_on(n, [shape]) == []
        assert await sync_on(n, []) == [f"removed {dst} metric 4000"]
        assert await n.routes() == {}

    run(work)
    assert mine(ns, "-6") == mine(ns, "-4") == {}


@pytest.mark.parametrize("dst", ["0.0.0.0/0", "::/0"])
def test_a_default_route_is_a_prefix_like_others(ns: Namespace, nics: tuple[int, int], dst: str) -> None:
    route = Route(dst, 100, (Hop(nics[0]),), 9020)
    assert sync(route) == [f"added {dst} metric 100"]
    assert sync(route) == []
    assert mine(ns, "-6" if ":" in dst else "-4")["default 100"]["dev"] == "p0"
    assert sync() == [f"removed {dst} metric 100"]


@pytest.mark.parametrize(("dst", "gateway"), [("10.99.0.3/32", None), ("fd00:99::3/128", GATEWAY)])
def test_the_route_with_the_most_hops_is_written(
    ns: Namespace, nics: tuple[int, int], dst: str, gateway: str | None
) -> None:
    """256 EVs of four segments each: 31 kB of attributes, and the kernel's dumps have room for 32."""
    hops = tuple(
        Hop(nics[i % 2], gateway, ("5f00:0:4000::", f"5f00:0:{0x8000 + i:x}::", "5f00:0:4001::", "5f00:0:c000:e006::"))
        for i in range(256)
    )
    source = "fd00:99::1" if ":" in dst else "10.99.0.1"
    route = Route(dst, 4000, hops, 9020, 300, source)
    less = Route(dst, 4000, hops[1:], 9020, 300, source)
    other = Route("fd00:98::/64", 100, (Hop(nics[0]),))

    async def work(n: Netlink) -> None:
        await n.links()  # as the daemon does: a socket's very first dump has room for one page only
        await sync_on(n, [route, other])
        assert await sync_on(n, [route, other]) == []
        assert (await n.routes())[route.key] == route
        assert await sync_on(n, [less, other]) == [f"replaced {dst} metric 4000"]
        assert len(await sync_on(n, [])) == 2

    run(work)


def test_a_large_first_dump_is_read_whole(ns: Namespace, nics: tuple[int, int]) -> None:
    hops = tuple(Hop(nics[0], None, (f"5f00:0:4000:{0x8000 + i:x}:4001:c000:e004:0",)) for i in range(128))
    wanted = [Route("10.99.0.3/32", 4000, hops), Route("10.99.0.9/32", 4000, hops[:1])]
    sync(*wanted)
    assert sync(*wanted) == []


def test_plain_encap_differs_from_encap_red(ns: Namespace, nics: tuple[int, int]) -> None:
    """An SRH on every packet instead of on none: it must be replaced."""
    encap = ("encap", "seg6", "mode", "encap", "segs", "5f00:0:1::")
    ns.ip("-6", "route", "add", "fd00:99::3/128", *encap, "via", GATEWAY, "dev", "p0", "metric", "4000",
          "proto", str(PROTOCOL))  # fmt: skip
    route = Route("fd00:99::3/128", 4000, (Hop(nics[0], GATEWAY, ("5f00:0:1::",)),))
    assert sync(route) == ["replaced fd00:99::3/128 metric 4000"]
    assert mine(ns)["fd00:99::3 4000"]["mode"] == "encap.red"


@pytest.mark.parametrize(("dst", "shown"), [("fd00:99::3/128", "-6"), ("10.99.0.3/32", "-4")])
def test_rto_min_is_locked_so_that_tcp_uses_it(ns: Namespace, nics: tuple[int, int], dst: str, shown: str) -> None:
    route = Route(dst, 100, (Hop(nics[0]),), 9020, 300, rto_min_ms=40)
    sync(route)
    assert "rto_min lock 40ms" in ns.ip(shown, "route", "show", dst)
    assert sync(route) == []
    ns.ip(shown, "route", "replace", dst, "dev", "p0", "proto", str(PROTOCOL), "metric", "100", "rto_min", "30ms")
    assert sync(route) == [f"replaced {dst} metric 100"]


# ---- reconciliation of routes ----


def test_only_what_differs_is_written(ns: Namespace, nics: tuple[int, int]) -> None:
    p0, p1 = nics
    stays = Route("fd00:99::1:1/128", 100, (Hop(p0),), 9020)
    goes = Route("10.99.0.9/32", 100, (Hop(p0),), 9020)
    changes = Route("fd00:99::1:2/128", 4000, (Hop(p0, GATEWAY, ("5f00:0:1::",)), Hop(p1, GATEWAY, ("5f00:0:2::",))))
    comes = Route("10.99.0.8/32", 100, (Hop(p1),), 9020)
    sync(stays, goes, changes)
    changed = Route(changes.dst, 4000, changes.hops[:1])
    assert sorted(sync(stays, changed, comes)) == [
        "added 10.99.0.8/32 metric 100",
        "removed 10.99.0.9/32 metric 100",
        "replaced fd00:99::1:2/128 metric 4000",
    ]
    assert sync(stays, changed, comes) == []
    assert len(sync()) == 3


def test_routes_of_other_programs_stay(ns: Namespace, nics: tuple[int, int]) -> None:
    unowned = [
        ("-4", "10.99.0.3/32", "dev", "p1", "metric", "50", "proto", "static"),
        ("-4", "10.97.0.0/24", "dev", "p1", "proto", "186"),
        ("-6", "fd00:99::3/128", "dev", "p1", "metric", "50", "proto", "static"),
        ("-6", "5f00:0:8000::/48", "via", GATEWAY, "dev", "p1", "proto", "bgp"),
        ("-6", "fd00:97::/64", "dev", "p0", "proto", str(PROTOCOL), "table", "100"),  # ours is table main alone
    ]
    for family, *route in unowned:
        ns.ip(family, "route", "add", *route)

    def others() -> list[Any]:
        shown: list[Any] = [
            r
            for f in ("-4", "-6")
            for r in ns.json("-d", f, "route", "show", "table", "all")
            if r.get("table") != "local"
        ]
        return [r for r in shown if r.get("protocol") != str(PROTOCOL) or r.get("table") == "100"]

    before = others()
    assert len(before) >= len(unowned)
    hop = (Hop(nics[0]),)
    sync(Route("10.99.0.3/32", 100, hop), Route("fd00:99::3/128", 100, hop), Route("5f00:0:4000::/48", 1024, hop))
    assert others() == before
    assert len(sync()) == 3
    assert others() == before


def test_removing_a_route_spares_another_one_to_the_same_place(ns: Namespace, nics: tuple[int, int]) -> None:
    sync(Route("10.99.0.3/32", 100, (Hop(nics[0]),)))
    ns.ip("route", "prepend", "10.99.0.3/32", "dev", "p1", "metric", "100", "proto", "static", "scope", "link")
    assert sync() == ["removed 10.99.0.3/32 metric 100"]
    (left,) = ns.json("route", "show", "10.99.0.3/32")
    assert (left["dev"], left["protocol"]) == ("p1", "static")


def test_a_route_of_another_program_is_not_overwritten(ns: Namespace, nics: tuple[int, int]) -> None:
    ns.ip("-6", "route", "add", "5f00:0:4000::/48", "dev", "p1", "metric", "1024", "proto", "static")
    with pytest.raises(KernelError, match="EEXIST"):
        sync(Route("5f00:0:4000::/48", 1024, (Hop(nics[0]),)))
    assert [r["dev"] for r in ns.json("-6", "route", "show", "proto", "static")] == ["p1"]


def test_routes_of_an_earlier_daemon_are_removed(ns: Namespace, nics: tuple[int, int]) -> None:
    ns.ip("-6", "route", "add", "fd00:99::77/128", "dev", "p0", "metric", "100", "proto", str(PROTOCOL))
    ns.ip("-4", "route", "add", "10.99.0.77/32", "dev", "p0", "metric", "100", "proto", str(PROTOCOL))
    for i in (1, 2):
        ns.ip("-6", "route", "append", "fd00:99::78/128", "via", f"fe80::{i}", "dev", "p0", "proto", str(PROTOCOL))
    assert sorted(sync()) == [
        "removed 10.99.0.77/32 metric 100",
        "removed fd00:99::77/128 metric 100",
        "removed fd00:99::78/128 metric 1024",
    ]
    assert mine(ns, "-6") == mine(ns, "-4") == {}


def test_a_refused_route_is_named_in_the_error(ns: Namespace, nics: tuple[int, int]) -> None:
    with pytest.raises(KernelError) as caught:
        sync(Route("fd00:99::3/128", 100, (Hop(4711),)))
    assert "fd00:99::3/128" in str(caught.value)
    assert "ENODEV" in str(caught.value)
    assert caught.value.exit_code == 2


def test_routes_lost_with_their_interface_are_restored(ns: Namespace, nics: tuple[int, int]) -> None:
    route = Route("fd00:99::3/128", 100, (Hop(nics[0]),), 9020)
    sync(route)
    ns.ip("link", "set", "p0", "down")
    assert mine(ns) == {}
    ns.ip("link", "set", "p0", "up")
    assert sync(route) == ["added fd00:99::3/128 metric 100"]


def test_routes_stay_when_the_carrier_goes(ns: Namespace, nics: tuple[int, int]) -> None:
    route = Route("5f00:0:4000::/48", 1024, (Hop(nics[0], GATEWAY),))
    sync(route)
    ns.ip("link", "set", "p0-far", "down")
    assert sync(route) == []
    assert run(lambda n: n.links())["p0"].up is False


@pytest.mark.parametrize("network", ["10.9.0.0/24", "fd09::/64"])
def test_only_deletions_of_routes_of_mrcd_are_reported(ns: Namespace, nics: tuple[int, int], network: str) -> None:
    with RouteWatch() as watch:
        for protocol in ("static", "77"):
            ns.ip("route", "add", network, "dev", "p0", "proto", protocol)
            assert watch.drain() == 0
            ns.ip("route", "del", network, "dev", "p0")
            assert watch.drain() == (protocol == "77")
        ns.ip("route", "add", network, "dev", "p0", "proto", "77")
        ns.ip("route", "del", network, "dev", "p0")
        assert select.select([watch], [], [], 0)[0]


# ---- links ----


def test_links_are_described(ns: Namespace) -> None:
    ns.ip("link", "add", "p0", "type", "veth", "peer", "name", "q0")
    ns.ip("link", "set", "p0", "address", "02:00:00:00:00:2a", "mtu", "9100")
    links = run(lambda n: n.links())
    p0 = links["p0"]
    assert p0.ifindex == ifindex(ns, "p0")
    assert (p0.mac, p0.mtu, p0.kind, p0.noarp) == ("02:00:00:00:00:2a", 9100, "veth", False)
    assert (p0.lower, p0.vlan) == (links["q0"].ifindex, 0)
    assert links["lo"].kind is None


def test_a_vlan_interface_is_described() -> None:
    """From bytes as the kernel sends them: not every kernel has VLAN interfaces."""
    vlan = {"attrs": [("IFLA_INFO_KIND", "vlan"), ("IFLA_INFO_DATA", {"attrs": [("IFLA_VLAN_ID", 7)]})]}
    sent = ifinfmsg()
    sent["index"], sent["flags"] = 9, 0x10041  # RUNNING, LOWER_UP, UP
    sent["attrs"] = [("IFLA_IFNAME", "p0.7"), ("IFLA_LINK", 3), ("IFLA_MTU", 9100), ("IFLA_LINKINFO", vlan)]
    sent.encode()
    received = ifinfmsg(sent.data)
    received.decode()
    link = read_link(received)
    assert (link.name, link.ifindex, link.kind, link.lower, link.vlan) == ("p0.7", 9, "vlan", 3, 7)
    assert link.up


def test_a_link_is_up_only_when_enabled_and_with_carrier(ns: Namespace) -> None:
    ns.ip("link", "add", "p0", "type", "veth", "peer", "name", "q0")
    for p, q, enabled, up in (
        ("down", "down", False, False),
        ("up", "down", True, False),
        ("up", "up", True, True),
        ("down", "up", False, False),
    ):
        ns.ip("link", "set", "p0", p)
        ns.ip("link", "set", "q0", q)
        link = run(lambda n: n.links())["p0"]
        assert (link.enabled, link.up) == (enabled, up)


@pytest.mark.parametrize(
    ("change", "up"),
    [
        (("link", "set", "p0", "mtu", "8000"), True),
        (("link", "set", "q0", "down"), False),  # the carrier
        (("link", "set", "p0", "down"), False),
        (("link", "del", "p0"), None),
        (("neigh", "add", GATEWAY, "lladdr", "02:00:00:00:00:05", "dev", "p0"), None),
        (("addr", "add", "fd10::5/128", "dev", "p0", "nodad"), None),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else str(x),
)
def test_changes_of_links_neighbours_and_addresses_are_seen(
    ns: Namespace, change: tuple[str, ...], up: bool | None
) -> None:
    """`up` says whether a link has a carrier; None: not an event of a link, or the link is gone."""
    ns.ip("link", "add", "p0", "type", "veth", "peer", "name", "q0")
    for name in ("p0", "q0"):  # nothing that comes by itself
        ns.ip("link", "set", name, "addrgenmode", "none")
        ns.ip("link", "set", name, "up")

    async def work(n: Netlink) -> None:
        events = n.watch()
        await anext(events)  # listening
        ns.ip(*change)
        async with asyncio.timeout(2):
            seen = await anext(events)
            while up is not None and (seen.ifindex, seen.up) != (p0, up):
                seen = await anext(events)
        neighbour = Neighbour(p0, GATEWAY, "02:00:00:00:00:05") if change[0] == "neigh" else None
        assert seen.neighbour == neighbour
        await events.aclose()  # type: ignore[attr-defined]

    p0 = ifindex(ns, "p0")
    run(work)


# ---- addresses ----


def test_addresses_are_added_once_and_others_stay(ns: Namespace) -> None:
    mrc0, _ = ensure()
    ns.ip("addr", "add", "192.0.2.1/24", "dev", "mrc0")

    def shown() -> dict[str, Any]:
        return {a["local"]: a for link in ns.json("addr", "show", "dev", "mrc0") for a in link["addr_info"]}

    for _ in range(2):
        run(lambda n: n.sync_addresses(mrc0, ["10.99.0.1", "10.99.0.9", "fd00:99::1"], lambda _: False))
        assert {k: a["prefixlen"] for k, a in shown().items()} == {
            "192.0.2.1": 24, "10.99.0.1": 32, "10.99.0.9": 32, "fd00:99::1": 128,
        }  # fmt: skip
    run(lambda n: n.sync_addresses(mrc0, [], lambda _: False))
    assert len(shown()) == 4


def test_unwanted_addresses_of_mrcd_are_removed(ns: Namespace) -> None:
    mrc0, _ = ensure()
    run(lambda n: n.sync_addresses(mrc0, ["10.99.0.1", "10.98.0.1", "fd00:99::1"], lambda _: False))
    run(lambda n: n.sync_addresses(mrc0, ["10.99.0.2"], lambda a: a.startswith("10.99.")))
    left = {a["local"] for a in ns.json("addr", "show", "dev", "mrc0")[0]["addr_info"]}
    assert left == {"10.99.0.2", "10.98.0.1", "fd00:99::1"}


def test_addresses_keep_their_order(ns: Namespace) -> None:
    mrc0, _ = ensure()
    wanted = [f"10.99.0.{i}" for i in (5, 3, 9, 1, 7)]
    run(lambda n: n.sync_addresses(mrc0, wanted, lambda _: False))
    assert [a["local"] for a in ns.json("addr", "show", "dev", "mrc0")[0]["addr_info"]] == wanted


def test_an_address_of_another_prefix_length_counts_as_present(ns: Namespace, nics: tuple[int, int]) -> None:
    ns.ip("addr", "add", "fd10::1/64", "dev", "p0", "nodad")
    run(lambda n: n.sync_addresses(nics[0], ["fd10::1"], lambda _: True))
    found = ns.json("addr", "show", "dev", "p0")[0]["addr_info"]
    assert [a["prefixlen"] for a in found if a.get("local") == "fd10::1"] == [64]


def test_an_address_of_another_interface_does_not_count(ns: Namespace, nics: tuple[int, int]) -> None:
    async def work(n: Netlink) -> None:
        for nic in nics:
            await n.sync_addresses(nic, ["fd10::1", "10.1.1.1"], lambda _: False)

    run(work)
    for name in ("p0", "p1"):
        shown = {a["local"]: a for a in ns.json("addr", "show", "dev", name)[0]["addr_info"] if a["scope"] == "global"}
        assert shown.keys() == {"fd10::1", "10.1.1.1"}
        assert "tentative" not in shown["fd10::1"]  # usable at once, without duplicate address detection


def test_an_address_on_a_removed_interface_is_an_error(ns: Namespace) -> None:
    with pytest.raises(KernelError, match=r"add address fd10::1: .*ENODEV"):
        run(lambda n: n.sync_addresses(4711, ["fd10::1"], lambda _: False))


# ---- first hops ----


@pytest.fixture
def far(ns: Namespace) -> Iterator[Namespace]:
    """A namespace for the other end of a link."""
    namespace = Namespace()
    try:
        namespace.ip("link", "set", "lo", "up")
        yield namespace
    finally:
        namespace.close()


@pytest.fixture
def plane(ns: Namespace, far: Namespace) -> int:
    """p0, linked to a T0 in the far namespace which has the gateway's address. Returns p0's number."""
    ns.ip("link", "add", "p0", "type", "veth", "peer", "name", "t0")
    with ns.inside():
        subprocess.run(
            ["ip", "link", "set", "t0", "netns", f"/proc/self/fd/{far.fd}"], pass_fds=[far.fd], check=True, timeout=10
        )
    far.ip("link", "set", "t0", "address", "02:00:00:00:00:f0")
    far.ip("addr", "add", f"{GATEWAY}/64", "dev", "t0", "nodad")
    with far.inside():
        Path("/proc/sys/net/ipv6/conf/t0/ndisc_notify").write_text("1")
    far.ip("link", "set", "t0", "up")
    ns.ip("link", "set", "p0", "up")
    ns.ip("addr", "add", "fe80::2/64", "dev", "p0", "nodad")
    return ifindex(ns, "p0")


async def resolved(netlink: Netlink, plane: int, mac: str) -> None:
    async def check() -> bool:
        return await netlink.neighbours(GATEWAY) == {plane: mac}

    await eventually(f"{GATEWAY} is at {mac}", check)


def test_the_kernel_resolves_a_first_hop_and_keeps_it(ns: Namespace, plane: int) -> None:
    async def work(n: Netlink) -> None:
        assert await n.neighbours(GATEWAY) == {}
        await n.keep_resolved(plane, GATEWAY)
        await resolved(n, plane, "02:00:00:00:00:f0")
        await n.keep_resolved(plane, GATEWAY)  # asked again it stays
        await resolved(n, plane, "02:00:00:00:00:f0")

    run(work)
    (entry,) = [e for e in ns.json("-d", "-6", "neigh", "show", "dev", "p0") if e["dst"] == GATEWAY]
    assert entry["lladdr"] == "02:00:00:00:00:f0"
    assert "managed" in ns.ip("-d", "-6", "neigh", "show", "dev", "p0")


def test_a_first_hop_that_appears_later_is_found(ns: Namespace, far: Namespace, plane: int) -> None:
    far.ip("link", "set", "t0", "down")

    async def work(n: Netlink) -> None:
        await n.keep_resolved(plane, GATEWAY)
        assert await n.neighbours(GATEWAY) == {}
        far.ip("link", "set", "t0", "up")
        far.ip("addr", "replace", f"{GATEWAY}/64", "dev", "t0", "nodad")
        await n.keep_resolved(plane, GATEWAY)
        await resolved(n, plane, "02:00:00:00:00:f0")

    run(work)


def test_a_first_hop_that_was_replaced_is_followed(ns: Namespace, far: Namespace, plane: int) -> None:
    async def work(n: Netlink) -> None:
        await n.keep_resolved(plane, GATEWAY)
        await resolved(n, plane, "02:00:00:00:00:f0")
        far.ip("link", "set", "t0", "address", "02:00:00:00:00:f1")
        await resolved(n, plane, "02:00:00:00:00:f1")

    run(work)


def test_neighbours_are_read_by_address(ns: Namespace, nics: tuple[int, int]) -> None:
    ns.ip("neigh", "add", "fe80::9", "lladdr", "02:00:00:00:00:09", "dev", "p0")
    ns.ip("neigh", "add", GATEWAY, "lladdr", "02:00:00:00:00:01", "dev", "p0")
    ns.ip("neigh", "add", GATEWAY, "lladdr", "02:00:00:00:00:02", "dev", "p1", "nud", "stale")
    found = run(lambda n: n.neighbours(GATEWAY))
    assert found == {nics[0]: "02:00:00:00:00:01", nics[1]: "02:00:00:00:00:02"}
    ns.ip("neigh", "change", GATEWAY, "dev", "p0", "nud", "failed")
    assert run(lambda n: n.neighbours(GATEWAY)) == {nics[1]: "02:00:00:00:00:02"}


# ---- the overlay's veth ----


def test_the_overlay_s_veth(ns: Namespace) -> None:
    ensure()
    for name, other in (("mrc0", "pmrc0"), ("pmrc0", "mrc0")):
        (link,) = ns.json("-d", "link", "show", name)
        assert link["link"] == other
        assert {"UP", "LOWER_UP", "NOARP"} <= set(link["flags"])
        assert (link["mtu"], link["gso_max_size"], link["inet6_addr_gen_mode"]) == (9020, 65455, "none")
        assert ns.json("-6", "addr", "show", "dev", name)[0:1] in ([], [{}])  # no link-local address, no solicitations


@pytest.mark.parametrize("queues", [1, 2, 5])
def test_the_veth_has_the_queues_and_rps_cpus_that_are_set(ns: Namespace, queues: int) -> None:
    mask = Path("/proc/sys/net/core/rps_default_mask")
    if not mask.exists():
        pytest.skip("this kernel has no rps_default_mask (Linux 6.3)")
    before = mask.read_text()
    veth = {"mtu": 9020, "gso_max_size": 65455}
    link, _ = run(lambda n: n.ensure_veth("mrc0", "pmrc0", **veth, queues=queues, rps_cpus={0, 1}))
    assert link.alias == made_with(queues, {0, 1})
    assert mask.read_text() == before
    # sysfs shows the network namespace of the process that mounts it.
    queues_of = "for end in mrc0 pmrc0; do grep -H . $end/queues/rx-*/rps_cpus; ls $end/queues; done"
    show = f"mount -t sysfs sysfs /sys; cd /sys/class/net; {queues_of}"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", show], capture_output=True, text=True, check=True)
    masks = dict(line.split(":") for line in done.stdout.splitlines() if "rps_cpus" in line)
    files = {f"{name}/queues/rx-{i}/rps_cpus" for name in ("mrc0", "pmrc0") for i in range(queues)}
    assert {file: rps.parse_mask(text) for file, text in masks.items()} == {file: {0, 1} for file in files}
    assert done.stdout.split().count(f"tx-{queues - 1}") == 2
    assert f"tx-{queues}" not in done.stdout
    again, _ = run(lambda n: n.ensure_veth("mrc0", "pmrc0", **veth, queues=queues + 1, rps_cpus={0}))
    assert again == link


@pytest.mark.parametrize("up", ["up", "down"])
def test_interfaces_of_an_earlier_version_get_their_present_names(ns: Namespace, up: str) -> None:
    for former, peer in (("mrc0", "mrc0p"), ("mrc0b", "mrc0bp")):
        ns.ip("link", "add", former, "type", "veth", "peer", "name", peer)
        for end in (former, peer):
            ns.ip("link", "set", end, up)

    async def names(n: Netlink) -> dict[str, int]:
        return {name: link.ifindex for name, link in (await n.links()).items() if "mrc0" in name}

    async def rename(n: Netlink) -> None:
        for former, now in former_names("mrc0"):
            await n.rename_veth(former, now)

    before = run(names)
    run(rename)
    after = run(names)
    present = {"mrc0": "mrc0", "mrc0p": "pmrc0", "mrc0b": "tmrc0", "mrc0bp": "tpmrc0"}
    assert after == {present[name]: ifindex for name, ifindex in before.items()}
    run(rename)  # nothing is left to rename
    link, peer_link = run(lambda n: n.ensure_veth("mrc0", "pmrc0", mtu=9020, gso_max_size=65455))
    assert (link.ifindex, peer_link.ifindex, peer_link.up) == (before["mrc0"], before["mrc0p"], True)


def test_an_interface_of_another_with_a_former_name_is_not_renamed(ns: Namespace) -> None:
    ns.ip("link", "add", "mrc0p", "type", "veth", "peer", "name", "other")
    run(lambda n: n.rename_veth(*former_names("mrc0")[0]))
    assert "mrc0p" in run(lambda n: n.links())


@pytest.mark.parametrize(
    "change",
    [("mrc0", "down"), ("pmrc0", "down"), ("mrc0", "mtu", "1400"), ("pmrc0", "mtu", "1400"), ("mrc0", "arp", "on")],
)
def test_a_veth_is_made_once_and_repaired_after_a_change(ns: Namespace, change: tuple[str, ...]) -> None:
    first = ensure()
    before = ns.json("-d", "link", "show")
    assert (ensure(), ns.json("-d", "link", "show")) == (first, before)
    ns.ip("link", "set", *change)
    assert ensure() == first
    for name in ("mrc0", "pmrc0"):
        (link,) = ns.json("link", "show", name)
        assert link["mtu"] == 9020
        assert {"UP", "LOWER_UP", "NOARP"} <= set(link["flags"])


def test_a_new_mtu_is_set(ns: Namespace) -> None:
    first = ensure()
    assert ensure(mtu=8964, gso_max_size=65399) == first
    for name in ("mrc0", "pmrc0"):
        (link,) = ns.json("-d", "link", "show", name)
        assert (link["mtu"], link["gso_max_size"]) == (8964, 65399)


@pytest.mark.parametrize(
    "links",
    [
        ["mrc0 type bridge"],
        ["mrc0 type bridge", "pmrc0 type bridge"],
        ["mrc0 type veth peer name other"],
        ["mrc0 type veth peer name a", "pmrc0 type veth peer name b"],
    ],
    ids=["bridge", "bridges", "veth", "veths"],
)
def test_an_existing_interface_of_another_program_is_refused(ns: Namespace, links: list[str]) -> None:
    for link in links:
        ns.ip("link", "add", *link.split())
    before = ns.json("-d", "link", "show")
    with pytest.raises(MachineError) as caught:
        ensure()
    assert "mrc0 exists" in str(caught.value)
    assert caught.value.hint is not None
    assert "overlay.interface" in caught.value.hint
    assert ns.json("-d", "link", "show") == before


def test_a_refused_mtu_is_an_error(ns: Namespace) -> None:
    with pytest.raises(KernelError, match="MTU 70000"):
        ensure(mtu=70000)


# ---- offloads ----

SEGMENTATION = ("tx-generic-segmentation", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation")
GROUPS = {"generic-segmentation-offload": "tx-generic-segmentation"}  # ethtool's name of the feature


def features(ns: Namespace, name: str) -> dict[str, str]:
    """Returns offloads as ethtool shows them: "on", "off", "off [fixed]", …"""
    with ns.inside():
        shown = subprocess.run(["ethtool", "-k", name], capture_output=True, text=True, check=True, timeout=10).stdout
    pairs = [line.strip().split(": ") for line in shown.splitlines()[1:]]
    return {GROUPS.get(key, key): value for key, value in pairs}


def test_only_the_requested_offloads_change(ns: Namespace) -> None:
    ensure()
    before = features(ns, "mrc0")
    assert {before[f] for f in SEGMENTATION} == {"on"}
    for _ in range(2):
        set_offload("mrc0", dict.fromkeys(SEGMENTATION, False))
        now = features(ns, "mrc0")
        assert {now[f].split()[0] for f in SEGMENTATION} == {"off"}
        changed = {f for f in before if before[f] != now[f]}
        assert changed >= set(SEGMENTATION)
        assert all("segmentation" in f for f in changed)  # the kernel changes related features too
    assert features(ns, "pmrc0") == before
    set_offload("mrc0", dict.fromkeys(SEGMENTATION, True))
    assert features(ns, "mrc0") == before


def test_unknown_offloads_are_no_error(ns: Namespace) -> None:
    ensure()
    set_offload("mrc0", {"tx-quantum-segmentation": False, "tx-tcp-segmentation": False})
    assert features(ns, "mrc0")["tx-tcp-segmentation"] == "off"


def test_a_fixed_offload_with_the_wanted_value_is_no_error(ns: Namespace) -> None:
    assert features(ns, "lo")["loopback"] == "on [fixed]"
    set_offload("lo", {"loopback": True})


def test_offloads_of_a_missing_interface_are_an_error(ns: Namespace) -> None:
    with pytest.raises(KernelError, match=r"offloads of none0: .*ENODEV"):
        set_offload("none0", {"tx-tcp-segmentation": False})


def test_an_offload_that_the_driver_refuses_is_named(ns: Namespace) -> None:
    with pytest.raises(MachineError, match="lo"):
        set_offload("lo", {"loopback": False})


# ---- pacing ----


def test_paced_packets_leave_one_by_one(ns: Namespace) -> None:
    """A token bucket is made once, and again for another rate, or after it was removed."""
    ensure()

    def paced(packet: int) -> tuple[str, int]:
        async def work(n: Netlink) -> None:
            await n.ensure_paced((await n.links())["pmrc0"], packet, 1_000_000)

        run(work)
        shown = subprocess.run(
            ["tc", "-j", "qdisc", "show", "dev", "pmrc0"], capture_output=True, check=True, timeout=10
        )
        (found,) = json.loads(shown.stdout)
        assert found["kind"] == "tbf"
        return found["handle"], found["options"]["rate"]

    first = paced(318)
    assert first[1] == 318_000
    assert paced(318) == first
    assert paced(406)[1] == 406_000
    subprocess.run(["tc", "qdisc", "del", "dev", "pmrc0", "root"], check=True, timeout=10)
    assert paced(406)[1] == 406_000


def test_pacing_a_missing_interface_is_an_error(ns: Namespace) -> None:
    with pytest.raises(KernelError, match="pace gone"):
        run(lambda n: n.ensure_paced(Link("gone", 99, "", True, True, 1500, "veth", None, 0, True), 318, 1_000_000))
