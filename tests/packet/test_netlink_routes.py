# SPDX-License-Identifier: BSD-2-Clause
"""Tests the routes that mrcd writes by netlink, as iproute2 shows them, and what it makes of those that are there."""

import asyncio
import contextlib
import gc
import os
import select
import socket
import threading
from typing import Any

import pytest

from mrcd.errors import KernelError
from mrcd.kernel import libbpf
from mrcd.net.messages import PROTOCOL, Hop, Route
from mrcd.net.netlink import Netlink
from mrcd.net.route_keeper import RouteKeeper, RouteWatch
from mrcd.net.routes import BEHIND_MRC0
from tests.packet.wires import Namespace, create_array
from tests.packet.witness import GATEWAY, as_root, ensure, mine, run, sync, sync_on

pytestmark = as_root


# ---- routes ----


families = pytest.mark.parametrize(
    ("family", "dst", "gateway", "source"),
    [("-4", "10.99.0.3/32", None, "10.99.0.1"), ("-6", "fd00:99::3/128", GATEWAY, "fd00:99::1")],
    ids=["ipv4", "ipv6"],
)


@families
def test_hops_of_a_fallback_route_are_segment_lists_in_travel_order(
    ns: Namespace, nics: tuple[int, int], family: str, dst: str, gateway: str | None, source: str
) -> None:
    lists = (
        ("5f00:0:4000::", "5f00:0:8001::", "5f00:0:c001:e006::"),
        ("5f00:0:4000:8002:4001:c000:e006:0",),
        ("5f00:0:4800::", "5f00:0:cc01:e006::"),
    )
    hops = tuple(Hop(nics[n == 2], gateway, segments) for n, segments in enumerate(lists))
    assert sync(Route(dst, 4000, hops, 9020, 300, source)) == [f"added {dst} metric 4000"]
    (route,) = mine(ns, family).values()
    assert [(h["encap"], h["mode"], h["segs"], h.get("gateway"), h["dev"]) for h in route["nexthops"]] == [
        ("seg6", "encap.red", list(segments), gateway, f"p{int(n == 2)}") for n, segments in enumerate(lists)
    ]
    assert {h["weight"] for h in route["nexthops"]} == {1}  # every EV the same share
    assert (route["metrics"], route["prefsrc"]) == ([{"mtu": 9020, "reordering": 300}], source)


@families
def test_no_acknowledgement_is_kept_after_its_answer(
    ns: Namespace, nics: tuple[int, int], family: str, dst: str, gateway: str | None, source: str
) -> None:
    def held() -> int:
        """Returns what all queues of this process hold: some of earlier tests may still exist."""
        return sum(queue.qsize() for queue in gc.get_objects() if isinstance(queue, asyncio.Queue))

    async def kept(netlink: Netlink) -> int:
        gc.collect()
        before = held()
        for n in range(5):
            await netlink.write_route(Route(dst, 4000, (Hop(nics[n % 2], gateway),)), "replace")
            assert (await netlink.way_to(dst.partition("/")[0], None)).interface == f"p{n % 2}"
        return held() - before

    assert run(kept) == 0


@families
def test_a_route_with_a_single_hop(
    ns: Namespace, nics: tuple[int, int], family: str, dst: str, gateway: str | None, source: str
) -> None:
    sync(Route(dst, 4000, (Hop(nics[1], gateway, ("5f00:0:1::", "5f00:0:2::")),)))
    (route,) = mine(ns, family).values()
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


@pytest.mark.parametrize("dst", ["10.99.0.3/32", "fd00:98::/64"])
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


@families
def test_the_route_with_the_most_hops_is_written(
    ns: Namespace, nics: tuple[int, int], family: str, dst: str, gateway: str | None, source: str
) -> None:
    """256 EVs of four segments each: 31 kB of attributes, and the kernel's dumps have room for 32."""
    hops = tuple(
        Hop(nics[i % 2], gateway, ("5f00:0:4000::", f"5f00:0:{0x8000 + i:x}::", "5f00:0:4001::", "5f00:0:c000:e006::"))
        for i in range(256)
    )
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


def test_routes_are_written_while_others_take_memory_per_cpu(ns: Namespace, nics: tuple[int, int]) -> None:
    hops = tuple(Hop(nics[i % 2], None, (f"5f00:0:4000:{0x8000 + i:x}:4001:c000:e004:0",)) for i in range(256))
    routes = [Route(f"10.99.{n}.0/24", 4000, hops) for n in range(30)]
    is_over, made = threading.Event(), 0

    def make_maps() -> None:
        nonlocal made
        entries = 4000 // libbpf.possible_cpus()
        while not is_over.is_set():
            with contextlib.ExitStack() as maps:
                for _ in range(8):
                    maps.callback(os.close, create_array(1024, entries, per_cpu=True))
                    made += 1

    maps = threading.Thread(target=make_maps)
    maps.start()
    try:
        assert len(sync(*routes)) == len(routes)
    finally:
        is_over.set()
        maps.join()
    assert made > 8


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


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("network", ["10.99.0.3/32", "fd00:99::3/128"])
def test_a_route_that_another_program_has_replaced_is_taken_back(
    ns: Namespace, nics: tuple[int, int], network: str, is_restarted: bool
) -> None:
    route = Route(network, 100, (Hop(nics[0]),))
    if is_restarted:
        sync(route)

    async def take_back(netlink: Netlink) -> list[str]:
        keeper = RouteKeeper(netlink)
        await keeper.read_routes()
        await keeper.set_routes(0, [route])
        ns.ip("route", "replace", network, "dev", "p1", "metric", "100", "proto", "static")
        await keeper.read_routes()
        return await keeper.set_routes(0, [route])

    assert run(take_back) == [f"took back {network} metric 100"]
    (left,) = ns.json("route", "show", network) if "." in network else ns.json("-6", "route", "show", network)
    assert (left["dev"], left["protocol"]) == ("p0", str(PROTOCOL))


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


def test_routes_stay_when_the_carrier_goes_and_are_restored_after_their_interface(
    ns: Namespace, nics: tuple[int, int]
) -> None:
    route = Route("5f00:0:4000::/48", 1024, (Hop(nics[0], GATEWAY),))
    sync(route)
    ns.ip("link", "set", "p0-far", "down")
    assert (sync(route), run(lambda n: n.links())["p0"].up) == ([], False)
    ns.ip("link", "set", "p0", "down")
    assert mine(ns) == {}
    ns.ip("link", "set", "p0", "up")
    assert sync(route) == ["added 5f00:0:4000::/48 metric 1024"]


@pytest.mark.parametrize("family", ["-4", "-6"])
def test_rules_are_reported(ns: Namespace, family: str) -> None:
    with RouteWatch() as watch:
        for verb in ("add", "del"):
            ns.ip(family, "rule", verb, "pref", "100", "lookup", "99")
            assert watch.drain() == (0, 1)


@pytest.mark.parametrize("network", ["10.9.0.0/24", "fd09::/64"])
def test_only_deletions_and_replacements_of_routes_of_mrcd_are_reported(
    ns: Namespace, nics: tuple[int, int], network: str
) -> None:
    with RouteWatch() as watch:
        for protocol in ("static", "77"):
            ns.ip("route", "add", network, "dev", "p0", "proto", protocol)
            assert watch.drain() == (0, 0)
            ns.ip("route", "del", network, "dev", "p0")
            assert watch.drain() == (protocol == "77", 0)
        ns.ip("route", "add", network, "dev", "p0", "proto", "77")
        ns.ip("route", "del", network, "dev", "p0")
        assert select.select([watch], [], [], 0)[0]
        assert watch.drain() == (1, 0)
        for protocol in ("77", "static", "77"):
            ns.ip("route", "replace", network, "dev", "p0", "proto", protocol)
            assert watch.drain() == (protocol == "static", 0)
