# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrcctl probe, trace, capture and doctor on the kernel's own SRv6, with faults made by hand."""

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from labkit.cluster.api import Lab
from labkit.places import lab_object
from mrcd.kernel import libbpf
from tests.lab.conftest import TWO_HOSTS, a_lab, all_good, mrcctl, states, wait_until

ROOT = Path(__file__).parents[2]
FAST = ("--interval", "2", "--wait", "1")
_BEFORE = 1 << 3  # BPF_F_BEFORE: in front of all others


def _json(lab: Lab, host: str, *arguments: str, code: int = 0) -> Any:
    done = lab.exec(host, ["mrcctl", *arguments, "--json"])
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    return json.loads(done.stdout)


# ---- probe ----


def _verdict_tables(lab: Lab) -> dict[str, Any]:
    """Returns the fields that decide health, on both sides, as far as only probes change them.

    On a busy machine a late probe of the host's own makes an EV SKIP for a moment: that passes first.
    """

    def look() -> dict[str, Any] | None:
        found = {}
        for host, peer in (("h0", "h2"), ("h2", "h0")):
            for p in mrcctl(lab, host, "paths", "--peer", peer):
                found[f"{host} {p['ev']}"] = (p["state"], p["reason"], p["lost_packets"], p["flaps"])
        return found if all(state == "GOOD" for state, *_ in found.values()) else None

    found: dict[str, Any] = wait_until("all EVs are GOOD", look)
    return found


def test_probe_measures_each_ev_without_changing_its_state(healthy: Lab) -> None:
    before = _verdict_tables(healthy)
    events = len(mrcctl(healthy, "h0", "events"))
    document = _json(healthy, "h0", "probe", "h2", "--count", "50", *FAST)
    assert (document["sent"], document["received"], document["loss_ratio"]) == (800, 800, 0)
    assert [e["ev"] for e in document["evs"]] == list(range(16))
    for e in document["evs"]:
        assert 0 < e["rtt_min_ns"] <= e["rtt_avg_ns"] <= e["rtt_max_ns"]
    assert _verdict_tables(healthy) == before
    assert len(mrcctl(healthy, "h0", "events")) == events
    for host in ("h0", "h2"):  # no reply was dropped as unasked
        assert mrcctl(healthy, host, "status")["drops"] == {}


def test_probe_finds_the_lossy_ev_and_the_dead_one(healthy: Lab) -> None:
    healthy.fail("link:2:0:1", drop=0.5, direction="up")
    assert 0.2 < _json(healthy, "h0", "probe", "h2", "--ev", "9", "--count", "100", *FAST)["loss_ratio"] < 0.8
    healthy.heal()
    healthy.fail("t1:1:2")
    document = _json(healthy, "h0", "probe", "h2", *FAST)
    assert {e["ev"] for e in document["evs"] if e["loss_ratio"]} == {6}
    dead = _json(healthy, "h0", "probe", "h2", "--ev", "6", *FAST, code=2)
    assert (dead["received"], dead["evs"][0]["rtt_avg_ns"]) == (0, None)


def test_probes_have_the_requested_size(healthy: Lab) -> None:
    document = _json(healthy, "h0", "probe", "h2", "--ev", "0", "--size", "9100", "--count", "3")
    assert (document["size_bytes"], document["received"]) == (9100, 3)
    refused = _json(healthy, "h0", "probe", "h2", "--ev", "0", "--size", "9101", "--count", "3", code=2)
    assert (refused["sent"], refused["evs"][0]["send_error"]) == (0, "longer than the MTU of the NIC")


# ---- trace ----

UP, DOWN = {"direction": "up"}, {"direction": "down"}


@pytest.mark.parametrize(
    ("target", "fault", "suspects", "first"),
    [
        ("t1:1:2", {}, ["T1 2"], "T1 2"),
        ("link:1:0:2", UP, ["T0 0 → T1 2"], "T1 2"),
        ("link:1:0:2", DOWN, ["T1 2 → T0 0"], None),  # not in the forward direction
        ("link:1:0:2", {}, ["T0 0 – T1 2, both ways"], "T1 2"),
        ("link:1:1:2", DOWN, ["T1 2 → T0 1"], "T0 1"),
        ("link:1:1:2", UP, ["T0 1 → T1 2"], None),
        ("t0:1:1", {}, ["T0 1"], "T0 1"),
        ("nic:h2:1", {}, ["T0 1 → h2", "h2 → T0 1", "T0 1 – h2, both ways", "h2"], "h2"),
        ("nic:h0:1", UP, ["h0 → T0 0", "T0 0 → h0", "h0 – T0 0, both ways", "T0 0"], "T0 0"),
        ("link:1:1:2", {"drop": 0.2, "direction": "down"}, ["T1 2 → T0 1"], "T0 1"),
        ("link:1:0:1", {}, [], None),  # of another EV
    ],
    ids=str,
)
def test_trace_names_the_broken_link_or_switch(
    lab: Lab, target: str, fault: dict[str, Any], suspects: list[str], first: str
) -> None:
    lab.fail(target, **fault)
    try:
        document = _json(
            lab, "h0", "trace", "h2", "--ev", "6", "--count", "100" if "drop" in fault else "5", *FAST,
            code=1 if first else 0,
        )  # fmt: skip
    finally:
        lab.heal()
    assert document["suspects"] == suspects, document
    assert not suspects or target in document["targets"]
    assert document["first_failing_hop"] == first
    assert [h["name"] for h in document["hops"]] == ["T0 0", "T1 2", "T0 1", "h2"]


def test_trace_works_within_a_t0(healthy: Lab) -> None:
    document = _json(healthy, "h0", "trace", "h1", "--ev", "4", *FAST)
    assert [(h["name"], h["ok"]) for h in document["hops"]] == [("T0 0", True), ("h1", True)]
    assert (document["checks"], document["suspects"]) == ([], [])


def test_trace_and_probe_work_without_the_daemon(healthy: Lab) -> None:
    pid = healthy.daemon_pid("h0")
    assert pid is not None
    os.kill(pid, 9)
    wait_until("mrcd of h0 is gone", lambda: healthy.daemon_pid("h0") is None)
    assert all(h["ok"] for h in _json(healthy, "h0", "trace", "h2", "--ev", "6", *FAST)["hops"])
    assert _json(healthy, "h0", "probe", "h2", "--ev", "6", *FAST)["received"] == 10
    checks = {c["id"]: c["status"] for c in _json(healthy, "h0", "doctor", code=2)["checks"]}
    assert {k for k, v in checks.items() if v == "FAIL"} == {"daemon.running"}


def _has_left(lab: Lab, host: str, peer: str, ev: int) -> bool:
    return not next(p for p in mrcctl(lab, host, "paths", "--peer", peer) if p["ev"] == ev)["usable"]


@pytest.mark.parametrize("encapsulation", ["srh", "ecmp"])
def test_tools_work_with_srh_and_refuse_trace_with_ecmp(encapsulation: str) -> None:
    with a_lab("steered", **TWO_HOSTS, encapsulation=encapsulation) as lab:
        assert _json(lab, "h0", "probe", "h1", *FAST)["loss_ratio"] == 0
        if encapsulation == "ecmp":
            refused = lab.exec("h0", ["mrcctl", "trace", "h1", "--ev", "0"])
            assert (refused.returncode, refused.stdout) == (1, "")
            assert refused.stderr.startswith("mrcctl: with encapsulation ecmp the switches choose the path")
        else:
            lab.fail("t1:0:1")
            for host, peer in (("h0", "h1"), ("h1", "h0")):  # until then h1 may answer by that T1
                wait_until(f"{host} has left it", partial(_has_left, lab, host, peer, 1))
            document = _json(lab, "h0", "trace", "h1", "--ev", "1", "--count", "5", *FAST, code=1)
            # Eight SIDs are more than the programs take, so the T1 is not seen from its other side.
            assert document["suspects"] == ["T0 0 – T1 1, both ways", "T1 1"]
            lab.heal()
            wait_until("all EVs are GOOD", lambda: all_good(lab))
        doctor = _json(lab, "h0", "doctor")
        assert doctor["summary"]["FAIL"] == 0, doctor
        assert mrcctl(lab, "h0", "status")["drops"] == {}


# ---- capture ----


def test_tshark_shows_what_capture_writes(healthy: Lab, tmp_path: Path) -> None:
    file = tmp_path / "planes.pcap"

    def size() -> int:
        return file.stat().st_size if file.exists() else 0

    with healthy.popen("h0", ["mrcctl", "capture", "-w", str(file)], stderr=subprocess.PIPE) as tap:
        wait_until("the capture begins", lambda: size() > 1000)
        healthy.exec("h0", ["ping", "-c", "8", "-i", "0.01", "-W1", "10.99.0.3"], check=True)
        done = size()
        wait_until("what came before is in the file", lambda: size() > done + 10_000)
        tap.send_signal(signal.SIGINT)
        assert tap.wait(20) == 0
    script = f"lua_script:{ROOT}/scripts/deploy/wireshark/mrc.lua"

    def fields(only: str, *names: str) -> list[list[str]]:
        argv = ["tshark", "-r", str(file), "-X", script, "-Y", only, "-T", "fields", *(f"-e{n}" for n in names)]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return [line.split("\t") for line in shown.splitlines()]

    assert fields("not mrc", "frame.number") == []
    assert {tuple(r) for r in fields("mrc.type == 1 && icmp", "mrc.sender", "mrc.receiver")} == {("0", "2"), ("2", "0")}
    assert fields("mrc.type == 3 && mrc.receiver == 0", "mrc.count.packets")
    assert fields("mrc.link_probe", "mrc.link.plane")
    one = healthy.exec("h0", ["mrcctl", "capture", "h2", "--plane", "2", "--type", "reply", "-c", "3"], check=True)
    assert len(one.stdout.splitlines()) == 3


# ---- doctor and preflight ----


def _failing(lab: Lab, command: str = "doctor") -> dict[str, dict[str, Any]]:
    done = lab.exec("h0", ["mrcctl", command, "--json"])
    assert "Traceback" not in done.stderr
    found = {c["id"]: c for c in json.loads(done.stdout)["checks"]}
    assert done.returncode == (2 if any(c["status"] == "FAIL" for c in found.values()) else 0)
    return {k: c for k, c in found.items() if c["status"] == "FAIL"}


def test_doctor_and_preflight_find_nothing_on_a_healthy_host(healthy: Lab) -> None:
    assert _failing(healthy, "preflight") == {}
    before = _verdict_tables(healthy)
    assert _failing(healthy) == {}
    assert _verdict_tables(healthy) == before


def test_preflight_passes_on_this_machine() -> None:
    """Without a namespace or cluster file: kernel and software; the programs are loaded for a moment."""
    done = subprocess.run([ROOT / ".venv/bin/mrcctl", "preflight", "--json"], capture_output=True, text=True)
    found = {c["id"]: c["status"] for c in json.loads(done.stdout)["checks"]}
    assert done.returncode == (2 if "FAIL" in found.values() else 0)
    assert {found[k] for k in ("kernel.programs", "kernel.seg6", "kernel.tcx", "kernel.bpf_timer")} == {"PASS"}
    assert found["nic.mtu"] == "SKIP"


def test_doctor_finds_a_short_mtu_inside_the_fabric(healthy: Lab) -> None:
    def mtu(value: int) -> None:
        healthy.exec("t0-1-0", ["ip", "link", "set", "t1-2", "mtu", str(value)], check=True)

    mtu(9000)
    try:
        full = _json(healthy, "h0", "probe", "h2", "--size", "9100", *FAST)
        assert {e["ev"] for e in full["evs"] if not e["received"]} == {6}
        assert states(healthy, "h0", "h2")[6] == "GOOD"  # the probes and the switch's errors are no evidence
        found = _failing(healthy)  # doctor sends data too, so the EV may be left now
        assert found.keys() == {"paths.mtu"}
        evidence = found["paths.mtu"]["evidence"]
        assert "h2 EV 6" in evidence
        assert "h3 EV 6" in evidence
        assert "EV 5" not in evidence
    finally:
        mtu(9100)


def test_doctor_finds_a_short_mtu_of_a_nic(healthy: Lab) -> None:
    healthy.exec("h0", ["ip", "link", "set", "p2", "mtu", "9000"], check=True)
    try:
        wait_until("the plane is left", lambda: not mrcctl(healthy, "h0", "status")["planes"][2]["up"])
        found = _failing(healthy)
    finally:
        healthy.exec("h0", ["ip", "link", "set", "p2", "mtu", "9100"], check=True)
    assert found.keys() == {"nic.mtu", "paths.diagnosis"}
    assert found["nic.mtu"]["fix"] == "ip link set dev p2 mtu 9100"
    assert "the MTU of p2 is less than the 9100" in found["paths.diagnosis"]["evidence"]


def test_doctor_finds_a_strict_rp_filter(healthy: Lab) -> None:
    setting = "net.ipv4.conf.p1.rp_filter"
    healthy.exec("h0", ["sysctl", "-qw", f"{setting}=1"], check=True)
    try:
        found = _failing(healthy)
    finally:
        healthy.exec("h0", ["sysctl", "-qw", f"{setting}=0"], check=True)
    assert found.keys() == {"sysctl.rp_filter"}
    assert found["sysctl.rp_filter"]["fix"] == f"sysctl -w {setting}=2"


@contextlib.contextmanager
def _other_program(lab: Lab, interface: str, flags: int) -> Iterator[None]:
    """A block with another program at tc ingress of an interface of h0: the fault program, which drops nothing."""
    obj = libbpf.open_object(lab_object("fault"))
    try:
        libbpf.load_object(obj)
        with lab.inside("h0"):
            fd = libbpf.program_fd(obj, "lab_fault")
            link = libbpf.create_link(fd, socket.if_nametoindex(interface), libbpf.TCX_INGRESS, flags)
        try:
            yield
        finally:
            os.close(link)
    finally:
        libbpf.close_object(obj)


def test_doctor_names_other_programs(healthy: Lab) -> None:
    with _other_program(healthy, "p3", _BEFORE):
        found = _failing(healthy)
        assert found.keys() == {"hooks.other_programs"}
        assert found["hooks.other_programs"]["evidence"] == "before mrcd's program: lab_fault at ingress of p3"
    with _other_program(healthy, "p3", 0):
        checks = {c["id"]: c for c in _json(healthy, "h0", "doctor")["checks"]}
        assert checks["hooks.other_programs"]["status"] == "WARN"
        assert (
            checks["hooks.other_programs"]["evidence"] == "other programs at mrcd's hooks: lab_fault at ingress of p3"
        )


def test_doctor_finds_a_blackhole(healthy: Lab) -> None:
    healthy.fail("t1:1:2")
    wait_until("EV 6 is left", lambda: states(healthy, "h0", "h2")[6] == "ASSUMED_BAD")
    checks = {c["id"]: c for c in _json(healthy, "h0", "doctor", code=2)["checks"]}
    assert checks["paths.diagnosis"]["status"] == "FAIL"
    assert "t1:1:2" in checks["paths.diagnosis"]["evidence"]
    assert checks["paths.answer"]["status"] == "WARN"
    assert "which are out of use" in checks["paths.answer"]["evidence"]
    assert checks["paths.mtu"]["status"] == "PASS"
