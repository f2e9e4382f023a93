# SPDX-License-Identifier: BSD-2-Clause
"""Tests where programs are attached again: after failures, beside a NIC that refuses, without the daemon."""

import asyncio
import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mrcd.daemon import attachment
from mrcd.daemon.attached_programs import AttachedPrograms
from mrcd.errors import KernelError
from mrcd.kernel import abi
from mrcd.kernel.attachments import without_daemon
from mrcd.kernel.links import Attachment
from mrcd.kernel.ring_buffer import records
from mrcd.net.hooks import Port
from tests.unit.interfaces import link
from tests.unit.test_hooks import HONEST

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


# ---- a NIC that refuses ----


class Programs:
    """Stands in for the data plane. p0 refuses XDP, until it does not."""

    def __init__(self, loaded: Sequence[str]) -> None:
        self.loaded = loaded
        self.attached_to: list[tuple[str, str]] = []
        self.names: set[str] = set()
        self.refuses = True

    @contextlib.contextmanager
    def replacing_programs(self, _: Any) -> Iterator[None]:
        yield

    def attach(self, wanted: Attachment) -> str:
        if self.refuses and (wanted.interface, wanted.point) == ("p0", "xdp"):
            raise KernelError("attach", 16)
        self.attached_to.append((wanted.interface, wanted.point))
        self.names.add(wanted.name)
        return "xdp" if wanted.point == "xdp" else "tcx"

    def detach_others(self, keep: set[str], hooks: Any) -> list[str]:
        self.names &= keep
        return []

    def attached(self) -> bool:
        return True

    def programs(self) -> dict[str, int]:
        return dict.fromkeys(self.loaded, 3)


@pytest.mark.parametrize("loaded", [["mrc_push", "mrc_unsent"], ["mrc_push"]], ids=["all", "not mrc_unsent"])
def test_other_nics_and_the_senders_are_attached(tmp_path: Path, loaded: list[str]) -> None:
    nics = [link("p0", 2), link("p1", 3)]
    programs = AttachedPrograms(tmp_path)
    dataplane = Programs(loaded)
    host: Any = SimpleNamespace(
        ports={plane: Port(plane, nic, nic, HONEST) for plane, nic in enumerate(nics)},
        mrc0=link("mrc0", 4), mrc0_peer=link("pmrc0", 5), timer=(link("t", 6), link("pt", 7)),
        interfaces=lambda: {2, 3}, tc_hooks=lambda: [],
    )  # fmt: skip
    cluster = SimpleNamespace(granularity="burst")
    plan: Any = SimpleNamespace(config=SimpleNamespace(hook=lambda _: "xdp", cluster=cluster), host=None)
    tables: Any = SimpleNamespace(node=np.zeros((), abi.NODE))
    with pytest.raises(KernelError, match="p0"):
        programs.attach(plan, dataplane, host, [tables])  # type: ignore[arg-type]
    assert {("p1", "ingress"), ("p1", "xdp"), ("mrc0", "egress")} <= set(dataplane.attached_to)
    assert (tables.node["probe_ifindex"], tables.node["timer_ifindex"]) == (5, 7)
    assert ("unsent" in dataplane.names) is ("mrc_unsent" in loaded)
    assert {"pop-0", "pop-1", "pop-xdp-1"} <= dataplane.names  # the refusing NIC keeps its mrc_pop at tc
    assert not programs.are_complete(host)
    dataplane.refuses = False
    programs.attach(plan, dataplane, host, [tables])  # type: ignore[arg-type]
    assert programs.are_complete(host)


# ---- without the daemon ----


def pin(program: str, ifindex: int, **other: Any) -> dict[str, Any]:
    return {
        "program": program,
        "ifindex": ifindex,
        "interface": "mrc0",
        "attached": ifindex != 0,
        "pinned": True,
    } | other


PUSH, POPS = pin("mrc_push", 9), [pin("mrc_pop", 3), pin("mrc_pop", 4)]
HIDDEN = [x | {"program": None, "pinned": False} for x in (PUSH, *POPS)]
NO_PUSH, NO_POP = (False, "mrc_push is not attached"), (False, "mrc_pop is not attached to any plane")
BOTH = "mrc_push at mrc0 and mrc_pop at 2 planes are"


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ([PUSH, *POPS], (True, f"{BOTH} pinned")),
        ([PUSH, pin("mrc_pop_xdp", 3), POPS[1]], (True, f"{BOTH} pinned")),
        ([x | {"pinned": False} for x in (PUSH, *POPS)], (True, f"{BOTH} held by tc filters")),
        (HIDDEN, (True, f"{BOTH} held by tc filters")),  # recognised by their hook
        (HIDDEN[:1], NO_POP),
        (HIDDEN[1:], NO_PUSH),
        ([PUSH, POPS[0]], (True, "mrc_push at mrc0 and mrc_pop at 1 planes are pinned; not at plane 1")),
        (POPS, NO_PUSH),
        ([PUSH], NO_POP),
        ([pin("mrc_push", 0), *POPS], NO_PUSH),  # its interface was removed: the pin exists, the attachment does not
    ],
)
def test_what_forwards_without_the_daemon(links: list[dict[str, Any]], said: tuple[bool, str]) -> None:
    document = without_daemon(links, {0: 3, 1: 4}, detached=False, encapsulation="usid")
    assert (document["works"], document["how"]) == said


def test_a_detached_host_forwards_over_kernel_srv6_except_with_ecmp() -> None:
    for encapsulation in ("usid", "ecmp"):
        found = without_daemon([], {0: 3, 1: 4}, detached=True, encapsulation=encapsulation)
        assert found["works"] == (encapsulation == "usid")


def test_records_of_a_ring() -> None:
    def record(data: bytes, flags: int = 0) -> bytes:
        return struct.pack("II", len(data) | flags, 0) + data + bytes(-len(data) % 8)

    discarded, busy = 1 << 30, 1 << 31
    ring = record(b"first") + record(b"nothing", discarded) + record(b"12345678")
    assert records(ring) == [b"first", b"12345678"]
    assert records(ring + record(b"being written", busy) + record(b"later")) == [b"first", b"12345678"]
    assert records(b"") == []
