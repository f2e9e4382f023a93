# SPDX-License-Identifier: BSD-2-Clause
"""Runs Netlink in a network namespace of its own, and reads the result with iproute2, as an independent witness."""

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mrcd.net.messages import PROTOCOL, Route
from mrcd.net.netlink import Netlink
from mrcd.net.route_keeper import RouteKeeper
from tests.packet.wires import SECONDS, Namespace

T = TypeVar("T")
GATEWAY = "fe80::1"
_HERE = Path("/proc/thread-self/ns/net")

as_root = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it writes routes into a network namespace of its own"),
]


# ---- the namespace ----


@contextlib.contextmanager
def alone() -> Iterator[Namespace]:
    """Runs a block in a namespace of its own, where lo is up; then asserts that nothing of it is left."""
    before, sockets = _machine(), _sockets()
    namespace = Namespace()
    try:
        with namespace.inside():
            namespace.ip("link", "set", "lo", "up")
            yield namespace
    finally:
        namespace.close()
    assert _machine() == before
    assert _sockets() <= sockets


def _machine() -> tuple[str, list[str]]:
    """Returns this thread's namespace, and mrcd's routes there. (Links come and go with other tests.)"""
    shown = [
        subprocess.run(
            ["ip", family, "route", "show", "proto", str(PROTOCOL)],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout
        for family in ("-4", "-6")
    ]
    return str(_HERE.readlink()), shown


def _sockets() -> int:
    """Returns the open sockets and namespaces of this process: either keeps a namespace alive."""
    kept = 0
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of iterdir itself
            kept += str(fd.readlink()).startswith(("socket:", "net:"))
    return kept


# ---- mrcd's part ----


def run(work: Callable[[Netlink], Awaitable[T]]) -> T:

    async def bounded() -> T:
        async with asyncio.timeout(2 * SECONDS), Netlink() as netlink:
            return await work(netlink)

    return asyncio.run(bounded())


async def eventually(what: str, check: Callable[[], Awaitable[object]], limit_s: float = SECONDS) -> None:
    deadline = time.monotonic() + limit_s
    while not await check():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        await asyncio.sleep(0.01)


def sync(*routes: Route) -> list[str]:
    return run(lambda n: sync_on(n, routes))


async def sync_on(netlink: Netlink, routes: Sequence[Route]) -> list[str]:
    keeper = RouteKeeper(netlink)
    await keeper.read_routes()
    return await keeper.set_routes(RouteKeeper.FABRIC, routes) + await keeper.remove_others()


def ensure(mtu: int = 9020, gso_max_size: int = 65455) -> tuple[int, int]:
    """Makes the overlay's veth. Returns the numbers of its ends."""
    a, b = run(lambda n: n.ensure_veth("mrc0", "pmrc0", mtu=mtu, gso_max_size=gso_max_size))
    assert (a.name, b.name) == ("mrc0", "pmrc0")
    assert (a.kind, b.kind) == ("veth", "veth")
    assert a.up
    assert b.up
    return a.ifindex, b.ifindex


# ---- iproute2's view ----


def ifindex(ns: Namespace, name: str) -> int:
    return int(ns.json("link", "show", name)[0]["ifindex"])


def mine(ns: Namespace, family: str = "-6") -> dict[str, Any]:
    """Returns iproute2's routes with mrcd's protocol number: destination → route."""
    routes = ns.json(family, "route", "show", "proto", str(PROTOCOL))
    return {f"{r['dst']} {r.get('metric')}": r for r in routes}
