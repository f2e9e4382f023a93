"""The routes that mrcd owns, kept as they are wanted, some at a time: a cluster has thousands.

What the kernel has is read once and then known from what was written, until somebody says to look again:
interfaces take routes along when they go.
"""

from collections.abc import Iterable, Sequence

from mrcd.giveway import Breath
from mrcd.netlink import Netlink
from mrcd.netmessages import Route

Key = tuple[str, int]  # destination, metric


class RouteKeeper:
    """Every route belongs to an owner: a peer's row, or FABRIC. Methods raise KernelError, MachineError, and one caller
    has them at a time."""

    FABRIC = -1

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink
        self._have: dict[Key, Route] = {}
        self._wanted: dict[int, Sequence[Route]] = {}
        # How many want each. Kept, not made when it is asked for: a large set that is young holds up collections.
        self._owners: dict[Key, int] = {}

    async def look(self) -> None:
        """Read what the kernel has."""
        self._have = await self._netlink.routes()

    async def want(self, owner: int, routes: Sequence[Route]) -> list[str]:
        """Make these an owner's routes, instead of those before. Returns what was changed, for the log."""
        keys = {r.key for r in routes}
        former = self._wanted.get(owner, ())
        gone = [r.key for r in former if r.key not in keys]
        self._wanted[owner] = routes
        self._count(routes, 1)
        self._count(former, -1)
        breath, changes = Breath(), []
        for route in routes:
            await breath()  # to write one takes a millisecond
            before = self._have.get(route.key)
            if before != route:
                await self._netlink.write_route(route, "replace" if before else "add")
                self._have[route.key] = route
                changes.append(f"{'replaced' if before else 'added'} {route.dst} metric {route.metric}")
        return changes + await self._delete(gone)

    def forget(self, owner: int) -> None:
        """Nobody wants an owner's routes any more."""
        self._count(self._wanted.pop(owner, ()), -1)

    async def remove_others(self) -> list[str]:
        """Delete what nobody wants: an earlier daemon's, or of peers that are gone. Returns what was changed."""
        breath, others = Breath(), []
        for key in list(self._have):
            if key not in self._owners:
                others.append(key)
            await breath()
        return await self._delete(others)

    def _count(self, routes: Iterable[Route], by: int) -> None:
        for route in routes:
            self._owners[route.key] = self._owners.get(route.key, 0) + by
            if not self._owners[route.key]:
                del self._owners[route.key]

    async def _delete(self, keys: Iterable[Key]) -> list[str]:
        breath, changes = Breath(), []
        for key in keys:
            await breath()
            route = self._have.pop(key, None)
            if route is not None:
                await self._netlink.delete_route(route)
                changes.append(f"removed {route.dst} metric {route.metric}")
        return changes
