# SPDX-License-Identifier: BSD-2-Clause
"""Reconciles mrcd's routes with the wanted ones, and notices when another program deletes them.

The kernel's routes are read once; later writes update this copy. read_routes() reads them again, which is necessary
because the kernel deletes routes together with their interface.

RouteWatch uses a socket of its own with a socket filter in the kernel: a host may have a hundred thousand routes of
other programs that change, and the kernel also reports mrcd's own writes.
"""

import asyncio
import ctypes as ct
import errno
import socket
import struct
from collections.abc import Callable, Iterable, Sequence

from pyroute2.netlink import rtnl

from mrcd.net.messages import PROTOCOL, Route
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


_SO_ATTACH_FILTER = 26
_LOAD_16, _LOAD_8, _IS, _RETURN = 0x28, 0x30, 0x15, 0x06
_TYPE_AT, _PROTOCOL_AT = 4, 16 + 5  # offsets of nlmsg_type, and of rtm_protocol in the struct rtmsg that follows
_MAX_MESSAGE = 1 << 16
_BATCH_S = 1.0  # routes are deleted many at a time


def _filter() -> bytes:
    """Returns a filter (struct sock_filter) for RTM_DELROUTE of mrcd's protocol. It loads in network byte order."""
    instructions = (
        (_LOAD_16, 0, 0, _TYPE_AT),
        (_IS, 0, 3, socket.htons(rtnl.RTM_DELROUTE)),
        (_LOAD_8, 0, 0, _PROTOCOL_AT),
        (_IS, 0, 1, PROTOCOL),
        (_RETURN, 0, 0, _MAX_MESSAGE),
        (_RETURN, 0, 0, 0),
    )
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)


class RouteWatch:
    """A socket that is readable when a route of mrcd was deleted. Use as a context manager. Raises OSError."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        code = _filter()
        buffer = ct.create_string_buffer(code)
        program = struct.pack("HP", len(code) // 8, ct.addressof(buffer))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self._socket.bind((0, rtnl.RTMGRP_IPV4_ROUTE | rtnl.RTMGRP_IPV6_ROUTE))

    def __enter__(self) -> "RouteWatch":
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Returns the socket's descriptor."""
        return self._socket.fileno()

    def drain(self) -> int:
        """Reads all notifications. Returns the number of deleted routes; lost notifications count as one."""
        count = 0
        while True:
            try:
                self._socket.recv(_MAX_MESSAGE)
            except BlockingIOError:
                return count
            except OSError as e:
                if e.errno != errno.ENOBUFS:
                    raise
            count += 1


async def watch_routes(on_deleted: Callable[[], None]) -> None:
    """Calls `on_deleted` when routes of mrcd were deleted, at most once a second, until cancelled."""
    deleted = asyncio.Event()
    with RouteWatch() as watch:
        loop = asyncio.get_running_loop()
        while True:
            loop.add_reader(watch, deleted.set)
            try:
                await deleted.wait()
            finally:
                loop.remove_reader(watch)
            deleted.clear()
            await asyncio.sleep(_BATCH_S)
            watch.drain()
            on_deleted()
