# SPDX-License-Identifier: BSD-2-Clause
"""Tests packets of mrcctl's tools on VLAN planes, as far as a kernel without VLAN interfaces can show it.

A tool sends through the VLAN interface, which adds the tag; here it is added by hand. It listens at the NIC below.
"""

from contextlib import closing
from ipaddress import IPv6Address

import pytest
from scapy.layers.l2 import Dot1Q, Ether

from mrcd.ctl.packets import probe_packet, raw_socket
from mrcd.ctl.packets.probe_packet import DIAGNOSTIC, REPLY, REQUEST, Probe
from tests.packet.cluster import H2, nic_mac, wire_mac
from tests.packet.rig import Bench

pytestmark = pytest.mark.root

VLAN, EV = 100, 6  # of plane 1
PROBES = {
    REQUEST: Probe(REQUEST, sender=H2, receiver=0, ev=EV, seq=9, token=77, ns=1),  # the peer's `mrcctl probe`
    REPLY: Probe(
        REPLY, sender=0, receiver=0, ev=EV, seq=9, token=77, ns=1
    ),  # returned by a switch, as in `mrcctl trace`
}


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
    inlet, wires, before = bench.attach_pop(1, "ipv6"), bench.wires(), bench.counted()
    peer = next(p for p in bench.plan.peers if p.host.id == H2)
    inlet.send(_tagged(bench, PROBES[REQUEST], peer.addresses[1]))
    found = [
        (n, f.vlan, probe_packet.read(f.data, bench.config.cluster.udp_port))
        for n, w in enumerate(wires)
        for f in w.frames()
    ]
    ((plane, vlan, reply),) = found
    assert (plane, vlan) == (1, VLAN)
    assert reply is not None
    assert (reply.kind, reply.token, reply.seq) == (REPLY, 77, 9)
    assert (bench.counted(), bench.drops()) == (before, {})


def test_a_diagnostic_reply_in_a_vlan_is_seen_at_the_nic_below(bench: Bench) -> None:
    bench.tables.planes["vlan"][1] = VLAN
    inlet, before = bench.attach_pop(1, "ipv6"), bench.counted()
    port = bench.config.cluster.udp_port
    with closing(raw_socket.Taps(["n1"], raw_socket.packet_filter(port, DIAGNOSTIC))) as taps:
        inlet.send(_tagged(bench, PROBES[REPLY], bench.plan.addresses[1]))
        arrived = [data for data, _ in taps.wait(2)]
    assert [probe_packet.read(data, port) for data in arrived] == [PROBES[REPLY]]
    assert (bench.counted(), bench.drops()) == (before, {})
