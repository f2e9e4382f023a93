# SPDX-License-Identifier: BSD-2-Clause
"""Tests the ownership of routes and routes that the kernel refuses, over an emulated kernel."""

import asyncio
import errno
from dataclasses import replace
from typing import Any, cast

import pytest

from mrcd.daemon.peer_routes import AT_ONCE, PeerRoutes
from mrcd.errors import KernelError
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


ROWS = range(1, 9)


class Refusing(Kernel):
    """Another program has the route of row 2, until it does not."""

    refuses = True

    async def write_route(self, route: Route, verb: str) -> None:
        if self.refuses and route.dst == "10.0.0.2/32":
            raise KernelError("write route 10.0.0.2/32", errno.EEXIST)
        await super().write_route(route, verb)


def of_rows(rows: set[int]) -> set[tuple[str, int]]:
    return {route(n).key for n in rows}


@pytest.mark.parametrize("how", ["changed", "all"])
def test_the_routes_of_other_peers_are_written_and_old_ones_deleted(how: str) -> None:
    rows = range(1, 3 * AT_ONCE)

    async def write() -> None:
        kernel, written = Refusing(route(9999)), list[int]()
        routes = PeerRoutes(
            cast(Netlink, kernel), lambda row: [route(row)], lambda row, _: written.append(row), lambda: None
        )

        async def write_all() -> None:
            if how == "all":
                await routes.write_all(rows)
            while how == "changed" and await routes.write_changed():
                pass

        for _ in range(2):
            routes.mark_all(rows)
            with pytest.raises(KernelError, match=r"10\.0\.0\.2"):
                await write_all()
            assert kernel.have.keys() == of_rows({*rows} - {2})
        assert 2 not in written
        kernel.refuses = False
        routes.mark_all(rows)
        await write_all()
        assert kernel.have.keys() == of_rows({*rows})

    asyncio.run(write())


def test_the_older_route_of_a_peer_stays_until_its_new_one_is_written() -> None:
    async def write() -> None:
        kernel = Refusing(replace(route(2), metric=50))
        routes = PeerRoutes(cast(Netlink, kernel), lambda row: [route(row)], lambda *_: None, lambda: None)
        routes.mark_all(ROWS)
        with pytest.raises(KernelError):
            await routes.write_changed()
        assert ("10.0.0.2/32", 50) in kernel.have
        kernel.refuses = False
        routes.mark_all(ROWS)
        assert not await routes.write_changed()
        assert kernel.have.keys() == of_rows({*ROWS})

    asyncio.run(write())
