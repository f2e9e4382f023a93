# SPDX-License-Identifier: BSD-2-Clause
"""Tests first hops: the kernel resolves them and keeps them resolved, and mrcd reads their MAC addresses."""

import subprocess
from pathlib import Path

import pytest

from mrcd.net.netlink import Netlink
from tests.packet.wires import Namespace
from tests.packet.witness import GATEWAY, as_root, eventually, ifindex, run

pytestmark = as_root


@pytest.fixture
def plane(ns: Namespace, far: Namespace) -> int:
    """p0, linked to a T0 in the far namespace which has the gateway's address. Returns p0's number."""
    ns.ip("link", "add", "p0", "type", "veth", "peer", "name", "t0")
    with ns.inside():
        subprocess.run(
            ["ip", "link", "set", "t0", "netns", f"/proc/self/fd/{far.fd}"], pass_fds=[far.fd], check=True, timeout=10
        )
    far.ip("link", "set", "t0", "address", "02:00:00:00:00:f0")
    far.ip("addr", "add", f"{GATEWAY}/64", "dev", "t0", "nodad")
    with far.inside():
        Path("/proc/sys/net/ipv6/conf/t0/ndisc_notify").write_text("1")
    far.ip("link", "set", "t0", "up")
    ns.ip("link", "set", "p0", "up")
    ns.ip("addr", "add", "fe80::2/64", "dev", "p0", "nodad")
    return ifindex(ns, "p0")


async def resolved(netlink: Netlink, plane: int, mac: str) -> None:
    async def check() -> bool:
        return await netlink.neighbours(GATEWAY) == {plane: mac}

    await eventually(f"{GATEWAY} is at {mac}", check)


def test_the_kernel_resolves_a_first_hop_and_keeps_it(ns: Namespace, plane: int) -> None:
    async def work(n: Netlink) -> None:
        assert await n.neighbours(GATEWAY) == {}
        await n.keep_resolved(plane, GATEWAY)
        await resolved(n, plane, "02:00:00:00:00:f0")
        await n.keep_resolved(plane, GATEWAY)  # asked again it stays
        await resolved(n, plane, "02:00:00:00:00:f0")

    run(work)
    (entry,) = [e for e in ns.json("-d", "-6", "neigh", "show", "dev", "p0") if e["dst"] == GATEWAY]
    assert entry["lladdr"] == "02:00:00:00:00:f0"
    assert "managed" in ns.ip("-d", "-6", "neigh", "show", "dev", "p0")


def test_a_first_hop_that_appears_later_is_found(ns: Namespace, far: Namespace, plane: int) -> None:
    far.ip("link", "set", "t0", "down")

    async def work(n: Netlink) -> None:
        await n.keep_resolved(plane, GATEWAY)
        assert await n.neighbours(GATEWAY) == {}
        far.ip("link", "set", "t0", "up")
        far.ip("addr", "replace", f"{GATEWAY}/64", "dev", "t0", "nodad")
        await n.keep_resolved(plane, GATEWAY)
        await resolved(n, plane, "02:00:00:00:00:f0")

    run(work)


def test_a_first_hop_that_was_replaced_is_followed(ns: Namespace, far: Namespace, plane: int) -> None:
    async def work(n: Netlink) -> None:
        await n.keep_resolved(plane, GATEWAY)
        await resolved(n, plane, "02:00:00:00:00:f0")
        far.ip("link", "set", "t0", "address", "02:00:00:00:00:f1")
        await resolved(n, plane, "02:00:00:00:00:f1")

    run(work)


def test_neighbours_are_read_by_address(ns: Namespace, nics: tuple[int, int]) -> None:
    ns.ip("neigh", "add", "fe80::9", "lladdr", "02:00:00:00:00:09", "dev", "p0")
    ns.ip("neigh", "add", GATEWAY, "lladdr", "02:00:00:00:00:01", "dev", "p0")
    ns.ip("neigh", "add", GATEWAY, "lladdr", "02:00:00:00:00:02", "dev", "p1", "nud", "stale")
    found = run(lambda n: n.neighbours(GATEWAY))
    assert found == {nics[0]: "02:00:00:00:00:01", nics[1]: "02:00:00:00:00:02"}
    ns.ip("neigh", "change", GATEWAY, "dev", "p0", "nud", "failed")
    assert run(lambda n: n.neighbours(GATEWAY)) == {nics[1]: "02:00:00:00:00:02"}
