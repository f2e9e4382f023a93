# SPDX-License-Identifier: BSD-2-Clause
"""Tests the reconciliation of routes: missing ones are written, unwanted ones of mrcd removed, others kept."""

from typing import Any

import pytest

from mrcd.errors import KernelError
from mrcd.net.messages import PROTOCOL, Hop, Route
from tests.packet.wires import Namespace
from tests.packet.witness import GATEWAY, as_root, mine, run, sync

pytestmark = as_root


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
