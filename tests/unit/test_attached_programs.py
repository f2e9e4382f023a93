# SPDX-License-Identifier: BSD-2-Clause
"""Tests that a NIC which refuses a program holds up no other interface."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mrcd.daemon.attached_programs import AttachedPrograms
from mrcd.errors import KernelError
from mrcd.kernel import abi
from mrcd.kernel.links import Attachment
from mrcd.net.hooks import Port
from tests.unit.test_hooks import HONEST, link


class Programs:
    """Stands in for the data plane. p0 refuses XDP, until it does not."""

    def __init__(self) -> None:
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


def test_other_nics_and_the_senders_are_attached(tmp_path: Path) -> None:
    nics = [link("p0", 2), link("p1", 3)]
    programs = AttachedPrograms(tmp_path)
    dataplane = Programs()
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
    assert {"pop-0", "pop-1", "pop-xdp-1"} <= dataplane.names  # the refusing NIC keeps its mrc_pop at tc
    assert not programs.are_complete(host)
    dataplane.refuses = False
    programs.attach(plan, dataplane, host, [tables])  # type: ignore[arg-type]
    assert programs.are_complete(host)
