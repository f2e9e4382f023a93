# SPDX-License-Identifier: BSD-2-Clause
"""Reconciles mrcd's routes with the wanted ones, and notices when another program deletes or replaces them.

The kernel's routes are read once; later writes update this copy. read_routes() reads them again, which is necessary
because the kernel deletes routes together with their interface.

RouteWatch uses a socket of its own with a socket filter in the kernel: a host may have a hundred thousand routes of
other programs that change, and the kernel also reports mrcd's own writes.
"""

import asyncio
import ctypes as ct
import errno
import logging
import socket
import struct
from collections.abc import Callable, Iterable, Sequence

from pyroute2.netlink import NLM_F_REPLACE, rtnl

from mrcd.errors import KernelError
from mrcd.net.messages import PROTOCOL, Route
from mrcd.net.netlink import Netlink

log = logging.getLogger("mrcd")

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
        self._written: set[Key] = set()  # what has been there is taken back from another program

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
            if before == route:
                self._written.add(route.key)  # by an earlier daemon
            else:
                changes.append(f"{await self._write(route, before)} {route.dst} metric {route.metric}")
        return changes + await self._delete(obsolete)

    async def _write(self, route: Route, before: Route | None) -> str:
        """Writes a route over the one before, if there is one. Returns a word for the log."""
        done = "replaced" if before else "added"
        try:
            await self._netlink.write_route(route, "replace" if before else "add")
        except KernelError as e:
            if e.errno != errno.EEXIST or route.key not in self._written:
                raise
            await self._netlink.write_route(route, "replace")
            log.warning("route %s metric %d: another program had replaced it; taken back", route.dst, route.metric)
            done = "took back"
        self._existing[route.key] = route
        self._written.add(route.key)
        return done

    def wanted(self, group: int) -> Sequence[Route]:
        """Returns the routes of a group."""
        return self._wanted.get(group, ())

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
            self._written.discard(key)
            route = self._existing.pop(key, None)
            if route is not None:
                await self._netlink.delete_route(route)
                changes.append(f"removed {route.dst} metric {route.metric}")
        return changes


_SO_ATTACH_FILTER = 26
_LOAD_16, _LOAD_8, _IS, _HAS, _RETURN = 0x28, 0x30, 0x15, 0x45, 0x06
_TYPE_AT, _FLAGS_AT, _PROTOCOL_AT = 4, 6, 16 + 5  # offsets in struct nlmsghdr, and in the struct rtmsg behind it
_IPV6_RULES = 1 << 18  # RTNLGRP_IPV6_RULE
_RULES = (rtnl.RTM_NEWRULE, rtnl.RTM_DELRULE)
_MAX_MESSAGE = 1 << 16
_SETTLE_S = 0.02  # routes change many at a time


def _filter() -> bytes:
    """Returns the filter of RouteWatch (struct sock_filter).

    It loads in network byte order. The numbers behind a test are how many instructions to skip if it holds, or not.
    """
    instructions = (
        (_LOAD_16, 0, 0, _TYPE_AT),
        (_IS, 9, 0, socket.htons(rtnl.RTM_NEWRULE)),
        (_IS, 8, 0, socket.htons(rtnl.RTM_DELRULE)),
        (_IS, 0, 2, socket.htons(rtnl.RTM_DELROUTE)),
        (_LOAD_8, 0, 0, _PROTOCOL_AT),
        (_IS, 5, 6, PROTOCOL),
        (_IS, 0, 5, socket.htons(rtnl.RTM_NEWROUTE)),
        (_LOAD_16, 0, 0, _FLAGS_AT),
        (_HAS, 0, 3, socket.htons(NLM_F_REPLACE)),
        (_LOAD_8, 0, 0, _PROTOCOL_AT),
        (_IS, 1, 0, PROTOCOL),
        (_RETURN, 0, 0, _MAX_MESSAGE),
        (_RETURN, 0, 0, 0),
    )
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)


class RouteWatch:
    """A socket that is readable when a rule was changed, or a route of mrcd deleted, or perhaps replaced.

    Use as a context manager. Raises OSError.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        code = _filter()
        buffer = ct.create_string_buffer(code)
        program = struct.pack("HP", len(code) // 8, ct.addressof(buffer))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self._socket.bind((0, rtnl.RTMGRP_IPV4_ROUTE | rtnl.RTMGRP_IPV6_ROUTE | rtnl.RTMGRP_IPV4_RULE | _IPV6_RULES))

    def __enter__(self) -> "RouteWatch":
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Returns the socket's descriptor."""
        return self._socket.fileno()

    def drain(self) -> tuple[int, int]:
        """Reads all notifications. Returns the numbers of routes and of rules; lost ones count as one of each."""
        routes = rules = 0
        while True:
            try:
                (kind,) = struct.unpack_from("H", self._socket.recv(_MAX_MESSAGE), _TYPE_AT)
            except BlockingIOError:
                return routes, rules
            except OSError as e:
                if e.errno != errno.ENOBUFS:
                    raise
                kind = 0
            routes += kind not in _RULES
            rules += kind in (0, *_RULES)


async def watch_routes(
    on_routes: Callable[[], None], on_rules: Callable[[], None], apart_s: Callable[[], float]
) -> None:
    """Calls these when routes of mrcd, or rules, may have changed, until cancelled.

    At least `apart_s` apart: another daemon may change them again and again.
    """
    changed = asyncio.Event()
    with RouteWatch() as watch:
        loop = asyncio.get_running_loop()
        while True:
            loop.add_reader(watch, changed.set)
            try:
                await changed.wait()
            finally:
                loop.remove_reader(watch)
            changed.clear()
            await asyncio.sleep(_SETTLE_S)
            routes, rules = watch.drain()
            if routes:
                on_routes()
            if rules:
                on_rules()
            await asyncio.sleep(apart_s())
