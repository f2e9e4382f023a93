"""Netlink against this kernel, in network namespaces of the test's own; iproute2 is the independent witness."""

import asyncio
import contextlib
import ctypes
import json
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from mrcd.errors import KernelError, MachineError
from mrcd.netlink import PROTOCOL, Hop, Netlink, Route, _link, set_offload

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it writes routes into a network namespace of its own"),
]

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
GATEWAY = "fe80::1"
HERE = Path("/proc/thread-self/ns/net")


# ---- namespaces ----


def _call(name: str, *args: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


class Namespace:
    """A network namespace without a name: it ends with its last descriptor."""

    def __init__(self) -> None:
        home = os.open(HERE, os.O_RDONLY)
        try:
            _call("unshare", CLONE_NEWNET)
            self.fd = os.open(HERE, os.O_RDONLY)
        finally:
            _call("setns", home, CLONE_NEWNET)
            os.close(home)
        self.ip("link", "set", "lo", "up")

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is in the namespace, and so is what it starts."""
        home = os.open(HERE, os.O_RDONLY)
        try:
            _call("setns", self.fd, CLONE_NEWNET)
            yield
        finally:
            _call("setns", home, CLONE_NEWNET)
            os.close(home)

    def ip(self, *args: str) -> str:
        """iproute2 in there."""
        with self.inside():
            return subprocess.run(["ip", *args], capture_output=True, text=True, check=True, timeout=10).stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.ip("-j", *args) or "[]")

    def sysctl(self, key: str, value: str) -> None:
        with self.inside():
            Path("/proc/sys/net", key).write_text(value)

    def close(self) -> None:
        os.close(self.fd)


def _sockets() -> int:
    """Open sockets and namespaces of this process: either keeps a namespace alive."""
    kept = 0
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # iterdir's own
            kept += str(fd.readlink()).startswith(("socket:", "net:"))
    return kept


def _machine() -> tuple[str, list[str]]:
    """Where this thread is, and the routes there that are mrcd's. (Links come and go with other tests.)"""
    shown = [
        subprocess.run(
            ["ip", family, "route", "show", "proto", str(PROTOCOL)],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout
        for family in ("-4", "-6")
    ]
    return str(HERE.readlink()), shown


@pytest.fixture
def ns() -> Iterator[Namespace]:
    """The test runs in a namespace of its own; afterwards nothing of it is left."""
    before, sockets = _machine(), _sockets()
    namespace = Namespace()
    try:
        with namespace.inside():
            yield namespace
    finally:
        namespace.close()
    assert _machine() == before
    assert _sockets() <= sockets


@pytest.fixture
def far(ns: Namespace) -> Iterator[Namespace]:
    """The other side of a link."""
    namespace = Namespace()
    try:
        yield namespace
    finally:
        namespace.close()


def run(work: Callable[[Netlink], Awaitable[T]]) -> T:
    """Do something with an open Netlink, in at most ten seconds."""

    async def bounded() -> T:
        async with asyncio.timeout(10), Netlink() as netlink:
            return await work(netlink)

    return asyncio.run(bounded())


async def eventually(what: str, check: Callable[[], Awaitable[object]], limit_s: float = 5) -> None:
    deadline = time.monotonic() + limit_s
    while not await check():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        await asyncio.sleep(0.01)


def sync(*routes: Route) -> list[str]:
    return run(lambda n: n.sync_routes(routes))


def ifindex(ns: Namespace, name: str) -> int:
    return int(ns.json("link", "show", name)[0]["ifindex"])


@pytest.fixture
def nics(ns: Namespace) -> tuple[int, int]:
    """p0 and p1, up, with addresses of the host. Returns their numbers."""
    for name in ("p0", "p1"):
        ns.ip("link", "add", name, "type", "veth", "peer", "name", f"{name}-far")
        ns.ip("link", "set", f"{name}-far", "up")
        ns.ip("link", "set", name, "up", "mtu", "9100")
    ns.ip("addr", "add", "10.99.0.1/32", "dev", "lo")
    ns.ip("addr", "add", "fd00:99::1/128", "dev", "lo", "nodad")
    return ifindex(ns, "p0"), ifindex(ns, "p1")


def mine(ns: Namespace, family: str = "-6") -> dict[str, Any]:
    """What iproute2 shows of the routes with mrcd's protocol number: destination → route."""
    routes = ns.json(family, "route", "show", "proto", str(PROTOCOL))
    return {f"{r['dst']} {r.get('metric')}": r for r in routes}


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
def test_a_single_hop(ns: Namespace, nics: tuple[int, int], family: str, dst: str, gateway: str | None) -> None:
    length = 32 if family == "-4" else 128
    sync(Route(f"{dst}/{length}", 4000, (Hop(nics[1], gateway, ("5f00:0:1::", "5f00:0:2::")),)))
    route = mine(ns, family)[f"{dst} 4000"]
    assert (route["mode"], route["segs"], route["dev"]) == ("encap.red", ["5f00:0:1::", "5f00:0:2::"], "p1")
    assert route.get("gateway") == gateway
    assert "nexthops" not in route


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
def test_any_route_can_become_any_other_and_is_then_left_alone(ns: Namespace, nics: tuple[int, int], dst: str) -> None:
    shapes = variants(nics, dst)

    # Each followed by each other one, once: an Eulerian circuit.
    order = [shape for i, a in enumerate(shapes) for b in shapes[i + 1 :] for shape in (a, b)]

    async def work(n: Netlink) -> None:
        assert await n.sync_routes([shapes[0]]) == [f"added {dst} metric 4000"]
        for after in [*order[1:], shapes[0]]:
            assert await n.sync_routes([after]) == [f"replaced {dst} metric 4000"]
            assert await n.routes() == {(dst, 4000): after}
        for shape in shapes[1:]:
            await n.sync_routes([shape])
            assert await n.sync_routes([shape]) == []
        assert await n.sync_routes([]) == [f"removed {dst} metric 4000"]
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
def test_the_widest_route_that_a_computed_plan_has(
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
        await n.sync_routes([route, other])
        assert await n.sync_routes([route, other]) == []
        assert (await n.routes())[route.key] == route
        assert await n.sync_routes([less, other]) == [f"replaced {dst} metric 4000"]
        assert len(await n.sync_routes([])) == 2

    run(work)


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


def test_other_people_s_routes_stay(ns: Namespace, nics: tuple[int, int]) -> None:
    foreign = [
        ("-4", "10.99.0.3/32", "dev", "p1", "metric", "50", "proto", "static"),
        ("-4", "10.97.0.0/24", "dev", "p1", "proto", "186"),
        ("-6", "fd00:99::3/128", "dev", "p1", "metric", "50", "proto", "static"),
        ("-6", "5f00:0:8000::/48", "via", GATEWAY, "dev", "p1", "proto", "bgp"),
        ("-6", "fd00:97::/64", "dev", "p0", "proto", str(PROTOCOL), "table", "100"),  # ours is table main alone
    ]
    for family, *route in foreign:
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
    assert len(before) >= len(foreign)
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


def test_what_an_earlier_daemon_left_is_found_and_removed(ns: Namespace, nics: tuple[int, int]) -> None:
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


def test_plain_encap_is_not_taken_for_encap_red(ns: Namespace, nics: tuple[int, int]) -> None:
    """An SRH on every packet instead of on none: it must be replaced."""
    encap = ("encap", "seg6", "mode", "encap", "segs", "5f00:0:1::")
    ns.ip("-6", "route", "add", "fd00:99::3/128", *encap, "via", GATEWAY, "dev", "p0", "metric", "4000",
          "proto", str(PROTOCOL))  # fmt: skip
    route = Route("fd00:99::3/128", 4000, (Hop(nics[0], GATEWAY, ("5f00:0:1::",)),))
    assert sync(route) == ["replaced fd00:99::3/128 metric 4000"]
    assert mine(ns)["fd00:99::3 4000"]["mode"] == "encap.red"


def test_a_route_that_the_kernel_refuses_is_an_error_that_names_it(ns: Namespace, nics: tuple[int, int]) -> None:
    with pytest.raises(KernelError) as caught:
        sync(Route("fd00:99::3/128", 100, (Hop(4711),)))
    assert "fd00:99::3/128" in str(caught.value)
    assert "ENODEV" in str(caught.value)
    assert caught.value.exit_code == 2


def test_routes_that_vanished_with_their_interface_come_back(ns: Namespace, nics: tuple[int, int]) -> None:
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
    link = _link(received)
    assert (link.name, link.ifindex, link.kind, link.lower, link.vlan) == ("p0.7", 9, "vlan", 3, 7)
    assert link.up


def test_up_needs_both_the_will_and_the_carrier(ns: Namespace) -> None:
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


def ensure(mtu: int = 9020, gso_max_size: int = 65455) -> tuple[int, int]:
    a, b = run(lambda n: n.ensure_veth("mrc0", "mrc0p", mtu=mtu, gso_max_size=gso_max_size))
    assert (a.name, b.name) == ("mrc0", "mrc0p")
    assert (a.kind, b.kind) == ("veth", "veth")
    assert a.up
    assert b.up
    return a.ifindex, b.ifindex


def test_the_overlay_s_veth(ns: Namespace) -> None:
    ensure()
    for name, other in (("mrc0", "mrc0p"), ("mrc0p", "mrc0")):
        (link,) = ns.json("-d", "link", "show", name)
        assert link["link"] == other
        assert {"UP", "LOWER_UP", "NOARP"} <= set(link["flags"])
        assert (link["mtu"], link["gso_max_size"], link["inet6_addr_gen_mode"]) == (9020, 65455, "none")
        assert ns.json("-6", "addr", "show", "dev", name)[0:1] in ([], [{}])  # no link-local address, no solicitations


def test_the_veth_is_made_once(ns: Namespace) -> None:
    first = ensure()
    before = ns.json("-d", "link", "show")
    assert ensure() == first
    assert ns.json("-d", "link", "show") == before


@pytest.mark.parametrize(
    "change",
    [("mrc0", "down"), ("mrc0p", "down"), ("mrc0", "mtu", "1400"), ("mrc0p", "mtu", "1400"), ("mrc0", "arp", "on")],
)
def test_a_veth_that_was_meddled_with_is_put_right(ns: Namespace, change: tuple[str, ...]) -> None:
    first = ensure()
    ns.ip("link", "set", *change)
    assert ensure() == first
    for name in ("mrc0", "mrc0p"):
        (link,) = ns.json("link", "show", name)
        assert link["mtu"] == 9020
        assert {"UP", "LOWER_UP", "NOARP"} <= set(link["flags"])


def test_another_mtu_is_taken_over(ns: Namespace) -> None:
    first = ensure()
    assert ensure(mtu=8964, gso_max_size=65399) == first
    for name in ("mrc0", "mrc0p"):
        (link,) = ns.json("-d", "link", "show", name)
        assert (link["mtu"], link["gso_max_size"]) == (8964, 65399)


@pytest.mark.parametrize(
    "foreign",
    [["mrc0 type bridge"], ["mrc0 type bridge", "mrc0p type bridge"], ["mrc0 type veth peer name other"]],
    ids=["bridge", "bridges", "veth"],
)
def test_an_interface_of_that_name_that_is_somebody_else_s_is_refused(ns: Namespace, foreign: list[str]) -> None:
    for link in foreign:
        ns.ip("link", "add", *link.split())
    before = ns.json("-d", "link", "show")
    with pytest.raises(MachineError) as caught:
        ensure()
    assert "mrc0 exists" in str(caught.value)
    assert caught.value.hint is not None
    assert "overlay.interface" in caught.value.hint
    assert ns.json("-d", "link", "show") == before


def test_an_mtu_that_the_kernel_refuses(ns: Namespace) -> None:
    with pytest.raises(KernelError, match="MTU 70000"):
        ensure(mtu=70000)


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


def test_an_address_of_another_interface_does_not_count(ns: Namespace, nics: tuple[int, int]) -> None:
    async def work(n: Netlink) -> None:
        for nic in nics:
            await n.sync_addresses(nic, ["fd10::1", "10.1.1.1"], lambda _: False)

    run(work)
    for name in ("p0", "p1"):
        shown = {a["local"]: a for a in ns.json("addr", "show", "dev", name)[0]["addr_info"] if a["scope"] == "global"}
        assert shown.keys() == {"fd10::1", "10.1.1.1"}
        assert "tentative" not in shown["fd10::1"]  # usable at once, without duplicate address detection


def test_an_address_on_an_interface_that_is_gone(ns: Namespace) -> None:
    with pytest.raises(KernelError, match=r"add address fd10::1: .*ENODEV"):
        run(lambda n: n.sync_addresses(4711, ["fd10::1"], lambda _: False))


# ---- neighbours ----


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
    far.sysctl("ipv6/conf/t0/ndisc_notify", "1")
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


def test_a_first_hop_that_is_not_there_yet_is_found_when_it_comes(ns: Namespace, far: Namespace, plane: int) -> None:
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


def test_neighbours_are_asked_for_by_address(ns: Namespace, nics: tuple[int, int]) -> None:
    ns.ip("neigh", "add", "fe80::9", "lladdr", "02:00:00:00:00:09", "dev", "p0")
    ns.ip("neigh", "add", GATEWAY, "lladdr", "02:00:00:00:00:01", "dev", "p0")
    ns.ip("neigh", "add", GATEWAY, "lladdr", "02:00:00:00:00:02", "dev", "p1", "nud", "stale")
    found = run(lambda n: n.neighbours(GATEWAY))
    assert found == {nics[0]: "02:00:00:00:00:01", nics[1]: "02:00:00:00:00:02"}
    ns.ip("neigh", "change", GATEWAY, "dev", "p0", "nud", "failed")
    assert run(lambda n: n.neighbours(GATEWAY)) == {nics[1]: "02:00:00:00:00:02"}


# ---- events ----


@pytest.mark.parametrize(
    "change",
    [
        ("link", "set", "p0", "mtu", "8000"),
        ("link", "set", "q0", "down"),  # the carrier
        ("link", "set", "p0", "down"),
        ("link", "del", "p0"),
        ("neigh", "add", GATEWAY, "lladdr", "02:00:00:00:00:05", "dev", "p0"),
        ("addr", "add", "fd10::5/128", "dev", "p0", "nodad"),
    ],
    ids=" ".join,
)
def test_changes_of_links_neighbours_and_addresses_are_seen(ns: Namespace, change: tuple[str, ...]) -> None:
    ns.ip("link", "add", "p0", "type", "veth", "peer", "name", "q0")
    for name in ("p0", "q0"):  # nothing that comes by itself
        ns.ip("link", "set", name, "addrgenmode", "none")
        ns.ip("link", "set", name, "up")

    async def work(n: Netlink) -> None:
        events = n.watch()
        await anext(events)  # listening
        ns.ip(*change)
        async with asyncio.timeout(2):
            await anext(events)
        await events.aclose()  # type: ignore[attr-defined]

    run(work)


# ---- offloads ----

SEGMENTATION = ("tx-generic-segmentation", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation")
GROUPS = {"generic-segmentation-offload": "tx-generic-segmentation"}  # ethtool's own word for it


def features(ns: Namespace, name: str) -> dict[str, str]:
    """Offloads as ethtool shows them: "on", "off", "off [fixed]", …"""
    with ns.inside():
        shown = subprocess.run(["ethtool", "-k", name], capture_output=True, text=True, check=True, timeout=10).stdout
    pairs = [line.strip().split(": ") for line in shown.splitlines()[1:]]
    return {GROUPS.get(key, key): value for key, value in pairs}


def test_offloads_are_switched_and_nothing_else(ns: Namespace) -> None:
    ensure()
    before = features(ns, "mrc0")
    assert {before[f] for f in SEGMENTATION} == {"on"}
    for _ in range(2):
        set_offload("mrc0", dict.fromkeys(SEGMENTATION, False))
        now = features(ns, "mrc0")
        assert {now[f].split()[0] for f in SEGMENTATION} == {"off"}
        changed = {f for f in before if before[f] != now[f]}
        assert changed >= set(SEGMENTATION)
        assert all("segmentation" in f for f in changed)  # the kernel takes their relatives along
    assert features(ns, "mrc0p") == before
    set_offload("mrc0", dict.fromkeys(SEGMENTATION, True))
    assert features(ns, "mrc0") == before


def test_offloads_that_this_kernel_does_not_know_are_no_error(ns: Namespace) -> None:
    ensure()
    set_offload("mrc0", {"tx-quantum-segmentation": False, "tx-tcp-segmentation": False})
    assert features(ns, "mrc0")["tx-tcp-segmentation"] == "off"


def test_an_offload_that_is_fixed_where_it_should_be_is_no_error(ns: Namespace) -> None:
    assert features(ns, "lo")["loopback"] == "on [fixed]"
    set_offload("lo", {"loopback": True})


def test_offloads_of_an_interface_that_is_not_there(ns: Namespace) -> None:
    with pytest.raises(KernelError, match=r"offloads of none0: .*ENODEV"):
        set_offload("none0", {"tx-tcp-segmentation": False})


def test_a_first_dump_that_would_be_cut_short_is_whole(ns: Namespace, nics: tuple[int, int]) -> None:
    hops = tuple(Hop(nics[0], None, (f"5f00:0:4000:{0x8000 + i:x}:4001:c000:e004:0",)) for i in range(128))
    wanted = [Route("10.99.0.3/32", 4000, hops), Route("10.99.0.9/32", 4000, hops[:1])]
    sync(*wanted)
    assert sync(*wanted) == []


def test_an_offload_that_the_driver_refuses_is_named(ns: Namespace) -> None:
    with pytest.raises(MachineError, match="lo"):
        set_offload("lo", {"loopback": False})


def test_halves_of_two_pairs_are_not_mrcd_s_veth(ns: Namespace) -> None:
    ns.ip("link", "add", "mrc0", "type", "veth", "peer", "name", "a")
    ns.ip("link", "add", "mrc0p", "type", "veth", "peer", "name", "b")
    with pytest.raises(MachineError, match="mrc0 exists"):
        ensure()


def test_addresses_keep_their_order(ns: Namespace) -> None:
    mrc0, _ = ensure()
    wanted = [f"10.99.0.{i}" for i in (5, 3, 9, 1, 7)]
    run(lambda n: n.sync_addresses(mrc0, wanted, lambda _: False))
    assert [a["local"] for a in ns.json("addr", "show", "dev", "mrc0")[0]["addr_info"]] == wanted


def test_a_foreign_route_of_the_same_place_is_not_overwritten(ns: Namespace, nics: tuple[int, int]) -> None:
    ns.ip("-6", "route", "add", "5f00:0:4000::/48", "dev", "p1", "metric", "1024", "proto", "static")
    with pytest.raises(KernelError, match="EEXIST"):
        sync(Route("5f00:0:4000::/48", 1024, (Hop(nics[0]),)))
    assert [r["dev"] for r in ns.json("-6", "route", "show", "proto", "static")] == ["p1"]


def test_addresses_of_ours_that_are_not_wanted_any_more_go(ns: Namespace) -> None:
    mrc0, _ = ensure()
    run(lambda n: n.sync_addresses(mrc0, ["10.99.0.1", "10.98.0.1", "fd00:99::1"], lambda _: False))
    run(lambda n: n.sync_addresses(mrc0, ["10.99.0.2"], lambda a: a.startswith("10.99.")))
    left = {a["local"] for a in ns.json("addr", "show", "dev", "mrc0")[0]["addr_info"]}
    assert left == {"10.99.0.2", "10.98.0.1", "fd00:99::1"}


def test_an_address_of_another_prefix_length_counts_as_present(ns: Namespace, nics: tuple[int, int]) -> None:
    ns.ip("addr", "add", "fd10::1/64", "dev", "p0", "nodad")
    run(lambda n: n.sync_addresses(nics[0], ["fd10::1"], lambda _: True))
    found = ns.json("addr", "show", "dev", "p0")[0]["addr_info"]
    assert [a["prefixlen"] for a in found if a.get("local") == "fd10::1"] == [64]
