# SPDX-License-Identifier: BSD-2-Clause
"""Sends traffic whose packets carry probe requests, and checks the requests byte by byte."""

from dataclasses import dataclass

import pytest
from scapy.layers.inet import IP, TCP, UDP, IPOption
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from mrcd.config.cluster_file import Encapsulation, Health
from mrcd.fabric.wire import DATA, ECT_0, MRC, PROBE_REQUEST, MRCProbe
from mrcd.kernel import abi
from tests.packet.cluster import EVS, H2, Setup
from tests.packet.rig import Bench
from tests.packet.wires import Frame, Gso, Sender, Tap

ETHERNET = Ether(src="02:00:00:00:02:00", dst="02:00:00:00:02:01")
IPV4 = IP(src="10.99.0.1", dst="10.99.0.3", id=7, tos=0xB8)
IPV6 = IPv6(src="fd00:99::1", dst="fd00:99::3", tc=2)
COUNTS_BYTES = abi.BALLAST + 8 * EVS
PACKETS_PER_REQUEST = 16
KEPT_BYTES = 512  # a packet up to this length follows its request whole; KEPT_PACKET_MAX of bpf/piggyback.h
HEALTH = Health()
NO_DUP_ACKS = "[overlay]\ndup_ack_us = 0\n"  # ACK copies are tested in test_dup_ack.py
NO_TIMER_PROBES = f"probe_late_ms = 10000\nprobe_packets = {PACKETS_PER_REQUEST}"
ONE_SECOND_GAP = Setup(health=f"{NO_TIMER_PROBES}\nprobe_gap_us = 1000000\nloss_window_ms = 60000")


def no_timer_probes(encapsulation: Encapsulation = "usid", evs: int = EVS) -> Setup:
    """Returns a host that sends requests by the number of packets, and none because time has passed."""
    return Setup(encapsulation, f"{NO_TIMER_PROBES}\nprobe_gap_us = 150", evs, more=NO_DUP_ACKS)


@dataclass
class TrafficWithProbes:
    """The sender at mrc0 and the taps on the wires of a host whose traffic carries probe requests."""

    bench: Bench
    stack: Sender
    wires: list[Tap]

    def make_probe_due(self) -> None:
        """Makes a request due, on EV 0."""
        self.bench.reports(H2)["requested_ns"], self.bench.reports(H2)["cursor"] = 0, 0

    def send(self, packet: Packet, gso: Gso | None = None) -> tuple[list[Frame], list[Frame]]:
        """Sends a packet through mrc0. Returns the data packets and the requests on the wires."""
        self.stack.send(ETHERNET / packet, gso)
        return self.sent_packets()

    def sent_packets(self) -> tuple[list[Frame], list[Frame]]:
        """Returns the data packets and the requests on the wires since the last call, by plane."""
        found = [f for wire in self.wires for f in wire.frames()]
        kinds = [Ether(f.data)[MRC].type for f in found]
        assert set(kinds) <= {DATA, PROBE_REQUEST}
        sent, requests = ([f for f, k in zip(found, kinds, strict=True) if k == kind] for kind in (DATA, PROBE_REQUEST))
        return sent, requests


without_timer_probes = pytest.mark.parametrize("bench", [no_timer_probes()], indirect=True, ids=["usid"])
all_encapsulations = pytest.mark.parametrize(
    "bench",
    [no_timer_probes(), no_timer_probes("srh"), no_timer_probes("ecmp")],
    indirect=True,
    ids=["usid", "srh", "ecmp"],
)


def assert_request(bench: Bench, frame: Frame, packet: Packet, *, burst: bool = False) -> MRC:
    """Asserts each byte of a request made of `packet`: a small packet follows it whole, a larger one is cut."""
    seen = Ether(frame.data)
    mrc: MRC = seen[MRC]
    probe = seen[MRCProbe]
    expected = MRCProbe(seq=probe.seq, report_seq=probe.report_seq, counts=EVS, tx_ns=mrc.tx_ns, **bench.told())
    room = COUNTS_BYTES + (abi.SRH_MAX if bench.setup.encapsulation == "srh" else 0)  # a reply may need a longer SRH
    length = len(ETHERNET / packet)
    if not burst and length <= KEPT_BYTES and length + len(expected) + room <= bench.plan.inner_mtu:
        carried = bytes(room) + bytes(packet)
    else:
        carried = bytes(packet)[:room].ljust(room, b"\0")
    fields = {"type": PROBE_REQUEST, "seq": mrc.seq, "tx_ns": mrc.tx_ns}
    sent = bench.sent(H2, mrc.ev, Raw(bytes(expected) + carried), **fields)
    # The DSCP of the packet: the request then waits in the same queues.
    sent[IPv6].tc = (packet.tos if IP in packet else packet.tc) & ~3 | ECT_0
    assert frame.data == bytes(sent)
    return mrc


def assert_data(bench: Bench, frame: Frame, packet: Packet, **mrc: int) -> None:
    """Asserts that `frame` is the data packet, unchanged by the request."""
    seen = Ether(frame.data)[MRC]
    assert frame.data == bytes(bench.sent(H2, seen.ev, packet, seq=seen.seq, tx_ns=seen.tx_ns, **mrc))


CARRIERS = [
    IPV4 / UDP(sport=1, dport=2) / b"",
    IPV4 / UDP(sport=1, dport=2) / Raw(bytes(i & 0xFF for i in range(1000))),
    IPV4 / TCP(sport=1, dport=2, flags="A") / b"",
    IPV4 / TCP(sport=1, dport=2, flags="A", options=[("NOP", None)] * 40) / Raw(bytes(1200)),
    IP(src="10.99.0.1", dst="10.99.0.3", options=[IPOption(b"\x01")] * 20) / TCP() / Raw(bytes(300)),
    IPV6 / UDP(sport=1, dport=2) / b"six",
    IPV6 / TCP(sport=1, dport=2, flags="A") / Raw(bytes(i & 0xFF for i in range(1000))),
    *(IPV4 / UDP(sport=1, dport=2) / Raw(bytes(COUNTS_BYTES - 28 + extra)) for extra in (-1, 0, 1)),
    # As long as, and longer than, what fits into the inner MTU behind a request.
    *(IPV4 / UDP(sport=1, dport=2) / Raw(bytes(1420 - 14 - 32 - COUNTS_BYTES - 28 + extra)) for extra in (0, 1)),
]
