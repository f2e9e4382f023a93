# SPDX-License-Identifier: BSD-2-Clause
"""Tests what mrcd makes of the routes that the kernel takes to peers: its own, another program's, none."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_interface, ip_network
from typing import cast

import pytest

from mrcd.config import cluster_file
from mrcd.daemon.peer_ways import PeerWays
from mrcd.fabric import topology
from mrcd.fabric.topology import Plan
from mrcd.net.messages import Hop, Route
from mrcd.net.netlink import Netlink
from mrcd.net.way import Way
from tests.packet.wires import Namespace, until
from tests.packet.witness import as_root, run, sync_on
from tests.unit import simulated_time
from tests.unit.diagnosed_host import text

pytestmark = as_root

OWN = {4: "10.99.0.1", 6: "fd00:99::1"}


def planned(*prefixes: str) -> Plan:
    """Returns the plan of h0 with one peer, h1, that has these prefixes."""
    file = text(t0s=2, hosts=1).replace("10.0.1.1/32", '", "'.join(prefixes))
    return topology.plan(cluster_file.parse(file.replace("10.0.0.1/32", f'{OWN[4]}/32", "{OWN[6]}/128')), "h0")


def has_local_route(ns: Namespace, at: str) -> bool:
    return f"local {at} " in ns.ip(f"-{ip_address(at).version}", "route", "show", "table", "local")


def wrong(ns: Namespace, prefix: str, *commands: str) -> Way | None:
    """Returns the way to a peer that is not mrcd's, after these ip commands; None if it is mrcd's."""
    version = ip_network(prefix).version
    repairs: list[str] = []

    async def look(netlink: Netlink) -> dict[str, Way]:
        links = await netlink.links()
        route = Route(prefix, 100, (Hop(links["p0"].ifindex),), source=OWN[version])
        await sync_on(netlink, [route, replace(route, metric=4000, hops=(Hop(links["p1"].ifindex),))])
        for command in commands:
            ns.ip(f"-{version}", *command.split())
            if command.startswith("addr add"):  # Linux adds the local route of an IPv6 address some time later
                at = str(ip_interface(command.split()[2]).ip)
                until("the address is local", partial(has_local_route, ns, at))
        plan = planned(prefix)
        ways = PeerWays(netlink, asyncio.Lock(), lambda _: [route], lambda: repairs.append("repair"))
        for _ in range(2):
            await ways.ask(lambda: plan, 16)
        return ways.wrong(plan.peers)

    found = run(look)
    assert repairs == ["repair"] * len(found)  # once: what stays wrong is not mrcd's to repair
    return found.get("h1")


@pytest.mark.parametrize("prefix", ["10.99.0.2/32", "fd00:99::2/128", "10.98.0.0/24", "fd00:98::/64"])
def test_the_way_is_mrcds(ns: Namespace, nics: tuple[int, int], prefix: str) -> None:
    assert wrong(ns, prefix) is None


CASES = {
    "a better metric": (["route add {peer} dev p1 metric 7"], "takes the route {peer} dev p1 metric 7"),
    "a longer prefix": (
        ["route add {first} dev p1 metric 200"],
        "takes the route {first} dev p1 metric 200",
    ),
    "a rule before main": (
        ["route add {wide} dev p1 table 99 metric 5", "rule add pref 9 to {wide} lookup 99"],
        "takes the route {wide} dev p1 metric 5 of table 99, to which a rule leads",
    ),
    "a rule for this host's source": (
        ["route add {wide} dev p1 table 99 metric 5", "rule add pref 9 from {own} lookup 99"],
        "takes the route {wide} dev p1 metric 5 of table 99, to which a rule leads",
    ),
    "a rule that refuses": (["rule add pref 9 to {wide} prohibit"], "refuses packets to {at} (Permission denied)"),
    "mrcd's fallback route": (["route del {peer} metric 100"], "takes the route {peer} dev p1 metric 4000"),
    "the peer's address": (["addr add {first} dev p1 nodad"], "takes {at} for an address of this host ({where})"),
}


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(("commands", "words"), CASES.values(), ids=CASES)
def test_other_ways_are_named(
    ns: Namespace, nics: tuple[int, int], version: int, commands: list[str], words: str
) -> None:
    if version == 4:
        peer, at, wide, where = "10.98.0.0/24", "10.98.0.1", "10.0.0.0/8", "p1"
    else:
        peer, at, wide, where = "fd00:98::/64", "fd00:98::1", "fd00::/16", "p1"
    names = {"peer": peer, "at": at, "first": f"{at}/{32 if version == 4 else 128}", "wide": wide, "where": where}
    names["own"] = OWN[version]
    way = wrong(ns, peer, *(c.format(**names) for c in commands))
    assert way is not None
    assert way.words == words.format(**names)
    if not way.error:
        assert " dev p1 " in ns.ip(*way.command.split()[1:]).replace("\n", " ") or way.is_local


def test_a_missing_source_is_named(ns: Namespace, nics: tuple[int, int]) -> None:
    ns.ip("addr", "add", "10.99.0.7/32", "dev", "lo")
    way = wrong(ns, "10.99.0.2/32", "addr del 10.99.0.1/32 dev lo")
    assert way is not None
    assert way.words.startswith("refuses packets to 10.99.0.2 (")


def test_peers_are_asked_by_turns(ns: Namespace, nics: tuple[int, int]) -> None:
    plan = topology.plan(cluster_file.parse(text(t0s=2, hosts=20)), "h0")
    asked: list[int] = []

    async def look(netlink: Netlink) -> None:
        ways = PeerWays(netlink, asyncio.Lock(), lambda row: asked.append(row), lambda: None)
        for _ in range(3):
            await ways.ask(lambda: plan, 16)

    run(look)
    rows = [p.host.id for p in plan.peers]
    assert asked == (rows + rows)[:48]
    assert len(rows) == 39


def test_after_a_change_all_peers_are_asked_once_and_then_one_in_each_second() -> None:
    plan = topology.plan(cluster_file.parse(text(t0s=2, hosts=100)), "h0")
    asked: list[tuple[int, float]] = []

    async def look() -> None:
        loop = asyncio.get_running_loop()
        written = lambda row: asked.append((row, loop.time()))  # noqa: E731
        ways = PeerWays(cast(Netlink, None), asyncio.Lock(), written, lambda: None)
        task = loop.create_task(ways.run(lambda: plan))
        await asyncio.sleep(10)
        for _ in range(40):  # as another program may do
            ways.ask_soon()
            await asyncio.sleep(0.1)
        await asyncio.sleep(100)
        task.cancel()

    simulated_time.run(look())
    rows = [p.host.id for p in plan.peers]
    assert sorted(row for row, _ in asked[:199]) == rows
    in_s = Counter(int(at) for _, at in asked)
    assert len(rows) == 199
    assert max(in_s.values()) <= 4 * 64
    assert [in_s[s] for s in (*range(3, 10), *range(20, 110))] == [1] * 97


def test_a_peer_that_left_is_forgotten(ns: Namespace, nics: tuple[int, int]) -> None:
    plan, route = planned("10.99.0.2/32"), Route("10.99.0.2/32", 100, (Hop(nics[0]),))

    async def look(netlink: Netlink) -> list[int]:
        ways, found = PeerWays(netlink, asyncio.Lock(), lambda _: [route], lambda: None), list[int]()
        for now in (plan, plan, replace(plan, peers=())):
            await ways.ask(lambda now=now: now, 16)  # type: ignore[misc]
            found.append(len(ways.wrong(plan.peers)))
        return found

    assert run(look) == [0, 1, 0]  # one look is not enough: it may be on the way to be repaired


@pytest.mark.parametrize("prefixes", [("10.98.0.1/32", "10.98.0.0/24"), ("10.98.0.0/16", "10.98.0.0/24")])
def test_prefixes_of_a_peer_within_others_are_no_fault(
    ns: Namespace, nics: tuple[int, int], prefixes: tuple[str, ...]
) -> None:
    plan, routes = planned(*prefixes), [Route(p, 100, (Hop(nics[0]),)) for p in prefixes]

    async def look(netlink: Netlink) -> int:
        await sync_on(netlink, routes)
        ways = PeerWays(netlink, asyncio.Lock(), lambda _: routes, lambda: None)
        for _ in range(2):
            await ways.ask(lambda: plan, 16)
        return len(ways.wrong(plan.peers))

    assert run(look) == 0


def test_a_plan_that_changes_meanwhile_ends_the_round(ns: Namespace, nics: tuple[int, int]) -> None:
    plans = [planned("10.99.0.2/32"), planned("10.99.0.3/32")]

    async def look(netlink: Netlink) -> list[int]:
        asked = list[int]()
        ways = PeerWays(netlink, asyncio.Lock(), lambda row: asked.append(row), lambda: None)
        await ways.ask(lambda: plans.pop(0), 16)
        return asked

    assert run(look) == []
