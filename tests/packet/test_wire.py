# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.traffic.wire: the scapy layers by themselves. No root needed."""

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

from labkit.traffic import wire
from labkit.traffic.wire import DATA, ECT_0, MRC, PROBE_REPLY, PROBE_REQUEST, MRCCount, MRCProbe, MRCReport
from mrcd.config.cluster_file import Encapsulation
from tests.packet.packets import nic_mac, wire_mac
from tests.packet.rig import Setup

INNER4 = IP(src="10.99.0.1", dst="10.99.0.3", tos=0xBA) / UDP(sport=1, dport=2) / Raw(b"four")
INNER6 = IPv6(src="fd00:99::1", dst="fd00:99::3", tc=0x2B, fl=7) / UDP(sport=1, dport=2) / Raw(b"six")
PROBE = MRCProbe(seq=1, plane_mask=0xF, status=1, generation=9, tx_ns=5)
COUNTS = [MRCCount(packets=77, probes=4), MRCCount(packets=2**32 - 1, probes=2**16 - 1, ce=3)]
REPORT = MRCProbe(seq=1, plane_mask=0xF, status=1, generation=9, report_seq=6, first=7, counts=2, tx_ns=5) / MRCReport(
    records=COUNTS
)


def build(payload: Packet, encapsulation: Encapsulation = "usid", number: int = 6, vlan: int = 0, **mrc: int) -> Packet:
    plan = Setup(encapsulation).plan()
    path = next(e for p in plan.peers if p.host.name == "h2" for e in p.evs if e.ev == number)
    return wire.outer(plan, path, payload, smac=nic_mac(1), dmac=wire_mac(1), vlan=vlan, mrc=mrc)


# A whole packet, octet by octet, so that the tests of the programs do not depend on scapy alone.
ETHERNET = "02 00 00 00 01 01  02 00 00 00 00 01  86 dd"
UDP_MRC_INNER = """
    c0 06  12 bd  00 48  00 00                                          source port, 4797, 40 + 32, no checksum
    03 01 00 00  00 00  00 06  00 00 00 11  00 01  00 02                version, type; host 0, EV 6; seq 17; 1; host 2
    00 00 00 00 00 00 00 05  00 00 00 00 00 00 00 00                    tx_ns, auth
"""
PATH_6 = "5f 00 00 00  48 00  88 02  48 01  c4 00  00 00  00 00"  # T0 0, T1 2, T0 1, port 0 in plane 1
SOURCE = "fd 10 00 00 00 01 00 00 00 00 00 00 00 00 00 01"


def octets(text: str) -> bytes:
    """Parses hexadecimal pairs in columns; text after four blanks is ignored."""
    return bytes.fromhex("".join(line.strip().partition("    ")[0] for line in text.splitlines()))


def test_every_octet_of_a_usid_packet() -> None:
    head = octets(f"{ETHERNET} 6b a0 00 06  00 48  11  40 {SOURCE} {PATH_6}") + octets(UDP_MRC_INNER)
    assert bytes(build(INNER4, seq=17, tx_ns=5)) == head + bytes(INNER4)


def test_every_octet_of_an_srh_packet() -> None:
    """H.Encaps.Red: four segments, the first only in the destination, the SRH in reverse order."""
    first, *others = (
        f"5f 00 00 00 {usid} 00 00 00 00 00 00 00 00 00 00" for usid in ("48 00", "88 02", "48 01", "c4 00")
    )
    srh = "11 06 04 03  02 00 00 00" + "".join(others[::-1])
    head = octets(f"{ETHERNET} 6b a0 00 06  00 80  2b  40 {SOURCE} {first} {srh}") + octets(UDP_MRC_INNER)
    assert bytes(build(INNER4, "srh", seq=17, tx_ns=5)) == head + bytes(INNER4)


def test_every_octet_of_an_ecmp_packet() -> None:
    to = "fd 10 00 00 00 01 00 01 00 00 00 00 00 00 00 03"
    head = octets(f"{ETHERNET} 6b a0 00 06  00 48  11  40 {SOURCE} {to}") + octets(UDP_MRC_INNER)
    assert bytes(build(INNER4, "ecmp", seq=17, tx_ns=5)) == head + bytes(INNER4)


def test_every_octet_of_a_report() -> None:
    head = octets(
        """
        00 00 00 01  00 0f  00 01  00 00 00 09  00 00 00 06             seq, plane mask, status, generation, report_seq
        00 07  00 02  00 00 00 00  00 00 00 00 00 00 00 05              first, counts; tx_ns
        """
    )
    counts = octets("00 00 00 4d  00 04  00 00  ff ff ff ff  ff ff  00 03")  # packets, probes, CE marks
    assert bytes(REPORT) == head + bytes(64) + counts


@pytest.mark.parametrize("encapsulation", ["usid", "srh", "ecmp"])
@pytest.mark.parametrize("vlan", [0, 100])
@pytest.mark.parametrize("payload", [INNER4, INNER6, PROBE], ids=["ipv4", "ipv6", "probe"])
def test_built_packets_are_dissected_to_the_same_layers(
    payload: Packet, vlan: int, encapsulation: Encapsulation
) -> None:
    built = build(payload, encapsulation, vlan=vlan, seq=17)
    seen = Ether(bytes(built))
    assert (Dot1Q in seen, IPv6ExtHdrSegmentRouting in seen) == (vlan > 0, encapsulation == "srh")
    assert (seen[MRC].sender, seen[MRC].ev, seen[MRC].seq, seen[MRC].segments) == (0, 6, 17, 1)
    assert seen[MRC].type == (PROBE_REQUEST if payload is PROBE else DATA)
    assert type(seen[MRC].payload) is type(payload)
    assert bytes(seen[MRC].payload) == bytes(payload)
    assert (seen[UDP].chksum, seen[IPv6].fl, seen[IPv6].hlim) == (0, 6, 64)
    assert seen[IPv6].tc == {IP: 0xBA, IPv6: 0x2B, MRCProbe: ECT_0}[type(payload)]
    assert bytes(seen) == bytes(built)


@pytest.mark.parametrize("encapsulation", ["usid", "srh"])
def test_a_built_report_is_dissected_to_the_same_fields(encapsulation: Encapsulation) -> None:
    built = build(REPORT, encapsulation, type=PROBE_REPLY)
    seen = Ether(bytes(built))
    probe = seen[MRCProbe]
    assert (probe.report_seq, probe.first, probe.counts) == (6, 7, 2)
    assert [(c.packets, c.probes, c.ce) for c in seen[MRCReport].records] == [(77, 4, 0), (2**32 - 1, 2**16 - 1, 3)]
    assert bytes(seen) == bytes(built)


@pytest.mark.parametrize("first", [0x00, 0x15, 0x75])
def test_a_payload_that_is_not_ip_is_raw(first: int) -> None:
    seen = MRC(bytes(MRC()) + bytes([first]) + bytes(40))
    assert type(seen.payload) is Raw
    assert type(MRC(bytes(MRC(type=9)) + bytes(INNER4)).payload) is Raw
    assert not MRC(bytes(MRC())).payload


def test_padding_behind_a_probe_and_a_report_is_dissected() -> None:
    seen = MRC(bytes(MRC(type=PROBE_REPLY)) + bytes(PROBE) + b"pad")
    assert (bytes(seen[MRCProbe])[:32], seen.lastlayer().load) == (bytes(PROBE), b"pad")
    seen = MRC(bytes(MRC(type=PROBE_REPLY)) + bytes(REPORT) + b"pad")
    assert (len(seen[MRCReport].records), bytes(seen).endswith(b"pad")) == (2, True)


@pytest.mark.parametrize(
    ("packet", "summary"),
    [
        (build(INNER4, seq=17), "MRC data from host 0 to 2 EV 6 seq 17 / IP / UDP 10.99.0.1:1 > 10.99.0.3:2 / Raw"),
        (
            build(INNER6, segments=20),
            "MRC data from host 0 to 2 EV 6 seq 0 × 20 / IPv6 / UDP fd00:99::1:1 > fd00:99::3:2 / Raw",
        ),
        (build(PROBE), "MRC probe request from host 0 to 2 EV 6 / probe 1"),
        (
            build(REPORT, type=PROBE_REPLY),
            "MRC probe reply from host 0 to 2 EV 6 / MRCProbe / report 6 from EV 7: 2 EVs",
        ),
        (build(Raw(b"?"), type=9), "MRC type 9 from host 0 to 2 EV 6 / Raw"),
    ],
    ids=["ipv4", "burst", "request", "report", "unknown"],
)
def test_summaries_name_the_path(packet: Packet, summary: str) -> None:
    assert Ether(bytes(packet)).summary().endswith(summary)


def test_the_udp_port_can_be_changed(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(wire.bind)
    wire.bind(5000)
    packet = IPv6(bytes(IPv6(src="::1", dst="::1") / UDP(chksum=0) / MRC() / INNER4))
    assert packet[UDP].dport == 5000
    assert MRC in packet
    assert MRC not in Ether(bytes(build(INNER4)))  # 4797
    wire.bind()
    assert MRC in Ether(bytes(build(INNER4)))
