"""Routes of mrcd that somebody deletes: `ip route flush`, or a network manager that clears what it does not know.

A socket of its own with a filter in the kernel: a host may have a hundred thousand routes of others, which come and
go, and mrcd's own writes are told of too.
"""

import asyncio
import ctypes as ct
import errno
import socket
import struct
from collections.abc import Callable

from pyroute2.netlink import rtnl

from mrcd.net.messages import PROTOCOL

_SO_ATTACH_FILTER = 26
_LOAD_16, _LOAD_8, _IS, _RETURN = 0x28, 0x30, 0x15, 0x06
_TYPE_AT, _PROTOCOL_AT = 4, 16 + 5  # in struct nlmsghdr, and in struct rtmsg behind it
_LONGEST = 1 << 16
_TOGETHER_S = 1.0


def _filter() -> bytes:
    """Only RTM_DELROUTE of mrcd's protocol, as struct sock_filter; it loads numbers in network byte order."""
    lines = (
        (_LOAD_16, 0, 0, _TYPE_AT),
        (_IS, 0, 3, socket.htons(rtnl.RTM_DELROUTE)),
        (_LOAD_8, 0, 0, _PROTOCOL_AT),
        (_IS, 0, 1, PROTOCOL),
        (_RETURN, 0, 0, _LONGEST),
        (_RETURN, 0, 0, 0),
    )
    return b"".join(struct.pack("HBBI", *line) for line in lines)


class RouteWatch:
    """Readable when a route of mrcd has been deleted, by whomever. Use as a context manager. Raises OSError."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        code = _filter()
        kept = ct.create_string_buffer(code)
        program = struct.pack("HP", len(code) // 8, ct.addressof(kept))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self._socket.bind((0, rtnl.RTMGRP_IPV4_ROUTE | rtnl.RTMGRP_IPV6_ROUTE))

    def __enter__(self) -> "RouteWatch":
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def drain(self) -> int:
        """Forget what was told. Returns how many routes were deleted; what was lost counts as one."""
        count = 0
        while True:
            try:
                self._socket.recv(_LONGEST)
            except BlockingIOError:
                return count
            except OSError as e:
                if e.errno != errno.ENOBUFS:
                    raise
            count += 1


async def watch_routes(look_again: Callable[[], None]) -> None:
    """Calls `look_again` when routes of mrcd were deleted, at most once a second, until cancelled."""
    told = asyncio.Event()
    with RouteWatch() as watch:
        loop = asyncio.get_running_loop()
        while True:
            loop.add_reader(watch, told.set)
            try:
                await told.wait()
            finally:
                loop.remove_reader(watch)
            told.clear()
            await asyncio.sleep(_TOGETHER_S)  # they are deleted in flocks
            watch.drain()
            look_again()
