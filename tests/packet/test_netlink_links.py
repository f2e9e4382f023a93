# SPDX-License-Identifier: BSD-2-Clause
"""Tests the description of links, and the events of links, neighbours and addresses."""

import asyncio

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from mrcd.net.messages import Neighbour, read_link
from mrcd.net.netlink import Netlink
from tests.packet.wires import Namespace
from tests.packet.witness import GATEWAY, as_root, ifindex, run

pytestmark = as_root


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
