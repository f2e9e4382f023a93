"""What a request of the control API says: its body, and who sent it."""

import socket
import struct
from typing import Any

from aiohttp import web

from mrcd.errors import UsageError


async def body(request: web.Request) -> dict[str, Any]:
    """The JSON object in a request. Raises UsageError."""
    try:
        document = await request.json()
    except (ValueError, LookupError, RecursionError):
        raise UsageError("the request's body is not JSON") from None
    if not isinstance(document, dict):
        raise UsageError("the request's body is not a JSON object")
    return document


def flag(document: dict[str, Any], name: str) -> bool:
    """A key that is true or false, or not there. Raises UsageError: of any other value it is not known what it asks."""
    value = document.get(name, False)
    if type(value) is not bool:
        raise UsageError(f"{name} is neither true nor false: {value!r}")
    return value


def uid(request: web.Request) -> int | None:
    """The user at the other end of the unix socket, by the kernel's word (SO_PEERCRED in unix(7)); None if it has
    none."""
    transport = request.transport
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user if user >= 0 else None
