# SPDX-License-Identifier: BSD-2-Clause
"""Tests outside changes to a host on which mrcd runs: addresses, interfaces, pins and programs come and go."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.cluster.api import Lab
from labkit.places import lab_object
from mrcd.kernel import libbpf
from mrcd.kernel.dataplane import pin_directory
from tests.lab.conftest import a_lab, all_good, mrcctl, wait_until
from tests.lab.flows import tcp_transfer

NAME = "outside"


@pytest.fixture(scope="module")
def small() -> Iterator[Lab]:
    """Two hosts, two planes, two T1s each."""
    with a_lab(NAME, hosts=2, hosts_per_t0=1, planes=2, t1=2) as lab:
        yield lab


@pytest.fixture
def host(small: Lab) -> Iterator[Lab]:
    """The small lab, healthy before and after."""
    small.up(hosts=2, hosts_per_t0=1, planes=2, t1=2)
    wait_until("all EVs are GOOD", lambda: all_good(small))
    yield small
    wait_until("all EVs are GOOD again", lambda: all_good(small))
    tcp_transfer(small, 6, size=100_000, target=1)


class Ping:
    """h0 pings h1 each 5 ms in a block; then `lost` has the sequence numbers without an answer.

    The last request does not count if it has no answer: an ending ping no longer waits for it.
    """

    APART = 20  # answered pings between two interruptions

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.lost: list[int]

    def __enter__(self) -> "Ping":
        argv = ["ping", "-i0.005", "10.99.0.2"]
        self._out = tempfile.TemporaryFile("w+")
        self._process = self._lab.popen("h0", argv, stdout=self._out, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *exc: object) -> None:
        if exc == (None, None, None):
            wait_until("pings in a row are answered", self._is_answered)
        with self._out:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(120)
            told, answered = self._told(), set(self._answered())
        sent = re.findall(r"(\d+) packets transmitted", told)
        assert sent, f"ping ended with {self._process.returncode}: {told}"
        self.lost = sorted(set(range(1, int(sent[0]))) - answered)

    def _told(self) -> str:
        return Path(f"/proc/self/fd/{self._out.fileno()}").read_text(encoding="utf-8")

    def _answered(self) -> list[int]:
        return [int(n) for n in re.findall(r"bytes from .* icmp_seq=(\d+)", self._told())]

    def _is_answered(self) -> bool:
        """Returns whether the newest pings are answered, all of them."""
        newest = self._answered()[-self.APART :]
        return len(newest) == self.APART and newest[-1] - newest[0] < self.APART

    def assert_interrupted_at_most(self, times: int) -> None:
        """Checks that pings were lost at so many changes only.

        A loss that goes on between changes, or stays, is a fault. How long a change takes is for `scripts/bench`.
        """
        begun = [n for n, before in zip(self.lost, [-self.APART, *self.lost], strict=False) if n - before >= self.APART]
        assert len(begun) <= times, self.lost


def ip(lab: Lab, node: str, *arguments: str) -> Any:
    """Returns the JSON of an ip command, if it prints any."""
    out = lab.exec(node, ["ip", "-j", *arguments], check=True).stdout
    return json.loads(out) if out.strip() else None


def addresses(lab: Lab, interface: str) -> set[str]:
    """Returns the addresses of an interface of h0."""
    return {a["local"] for a in ip(lab, "h0", "addr", "show", "dev", interface)[0]["addr_info"]}


def status(lab: Lab) -> Any:
    return mrcctl(lab, "h0", "status")


def sprayed(lab: Lab) -> int:
    return sum(p["tx_packets"] for p in mrcctl(lab, "h0", "paths"))


def reasons(lab: Lab, after: int = 0) -> list[str]:
    return [e["reason"] for e in mrcctl(lab, "h0", "events") if e["id"] > after]


# ---- addresses ----


def test_removed_addresses_are_restored_without_loss(host: Lab) -> None:
    plane, overlay = status(host)["planes"][0]["address"], {"10.99.0.1", "fd00:99::1"}

    def found() -> set[tuple[str, int]]:
        return {(r["dst"], r["metric"]) for r in ip(host, "h0", "-6", "route", "show", "proto", "77")}

    wait_until("h1 has been heard, and its traffic goes into mrc0", lambda: ("fd00:99::2", 100) in found())
    wait_until("so does that of its other prefix", lambda: ("fd00:100:1::/64", 100) in found())
    routes = found()
    with Ping(host) as ping:
        ip(host, "h0", "-6", "addr", "del", f"{plane}/128", "dev", "p0")
        wait_until("the plane's address is back", lambda: plane in addresses(host, "p0"))
        ip(host, "h0", "-6", "addr", "add", "fd10::77/128", "dev", "p0")  # changed by hand
        wait_until(
            "an address of the underlay that is not its own goes", lambda: "fd10::77" not in addresses(host, "p0")
        )
    assert ping.lost == []
    ip(host, "h0", "addr", "flush", "dev", "mrc0")  # the kernel also removes the routes with this source
    wait_until("the overlay's addresses are back", lambda: addresses(host, "mrc0") == overlay)

    wait_until("and the routes", lambda: found() == routes)
    host.exec("h0", ["ping", "-c4", "-i0.01", "-W1", "10.99.0.2"], check=True)


def test_flushed_routes_are_restored(host: Lab) -> None:
    """As by a network manager that removes unknown routes."""

    def routes() -> list[Any]:
        found = [ip(host, "h0", family, "route", "show", "proto", "77") or [] for family in ("-4", "-6")]
        return sorted((r["dst"], r["metric"]) for r in found[0] + found[1] if "metric" in r)

    before = routes()
    for family in ("-4", "-6"):
        ip(host, "h0", family, "route", "flush", "proto", "77")
    wait_until("all routes are back", lambda: routes() == before)
    host.exec("h0", ["ping", "-c4", "-i0.01", "-W1", "10.99.0.2"], check=True)
    ip(host, "h0", "route", "del", "10.99.0.2", "metric", "100")  # one route, which another one replaces meanwhile
    wait_until("it is back too", lambda: routes() == before)


@pytest.mark.parametrize("version", [4, 6])
def test_a_replaced_route_is_taken_back(host: Lab, version: int) -> None:
    target, family = ("10.99.0.2", "-4") if version == 4 else ("fd00:99::2", "-6")

    def ways() -> set[str]:
        return {r["dev"] for r in ip(host, "h0", family, "route", "show", target) if r.get("metric") == 100}

    wait_until("traffic to h1 goes into mrc0", lambda: ways() == {"mrc0"})
    ip(host, "h0", family, "route", "replace", target, "dev", "p0", "metric", "100")
    wait_until("it does again", lambda: ways() == {"mrc0"})
    host.exec("h0", ["ping", "-c4", "-i0.01", "-W1", target], check=True)


OTHER_ROUTES = {
    "a better metric": (["route", "add", "10.99.0.2", "dev", "p0", "metric", "1"], "10.99.0.2/32 dev p0 metric 1"),
    "a rule": (["rule", "add", "pref", "100", "to", "10.99.0.0/16", "lookup", "99"], "of table 99"),
}


@pytest.mark.parametrize(("command", "named"), OTHER_ROUTES.values(), ids=OTHER_ROUTES)
def test_a_route_that_comes_before_mrcds_is_named_and_left_alone(host: Lab, command: list[str], named: str) -> None:
    ip(host, "h0", "route", "add", "10.99.0.0/16", "dev", "p0", "table", "99")
    ip(host, "h0", *command)
    try:
        wait_until("status names it", lambda: [c["cause"] for c in status(host)["diagnosis"]] == ["other_route"])
        (cause,) = status(host)["diagnosis"]
        assert named in cause["sentence"]
        assert (cause["target"], cause["severity"]) == ("host:h0", "critical")
        assert host.exec("h0", ["mrcctl", "status", "--check"]).returncode == 2
    finally:
        ip(host, "h0", command[0], "del", *command[2:])
        ip(host, "h0", "route", "del", "10.99.0.0/16", "dev", "p0", "table", "99")
    wait_until("all is well again", lambda: status(host)["diagnosis"] == [])


FIREWALL = (
    "add table inet f",
    "add chain inet f i { type filter hook input priority 0; }",
    "add rule inet f i iif mrc0 ip saddr 10.99.0.2 drop",
)


@pytest.mark.skipif(shutil.which("nft") is None, reason="this machine has no nft")
def test_a_firewall_that_drops_what_has_arrived_is_named(host: Lab) -> None:
    before = status(host)["drops"].get("firewall", 0)
    for words in FIREWALL:
        host.exec("h0", ["nft", words], check=True)
    try:
        assert host.exec("h0", ["ping", "-c8", "-i0.01", "-W1", "10.99.0.2"]).returncode == 1
        wait_until("status names it", lambda: [c["cause"] for c in status(host)["diagnosis"]] == ["undelivered"])
        (cause,) = status(host)["diagnosis"]
        assert (cause["target"], cause["severity"]) == ("host:h0", "warning")
        assert "8 firewall" in cause["sentence"]
        assert status(host)["drops"]["firewall"] - before == 8
        assert all_good(host)
    finally:
        host.exec("h0", ["nft", "delete table inet f"], check=True)
    wait_until("all is well again", lambda: status(host)["diagnosis"] == [])


def test_a_reverse_path_filter_that_drops_what_has_arrived_is_named(host: Lab) -> None:
    host.exec("h0", ["sysctl", "-qw", "net.ipv4.conf.mrc0.rp_filter=1"], check=True)
    ip(host, "h0", "route", "add", "10.99.0.2", "dev", "p0", "metric", "1")
    try:
        host.exec("h1", ["ping", "-c8", "-i0.01", "-W1", "10.99.0.1"])
        causes = {"other_route", "undelivered"}
        wait_until("status names both", lambda: {c["cause"] for c in status(host)["diagnosis"]} == causes)
        assert "8 reverse_path" in str(status(host)["diagnosis"])
    finally:
        ip(host, "h0", "route", "del", "10.99.0.2", "dev", "p0", "metric", "1")
        host.exec("h0", ["sysctl", "-qw", "net.ipv4.conf.mrc0.rp_filter=0"], check=True)
    wait_until("all is well again", lambda: status(host)["diagnosis"] == [])


def test_a_nic_without_addresses_gets_them_again(host: Lab) -> None:
    with Ping(host) as ping:
        ip(host, "h0", "-6", "addr", "flush", "dev", "p0")
        wait_until("[interfaces] address, to which the T0 routes", lambda: "fe80::2" in addresses(host, "p0"))
        assert status(host)["planes"][0]["address"] in addresses(host, "p0")
        ip(host, "h0", "-6", "neigh", "flush", "dev", "p0")
        wait_until("the first hop is resolved again", lambda: _first_hop(host))
    assert ping.lost == []


def test_a_nic_gets_a_link_local_address_if_the_file_has_none(host: Lab) -> None:
    path = host.state.cluster_file
    text = path.read_text()
    path.write_text(text.replace('address = "fe80::2"\n', "", 1))
    host.exec("h0", ["mrcctl", "reload"], check=True)
    try:
        with Ping(host) as ping:
            ip(host, "h0", "-6", "addr", "flush", "dev", "p0")
            wait_until(
                "a link-local address, which the lookup of the first hop needs",
                lambda: "fe80::4d:ff:fe00:2" in addresses(host, "p0"),
                5,
            )
            ip(host, "h0", "-6", "neigh", "flush", "dev", "p0")
            wait_until("the first hop is resolved again", lambda: _first_hop(host))
        assert ping.lost == []
        assert "p0 had no link-local address" in host.state.log("h0").read_text()
    finally:
        path.write_text(text)
        host.exec("h0", ["mrcctl", "reload"], check=True)
    assert "fe80::2" in addresses(host, "p0")


def _first_hop(lab: Lab) -> str | None:
    found = ip(lab, "h0", "-6", "neigh", "show", "fe80::1", "dev", "p0")
    return found[0].get("lladdr") if found and "FAILED" not in found[0]["state"] else None


# ---- the first hop, and the interface ----


def test_an_unannounced_new_mac_of_the_first_hop_is_found(host: Lab) -> None:
    """A replaced T0: the plane is left at once, and returns when the kernel has resolved the first hop again."""
    before = _first_hop(host)
    assert before is not None
    ip(host, "t0-0-0", "link", "set", "h0", "address", "02:4d:ff:00:00:98")
    try:
        with Ping(host) as ping:
            wait_until("the plane follows", lambda: status(host)["planes"][0]["gateway_mac"] == "02:4d:ff:00:00:98", 60)
        wait_until("all EVs are GOOD", lambda: all_good(host))
        ping.assert_interrupted_at_most(2)
    finally:
        ip(host, "t0-0-0", "link", "set", "h0", "address", before)
        ip(host, "h0", "neigh", "replace", "fe80::1", "dev", "p0", "lladdr", before, "nud", "reachable")


def test_a_first_hop_with_another_address_is_followed_by_a_reload(host: Lab) -> None:
    path = host.state.cluster_file
    text = path.read_text()
    for t0 in ("t0-0-0", "t0-1-0"):
        ip(host, t0, "addr", "add", "fe80::9/64", "dev", "h0", "nodad")
        ip(host, t0, "addr", "del", "fe80::1/64", "dev", "h0")
    try:
        with Ping(host) as ping:
            host.exec("h0", ["ip", "neigh", "flush", "dev", "p0"], check=True)
            wait_until("the first hop is lost", lambda: _first_hop(host) is None)
            checks = json.loads(host.exec("h0", ["mrcctl", "doctor", "--json"]).stdout)["checks"]
            assert {c["id"] for c in checks if c["status"] == "FAIL"} == {"nic.first_hop"}
            path.write_text(text.replace("[interfaces]\n", '[interfaces]\ngateway = "fe80::9"\n', 1))
            host.exec("h0", ["mrcctl", "reload"], check=True)
            assert all(p["up"] for p in status(host)["planes"])
            routes = ip(host, "h0", "-6", "route", "show", "proto", "77")
            assert "fe80::9" in json.dumps(routes)
            assert "fe80::1" not in json.dumps(routes)
        assert ping.lost == []
    finally:
        for t0 in ("t0-0-0", "t0-1-0"):
            ip(host, t0, "addr", "replace", "fe80::1/64", "dev", "h0", "nodad")
        path.write_text(text)
        host.exec("h0", ["mrcctl", "reload"], check=True)
        for t0 in ("t0-0-0", "t0-1-0"):
            ip(host, t0, "addr", "del", "fe80::9/64", "dev", "h0")


def test_an_interface_that_returns_with_another_ifindex_is_used_again(host: Lab) -> None:
    before = ip(host, "h0", "link", "show", "dev", "p1")[0]["ifindex"]
    elsewhere = host.ns("t1-1-0")
    try:
        with Ping(host) as ping:
            ip(host, "h0", "link", "set", "p1", "netns", elsewhere)
            wait_until("the plane has no NIC", lambda: status(host)["planes"][1]["ifindex"] == 0)
            assert not status(host)["planes"][1]["up"]
            ip(host, "h0", "link", "add", "took", "index", str(before), "type", "veth", "peer", "name", "took2")
            host.exec("t1-1-0", ["ip", "link", "set", "p1", "netns", host.ns("h0")], check=True)
            ip(host, "h0", "link", "set", "p1", "up", "mtu", "9100")
            wait_until("all EVs are GOOD", lambda: all_good(host))
    finally:
        host.exec("h0", ["ip", "link", "del", "took"])
        host.exec("t1-1-0", ["ip", "link", "set", "p1", "netns", host.ns("h0")])  # if it is still there
        host.exec("h0", ["ip", "link", "set", "p1", "up", "mtu", "9100"])
    ping.assert_interrupted_at_most(2)
    plane = status(host)["planes"][1]
    assert plane["ifindex"] == ip(host, "h0", "link", "show", "dev", "p1")[0]["ifindex"] != before
    assert plane["hook"] == "tcx"


# ---- pins ----


def _bpffs(lab: Lab) -> Path:
    return lab.run_dir("h0") / "bpf"


@contextlib.contextmanager
def _started(lab: Lab) -> Iterator[None]:
    """A block with mrcd of h0, and then the lab's again: without its mounts the lab would rebuild everything."""
    run_dir = lab.run_dir("h0")
    with (run_dir / "mrcd.log").open("ab") as log:
        argv = ["mrcd", "--run-dir", str(run_dir), "--bpffs", str(_bpffs(lab))]
        mine = lab.popen("h0", argv, stdout=log, stderr=log)
    try:
        wait_until("mrcd answers", lambda: lab.exec("h0", ["mrcctl", "status"]).stderr == "")
        yield
    finally:
        mine.terminate()
        mine.wait(120)
        lab.up(hosts=2, hosts_per_t0=1, planes=2, t1=2)


def _take_away(lab: Lab, how: str) -> None:
    if how == "umount":
        subprocess.run(["umount", "-l", _bpffs(lab)], check=True)
    elif how == "all":
        shutil.rmtree(_bpffs(lab) / "mrcd")
    else:
        shutil.rmtree(pin_directory(_bpffs(lab)) / "links")


@pytest.mark.parametrize("how", ["umount", "all", "links"])
def test_removed_pins_are_restored_without_loss(host: Lab, how: str) -> None:
    pins = pin_directory(_bpffs(host))
    before = {p.name for p in (*pins.iterdir(), *(pins / "links").iterdir())}
    last = max(e["id"] for e in mrcctl(host, "h0", "events"))  # events are kept over restarts
    with Ping(host) as ping:
        _take_away(host, how)
        sent = sprayed(host)
        wait_until("they are back", lambda: "pins_restored" in reasons(host, last))
        assert sprayed(host) > sent
        assert {p.name for p in (*pins.iterdir(), *(pins / "links").iterdir())} == before
        assert status(host)["pins"]["lost"] is None
        pid = host.daemon_pid("h0")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)  # the new pins hold the programs
        wait_until("mrcd of h0 is gone", lambda: host.daemon_pid("h0") is None)
        sent = sprayed(host)
        wait_until("forwarding goes on", lambda: sprayed(host) > sent + 20)
        host.up(hosts=2, hosts_per_t0=1, planes=2, t1=2)
    assert ping.lost == []


def test_pins_that_cannot_be_restored_are_reported_and_a_detached_restart_repairs_them(host: Lab) -> None:
    """A file replaces the BPF file system: as for a service whose user may not mount one."""
    bpffs, moved = _bpffs(host), _bpffs(host).with_name("moved")
    with Ping(host) as ping:
        subprocess.run(["umount", "-l", bpffs], check=True)
        bpffs.rename(moved)
        bpffs.write_text("")
        wait_until("it is said", lambda: "pins_lost" in reasons(host))
        told = status(host)
        assert told["pins"]["lost"] == f"nothing is pinned at {pin_directory(bpffs)}"
        assert told["forwarding_without_daemon"]["works"] is False
        text = host.exec("h0", ["mrcctl", "status"], check=True).stdout
        assert "see `mrcctl doctor`" in text
        assert "pins lost" in host.exec("h0", ["mrcctl", "status", "--brief"], check=True).stdout
        checks = {c["id"]: c for c in json.loads(host.exec("h0", ["mrcctl", "doctor", "--json"]).stdout)["checks"]}
        assert checks["bpffs.mounted"]["status"] == "FAIL"
        assert checks["bpffs.mounted"]["fix"].startswith("mrcctl detach; systemctl restart mrcd")
        refused = host.exec("h0", ["mrcctl", "reload"])
        assert "Traceback" not in refused.stderr
        mrcctl(host, "h0", "detach")
        pid = host.daemon_pid("h0")
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        wait_until("mrcd of h0 is gone", lambda: host.daemon_pid("h0") is None)
        assert "no table is pinned" in host.exec("h0", ["mrcctl", "status"]).stderr
        bpffs.unlink()
        moved.rename(bpffs)
        with _started(host):
            assert status(host)["attached"]
            wait_until("all EVs are GOOD", lambda: all_good(host))
            sent = sprayed(host)
            wait_until("it sprays", lambda: sprayed(host) > sent + 20)
    ping.assert_interrupted_at_most(2)


def test_after_an_unmount_without_a_daemon_the_next_start_works(host: Lab) -> None:
    pid = host.daemon_pid("h0")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until("mrcd of h0 is gone", lambda: host.daemon_pid("h0") is None)
    subprocess.run(["umount", "-l", _bpffs(host)], check=True)
    down = host.exec("h0", ["mrcctl", "status"])
    assert down.returncode == 2
    assert "Traceback" not in down.stderr
    assert host.exec("h0", ["ping", "-c1", "-W1", "10.99.0.2"]).returncode != 0  # the kernel has released all programs
    with _started(host):
        wait_until("all EVs are GOOD", lambda: all_good(host))
        host.exec("h0", ["ping", "-c4", "-i0.01", "-W1", "10.99.0.2"], check=True)


# ---- other programs ----

_BEFORE = 1 << 3  # BPF_F_BEFORE


@pytest.fixture
def other_program(host: Lab) -> Iterator[int]:
    """Returns another program at tc that passes everything."""
    obj = libbpf.open_object(lab_object("fault"))
    libbpf.load_object(obj)
    yield libbpf.program_fd(obj, "lab_fault")
    libbpf.close_object(obj)


def _xdp(ifindex: int) -> int:
    """Returns a link of an XDP program that passes everything: r0 = XDP_PASS; exit."""
    code = bytes.fromhex("b700000002000000 9500000000000000")
    program = libbpf.check("load", libbpf.lib().bpf_prog_load(6, b"their_xdp", b"GPL", code, 2, None))
    try:
        return libbpf.create_link(program, ifindex, libbpf.XDP, libbpf.XDP_FLAGS_SKB_MODE)
    finally:
        os.close(program)


@pytest.mark.parametrize(("flags", "words"), [(_BEFORE, "RUNS BEFORE MRCD'S"), (0, "runs after mrcd's")])
def test_status_names_other_tc_programs(host: Lab, other_program: int, flags: int, words: str) -> None:
    with host.inside("h0"):
        link = libbpf.create_link(other_program, socket.if_nametoindex("p1"), libbpf.TCX_INGRESS, flags)
    try:
        (found,) = status(host)["other_programs"]
        text = host.exec("h0", ["mrcctl", "status"], check=True).stdout
        brief = host.exec("h0", ["mrcctl", "status", "--brief"], check=True).stdout
    finally:
        os.close(link)
    assert (found["program"], found["interface"], found["point"]) == ("lab_fault", "p1", "ingress")
    assert found["position"] == ("before" if flags else "after")
    assert f"lab_fault at ingress of p1 ({words})" in text
    assert "other programs 1" in brief
    assert status(host)["other_programs"] == []


def test_status_names_other_xdp_programs_and_filters(host: Lab, other_program: int) -> None:
    with host.inside("h0"):
        subprocess.run(["tc", "qdisc", "add", "dev", "mrc0", "clsact"], check=True)
        libbpf.attach_clsact(other_program, socket.if_nametoindex("mrc0"), libbpf.TC_EGRESS, 77, 77)
        xdp = _xdp(socket.if_nametoindex("p0"))
    try:
        found = {(f["point"], f["interface"]): (f["program"], f["position"]) for f in status(host)["other_programs"]}
    finally:
        os.close(xdp)
        host.exec("h0", ["tc", "qdisc", "del", "dev", "mrc0", "clsact"], check=True)
    assert found[("xdp", "p0")] == ("their_xdp", "alone")
    assert found[("egress", "mrc0")][1] == "after"
