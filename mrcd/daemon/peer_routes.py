# SPDX-License-Identifier: BSD-2-Clause
"""Writes the routes of peers, in batches; changed ones first."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from mrcd.errors import MrcdError
from mrcd.net.messages import Route
from mrcd.net.netlink import Netlink
from mrcd.net.route_keeper import RouteKeeper

log = logging.getLogger("mrcd")

AT_ONCE = 256
"""Peers per batch: the event loop serves other tasks between batches. With more peers, a start does not wait."""


class PeerRoutes:
    """The routes of all peers, and those of the fabric. Methods raise KernelError and MachineError."""

    def __init__(
        self,
        netlink: Netlink,
        routes_of: Callable[[int], Sequence[Route]],
        written: Callable[[int, Sequence[Route]], None],
        wake: Callable[[], None],
    ) -> None:
        self._keeper = RouteKeeper(netlink)
        self._routes_of = routes_of  # a peer's row → the routes that it should have
        self._written = written  # called when the kernel has them
        self._wake = wake
        self._fabric: list[Route] = []
        self._changed: set[int] = set()  # rows whose routes must be written
        self._read_kernel = True  # another program may have changed the kernel's routes
        self._failed: dict[int, MrcdError] = {}  # rows that the kernel has refused since the last error was raised
        self._remove_others = False  # when no row is left, delete routes that belong to nobody

    def written(self, row: int) -> Sequence[Route] | None:
        """Returns the routes of a peer; None while they are to be written."""
        return None if row in self._changed or self._read_kernel else self._keeper.wanted(row)

    def mark(self, row: int) -> None:
        """Have the routes of a peer written soon."""
        self._changed.add(row)
        self._wake()

    def mark_all(self, rows: Iterable[int]) -> None:
        """Have the kernel's routes read again, and those of these peers written soon."""
        self._changed |= set(rows)
        self._read_kernel = True
        self._wake()

    def use_fabric(self, routes: list[Route]) -> None:
        """Set the routes of the fabric; they are written with the next peers'."""
        self._fabric = routes

    def keep_only(self, rows: AbstractSet[int]) -> None:
        """Leave out peers that are not in the plan any more."""
        self._changed &= rows

    async def drop(self, row: int) -> None:
        """Forget a peer, and delete its routes."""
        _log(await self._keeper.set_routes(row, ()))
        self._keeper.forget(row)

    async def write_all(self, rows: Iterable[int]) -> None:
        """Write the routes of all peers now, and delete those that belong to nobody."""
        await self._keeper.read_routes()
        failed = await self._write(rows)
        _log(await self._keeper.remove_others(failed))
        if failed:
            raise failed.pop(min(failed))

    async def write_changed(self) -> bool:
        """Write those of up to AT_ONCE marked peers. Returns whether there are more.

        A route that the kernel refuses holds up no other peer's: the first such error is raised when none is left.
        """
        if self._read_kernel:
            self._read_kernel, self._remove_others = False, True
            await self._keeper.read_routes()
        rows = list(itertools.islice(self._changed, AT_ONCE))
        self._changed.difference_update(rows)
        self._failed |= await self._write(rows)
        if self._changed:
            return True
        failed, self._failed = self._failed, {}
        if self._remove_others:
            self._remove_others = False
            _log(await self._keeper.remove_others(failed))
        if failed:
            raise failed.pop(min(failed))
        return False

    async def _write(self, rows: Iterable[int]) -> dict[int, MrcdError]:
        """Write the routes of these peers. Returns the errors of those that failed."""
        failed = dict[int, MrcdError]()
        _log(await self._keeper.set_routes(RouteKeeper.FABRIC, self._fabric))
        for n, row in enumerate(rows):
            if n % AT_ONCE == 0:
                await asyncio.sleep(0)
            routes = self._routes_of(row)
            try:
                _log(await self._keeper.set_routes(row, routes))
            except MrcdError as e:
                failed[row] = e.with_traceback(None)  # which would keep what this frame refers to
            else:
                self._written(row, routes)
        return failed


def _log(changes: Iterable[str]) -> None:
    for change in changes:
        log.debug("route %s", change)
