# SPDX-License-Identifier: BSD-2-Clause
"""Tests what mrcctl preflight and doctor read from a real kernel: attached programs, drivers, verifier."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.places import lab_object
from mrcd.config import cluster_file
from mrcd.ctl.examine.command import EXAMPLE
from mrcd.ctl.examine.machine import Machine
from mrcd.fabric import topology
from mrcd.kernel import features, libbpf
from mrcd.kernel.settings import settings
from tests.packet.kernel import HAS_TCX, needs_tcx
from tests.packet.wires import Namespace
from tests.packet.witness import as_root

pytestmark = as_root

HANDLE = 77
SETTINGS = settings(topology.plan(cluster_file.parse(EXAMPLE), "a"), features.kernel_has()).tobytes()


@pytest.fixture
def fault() -> Iterator[int]:
    """Returns the descriptor of another program, not attached."""
    obj = libbpf.open_object(lab_object("fault"))
    libbpf.load_object(obj)
    yield libbpf.program_fd(obj, "lab_fault")
    libbpf.close_object(obj)


def tc(*arguments: str) -> None:
    subprocess.run(["tc", *arguments], check=True, timeout=10)


def test_an_interface_without_programs_lists_none(ns: Namespace, nics: tuple[int, int]) -> None:
    machine = Machine()
    assert [machine.programs(nics[0], where) for where in ("xdp", "ingress", "egress")] == [[], [], []]


@needs_tcx
def test_programs_are_named_in_the_order_in_which_they_run(ns: Namespace, nics: tuple[int, int], fault: int) -> None:
    tc("qdisc", "add", "dev", "p0", "clsact")
    match = ("protocol", "ip", "u32", "match", "ip", "dst", "10.0.0.1/32")
    tc("filter", "add", "dev", "p0", "egress", "prio", "3", *match)
    libbpf.attach_clsact(fault, nics[0], libbpf.TC_EGRESS, HANDLE, HANDLE)
    assert Machine().programs(nics[0], "egress") == ["a u32 filter", "lab_fault"]
    link = libbpf.create_link(fault, nics[0], libbpf.TCX_EGRESS)
    try:
        assert Machine().programs(nics[0], "egress") == ["lab_fault", "a u32 filter", "lab_fault"]  # TCX first
    finally:
        os.close(link)
    assert Machine().programs(nics[0], "ingress") == []
    assert Machine().programs(nics[1], "egress") == []


def test_an_xdp_program_is_named(ns: Namespace, nics: tuple[int, int]) -> None:
    obj = libbpf.open_object(Path(__file__).parents[2] / "build" / "mrc.bpf.o")
    try:
        rodata = next(m for name, m in libbpf.maps_of(obj).items() if name.endswith(".rodata"))
        libbpf.set_initial_value(rodata, SETTINGS)
        libbpf.load_object(obj)
        link = libbpf.create_link(libbpf.program_fd(obj, "mrc_pop_xdp"), nics[1], libbpf.XDP, libbpf.XDP_FLAGS_SKB_MODE)
        try:
            assert Machine().programs(nics[1], "xdp") == ["mrc_pop_xdp"]
        finally:
            os.close(link)
    finally:
        libbpf.close_object(obj)


def test_facts_of_links_and_drivers_are_read(ns: Namespace, nics: tuple[int, int]) -> None:
    machine = Machine()
    assert (machine.links()["p0"].ifindex, machine.links()["p0"].mtu) == (nics[0], 9100)
    assert machine.offloads("p0")["rx-gro-list"] is False
    assert machine.speed_mbit("p0") == 10_000  # as veth says
    features = machine.xdp_features(nics[0])
    if features is not None:  # Linux 6.3
        assert features & 1
    assert machine.neighbours("fe80::1") == {}
    ns.ip("neigh", "add", "fe80::1", "dev", "p1", "lladdr", "02:00:00:00:00:09", "nud", "permanent")
    assert machine.neighbours("fe80::1") == {nics[1]: "02:00:00:00:00:09"}


def test_the_kernel_verifies_the_programs(ns: Namespace) -> None:
    machine, before = Machine(SETTINGS), ns.json("link", "show")
    assert [machine.feature(f) for f in ("tcx", "timer", "ringbuf", "mmapable")] == [HAS_TCX, True, True, True]
    accepted, words = machine.try_programs()
    assert accepted
    assert re.fullmatch(r"\d+ of 1000000 instructions verified at most, for mrc_\w+", words)
    assert machine.try_seg6() == (True, "")
    assert ns.json("link", "show") == before


def test_programs_that_the_kernel_refuses_are_reported() -> None:
    accepted, words = Machine(b"too short").try_programs()
    assert accepted is False
    assert "set the settings" in words
