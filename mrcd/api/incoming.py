# SPDX-License-Identifier: BSD-2-Clause
"""Reads the body and the user of a request of the control API."""

import socket
import struct
from typing import Any

from aiohttp import web

from mrcd.errors import UsageError


async def body(request: web.Request) -> dict[str, Any]:
    """Return the JSON object in a request. Raises UsageError."""
    try:
        document = await request.json()
    except (ValueError, LookupError, RecursionError):
        raise UsageError("the request's body is not JSON") from None
    if not isinstance(document, dict):
        raise UsageError("the request's body is not a JSON object")
    return document


def flag(document: dict[str, Any], name: str) -> bool:
    """Return a key that is true or false; false without it. Raises UsageError for any other value."""
    value = document.get(name, False)
    if type(value) is not bool:
        raise UsageError(f"{name} must be true or false, not {value!r}")
    return value


def uid(request: web.Request) -> int | None:
    """Return the user at the other end of the unix socket (SO_PEERCRED in unix(7)); None if it is unknown."""
    transport = request.transport
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user if user >= 0 else None
