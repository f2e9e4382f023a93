# SPDX-License-Identifier: BSD-2-Clause
"""Tests what needs a real machine: preflight and doctor, full disks, and the packets of mrcctl's tools."""

import ctypes
import errno
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from ipaddress import IPv6Address
from pathlib import Path

import pytest
from scapy.layers.l2 import Dot1Q, Ether

from labkit.places import lab_object
from mrcd import state_dir
from mrcd.config import cluster_file, sizes
from mrcd.ctl.examine.machine import Machine
from mrcd.denials import record
from mrcd.denials.record import Denial
from mrcd.denials.targets import Target, parse
from mrcd.errors import KernelError
from mrcd.fabric import topology
from mrcd.kernel import abi, features, libbpf
from mrcd.kernel.settings import settings
from mrcd.kernel.verify import programs_of
from mrcd.probes import probe_packet, raw_socket
from mrcd.probes.probe_packet import DIAGNOSTIC, REPLY, REQUEST, Probe
from tests.cluster_files import dual
from tests.packet.packets import H2, nic_mac, wire_mac
from tests.packet.rig import Bench
from tests.packet.wires import HAS_TCX, Namespace, call, libc, needs_tcx, unmount
from tests.packet.witness import as_root

pytestmark = as_root


HANDLE = 77
SETTINGS = settings(topology.plan(cluster_file.parse(cluster_file.EXAMPLE), "a"), features.kernel_has()).tobytes()


@pytest.fixture
def fault() -> Iterator[int]:
    """Returns the descriptor of another program, not attached."""
    obj = libbpf.open_object(lab_object("fault"))
    libbpf.load_object(obj)
    yield libbpf.program_fd(obj, "lab_fault")
    libbpf.close_object(obj)


def tc(*arguments: str) -> None:
    subprocess.run(["tc", *arguments], check=True, timeout=10)


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
    assert [Machine().programs(nics[1], where) for where in ("xdp", "ingress", "egress")] == [[], [], []]
    assert Machine().programs(nics[0], "ingress") == []


def test_an_xdp_program_is_named(ns: Namespace, nics: tuple[int, int]) -> None:
    obj = libbpf.open_object(Path(__file__).parents[2] / "build" / "mrc.bpf.o")
    try:
        rodata = next(m for name, m in libbpf.maps_of(obj).items() if name.endswith(".rodata"))
        libbpf.set_initial_value(rodata, SETTINGS)
        for name, program in programs_of(obj).items():
            libbpf.lib().bpf_program__set_autoload(ctypes.c_void_p(program), ctypes.c_bool(name == "mrc_pop_xdp"))
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


def test_the_programs_load_with_the_most_planes() -> None:
    """The verifier walks the planes one by one, and must accept all of them."""
    fabric = f"[cluster]\nplanes = {abi.MAX_PLANES}\nt0s = 2\nt1s = 32\nevs_per_peer = {sizes.MAX_EVS_PER_PEER}\n"
    plan = topology.plan(cluster_file.parse(fabric + dual(0, 0, 0) + dual(1, 1, 0)), "h0")
    accepted, words = Machine(settings(plan, features.kernel_has()).tobytes()).try_programs()
    assert accepted, words


def test_programs_that_the_kernel_refuses_are_reported() -> None:
    accepted, words = Machine(b"too short").try_programs()
    assert accepted is False
    assert "set the settings" in words


# ---- a full disk ----


ONE = [Denial(Target(plane=1), 1.0)]
MANY = [Denial(parse([f"ev:h{i}:{i}"]), 1.0, reason="x" * 100) for i in range(200)]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    call("mount a tmpfs", libc.mount(b"none", os.fsencode(tmp_path), b"tmpfs", 0, b"size=8k"))
    yield tmp_path
    unmount(tmp_path)


def test_a_full_disk_leaves_the_old_file(small: Path) -> None:
    path = small / state_dir.DENIALS
    record.write(path, ONE)
    with pytest.raises(KernelError, match="No space left on device") as e:
        record.write(path, MANY)
    assert e.value.errno == errno.ENOSPC
    assert record.read(path) == ONE
    assert [p.name for p in small.iterdir()] == [state_dir.DENIALS]


def test_a_read_only_disk_says_so(small: Path) -> None:
    path = small / state_dir.DENIALS
    record.write(path, ONE)
    call("remount", libc.mount(b"none", os.fsencode(small), b"tmpfs", 0x21, b""))  # MS_REMOUNT | MS_RDONLY
    with pytest.raises(KernelError, match="EROFS"):
        record.write(path, [])
    with pytest.raises(KernelError, match="EROFS"):
        state_dir.set_aside(path)
    assert record.read(path) == ONE


# ---- packets of tools on VLAN planes ----


VLAN, EV = 100, 6  # of plane 1
ASKED = Probe(REQUEST, sender=H2, receiver=0, ev=EV, seq=9, token=77, ns=1)  # the peer's `mrcctl probe`
RETURNED = Probe(REPLY, sender=0, receiver=0, ev=EV, seq=9, token=77, ns=1)  # by a switch, as in `mrcctl trace`


def _tagged(bench: Bench, probe: Probe, source: IPv6Address) -> Ether:
    frame = Ether(
        probe_packet.build(
            probe,
            [bench.plan.sids[1]],
            source=source,
            smac=bytes.fromhex(wire_mac(1).replace(":", "")),
            dmac=bytes.fromhex(nic_mac(1).replace(":", "")),
            udp_port=bench.config.cluster.udp_port,
        )
    )
    return Ether(src=frame.src, dst=frame.dst) / Dot1Q(vlan=VLAN) / frame.payload


def test_a_diagnostic_request_in_a_vlan_is_answered_there_and_counted_nowhere(bench: Bench) -> None:
    bench.tables.planes["vlan"][1] = VLAN
    inlet, wires, before = bench.attach_pop(1, 6), bench.wires(), bench.counted()
    peer = next(p for p in bench.plan.peers if p.host.id == H2)
    inlet.send(_tagged(bench, ASKED, peer.addresses[1]))
    ((plane, frame),) = ((n, f) for n, w in enumerate(wires) for f in w.frames())
    reply = probe_packet.read(frame.data, bench.config.cluster.udp_port)
    assert reply is not None
    assert (plane, frame.vlan, reply.kind, reply.token, reply.seq) == (1, VLAN, REPLY, 77, 9)
    assert (bench.counted(), bench.drops()) == (before, {})


def test_a_diagnostic_reply_in_a_vlan_is_seen_at_the_nic_below(bench: Bench) -> None:
    bench.tables.planes["vlan"][1] = VLAN
    inlet, before = bench.attach_pop(1, 6), bench.counted()
    port = bench.config.cluster.udp_port
    with closing(raw_socket.Taps(["n1"], raw_socket.packet_filter(port, DIAGNOSTIC))) as taps:
        inlet.send(_tagged(bench, RETURNED, bench.plan.addresses[1]))
        arrived = [data for data, _ in taps.wait(2)]
    assert [probe_packet.read(data, port) for data in arrived] == [RETURNED]
    assert (bench.counted(), bench.drops()) == (before, {})
