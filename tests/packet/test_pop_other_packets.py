# SPDX-License-Identifier: BSD-2-Clause
"""Tests that mrc_pop and mrc_pop_xdp pass other protocols, addresses, UDP ports and routing headers unchanged."""

from ipaddress import IPv6Address

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from mrcd.fabric.wire import MRC
from tests.packet.arrivals import both_hooks, dropped, inner, udp_only, untouched
from tests.packet.cluster import all_encapsulations, nic_mac, wire_mac
from tests.packet.rig import Bench, Hook
from tests.packet.wires import changed

pytestmark = pytest.mark.root

ELSEWHERE = "fd10::99"


@both_hooks
@pytest.mark.parametrize(
    "packet",
    [
        Ether(dst=nic_mac(0)) / ARP(psrc="10.0.0.1", pdst="10.0.0.2", hwsrc=wire_mac(0)) / Raw(bytes(40)),
        Ether(dst=nic_mac(0)) / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(dport=4797) / MRC() / inner(),
        Ether(dst=nic_mac(0)) / IPv6(src="fd00::1", dst="fd00::2", nh=59),
        Ether(dst=nic_mac(0)) / IPv6(src="fd00::1", dst="fd00::2", nh=6) / Raw(bytes(100)),
        Ether(dst=nic_mac(0), type=0x88B5) / Raw(bytes(200)),
    ],
    ids=["arp", "ipv4", "ipv6-empty", "ipv6-tcp", "ethernet"],
)
def test_other_protocols_pass_unchanged(bench: Bench, hook: Hook, packet: Packet) -> None:
    untouched(bench, hook, packet)


@both_hooks
@all_encapsulations
@pytest.mark.parametrize("what", ["address", "next sid", "port", "interface", "protocol"])
def test_packets_to_other_addresses_pass_unchanged(bench: Bench, hook: Hook, what: str) -> None:
    frame, plane = bench.arriving("h2", 1, inner()), 0
    if what == "address":
        frame = changed(frame, IPv6, dst="fd10::99")
    elif what == "next sid":
        frame = changed(frame, IPv6, dst=str(IPv6Address(int(bench.plan.sids[0]) + (0xE006 << 64))))
    elif what == "port":
        frame = changed(frame, UDP, dport=4798)
    elif what == "interface":
        plane = 1  # where this address is not ours
    else:
        frame = changed(frame, IPv6, nh=132)  # SCTP, or so it says
    untouched(bench, hook, frame, plane)


@both_hooks
@pytest.mark.parametrize("octet", range(16))
def test_addresses_are_compared_in_full(bench: Bench, hook: Hook, octet: int) -> None:
    frame = bench.arriving("h2", 1, inner())
    flip = 1 << 8 * octet
    untouched(bench, hook, changed(frame, IPv6, dst=str(IPv6Address(int(IPv6Address(frame[IPv6].dst)) ^ flip))))
    dropped(
        bench,
        hook,
        changed(frame, IPv6, src=str(IPv6Address(int(IPv6Address(frame[IPv6].src)) ^ flip))),
        "wrong_source",
    )


@both_hooks
def test_packets_on_other_interfaces_pass_unchanged(bench: Bench, hook: Hook) -> None:
    bench.tables.planes["ifindex"][0] = 0
    untouched(bench, hook, bench.arriving("h2", 1, inner()))


@both_hooks
@pytest.mark.parametrize(
    "fields",
    [{"nh": 6}, {"nh": 41}, {"nh": 59}, {"type": 0}, {"type": 2}, {"nh": 43}],
    ids=["tcp", "ipv6", "nothing", "type0", "type2", "routing"],
)
def test_other_routing_headers_pass_unchanged(bench: Bench, hook: Hook, fields: dict[str, int]) -> None:
    srh = IPv6ExtHdrSegmentRouting(**{"nh": 17, "addresses": ["fd10::1"], "segleft": 0, "lastentry": 0, **fields})
    payload = UDP(sport=1, dport=4797, chksum=0) / MRC(sender=2) / inner()
    head = Ether(src=wire_mac(0), dst=nic_mac(0)) / IPv6(src="fd10::3", dst=str(bench.plan.sids[0]), nh=43)
    untouched(bench, hook, head / srh / payload)


@both_hooks
@pytest.mark.parametrize("bench", ["usid", "srh"], indirect=True)
@pytest.mark.parametrize("fields", [{"segleft": 1}, {"len": 3}, {"len": 12}, {"len": 255}])
def test_srhs_of_other_programs_pass_unchanged(bench: Bench, hook: Hook, fields: dict[str, int]) -> None:
    """A host may route SRv6 of its own: long lists, TLVs, UDP in them."""
    srh = IPv6ExtHdrSegmentRouting(**{"nh": 17, "addresses": ["fd10::1"] * 2, "segleft": 0, "lastentry": 1, **fields})
    head = Ether(src=wire_mac(0), dst=nic_mac(0)) / IPv6(src="fd10::3", dst=ELSEWHERE)
    untouched(bench, hook, head / srh / UDP(sport=1, dport=4797, chksum=0) / Raw(bytes(300)))


@both_hooks
@pytest.mark.parametrize("size", [0, 1, 31])
def test_short_packets_to_the_same_port_and_another_address_pass_unchanged(bench: Bench, hook: Hook, size: int) -> None:
    untouched(bench, hook, udp_only(ELSEWHERE, size))
