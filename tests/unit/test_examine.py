# SPDX-License-Identifier: BSD-2-Clause
"""Tests the checks of mrcctl preflight and doctor: each with good evidence and with bad."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mrcd.config import cluster_file
from mrcd.ctl.client import DaemonDown
from mrcd.ctl.commands import measure
from mrcd.ctl.examine import command
from mrcd.ctl.examine.checks import CHECKS, Answers, Context, examine, run
from mrcd.errors import MachineError
from mrcd.fabric import topology
from mrcd.fabric.topology import Plan
from mrcd.net.drivers import Device
from mrcd.net.messages import Link
from mrcd.probes.exchange import Tally
from tests.cluster_files import host
from tests.unit.interfaces import link

NETWORKS = '["10.99.0.1/32", "10.1.0.0/24", "fd00:1::/64"]'


def plan(cluster: str = "", source_port: str = "ev", **of_host: str) -> Plan:
    """Returns the plan of h0, with these settings of the cluster and of the host."""
    text = f'[cluster]\nplanes = 2\nmtu = 9100\n{cluster}\n[overlay]\nsource_port = "{source_port}"\n'
    text += host(0, prefixes=NETWORKS, **of_host) + host(1) + host(2)
    return topology.plan(cluster_file.parse(text), "h0")


PLAN, PINS = plan(), "/bpf/mrcd/abi2"
SYSCTLS = {
    "ipv6/conf/all/seg6_enabled": "1",
    "ipv6/conf/p0/seg6_enabled": "0",
    "ipv6/conf/p1/seg6_enabled": "0",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/p0/rp_filter": "2",
    "ipv4/conf/p1/rp_filter": "0",
    "ipv4/ip_forward": "1",
    "ipv6/conf/all/forwarding": "1",
    "ipv4/tcp_sack": "1",
    "ipv4/tcp_recovery": "1",
    "ipv4/tcp_max_reordering": "300",
    "ipv4/tcp_rmem": "4096 131072 33554432",
    "ipv4/tcp_wmem": "4096 131072 33554432",
    "core/rmem_max": "4194304",
    "core/wmem_max": "4194304",
    "core/bpf_jit_enable": "1",
}
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
HALT_POLL = "/sys/module/haltpoll/parameters/guest_halt_poll_ns"
IDLE_DRIVER, IDLE_GOVERNOR = (f"/sys/devices/system/cpu/cpuidle/current_{of}" for of in ("driver", "governor"))
FILES = {f"/proc/sys/net/{k}": v for k, v in SYSCTLS.items()} | {
    "/proc/mounts": "bpf /sys/fs/bpf bpf rw 0 0\nbpf /bpf bpf rw 0 0",
    "/sys/kernel/btf/vmlinux": "",
    "/bpf/mrcd/abi2": "",
    CLOCK: "tsc",
    IDLE_DRIVER: "intel_idle",
    IDLE_GOVERNOR: "menu",
}


def nic(name: str, ifindex: int, **other: Any) -> Link:
    """Returns a healthy plane NIC; virtual unless `kind` says otherwise."""
    return link(name, ifindex, **{"kind": "veth"} | other)


LINKS = {x.name: x for x in (nic("p0", 2), nic("p1", 3), nic("mrc0", 4, mtu=9020), nic("pmrc0", 5, mtu=9020))}
TUNNEL = "tx-udp_tnl-segmentation"
CUTS = Device("i40e", {TUNNEL: True, "rx-checksum": False})
CUTS_NOT = Device("i40e", {TUNNEL: False}, frozenset({TUNNEL}))
NEW = Device("new", {TUNNEL: True})
VOUCHES = Device("i40e", {"rx-checksum": True})
HOOKS = {
    (2, "ingress"): ["mrc_pop"],
    (3, "ingress"): ["mrc_pop"],
    (4, "egress"): ["mrc_push"],
    (5, "egress"): ["mrc_probe"],
    (5, "ingress"): ["mrc_push"],  # what mrc0 has cut
    (4, "ingress"): ["mrc_timer"],
}


class FakeMachine:
    """Gives evidence from tables: of a healthy machine, except for the values that a test replaces."""

    def __init__(self, **other: Any) -> None:
        self.files: Mapping[str, str | None] = FILES | other.pop("files", {})
        self.given: dict[str, Any] = {
            "uname": ("6.12.0", "#1 SMP PREEMPT_DYNAMIC"), "links": LINKS,
            "offloads": {}, "device": CUTS, "kernel_lacks": [],
            "speed_mbit": 100_000, "receive_queues": {0: 10**6, 1: 10**6 + 5}, "xdp_features": 0x7F,
            "neighbours": {2: "02:00:00:00:00:02", 3: "02:00:00:00:00:02"}, "hooks": HOOKS, "feature": True,
            "try_programs": (True, ""), "try_seg6": (True, ""), "clock_synchronised": True, "module": True,
            "library": "", "hashes_ports": None,
        } | other  # fmt: skip

    def text(self, path: str) -> str | None:
        return self.files.get(path)

    def exists(self, path: str) -> bool:
        return self.files.get(path) is not None

    def programs(self, ifindex: int, where: str) -> list[str]:
        found = self.given["hooks"]
        return list(found.get((ifindex, where), []))

    def __getattr__(self, name: str) -> Any:
        value = self.given[name]

        def give(*_: object) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return give


def machine_with(**other: Any) -> Any:
    return FakeMachine(**other)


STATUS = {
    "attached": True, "encapsulation": "usid", "granularity": "burst", "drops": {"too_big": 4}, "diagnosis": [],
    "daemon": {"running": True, "version": "1", "pid": 7, "uptime_s": 60.0},
    "planes": [{"interface": p, "hook": "tcx", "hook_reason": "configured"} for p in ("p0", "p1")],
}  # fmt: skip
PEERS = [{"peer": p, "reachable": True} for p in ("h1", "h2")]
ANSWERED, SILENT, REFUSED = Tally(3, rtts=[1] * 3), Tally(3), Tally()
ANSWERS = [Answers("h1", ev, ev, "GOOD", ANSWERED, ANSWERED, REFUSED) for ev in (0, 1)]
WELL = Context(
    machine_with(), PLAN, installed=True, pins=PINS, status=STATUS, peers=PEERS, answers=ANSWERS,
    overlay={"h1": "", "h2": ""},
)  # fmt: skip


def sysctl(**values: str | None) -> dict[str, Any]:
    return {"files": {f"/proc/sys/net/{k.replace('__', '/')}": v for k, v in values.items()}}


@pytest.mark.parametrize(
    ("hashes", "queues", "status"), [(True, 3, "PASS"), (False, 3, "WARN"), (False, 1, "SKIP"), (None, 3, "SKIP")]
)
def test_queues_may_be_uneven_where_nics_keep_each_flow_in_one(hashes: bool | None, queues: int, status: str) -> None:
    machine = machine_with(receive_queues=dict.fromkeys(range(queues), 0) | {0: 10**6}, hashes_ports=hashes)
    assert run("nic.queues", Context(machine, plan(source_port="flow"))).status == status


@pytest.mark.parametrize("id", sorted(CHECKS))
def test_good_evidence_passes(id: str) -> None:
    found = run(id, WELL)
    assert (found.status, found.fix) == ("PASS", ""), found
    assert found.evidence


def idle(polls_ns: str, governor: str = "haltpoll") -> dict[str, Any]:
    return {"files": {IDLE_DRIVER: "haltpoll", IDLE_GOVERNOR: governor, HALT_POLL: polls_ns}}


def bad_nic(**other: Any) -> dict[str, Any]:
    return {"links": LINKS | {"p1": nic("p1", 3, **other)}}


def hooks(**other: list[str]) -> dict[str, Any]:
    places = {"p0": (2, "ingress"), "p0_xdp": (2, "xdp"), "mrc0": (4, "egress"), "pmrc0": (5, "ingress")}
    return {"hooks": HOOKS | {places[k]: v for k, v in other.items()}}


@pytest.mark.parametrize(
    ("id", "machine", "status", "evidence", "fix"),
    [
        ("kernel.version", {"uname": ("5.10.0-9", "#1")}, "WARN", "5.10.0-9 is older than 6.1", "newer kernel"),
        ("kernel.version", {"uname": ("odd", "#1")}, "WARN", "odd is older", "newer kernel"),
        ("kernel.preempt_rt", {"uname": ("6.12", "#1 SMP PREEMPT_RT x")}, "FAIL", "not supported", "boot a"),
        ("kernel.btf", {"files": {"/sys/kernel/btf/vmlinux": None}}, "FAIL", "vmlinux", "DEBUG_INFO_BTF"),
        ("kernel.tcx", {"feature": False}, "WARN", "no TCX", "6.6"),
        ("kernel.bpf_timer", {"feature": False}, "FAIL", "bpf_timer", "6.1"),
        ("kernel.ringbuf", {"feature": False}, "FAIL", "ring buffers", "6.1"),
        ("kernel.mmapable", {"feature": False}, "FAIL", "mapped into memory", "6.1"),
        ("kernel.ringbuf", {"feature": None}, "SKIP", "only root", ""),
        ("kernel.programs", {"try_programs": (False, "load: EINVAL")}, "FAIL", "load: EINVAL", "kernel.version"),
        ("kernel.programs", {"try_programs": (None, "only root")}, "SKIP", "only root", ""),
        ("kernel.seg6", {"try_seg6": (False, "Operation not supported")}, "FAIL", "not supported", "SEG6_LWTUNNEL"),
        ("kernel.seg6", {"try_seg6": (None, "only root")}, "SKIP", "only root", ""),
        ("kernel.jit", sysctl(core__bpf_jit_enable="0"), "WARN", "interpreted", "bpf_jit_enable=1"),
        ("kernel.jit", sysctl(core__bpf_jit_enable=None), "SKIP", "namespace", ""),
        ("bpffs.mounted", {"files": {"/proc/mounts": ""}}, "FAIL", "nothing is pinned in /bpf", "restart mrcd"),
        ("bpffs.mounted", {"files": {"/bpf/mrcd/abi2": None}}, "FAIL", "forwarding ends", "mrcctl detach;"),
        ("kernel.idle", idle("0"), "WARN", "halt at once", f"echo 200000 > {HALT_POLL}"),
        ("kernel.idle", idle("50000"), "PASS", "poll for up to 50 us", ""),
        ("kernel.idle", idle("0", "menu"), "PASS", "driver haltpoll", ""),
        ("kernel.idle", {"files": {IDLE_DRIVER: "none"}}, "SKIP", "no cpuidle driver", ""),
        ("clock.source", {"files": {CLOCK: "hpet"}}, "WARN", "hpet", "tsc"),
        ("clock.synchronised", {"clock_synchronised": False}, "WARN", "not synchronised", "chrony"),
        ("clock.synchronised", {"clock_synchronised": None}, "SKIP", "not show", ""),
        ("software.libbpf", {"library": "no such file"}, "FAIL", "no such file", "apt install libbpf1"),
        ("software.bcc", {"module": False}, "PASS", "libbpf.so.1 loads", ""),
        ("nic.present", {"links": {"p0": LINKS["p0"]}}, "FAIL", "no interface p1; this machine has p0", "[interfaces]"),
        ("nic.link", bad_nic(up=False), "FAIL", "p1", "ip link set dev p1 up"),
        ("nic.mtu", bad_nic(mtu=9099), "FAIL", "p1 is 9099", "ip link set dev p1 mtu 9100"),
        ("nic.xdp", {**bad_nic(kind=None), "xdp_features": 0x3}, "WARN", "has no fragments", "3498"),
        ("nic.xdp", {**bad_nic(kind=None), "xdp_features": 0}, "WARN", "no native XDP", "another NIC"),
        ("nic.xdp", {**bad_nic(kind=None), "xdp_features": None}, "SKIP", "not show", ""),
        ("nic.xdp", {**bad_nic(kind=None), "device": VOUCHES}, "PASS", "tc on p0: veth", ""),
        ("nic.xdp", {**bad_nic(kind=None), "device": VOUCHES}, "PASS", "p1: i40e verifies outer checksums", ""),
        ("nic.xdp", bad_nic(kind="bond"), "PASS", "p1: bond has interfaces below it", ""),
        ("nic.segmentation", {**bad_nic(kind=None), "device": NEW}, "SKIP", "hardware.md does not list new", ""),
        ("nic.merging", {"offloads": {"rx-gro-list": True}}, "FAIL", "rx-gro-list is on at p0", "ethtool -K p0"),
        ("nic.merging", {"offloads": {"rx-udp-gro-forwarding": True}}, "FAIL", "merged", "rx-udp-gro-forwarding off"),
        ("nic.segmentation", {**bad_nic(kind=None), "device": CUTS_NOT}, "WARN", "segments bursts: p1", "ethtool -K"),
        ("nic.queues", {"hashes_ports": False}, "WARN", "p0, p1 do not hash UDP ports", "ethtool -N p0"),
        ("nic.queues", {"receive_queues": {0: 10**6, 1: 0, 2: 0}}, "WARN", "queue 0 of p0's 3 has 100 %", "rx-flow"),
        ("nic.first_hop", {"neighbours": {2: "02:00:00:00:00:02"}}, "FAIL", "resolved on p1", "ip neigh show dev p1"),
        ("hooks.other_programs", hooks(p0=["cil", "mrc_pop"]), "FAIL", "before mrcd's program: cil", "p0 ingress"),
        ("hooks.other_programs", hooks(p0=["mrc_pop", "cil"]), "WARN", "cil at ingress of p0", "bpftool net show"),
        ("hooks.other_programs", hooks(p0_xdp=["xdpcap"]), "FAIL", "xdpcap at xdp of p0", "ip link set dev p0 xdp off"),
        ("hooks.other_programs", {"hooks": {(2, "ingress"): ["cil"]}}, "WARN", "cil at ingress of p0", "bpftool"),
        ("hooks.mrcd", hooks(pmrc0=[]), "FAIL", "mrc_push at ingress of pmrc0", "restart mrcd"),
        ("hooks.mrcd", hooks(mrc0=[]), "FAIL", "mrc_push at egress of mrc0", "restart mrcd"),
        ("sysctl.seg6_enabled", sysctl(ipv6__conf__p1__seg6_enabled="1"), "WARN", "is on at p1", "conf.p1.seg6"),
        ("sysctl.rp_filter", sysctl(ipv4__conf__p1__rp_filter="1"), "FAIL", "strict on p1", "conf.p1.rp_filter=2"),
        ("sysctl.rp_filter", sysctl(ipv4__conf__all__rp_filter="1"), "FAIL", "strict on p1", "conf.p1.rp_filter=2"),
        ("sysctl.forwarding", sysctl(ipv4__ip_forward="0"), "WARN", "net.ipv4.ip_forward is 0", "ip_forward=1"),
        ("tcp.sack", sysctl(ipv4__tcp_sack="0"), "FAIL", "tcp_sack is 0", "tcp_sack=1"),
        ("tcp.sack", sysctl(ipv4__tcp_sack=None), "SKIP", "no tcp_sack", ""),
        ("tcp.recovery", sysctl(ipv4__tcp_recovery="0"), "WARN", "RACK is off", "tcp_recovery=1"),
        ("tcp.recovery", sysctl(ipv4__tcp_recovery="3"), "WARN", "does not adapt", "tcp_recovery=1"),
        ("tcp.reordering", sysctl(ipv4__tcp_max_reordering="100"), "WARN", "metric 300", "tcp_max_reordering=300"),
        ("tcp.buffers", sysctl(ipv4__tcp_rmem="4096 131072 6291456"), "WARN", "200 Gbit/s", "4096 131072 10000000"),
        ("tcp.buffers", {"speed_mbit": None}, "SKIP", "speed", ""),
        ("udp.buffers", sysctl(core__rmem_max="212992"), "WARN", "212992 bytes", "rmem_max=4194304"),
        ("udp.buffers", sysctl(core__rmem_max=None), "SKIP", "namespace", ""),
    ],
)  # fmt: skip
def test_bad_evidence_from_the_machine(id: str, machine: dict[str, Any], status: str, evidence: str, fix: str) -> None:
    found = run(id, replace(WELL, machine=machine_with(**machine)))
    assert found.status == status, found
    assert evidence in found.evidence
    assert fix in found.fix
    assert bool(found.fix) == (status in ("WARN", "FAIL"))


def hooked(hook: str | None, reason: str | None) -> dict[str, Any]:
    return {"status": {**STATUS, "planes": [{"interface": "p0", "hook": hook, "hook_reason": reason}]}}


LOSS = {
    "cause": "loss", "target": "link:0:2:3", "severity": "warning", "do": "look",
    "sentence": "Plane 0: it loses packets",
}  # fmt: skip
T1 = LOSS | {
    "cause": "t1", "target": "t1:1:2", "or_targets": ["link:1:0:2"], "severity": "critical",
    "sentence": "Plane 1: T1 2 is dead",
}  # fmt: skip
DENIED = LOSS | {"cause": "denied", "target": "t1:0:0", "severity": "ok"}


def diagnosed(*causes: Any) -> dict[str, Any]:
    return {"status": STATUS | {"diagnosis": list(causes)}}


def answers(**other: Any) -> dict[str, Any]:
    return {"answers": [ANSWERS[0], replace(ANSWERS[1], **other)]}


@pytest.mark.parametrize(
    ("id", "context", "status", "evidence"),
    [
        ("daemon.running", {"status": None, "down": "mrcd is not running"}, "FAIL", "mrcd is not running"),
        ("daemon.running", {"status": {**STATUS, "daemon": {"running": False}}}, "FAIL", "are not followed"),
        (
            "daemon.running",
            {"status": {**STATUS, "daemon": {"running": True, "pid": 7, "uptime_s": None}}},
            "FAIL",
            "mrcd (pid 7) runs, but does not answer",
        ),
        ("daemon.attached", {"status": {**STATUS, "attached": False}}, "WARN", "detached"),
        ("peers.reachable", {"peers": [PEERS[0], {"peer": "h2", "reachable": False}]}, "WARN", "not heard: h2"),
        ("peers.reachable", {"peers": [{"peer": "h2", "reachable": False}]}, "FAIL", "none of 1 peers"),
        ("drops.mismatch", {"status": {**STATUS, "drops": {"wrong_plane": 9}}}, "WARN", "9 packets wrong_plane"),
        ("drops.mismatch", {"status": {**STATUS, "drops": {"unknown_key": 9}}}, "WARN", "9 packets unknown_key"),
        ("drops.mismatch", {"status": {**STATUS, "drops": {"wrong_inner_source": 2}}}, "WARN", "wrong_inner_source"),
        ("nic.hook", hooked(None, None), "FAIL", "not attached to p0"),
        ("nic.hook", hooked("tcx", "native XDP refused: x"), "WARN", "refused on p0"),
        ("paths.diagnosis", diagnosed(DENIED), "PASS", "denied: t1:0:0"),
        ("paths.diagnosis", diagnosed(LOSS), "WARN", "loss link:0:2:3 (Plane 0: it loses packets)"),
        ("paths.diagnosis", diagnosed(T1, LOSS, DENIED), "FAIL", "t1 t1:1:2 or link:1:0:2 (Plane 1: T1 2 is dead)"),
        ("paths.diagnosis", {"status": STATUS | {"diagnosis": None}}, "SKIP", "older version"),
        ("paths.diagnosis", {"status": None}, "SKIP", "mrcd does not answer"),
        ("paths.answer", answers(small=SILENT), "FAIL", "on EVs in use: h1 EV 1"),
        ("paths.answer", answers(small=Tally(send_error="no first hop")), "FAIL", "h1 EV 1: no first hop"),
        ("paths.answer", answers(small=SILENT, state="ASSUMED_BAD"), "WARN", "1 of 2 EVs to 1 of 2 peers, which"),
        ("paths.answer", {"answers": []}, "SKIP", "no probes"),
        ("paths.mtu", answers(full=SILENT), "FAIL", "packets of 9100 bytes are lost where short ones are not: h1 EV 1"),
        ("paths.mtu", answers(full=Tally(send_error="longer than the MTU of the NIC")), "FAIL", "longer than"),
        ("paths.mtu", {"answers": [replace(a, small=SILENT) for a in ANSWERS]}, "SKIP", "no EV in use"),
        ("overlay.mtu", {"overlay": {"h1": "", "h2": "it is lost"}}, "FAIL", "to h2: it is lost"),
        ("overlay.mtu", {"overlay": {}}, "SKIP", "sprays to no peer"),
        ("hooks.mrcd", {"status": {**STATUS, "attached": False}}, "SKIP", "detached"),
    ],
)  # fmt: skip
def test_bad_evidence_from_mrcd_and_the_paths(id: str, context: dict[str, Any], status: str, evidence: str) -> None:
    found = run(id, replace(WELL, **context))
    assert found.status == status, found
    assert evidence in found.evidence
    assert bool(found.fix) == (status in ("WARN", "FAIL"))


@pytest.mark.parametrize(("pid", "fix"), [(None, "systemctl start mrcd"), (7, "journalctl -u mrcd; systemctl restart")])
def test_doctor_starts_no_daemon_that_runs_without_its_socket(
    monkeypatch: pytest.MonkeyPatch, pid: int | None, fix: str
) -> None:
    monkeypatch.setattr(command, "running", lambda run_dir: (PLAN, PINS))
    monkeypatch.setattr(command, "Machine", FakeMachine)
    down = DaemonDown("mrcd (pid 7) runs, but does not answer", hint="", pid=pid)
    found = {c["id"]: c for c in command.doctor(Path("/nowhere"), None, down)["checks"]}
    assert found["daemon.running"]["status"] == "FAIL"
    assert found["daemon.running"]["fix"].startswith(fix)


DETACHED = {"cause": "peer_detached", "target": "peer:h1", "severity": "warning", "do": "on h1: `mrcctl attach`"}


@pytest.mark.parametrize("target", ["peer:h1", "host:h0"])
def test_doctor_says_why_a_detached_peer_does_not_answer_and_sends_nobody_to_trace(target: str) -> None:
    silent = [replace(a, small=SILENT) for a in ANSWERS]
    known = replace(WELL, status={**STATUS, "host": "h0", "diagnosis": [DETACHED | {"target": target}]}, answers=silent)
    found = run("paths.answer", known)
    assert (found.status, found.fix) == ("WARN", DETACHED["do"])
    assert f"2 EVs in use, because of peer_detached {target}" in found.evidence
    found = run("paths.answer", replace(known, answers=[*silent, replace(silent[0], peer="h2")]))
    assert found.status == ("WARN" if target == "host:h0" else "FAIL")
    assert target == "host:h0" or (found.fix, "h1" in found.evidence) == ("mrcctl trace h2 --ev 0", False)


@pytest.mark.parametrize(("hook", "device", "status"), [
    ("xdp + tcx", VOUCHES, "FAIL"), ("xdp + tcx", CUTS, "PASS"), ("tcx", VOUCHES, "PASS"),
    ("xdp + tcx", Device("i40e"), "FAIL"),  # it does not tell
    ("xdp + tcx", Device("virtio_net", {"rx-checksum": True}), "PASS"),
    ("xdp-generic + tcx", Device("virtio_net", {"rx-checksum": True}), "FAIL"),
])  # fmt: skip
def test_xdp_with_unverified_checksums_is_reported(hook: str, device: Device, status: str) -> None:
    links = {"links": LINKS | {"p0": nic("p0", 2, kind=None)}}
    context = replace(WELL, machine=machine_with(**links, device=device), **hooked(hook, "configured"))
    found = run("nic.checksum", context)
    assert found.status == status
    assert ("ethtool -K p0 rx off" in found.fix) == (status == "FAIL")


def test_configured_xdp_with_unverified_checksums_is_an_error() -> None:
    machine = machine_with(**bad_nic(kind="bond"))
    found = run("nic.xdp", replace(WELL, machine=machine, plan=plan(hook='"xdp"')))
    assert (found.status, "p1 is a bond" in found.evidence, '"tc"' in found.fix) == ("FAIL", True, True)


@pytest.mark.parametrize(("over", "evidence"), [(ANSWERED, "passes on 1"), (SILENT, "passes on 0")])
def test_one_byte_over_the_mtu_may_pass(over: Tally, evidence: str) -> None:
    assert f"a byte more {evidence}" in run("paths.mtu", replace(WELL, **answers(over=over))).evidence


def test_settings_of_mrcd_are_no_fault_before_it_runs() -> None:
    machine = machine_with(**sysctl(ipv4__conf__p1__rp_filter="1"))
    found = run("sysctl.rp_filter", Context(machine, PLAN))
    assert (found.status, "mrcd" in found.evidence) == ("PASS", True)


def test_ecmp_needs_no_srv6() -> None:
    context = replace(WELL, machine=machine_with(try_seg6=(False, "x")), plan=plan('encapsulation = "ecmp"'))
    assert run("kernel.seg6", context).status == "PASS"


@pytest.mark.parametrize("value", ["0", None])
def test_an_srh_is_of_no_use_where_all_is_off(value: str | None) -> None:
    machine = machine_with(**sysctl(ipv6__conf__all__seg6_enabled=value, ipv6__conf__p1__seg6_enabled="1"))
    assert run("sysctl.seg6_enabled", replace(WELL, machine=machine)).status == "PASS"


def test_vlans_share_the_hooks_of_their_nic() -> None:
    vlans = {n: nic(n, i, kind="vlan", vlan=i, lower=9) for i, n in ((2, "p0"), (3, "p1"))}
    links = LINKS | vlans | {"eth0": nic("eth0", 9, kind=None)}
    machine = machine_with(links=links, hooks={**HOOKS, (9, "ingress"): ["other", "mrc_pop"]})
    found = run("hooks.other_programs", replace(WELL, machine=machine))
    assert found.evidence == "before mrcd's program: other at ingress of eth0"


# ---- all together ----


def test_each_command_runs_its_own_checks() -> None:
    ids = {now: [d["id"] for d in examine(replace(WELL, installed=now))] for now in (False, True)}
    assert {"kernel.programs", "kernel.seg6"} == set(ids[False]) - set(ids[True])
    assert {"daemon.running", "paths.mtu", "hooks.mrcd", "nic.first_hop"} <= set(ids[True]) - set(ids[False])


def test_without_a_cluster_file_the_host_is_checked_all_the_same() -> None:
    found = {d["id"]: d for d in examine(Context(machine_with()))}
    assert found["kernel.version"]["status"] == "PASS"
    assert (found["nic.mtu"]["status"], "--config" in found["nic.mtu"]["evidence"]) == ("SKIP", True)


@pytest.mark.parametrize("error", [MachineError("no ioctl"), PermissionError(1, "Not permitted", "/x")], ids=str)
def test_unreadable_evidence_is_skipped_and_other_checks_run(error: Exception) -> None:
    context = replace(WELL, machine=machine_with(offloads=error))
    found = {d["id"]: d for d in examine(context)}
    assert found["nic.merging"]["status"] == "SKIP"
    assert ("no ioctl" in found["nic.merging"]["evidence"]) or ("Not permitted" in found["nic.merging"]["evidence"])
    assert found["nic.mtu"]["status"] == "PASS"


def test_the_text_shows_the_remedy() -> None:
    document = command.document("doctor", replace(WELL, machine=machine_with(**bad_nic(mtu=1500))))
    text = command.lines(document, colour=False)
    at = next(i for i, line in enumerate(text) if line.startswith("FAIL  nic.mtu"))
    assert text[at + 1].strip() == "fix: ip link set dev p1 mtu 9100"
    assert text[-1] == f"doctor: {len(document['checks']) - 1} PASS, 1 FAIL"
    assert "\033[31mFAIL" in "\n".join(command.lines(document, colour=True))


@pytest.mark.parametrize(("hosts", "evs", "chosen"), [(3, 16, None), (33, 256, None), (34, 256, 32), (4096, 256, 32)])
def test_doctor_limits_the_number_of_probed_paths(hosts: int, evs: int, chosen: int | None) -> None:
    peers = [{"peer": f"h{n}"} for n in range(1, hosts)]
    found = measure.choose_peers({"evs": {"GOOD": (hosts - 1) * evs - 5, "UNKNOWN": 5}}, peers)
    if chosen is None:
        assert found == [None]
    else:
        assert len(set(found)) == len(found) == chosen
        assert set(found) <= {p["peer"] for p in peers}
