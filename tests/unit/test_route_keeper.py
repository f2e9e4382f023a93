# SPDX-License-Identifier: BSD-2-Clause
"""Tests the ownership of routes, over an emulated kernel."""

import asyncio
from typing import Any, cast

from mrcd.net.messages import Hop, Route
from mrcd.net.netlink import Netlink
from mrcd.net.route_keeper import RouteKeeper


class Kernel:
    """Routes by (destination, metric)."""

    def __init__(self, *routes: Route) -> None:
        self.have = {r.key: r for r in routes}

    async def routes(self) -> dict[Any, Route]:
        return dict(self.have)

    async def write_route(self, route: Route, verb: str) -> None:
        assert (verb == "add") == (route.key not in self.have)
        self.have[route.key] = route

    async def delete_route(self, route: Route) -> None:
        del self.have[route.key]


def route(n: int, oif: int = 1) -> Route:
    return Route(dst=f"10.0.0.{n}/32", metric=100, hops=(Hop(oif),))


def test_unwanted_routes_are_deleted_except_those_of_another_owner() -> None:
    async def keep() -> list[str]:
        kernel = Kernel(route(8), route(1, 7))
        keeper = RouteKeeper(cast(Netlink, kernel))
        await keeper.read_routes()
        await keeper.set_routes(1, [route(1), route(2)])
        await keeper.set_routes(2, [route(3)])
        keeper.forget(1)
        await keeper.set_routes(4, [route(2)])
        await keeper.set_routes(4, [route(2), route(5)])
        await keeper.read_routes()
        changes = await keeper.remove_others()
        assert kernel.have.keys() == {route(n).key for n in (2, 3, 5)}
        assert await keeper.remove_others() == []
        return sorted(changes)

    assert asyncio.run(keep()) == ["removed 10.0.0.1/32 metric 100", "removed 10.0.0.8/32 metric 100"]
