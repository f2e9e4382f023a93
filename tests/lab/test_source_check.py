# SPDX-License-Identifier: BSD-2-Clause
"""Tests `source_check` between daemons: what applications and routers send passes; foreign addresses are dropped."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrSegmentRouting

from labkit.cluster.api import Lab
from mrcd.fabric import topology
from tests.lab.conftest import TWO_HOSTS, a_lab, mrcctl, wait_until

CONTAINER = {4: "10.100.{}.9", 6: "fd00:100:{}::9"}  # within the prefixes of a host
HOST = {4: "10.99.0.{}", 6: "fd00:99::{}"}  # of host n with n + 1
FOREIGN = {4: "192.0.2.9", 6: "2001:db8::9"}
versions = pytest.mark.parametrize("version", [4, 6])


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts with `source_check = "strict"`."""
    with a_lab("source", **(TWO_HOSTS | {"overlay": {"source_check": "strict"}})) as made:
        yield made


def drops(lab: Lab, host: str) -> dict[str, int]:
    """Returns the packets dropped by source_check."""
    reasons = ("foreign_source", "wrong_inner_source", "wrong_inner_destination")
    return {k: v for k, v in mrcctl(lab, host, "status")["drops"].items() if k in reasons}


def echoes(lab: Lab, host: str, version: int) -> int:
    """Returns the echo requests that a host's stack has received."""
    if version == 6:
        lines = lab.exec(host, ["cat", "/proc/net/snmp6"], check=True).stdout.splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Icmp6InEchos "))
    lines = lab.exec(host, ["cat", "/proc/net/snmp"], check=True).stdout.splitlines()
    names, values = (line.split() for line in lines if line.startswith("Icmp:"))
    return int(values[names.index("InEchos")])


@contextlib.contextmanager
def addresses(lab: Lab, host: str, *texts: str) -> Iterator[None]:
    """A block in which a host has more addresses."""
    for text in texts:
        lab.exec(host, ["ip", "address", "add", text, "dev", "lo", "nodad"], check=True)
    try:
        yield
    finally:
        for text in texts:
            lab.exec(host, ["ip", "address", "del", text, "dev", "lo"], check=True)


@contextlib.contextmanager
def unchecked(lab: Lab, *hosts: str) -> Iterator[None]:
    """A block in which hosts have `source_check = "off"`: a reload replaces the programs in place."""
    file = lab.state.cluster_file
    strict = file.read_text(encoding="utf-8")
    assert 'source_check = "strict"' in strict
    try:
        file.write_text(strict.replace('source_check = "strict"', 'source_check = "off"'), encoding="utf-8")
        for host in hosts:
            lab.exec(host, ["mrcctl", "reload"], check=True)
        file.write_text(strict, encoding="utf-8")
        yield
    finally:
        file.write_text(strict, encoding="utf-8")
        for host in hosts:
            lab.exec(host, ["mrcctl", "reload"], check=True)


def ping(lab: Lab, source: str, target: str, *options: str) -> str:
    """Sends a ping from an address of h0. Returns what the command prints."""
    return lab.exec("h0", ["ping", "-n", "-c1", "-W1", "-I", source, *options, target]).stdout


@versions
def test_addresses_of_hosts_and_of_containers_reach_each_other(lab: Lab, version: int) -> None:
    before = [drops(lab, host) for host in ("h0", "h1")]
    ours, theirs = (CONTAINER[version].format(n) for n in (0, 1))
    with addresses(lab, "h0", ours), addresses(lab, "h1", theirs):
        for source in (HOST[version].format(1), ours):
            for target in (HOST[version].format(2), theirs):
                assert " 0% packet loss" in ping(lab, source, target)
    assert [drops(lab, host) for host in ("h0", "h1")] == before


@versions
def test_icmp_errors_of_a_host_pass(lab: Lab, version: int) -> None:
    """Host h1 routes to its containers, and answers for a packet whose hops are used up."""
    forwarding = "net.ipv4.ip_forward" if version == 4 else "net.ipv6.conf.all.forwarding"
    behind = "10.100.1.1/24" if version == 4 else "fd00:100:1::1/64"
    before = [drops(lab, host) for host in ("h0", "h1")]
    lab.exec("h1", ["ip", "link", "add", "c0", "type", "veth", "peer", "name", "c1"], check=True)
    try:
        for name in ("c0", "c1"):
            lab.exec("h1", ["ip", "link", "set", name, "up"], check=True)
        lab.exec("h1", ["ip", "address", "add", behind, "dev", "c0", "nodad"], check=True)
        lab.exec("h1", ["sysctl", "-qw", f"{forwarding}=1"], check=True)
        target = CONTAINER[version].format(1)
        said = wait_until(
            "an error arrives",
            lambda: "xceeded" in (text := ping(lab, HOST[version].format(1), target, "-t1")) and text,
        )
        assert f"From {HOST[version].format(2)}" in said
    finally:
        lab.exec("h1", ["sysctl", "-qw", f"{forwarding}=0"], check=True)
        lab.exec("h1", ["ip", "link", "del", "c0"], check=True)
    assert [drops(lab, host) for host in ("h0", "h1")] == before


@versions
def test_a_foreign_source_is_dropped_by_the_sender_then_by_the_receiver(lab: Lab, version: int) -> None:
    source, target = FOREIGN[version], HOST[version].format(2)

    def send() -> int:
        """Returns how many of its packets the receiver's stack gets."""
        before = echoes(lab, "h1", version)
        ping(lab, source, target)
        return echoes(lab, "h1", version) - before

    def count(host: str, reason: str) -> int:
        return drops(lab, host).get(reason, 0)

    def refused() -> int:
        return int(mrcctl(lab, "h1", "peers")[0]["refused_packets"])

    with addresses(lab, "h0", source):
        before = count("h0", "foreign_source"), count("h1", "wrong_inner_source"), refused()
        assert send() == 0
        sent = count("h0", "foreign_source")  # ping sends again when the kernel says that a packet was dropped
        assert sent > before[0]
        with unchecked(lab, "h0"):
            assert send() == 0
            assert (count("h1", "wrong_inner_source"), refused()) == (before[1] + 1, before[2] + 1)
            with unchecked(lab, "h1"):
                assert send() == 1
        assert send() == 0
        assert count("h0", "foreign_source") > sent


def test_no_srh_opens_the_kernel_at_a_plane_address(lab: Lab) -> None:
    """With `seg6_enabled` the kernel decapsulates what follows an SRH without segments left."""
    config = lab.fabric.config
    source, target = (str(topology.plan(config, host).addresses[0]) for host in ("h0", "h1"))
    ports = {host: config.interface_names(config.host(host))[0] for host in ("h0", "h1")}
    inner = IPv6(src=HOST[6].format(1), dst=HOST[6].format(2)) / ICMPv6EchoRequest()
    frame = bytes(IPv6(src=source, dst=target) / IPv6ExtHdrSegmentRouting(addresses=[target]) / inner)

    def send() -> int:
        """Returns how many of its echo requests the receiver's stack gets."""
        before = echoes(lab, "h1", 6)
        with lab.inside("h0"), socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, ports["h0"].encode())
            s.sendto(frame, (target, 0))
        ping(lab, HOST[6].format(1), HOST[6].format(2))  # by then the other has arrived
        return echoes(lab, "h1", 6) - before - 1

    assert send() == 0
    scopes = ("all", ports["h1"])
    try:
        for scope in scopes:
            lab.exec("h1", ["sysctl", "-qw", f"net.ipv6.conf.{scope}.seg6_enabled=1"], check=True)
        assert send() == 1
    finally:
        for scope in scopes:
            lab.exec("h1", ["sysctl", "-qw", f"net.ipv6.conf.{scope}.seg6_enabled=0"], check=True)
