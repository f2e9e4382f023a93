# SPDX-License-Identifier: BSD-2-Clause
"""Reads the bodies and the user of requests of the control API."""

import asyncio
import grp
import os
import socket
import struct
from typing import Any

from aiohttp import web

from mrcd.denials import targets
from mrcd.denials.targets import Target
from mrcd.errors import UsageError

ADMINS = "mrcd-admin"
_SO_PEERGROUPS = 59
_MOST_GROUPS = 256  # Python reads no more than 1 KB
_FLAGS = ("force", "drain", "all")


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
    """Return the user at the other end of the unix socket; None if it is unknown."""
    return user(request.transport)


def user(transport: asyncio.BaseTransport | None) -> int | None:
    """Return the user at the other end of a connection; None if it is unknown."""
    return _credentials(transport)[0]


def may_change(request: web.Request) -> bool:
    """Return whether the user at the other end may change something: root, mrcd's own user, members of ADMINS."""
    asking, groups = _credentials(request.transport)
    if asking in (0, os.geteuid()):
        return True
    try:
        return grp.getgrnam(ADMINS).gr_gid in groups
    except KeyError:  # there is no such group
        return False


def _credentials(transport: asyncio.BaseTransport | None) -> tuple[int | None, set[int]]:
    """Return user and groups of the process that has connected (SO_PEERCRED, SO_PEERGROUPS in unix(7))."""
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family != socket.AF_UNIX:
        return None, set()
    _, peer, group = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        more = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MOST_GROUPS)
    except OSError:  # a user in more groups
        more = b""
    return peer if peer >= 0 else None, {group, *struct.unpack(f"{len(more) // 4}I", more)}


async def denial(request: web.Request) -> dict[str, Any]:
    """Return the checked keys of a request to deny or allow, with "for" as "for_s". Raises UsageError."""
    given = await body(request)
    for names, kind, what in ((("ev", "plane"), int, "a number"), (("peer", "for", "reason"), str, "text")):
        for name in names:
            if not (given.get(name) is None or type(given[name]) is kind):
                raise UsageError(f"{name} must be {what}")
    words = given.get("target")
    if not (words is None or (isinstance(words, list) and all(type(w) is str for w in words))):
        raise UsageError("target must be a list of strings")
    if not all(type(given.get(name, False)) is bool for name in _FLAGS):
        raise UsageError(f"{', '.join(_FLAGS)} must be true or false")
    for_s = None if given.get("for") is None else targets.duration_s(given["for"])
    reason = targets.checked_reason(given.get("reason") or "")
    return given | {"for_s": for_s, "reason": reason} | {name: given.get(name, False) for name in _FLAGS}


def target(given: dict[str, Any]) -> Target:
    """Return the target that these keys name. Raises UsageError."""
    words = list(given.get("target") or [])
    words += [f"{k}:{given[k]}" for k in ("peer", "ev", "plane") if given.get(k) is not None]
    return targets.parse(words)
