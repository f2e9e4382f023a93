"""Keeps the routes that mrcd owns as they are wanted.

The kernel's routes are read once and then known from what was written, until `look` reads them again: the kernel
deletes routes with their interface.
"""

from collections.abc import Iterable, Sequence

from mrcd.net.messages import Route
from mrcd.net.netlink import Netlink

Key = tuple[str, int]  # destination, metric


class RouteKeeper:
    """Every route belongs to an owner: a peer's row, or FABRIC. Methods raise KernelError, MachineError, and one caller
    has them at a time."""

    FABRIC = -1

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink
        self._have: dict[Key, Route] = {}
        self._wanted: dict[int, Sequence[Route]] = {}

    async def look(self) -> None:
        """Read what the kernel has."""
        self._have = await self._netlink.routes()

    async def want(self, owner: int, routes: Sequence[Route]) -> list[str]:
        """Make these an owner's routes, instead of those before. Returns what was changed, for the log."""
        keys = {r.key for r in routes}
        gone = [r.key for r in self._wanted.get(owner, ()) if r.key not in keys]
        self._wanted[owner] = routes
        changes = []
        for route in routes:
            before = self._have.get(route.key)
            if before != route:
                await self._netlink.write_route(route, "replace" if before else "add")
                self._have[route.key] = route
                changes.append(f"{'replaced' if before else 'added'} {route.dst} metric {route.metric}")
        return changes + await self._delete(gone)

    def forget(self, owner: int) -> None:
        """Drops an owner; `remove_others` deletes its routes."""
        self._wanted.pop(owner, None)

    async def remove_others(self) -> list[str]:
        """Deletes routes without an owner: an earlier daemon's, or those of removed peers. Returns what was changed."""
        wanted = {r.key for routes in self._wanted.values() for r in routes}
        return await self._delete([key for key in self._have if key not in wanted])

    async def _delete(self, keys: Iterable[Key]) -> list[str]:
        changes = []
        for key in keys:
            route = self._have.pop(key, None)
            if route is not None:
                await self._netlink.delete_route(route)
                changes.append(f"removed {route.dst} metric {route.metric}")
        return changes
