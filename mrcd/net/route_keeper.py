# SPDX-License-Identifier: BSD-2-Clause
"""Reconciles mrcd's routes with the wanted ones.

The kernel's routes are read once; later writes update this copy. read_routes() reads them again, which is necessary
because the kernel deletes routes together with their interface.
"""

from collections.abc import Iterable, Sequence

from mrcd.net.messages import Route
from mrcd.net.netlink import Netlink

Key = tuple[str, int]  # destination, metric


class RouteKeeper:
    """The wanted routes by group: a group is a peer's row, or FABRIC.

    Methods raise KernelError and MachineError. Only one may run at a time.
    """

    FABRIC = -1

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink
        self._existing: dict[Key, Route] = {}
        self._wanted: dict[int, Sequence[Route]] = {}

    async def read_routes(self) -> None:
        """Reads mrcd's routes from the kernel."""
        self._existing = await self._netlink.routes()

    async def set_routes(self, group: int, routes: Sequence[Route]) -> list[str]:
        """Replaces the routes of a group. Returns the changes as lines for the log."""
        keys = {r.key for r in routes}
        obsolete = [r.key for r in self._wanted.get(group, ()) if r.key not in keys]
        self._wanted[group] = routes
        changes = []
        for route in routes:
            before = self._existing.get(route.key)
            if before != route:
                await self._netlink.write_route(route, "replace" if before else "add")
                self._existing[route.key] = route
                changes.append(f"{'replaced' if before else 'added'} {route.dst} metric {route.metric}")
        return changes + await self._delete(obsolete)

    def forget(self, group: int) -> None:
        """Removes a group; remove_others() deletes its routes."""
        self._wanted.pop(group, None)

    async def remove_others(self, failed: Iterable[int] = ()) -> list[str]:
        """Deletes routes without a group: of an earlier daemon, or of removed peers. Returns lines for the log.

        Of groups that could not be set, older routes to the same destinations stay.
        """
        wanted = {r.key for routes in self._wanted.values() for r in routes}
        left = {r.dst for group in failed for r in self._wanted[group]}
        return await self._delete([key for key in self._existing if key not in wanted and key[0] not in left])

    async def _delete(self, keys: Iterable[Key]) -> list[str]:
        changes = []
        for key in keys:
            route = self._existing.pop(key, None)
            if route is not None:
                await self._netlink.delete_route(route)
                changes.append(f"removed {route.dst} metric {route.metric}")
        return changes
