# SPDX-License-Identifier: BSD-2-Clause
"""Tests that a failed attach leaves the host as it was, and that missing routes are written later."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mrcd.daemon import attachment
from mrcd.errors import KernelError
from mrcd.kernel import abi

REFUSED = KernelError("attach mrc_pop", 16)


class Host:
    """A detached daemon; `attach` decides the fate of its programs."""

    def __init__(self, attach: Callable[["Host"], None], *, attached: bool) -> None:
        self.attach, self.is_attached = attach, attached
        self.did: list[str] = []
        self.events: list[str] = []
        self.admin_lock, self.netlink_lock = asyncio.Lock(), asyncio.Lock()
        self.tables = SimpleNamespace(node=np.zeros((), abi.NODE), clock=np.zeros((), abi.CLOCK))
        self.tables.node["status"] = abi.STATUS_DETACHED
        self.dataplane = SimpleNamespace(attached=lambda: self.is_attached)
        self.nics = SimpleNamespace()
        self.programs = SimpleNamespace(remove=self.remove)
        told = SimpleNamespace(announce=lambda: self.did.append("announce"))
        self.monitor, self.peers = told, {7: None}
        self.attach_anew = lambda: self.did.append("anew")
        self.look_at_routes = lambda: self.did.append("look at routes")

    @property
    def detached(self) -> bool:
        return bool(int(self.tables.node["status"]) & abi.STATUS_DETACHED)

    def remove(self, dataplane: Any, nics: Any) -> None:
        assert (dataplane, nics) == (self.dataplane, self.nics)
        self.is_attached = False
        self.did.append("detach")

    def attach_programs(self) -> None:
        self.did.append("pop" if self.detached else "all")
        self.attach(self)

    def save_running(self) -> None:
        self.did.append("save")

    async def write_routes(self) -> None:
        self.did.append("routes")
        if self.did.count("routes") == 1:
            raise KernelError("add a route", 17)


def _fails_half_way(host: Host) -> None:
    host.is_attached = True
    if not host.detached:
        raise REFUSED


@pytest.mark.parametrize(("attached", "did"), [(True, ["all", "pop"]), (False, ["all", "detach", "pop"])])
def test_a_failed_attach_leaves_the_host_as_it_was(attached: bool, did: list[str]) -> None:
    host: Any = Host(_fails_half_way, attached=attached)
    with pytest.raises(KernelError, match="attach mrc_pop"):
        asyncio.run(attachment.attach(host))
    assert (host.did, host.detached) == (did, True)


def test_a_failed_undo_does_not_hide_the_first_error() -> None:
    def refuse(_: Host) -> None:
        raise REFUSED

    host: Any = Host(refuse, attached=True)
    with pytest.raises(KernelError, match="attach mrc_pop"):
        asyncio.run(attachment.attach(host))
    assert host.detached
    assert host.did == ["all", "pop", "anew"]


def test_failed_routes_are_written_again() -> None:
    host: Any = Host(lambda _: None, attached=True)
    host.events = SimpleNamespace(add=lambda kind, **_: host.did.append(kind))
    with pytest.raises(KernelError, match="add a route"):
        asyncio.run(attachment.attach(host))
    assert host.did == ["all", "save", "announce", "daemon", "routes", "look at routes"]
    assert not host.detached
