# SPDX-License-Identifier: BSD-2-Clause
"""Tests faults of a host: a NIC that returns as another, no BPF file system, a full disk, other programs."""

import ctypes
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cluster import netns, render
from labkit.cluster.api import Lab
from labkit.cluster.bringup import answers
from labkit.faults import fault_program
from mrcd.kernel import libbpf
from mrcd.kernel.dataplane import pin_directory
from tests.lab.conftest import TWO_HOSTS, a_lab, all_good, mrcctl, wait_until
from tests.lab.flows import tcp_transfer


@pytest.fixture(scope="module")
def small() -> Iterator[Lab]:
    """Two hosts, two planes."""
    with a_lab("odds", **TWO_HOSTS) as lab:
        yield lab


def _end(lab: Lab, host: str = "h0") -> None:
    pid = lab.daemon_pid(host)
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    wait_until(f"mrcd of {host} is gone", lambda: lab.daemon_pid(host) is None)


def test_a_nic_that_returns_as_another_interface_is_used_again(small: Lab) -> None:
    def number() -> int:
        return int(json.loads(small.exec("h0", ["ip", "-j", "link", "show", "p1"], check=True).stdout)[0]["ifindex"])

    fabric, before = small.fabric, number()
    small.exec("h0", ["ip", "link", "del", "p1"], check=True)
    wait_until("plane 1 is down", lambda: not mrcctl(small, "h0", "status")["planes"][1]["up"])
    tcp_transfer(small, 4, size=1_000_000, target=1)
    for spare in range(8):  # the kernel reuses free interface numbers: occupy them
        small.exec("h0", ["ip", "link", "add", f"spare{spare}", "type", "ifb"], check=True)
    again = [line for line in render.create_links(fabric) if " name p1 netns " in line and small.ns("h0") in line]
    netns.batch(("ip",), again)
    for node in ("t0-1-0", "h0"):
        lines = render.configure(fabric.nodes[node])
        netns.batch_in(fabric.namespace(node), ("ip", "-6"), lines)
    assert number() != before
    wait_until("all EVs are GOOD again", lambda: all_good(small))
    assert mrcctl(small, "h0", "status")["planes"][1]["ifindex"] == number()
    tcp_transfer(small, 6, size=1_000_000, target=1)
    sent = {p["plane"] for p in mrcctl(small, "h0", "paths") if p["tx_packets"]}
    assert sent == {0, 1}
    for spare in range(8):
        small.exec("h0", ["ip", "link", "del", f"spare{spare}"], check=True)


def test_another_program_at_the_same_hook_keeps_its_place(small: Lab) -> None:
    """TCX runs several programs: the other one keeps its place over a restart and a reload of mrcd."""
    obj = libbpf.open_object(fault_program.OBJECT)
    libbpf.load_object(obj)
    with small.inside("h0"):
        index = socket.if_nametoindex("p0")
        link = libbpf.create_link(libbpf.program_fd(obj, fault_program.PROGRAM), index, libbpf.TCX_INGRESS)

    def programs() -> list[int]:
        """Returns the ids of the attached programs, in their order."""
        numbers, count, flags = (ctypes.c_uint32 * 8)(), ctypes.c_uint32(8), ctypes.c_uint32()
        with small.inside("h0"):
            result = libbpf.lib().bpf_prog_query(
                index, libbpf.TCX_INGRESS, 0, ctypes.byref(flags), numbers, ctypes.byref(count)
            )
        libbpf.check("query", result)
        return list(numbers)[: count.value]

    try:
        ours, theirs = programs()
        _end(small)
        small.up(**TWO_HOSTS)
        new, same = programs()
        assert (new != ours, same) == (True, theirs)
        tcp_transfer(small, 4, size=1_000_000, target=1)
    finally:
        os.close(link)
        libbpf.close_object(obj)
    assert programs() == [new]


def _start(lab: Lab, run_dir: Path, log: Path) -> "subprocess.Popen[bytes]":
    """Starts h0's mrcd by hand, with the lab's BPF file system."""
    with log.open("wb") as output:
        argv = ["mrcd", "--run-dir", str(run_dir), "--bpffs", str(lab.run_dir("h0") / "bpf")]
        child = lab.popen("h0", argv, stdout=output, stderr=output)
    wait_until(f"mrcd answers: {log.read_text()}", lambda: answers(run_dir / "mrcd.sock") or child.poll() is not None)
    assert child.poll() is None, log.read_text()
    return child


def _deny_on_a_full_disk(lab: Lab, run_dir: Path) -> None:
    """The denial is in force at once, with a warning, and in the file as soon as there is room."""
    control = ["mrcctl", "--run-dir", str(run_dir)]
    done = lab.exec("h0", [*control, "deny", "ev:0"], check=True)
    assert "a restart would lose the denials" in done.stderr
    assert "No space left on device" in done.stderr
    denied = json.loads(lab.exec("h0", [*control, "paths", "--state", "DENIED", "--json"], check=True).stdout)
    assert [p["ev"] for p in denied["paths"]] == [0]
    assert not (run_dir / "denials.json").exists()
    (run_dir / "filler").unlink()
    wait_until("the denial is in the file", (run_dir / "denials.json").exists)
    done = lab.exec("h0", [*control, "allow", "ev:0"], check=True)
    assert done.stderr == ""


def test_a_full_disk_does_not_stop_the_daemon(small: Lab, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "full", run_dir], check=True)
    _end(small)
    try:
        with pytest.raises(OSError, match="No space"):
            (run_dir / "filler").write_bytes(bytes(1 << 20))
        child = _start(small, run_dir, tmp_path / "log")
        try:
            assert "mrcctl will show the configuration before" in (tmp_path / "log").read_text()
            tcp_transfer(small, 4, size=1_000_000, target=1)
            status = small.exec("h0", ["mrcctl", "--run-dir", str(run_dir), "status", "--json"], check=True)
            assert json.loads(status.stdout)["daemon"]["running"]
            _deny_on_a_full_disk(small, run_dir)
        finally:
            child.terminate()
            child.wait(120)
        assert "Traceback" not in (tmp_path / "log").read_text()
    finally:
        subprocess.run(["umount", run_dir], check=True)
    small.up(**TWO_HOSTS)
    wait_until("all EVs are GOOD", lambda: all_good(small))


def test_a_missing_bpf_file_system_is_mounted_again(small: Lab, tmp_path: Path) -> None:
    """Tables and links go with it; a start makes all of them anew."""
    bpffs = small.run_dir("h0") / "bpf"
    _end(small)
    subprocess.run(["umount", bpffs], check=True)
    assert not os.path.ismount(bpffs)
    child = _start(small, small.run_dir("h0"), tmp_path / "log")
    try:
        assert os.path.ismount(bpffs)
        links = {p.name for p in (pin_directory(bpffs) / "links").iterdir()}
        assert links == {"push-egress", "push-ingress", "probe-egress", "timer-ingress", "unsent", "pop-0", "pop-1"}
        wait_until("all EVs are GOOD", lambda: all_good(small))
        tcp_transfer(small, 4, size=1_000_000, target=1)
    finally:
        child.terminate()
        child.wait(120)
    small.up(**TWO_HOSTS)
