# SPDX-License-Identifier: BSD-2-Clause
"""Checks mrcd on one kernel in small labs: traffic, a T1 that dies, daemons that come and go, tunnels."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit import entry
from labkit.cluster import bringup, observe
from labkit.cluster.api import Lab
from labkit.cluster.patience import EMULATED, patience
from labkit.kernels.programs import Say, variants
from labkit.places import REPOSITORY
from labkit.traffic import relay
from labkit.traffic.candidates import SOURCE, TARGET
from labkit.traffic.stream import Stream
from mrcd.errors import MachineError
from mrcd.kernel import features, verify
from mrcd.kernel.enums import KernelHas
from mrcd.kernel.object_file import object_path

SMALL = {"hosts": 4, "hosts_per_t0": 2, "planes": 2, "t1": 2}
SMALLEST = {"hosts": 2, "hosts_per_t0": 1, "planes": 2, "t1": 2}
OTHER_BUILD = "other.bpf.o"  # in the results: an object to upgrade to
PATIENCE_S = patience(15.0)
_RATE = 200  # packets per second, while daemons come and go
_ARRIVED = 0.9  # least share of UDP packets that arrive
_UDP_RATE = "2M"  # bit/s: a socket holds what arrives while an emulated CPU pauses for half a second
LEAST = 1e6  # bit/s of TCP; a lower rate means repeated retransmissions
_EMPTY_MOST = 9 if EMULATED else 3  # intervals of 100 ms without a byte while a T1 dies; an emulated CPU pauses
EVERY_DEVICE = "LAB_EVERY_DEVICE"  # environment variable: this kernel has all modules, so every tunnel must work
NO_DEVICE = ("Unknown device type", "Operation not supported")


def smoke(say: Say, _: Path) -> None:
    """Runs the smallest lab: both IP versions, and a T1 that dies."""
    with small_lab(SMALLEST) as lab:
        _reach(say, "smoke", lab, "h1", seconds=1)
        _t1(say, "smoke", lab, "h1")


_PACKAGE = REPOSITORY / "build/roots/arm64-package"  # unpacked by make test-arm64
_INSTALLED = Path("/usr/lib/mrcd")


def package(say: Say, _: Path) -> None:
    """Runs the daemons and mrcctl of the arm64 package, with the Python packages that it brings."""
    if platform.machine() != "aarch64" or not _PACKAGE.exists():
        say("package", "arm64", True, "only in the machines of make test-arm64", cell="not had")
        return
    _INSTALLED.symlink_to(_PACKAGE / _INSTALLED.relative_to("/"))
    own = ["env", "-u", "PYTHONPATH"]
    with small_lab(SMALLEST | {"daemon": False}) as it:
        started = {}
        for host in it.fabric.hosts:
            argv = [*own, str(_INSTALLED / "bin/mrcd"), "--config", str(it.state.cluster_file), "--host", host]
            it.state.run_dir(host).mkdir(exist_ok=True)
            it.exec(host, ["ip", "-6", "route", "flush", "proto", "boot"], check=True)  # mrcd makes these routes
            argv += ["--run-dir", str(it.state.run_dir(host)), "--bpffs", str(it.state.bpffs(host))]
            with it.state.log(host).open("wb") as log:
                started[host] = it.popen(host, argv, stdout=log, stderr=log)
        bringup.await_daemons(it.state, started)
        _reach(say, "package", it, "h1", seconds=1)
        done = it.exec(SOURCE, [*own, str(_INSTALLED / "bin/mrcctl"), "preflight", "--json"], timeout=PATIENCE_S)
        failed = [c for c in json.loads(done.stdout)["checks"] if c["status"] == "FAIL"]
        say("package", "mrcctl preflight", not failed, "; ".join(c["evidence"] for c in failed) or "no check fails")


_SECURITYFS = Path("/sys/kernel/security")


def lockdown(say: Say, results: Path) -> None:
    """Locks the kernel of a virtual machine down (kernel_lockdown(7)): what it refuses is left out, the rest works."""
    why = "" if EVERY_DEVICE in os.environ else "only in a guest: it lasts until the next boot"
    if not features.kernel_has() & KernelHas.KERN_CTX:
        why = "all programs read kernel memory before Linux 6.2"
    if why:
        say("lockdown", "confidentiality", True, why, cell="not had")
        return
    if not (_SECURITYFS / "lockdown").exists():
        subprocess.run(["mount", "-t", "securityfs", "none", str(_SECURITYFS)], check=True)
    (_SECURITYFS / "lockdown").write_text("confidentiality")
    refused = features.refused_programs()
    say("lockdown", "mrc_unsent is left out", refused == {"mrc_unsent"}, ", ".join(refused) or "nothing is left out")
    for v in verify.verify(object_path(), variants()["all features"]):
        say("lockdown", v.program, not v.error, v.error or "loads")
    with small_lab(SMALLEST) as it:
        _reach(say, "lockdown", it, "h1", seconds=1)
        _t1(say, "lockdown", it, "h1")
        lacks = json.loads(it.exec(SOURCE, ["mrcctl", "status", "--json"], check=True).stdout)["kernel_lacks"]
        say("lockdown", "status names it", any("lockdown" in words for words in lacks), "; ".join(lacks))


def lab(say: Say, _: Path) -> None:
    """Runs a small lab with each encapsulation and both granularities."""
    for encapsulation in ("usid", "srh", "ecmp"):
        with small_lab({**SMALL, "encapsulation": encapsulation}) as it:
            _reach(say, f"lab {encapsulation} burst", it, "h2", seconds=2)
            file = it.state.cluster_file
            file.write_text(file.read_text().replace('granularity = "burst"', 'granularity = "packet"'))
            for host in ("h0", "h2"):
                observe.reload(it, host)
            _reach(say, f"lab {encapsulation} packet", it, "h2", seconds=2)
            if encapsulation == "usid":
                _t1(say, "lab usid packet", it, "h2")


def life(say: Say, results: Path) -> None:
    """Kills, restarts, upgrades and reloads the daemons under a UDP flow, then detaches, attaches, deletes filters."""
    from labkit.bench import lifecycle  # here, because it imports matplotlib, which the machines of arm64 lack

    shape = SMALLEST | {"hosts": 3}
    with small_lab(shape) as it:
        observe.wait_until_good(it, (SOURCE, TARGET), PATIENCE_S)
        result = lifecycle.run(it, 1, _RATE, other=results / OTHER_BUILD, **shape)
        for row in result.tables[0].rows:
            lost, reordered = row["lost"], row["reordered_within_ev"]
            words = f"{lost} of {row['sent']} packets lost, {reordered} reordered within an EV"
            words += f"; drops since the start: {dropped(it) or 'none'}" if lost else ""
            say("life", row["operation"], lost == 0 and reordered == 0, words)
        for command in ("detach", "attach"):
            it.exec(SOURCE, ["mrcctl", command], check=True, timeout=PATIENCE_S)
            _ping(say, "life", it, TARGET, f"after {command}")
        if "clsact" in it.exec(SOURCE, ["tc", "qdisc", "show", "dev", "mrc0"], check=True).stdout:  # without TCX
            there = _has_push_filter(it)
            it.exec(SOURCE, ["tc", "qdisc", "del", "dev", "mrc0", "clsact"], check=True)
            began = time.monotonic()
            while not (back := _has_push_filter(it)) and time.monotonic() - began < PATIENCE_S:
                time.sleep(0.1)
            words = f"{'' if back else 'not '}{time.monotonic() - began:.1f} s after their deletion"
            say("life", "deleted clsact filters return", there and back, words if there else "there were none")
            _ping(say, "life", it, TARGET, "after the filters were deleted")


def _has_push_filter(it: Lab) -> bool:
    """Returns whether mrc_push is a clsact filter of the sender's mrc0. tc fails while there is no such qdisc."""
    return "mrc_push" in it.exec(SOURCE, ["tc", "filter", "show", "dev", "mrc0", "egress"]).stdout


TUNNELS = {
    "VXLAN": "vxlan id 7 local {here} remote {there} dstport 4789",
    "Geneve": "geneve id 7 remote {there}",
    "IPIP": "ipip local {here} remote {there}",
    "GRE": "gre local {here} remote {there}",
}
TUNNEL = "192.168.77.{}"


def tunnels(say: Say, _: Path) -> None:
    """Checks tunnels over mrc0, as of a container network, and a forwarding host: bursts pass, none is refused."""
    with small_lab(SMALLEST | {"hosts": 3}) as it:
        observe.wait_until_good(it, it.fabric.hosts, PATIENCE_S)
        for kind, words in TUNNELS.items():
            if not make_tunnel(it, words):
                ok = EVERY_DEVICE not in os.environ
                say("tunnels", kind, ok, "this kernel has no such device", cell="not had")
                continue
            goodput, found = iperf3(it, "h1", 4, 2, [], to=TUNNEL.format(2))
            drops = dropped(it)
            ok, found = goodput > LEAST and not drops, f"{found}; drops {drops or 'none'}"
            say("tunnels", kind, ok, found, bits_per_second=goodput)
            for host in ("h0", "h1"):
                it.exec(host, ["ip", "link", "del", "tunnel"], check=True)
        with relay.through(it, "h0", "h1", "h2") as flows:
            for version, ends in zip((4, 6), flows, strict=True):
                more = ["-B", ends.source_address]
                goodput, found = iperf3(it, "h2", version, 2, more, to=ends.target_address)
                say("tunnels", f"forward TCP over IPv{version}", goodput > LEAST, found, bits_per_second=goodput)
                if not features.kernel_has() & KernelHas.DECAP_L3:
                    words = "this kernel cannot segment them (see mrcctl status)"
                    say("tunnels", f"forward UDP bursts over IPv{version}", True, words, cell="not had")
                    continue
                with Stream(it, ends, rate=_RATE) as stream:
                    time.sleep(2)
                    result = stream.finish()
                ok = 0 < result.sent == result.received
                found = f"{result.received} of {result.sent} packets arrived"
                say("tunnels", f"forward UDP bursts over IPv{version}", ok, found)
            drops = dropped(it)
            say("tunnels", "forward, no drops", not drops, f"drops {drops or 'none'}")


def dropped(it: Lab) -> dict[str, int]:
    """Returns reason → packets dropped by the programs of all hosts.

    Without packets to unknown destinations: a router joins multicast groups, which no peer has.
    """
    every = [observe.client(it, host).get("/v1/status")["drops"] for host in it.fabric.hosts]
    reasons = {reason for d in every for reason in d} - {"no_peer"}
    return {reason: sum(d.get(reason, 0) for d in every) for reason in sorted(reasons)}


def make_tunnel(it: Lab, words: str) -> bool:
    """Makes a tunnel between h0 and h1, each with an address of TUNNEL. Returns False if the kernel lacks the device.

    Raises MachineError if it cannot be made for another reason.
    """
    for host, other, number in (("h0", "h1", 1), ("h1", "h0", 2)):
        options = words.format(here=address(host, 4), there=address(other, 4)).split()
        done = it.exec(host, ["ip", "link", "add", "tunnel", "type", *options])
        if done.returncode and any(why in done.stderr for why in NO_DEVICE):
            return False
        if done.returncode:
            raise MachineError(f"{host}: ip link add tunnel type {words}: {done.stderr.strip()}")
        it.exec(host, ["ip", "addr", "add", f"{TUNNEL.format(number)}/24", "dev", "tunnel"], check=True)
        it.exec(host, ["ip", "link", "set", "tunnel", "up"], check=True)
    return True


@contextmanager
def small_lab(parameters: dict[str, Any]) -> Iterator[Lab]:
    """A block with a lab of its own."""
    with entry.own_lab("kernels") as it:
        it.up(**parameters)
        yield it


def address(host: str, version: int) -> str:
    """Returns the inner address of a host of a lab."""
    number = int(host.removeprefix("h")) + 1
    return f"10.99.0.{number}" if version == 4 else f"fd00:99::{number}"


def _ping(say: Say, part: str, it: Lab, target: str, when: str) -> None:
    for version in (4, 6):
        argv = ["ping", "-q", "-c5", "-i0.2", "-W5", address(target, version)]
        done = it.exec("h0", argv, timeout=PATIENCE_S)
        words = next((line for line in done.stdout.splitlines() if "received" in line), done.stderr.strip())
        say(part, f"ping IPv{version} {when}", " 0% packet loss" in words, words)


def _reach(say: Say, part: str, it: Lab, target: str, *, seconds: int) -> None:
    observe.wait_until_good(it, ("h0", target), PATIENCE_S)
    # Packets of a peer are stale until its clock is known (docs/security.md): here for longer, as the CPU is emulated.
    early = _drops(it).get("stale", 0)
    _ping(say, part, it, target, "over all EVs")
    for version in (4, 6):
        for kind, more in (("TCP", []), ("UDP", ["-u", "-b", _UDP_RATE, "-l", "1000"])):
            goodput, words = iperf3(it, target, version, seconds, more)
            ok = goodput > (LEAST if kind == "TCP" else 0)  # an emulated CPU may send fewer datagrams than asked for
            say(part, f"iperf3 {kind} over IPv{version}", ok, words, bits_per_second=goodput)
    drops = _drops(it)
    drops["stale"] = drops.get("stale", 0) - early
    drops = {reason: n for reason, n in drops.items() if n}
    say(part, "no drops", not drops, f"drops {drops or 'none'}; {early} stale before the traffic")


def _drops(it: Lab) -> dict[str, int]:
    """Returns reason → packets that h0 has dropped."""
    drops: dict[str, int] = observe.client(it, "h0").get("/v1/status")["drops"]
    return {reason: n for reason, n in drops.items() if n}


@contextmanager
def _server(it: Lab, host: str) -> Iterator[None]:
    """A block with a listening iperf3."""
    server = it.popen(host, ["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + PATIENCE_S
        while not it.exec(host, ["ss", "-Hltn", "sport = :5201"]).stdout.strip() and time.monotonic() < until:
            time.sleep(0.1)
        yield
    finally:
        server.kill()
        server.wait()


def iperf3(
    it: Lab,
    target: str,
    version: int,
    seconds: float,
    more: list[str],
    *,
    to: str | None = None,
    inside: Sequence[str] = (),
) -> tuple[float, str]:
    """Returns the received bits per second, and a description. 0 if too many UDP packets were lost.

    `inside`: what h0 runs the client by, as in a namespace of its own.
    """
    with _server(it, target):
        argv = [*inside, "iperf3", "-J", "-c", to or address(target, version), "-t", f"{seconds:g}", *more]
        done = it.exec("h0", argv, timeout=PATIENCE_S)
    return iperf3_result(done)


def iperf3_result(done: "subprocess.CompletedProcess[str]") -> tuple[float, str]:
    """Returns what `iperf3 -J` has measured: received bits per second, and a description. 0 as in `iperf3`."""
    document = json.loads(done.stdout or "{}")
    if "error" in document or "end" not in document:
        return 0.0, document.get("error", done.stderr.strip())
    end = document["end"]
    if "sum" in end:  # UDP
        arrived, sent = end["sum"]["packets"] - end["sum"]["lost_packets"], max(1, end["sum"]["packets"])
        received = end["sum"]["bits_per_second"] * arrived / sent if arrived >= _ARRIVED * sent else 0.0
        return received, f"{arrived} of {sent} arrived"
    received = float(end["sum_received"]["bits_per_second"])
    return received, f"{received / 1e6:.0f} Mbit/s, {end['sum_sent'].get('retransmits')} retransmissions"


def _t1(say: Say, part: str, it: Lab, target: str) -> None:
    """Kills a T1 under a flow: its EVs are left, the flow continues, the EVs return."""
    argv = ["iperf3", "-J", "-c", address(target, 4), "-t", "8", "-i", "0.1"]
    with _server(it, target):
        flow = it.popen("h0", argv, stdout=subprocess.PIPE, text=True)
        bad = {p["ev"] for p in observe.paths(it, "h0", target) if p["plane"] == 0 and p["t1"] == 1}

        def left(path: dict[str, Any]) -> bool:
            return path["state"] == "ASSUMED_BAD" or path["ev"] not in bad or path["peer"] != target

        try:
            time.sleep(2)
            it.fail("t1:0:1")
            observe.wait_until(it, ("h0",), left, "left", PATIENCE_S)
            out, _ = flow.communicate(timeout=PATIENCE_S)
        finally:
            flow.kill()
            flow.wait()
    it.heal()
    bins = [i["sum"]["bytes"] for i in json.loads(out).get("intervals", [])]
    # The sender stops as the window fills, so an empty interval shows the stop of the flow, not a single lost packet.
    empty = longest = 0
    for sent in bins[1:-1]:
        empty = empty + 1 if not sent else 0
        longest = max(longest, empty)
    say(
        part,
        "a T1 dies",
        bool(bad) and sum(bins) > 0 and longest <= _EMPTY_MOST,
        f"{len(bad)} EVs left; {sum(bins) / 1e6:.0f} MB arrived, the longest stop took {longest * 100} ms",
    )
    observe.wait_until_good(it, ("h0",), PATIENCE_S)
    say(part, "a T1 heals", True, "all EVs are GOOD again")
