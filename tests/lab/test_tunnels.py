# SPDX-License-Identifier: BSD-2-Clause
"""Tests tunnels over mrc0, as of a container network, and forwarding hosts: for the kernel mrcd is a second tunnel."""

import json
from collections.abc import Iterator

import pytest

from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.kernels.labs import TUNNEL, TUNNELS, dropped, make_tunnel
from labkit.traffic import relay
from labkit.traffic.flow import Ends, Flow
from labkit.traffic.stream import Stream
from mrcd.net.drivers import TUNNELS as TUNNEL_OFFLOADS
from mrcd.net.netlink import set_offload
from tests.lab.conftest import TWO_HOSTS, own_name, wait_until

BULK = 20_000_000  # bytes


@pytest.fixture(scope="module")
def small() -> Iterator[Lab]:
    lab = Lab(own_name("tunnels"))
    lab.up(**(TWO_HOSTS | {"hosts": 3}))
    observe.wait_until_good(lab, lab.fabric.hosts)
    yield lab
    lab.down()


def tunnel_ends() -> Ends:
    return Ends("h0", TUNNEL.format(1), "h1", TUNNEL.format(2))


def send_bulk(lab: Lab, ends: Ends) -> None:
    """Sends data over TCP. Fails if a fifth is sent again: of bursts that arrive in wrong pieces more is."""
    with Flow(lab, ends) as flow:

        def has_arrived() -> bool:
            flow.poll(0.1)
            return sum(flow.bins.values()) > BULK

        wait_until("the data arrives", has_arrived)
        flow.finish()
    assert flow.retransmitted_segments < sum(flow.bins.values()) / flow.mss_bytes / 5


@pytest.mark.parametrize("kind", TUNNELS)
def test_bursts_of_a_tunnel_are_sprayed(small: Lab, kind: str) -> None:
    if not make_tunnel(small, TUNNELS[kind]):
        pytest.skip(f"this kernel has no {kind}")
    try:
        before = dropped(small)
        send_bulk(small, tunnel_ends())
        assert dropped(small) == before
    finally:
        for host in ("h0", "h1"):
            small.exec(host, ["ip", "link", "del", "tunnel"])


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut by the NIC"])
def test_bursts_of_vxlan_reach_the_nics_whole(small: Lab, cut: bool) -> None:
    """The segments are those that the tunnel alone would send, if the kernel segments for the NIC."""
    nics = small.fabric.config.interface_names(small.fabric.config.host("h0"))

    def offer(on: bool) -> None:
        with small.inside("h0"):
            for nic in nics:
                set_offload(nic, dict.fromkeys(TUNNEL_OFFLOADS, on))

    assert make_tunnel(small, TUNNELS["VXLAN"] + " noudpcsum")
    try:
        offer(not cut)
        counted, sent = sprayed(small), on_wires(small)
        send_bulk(small, tunnel_ends())

        def as_expected() -> bool:
            packets, frames = sprayed(small) - counted, on_wires(small) - sent
            return packets > 1000 and (frames > 0.9 * packets if cut else frames < packets / 4)

        wait_until("the counters of the whole flow agree", as_expected)
    finally:
        offer(True)
        for host in ("h0", "h1"):
            small.exec(host, ["ip", "link", "del", "tunnel"])


def test_a_tunnel_keeps_its_checksums(small: Lab) -> None:
    """Its bursts are segmented at mrc0, so that each packet has its own checksum; the receiver refuses none."""
    assert make_tunnel(small, TUNNELS["VXLAN"] + " udpcsum")
    try:
        counted, sent, refused = sprayed(small), on_wires(small), csum_errors(small)
        send_bulk(small, tunnel_ends())
        counted, sent = sprayed(small) - counted, on_wires(small) - sent
        assert sent > 0.9 * counted > 1000
        assert csum_errors(small) == refused
    finally:
        for host in ("h0", "h1"):
            small.exec(host, ["ip", "link", "del", "tunnel"])


def csum_errors(lab: Lab) -> int:
    """Returns the datagrams that h1 refused for their checksum."""
    snmp = lab.exec("h1", ["cat", "/proc/net/snmp"], check=True).stdout.splitlines()
    names, values = (line.split() for line in snmp if line.startswith("Udp:"))
    return int(values[names.index("InCsumErrors")])


def sprayed(lab: Lab) -> int:
    """Returns the packets that h0 has counted on its EVs to h1."""
    return sum(int(p["tx_packets"]) for p in observe.paths(lab, "h0", "h1"))


def on_wires(lab: Lab) -> int:
    """Returns the packets and bursts that h0's NICs have sent."""
    nics = lab.fabric.config.interface_names(lab.fabric.config.host("h0"))
    links = json.loads(lab.exec("h0", ["ip", "-s", "-j", "link"], check=True).stdout)
    return sum(int(link["stats64"]["tx"]["packets"]) for link in links if link["ifname"] in nics)


@pytest.mark.parametrize("version", [4, 6])
def test_a_host_forwards_bursts_between_two_peers(small: Lab, version: int) -> None:
    with relay.through(small, "h0", "h1", "h2") as flows:
        ends = flows[version == 6]
        before = dropped(small)
        send_bulk(small, ends)
        with Stream(small, ends, rate=20_000, burst=20, size=1000) as stream:
            wait_until("a second's packets are sent", lambda: stream.mark() > 20_000)
            result = stream.finish()
        assert result.received == result.sent > 0
        assert dropped(small) == before
