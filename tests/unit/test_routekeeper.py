"""Whose routes are whose, over a kernel that is played."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrcd import giveway
from mrcd.netlink import Netlink
from mrcd.netmessages import Hop, Route
from mrcd.routekeeper import RouteKeeper


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


def test_what_nobody_wants_any_more_is_deleted_and_what_another_owner_wants_is_not() -> None:
    async def keep() -> list[str]:
        kernel = Kernel(route(8), route(1, 7))
        keeper = RouteKeeper(cast(Netlink, kernel))
        await keeper.look()
        await keeper.want(1, [route(1), route(2)])
        await keeper.want(2, [route(3)])
        keeper.forget(1)
        await keeper.want(4, [route(2)])
        await keeper.want(4, [route(2), route(5)])
        await keeper.look()
        changes = await keeper.remove_others()
        assert kernel.have.keys() == {route(n).key for n in (2, 3, 5)}
        assert await keeper.remove_others() == []
        return sorted(changes)

    assert asyncio.run(keep()) == ["removed 10.0.0.1/32 metric 100", "removed 10.0.0.8/32 metric 100"]


class Slow(Kernel):
    """To write or delete a route takes it a millisecond, by a clock of its own."""

    def __init__(self, *routes: Route) -> None:
        super().__init__(*routes)
        self.done = 0

    @property
    def now_s(self) -> float:
        return self.done / 1000

    async def write_route(self, route: Route, verb: str) -> None:
        await super().write_route(route, verb)
        self.done += 1

    async def delete_route(self, route: Route) -> None:
        await super().delete_route(route)
        self.done += 1


def test_others_have_their_turn_between_many_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep() -> None:
        kernel = Slow(*(route(n) for n in range(200, 250)))
        monkeypatch.setattr(giveway, "time", SimpleNamespace(perf_counter=lambda: kernel.now_s))
        keeper = RouteKeeper(cast(Netlink, kernel))
        await keeper.look()
        stretches: list[int] = []

        async def others() -> None:
            while True:
                stretches.append(kernel.done - sum(stretches))
                await asyncio.sleep(0)

        turns = asyncio.create_task(others())
        await keeper.want(1, [route(n) for n in range(100)])
        await keeper.want(1, [])
        await keeper.remove_others()
        turns.cancel()
        assert kernel.done == 250
        assert max(*stretches, kernel.done - sum(stretches)) <= 8  # the end of one call and the beginning of the next

    asyncio.run(keep())
