# SPDX-License-Identifier: BSD-2-Clause
"""Tests the packets on the wire at a T1, against scapy and against the kernel's own encap.red.

h0 ── T0 0 ══ T1 1 ══ T0 1 ── h2        captured at T1 1 of plane 0, on the port to T0 0
"""

import socket
import subprocess
import time
from collections.abc import Iterator
from ipaddress import IPv6Address

import pytest
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import PcapReader

from labkit.cluster.api import Lab
from labkit.traffic.wire import DATA, MRC, outer
from mrcd.config import cluster_file
from mrcd.fabric import topology
from tests.lab.conftest import a_lab
from tests.lab.flows import address

EV = 1  # plane 0, T1 1
PAYLOAD = b"every path is somebody's only path " * 3


@pytest.fixture(scope="module", params=["usid", "srh"])
def fabric(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab with each kind of segment routing."""
    with a_lab("wire", encapsulation=request.param, auth="off", overlay={"source_port": "ev"}) as made:
        yield made


def _plan(lab: Lab) -> topology.Plan:
    return topology.plan(cluster_file.load(lab.run_dir("h0").parent / "mrcd.toml"), "h0")


class Tap:
    """Captures frames that arrive at T1 1 of plane 0 from T0 0.

    It uses tcpdump, which copies packets as they arrive. A plain packet socket shares their memory with the
    switch, and shows the packets as the switch has changed them.
    """

    def __init__(self, lab: Lab) -> None:
        command = ["tcpdump", "-i", "t0-0", "-Q", "in", "--immediate-mode", "-U", "-w", "-", "ip6"]
        self._tcpdump = lab.popen("t1-0-1", command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._tcpdump.stderr is not None
        assert b"listening on" in self._tcpdump.stderr.readline()
        self._packets = PcapReader(self._tcpdump.stdout)

    def __enter__(self) -> "Tap":
        return self

    def __exit__(self, *exc: object) -> None:
        self._tcpdump.kill()
        self._tcpdump.communicate()

    def frame_with(self, needle: bytes, kind: type[Packet] | None = None) -> Packet:
        """Returns the next frame that contains these bytes."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:  # probes keep arriving, so a read ends
            frame = self._packets.read_packet()
            if needle in bytes(frame) and (kind is None or kind in frame) and not _probe(frame):
                return frame
        raise AssertionError(f"no frame with {needle[:20]!r} came by T1 1")


def _probe(frame: Packet) -> bool:
    """Returns whether a frame is a probe; a piggybacked one also holds the datagram's beginning."""
    return MRC in frame and frame[MRC].type != DATA


def _send(lab: Lab, host: str, target: str, datagrams: int, tos: int = 0) -> None:
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with lab.inside(host), socket.socket(family, socket.SOCK_DGRAM) as s:
        if family == socket.AF_INET6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
        else:
            s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        for _ in range(datagrams):
            s.sendto(PAYLOAD, (target, 9))


def _behind_t0(frame: Packet, block_bits: int = 32) -> Packet:
    """Returns a packet as T0 changes it: RFC 9800 §4.1 shifts the uSIDs, RFC 8986 §4.1 takes the next segment."""
    ip6 = frame[IPv6].copy()
    ip6.hlim -= 1
    if IPv6ExtHdrSegmentRouting in ip6:
        srh = ip6[IPv6ExtHdrSegmentRouting]
        srh.segleft -= 1
        ip6.dst = srh.addresses[srh.segleft]
    else:
        value = int(IPv6Address(ip6.dst))
        block = value >> (128 - block_bits) << (128 - block_bits)
        ip6.dst = str(IPv6Address(block | (value << 16 & ((1 << (128 - block_bits)) - 1))))
    return ip6


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("tos", [0x00, 0xB8, 0x02, 0x8B], ids=["plain", "EF", "ECT0", "AF41-CE"])
def test_packets_on_the_wire_equal_those_that_scapy_builds(fabric: Lab, version: int, tos: int) -> None:
    plan = _plan(fabric)
    path = next(p for p in plan.peers if p.host.name == "h2").evs[EV]
    with Tap(fabric) as tap:
        _send(fabric, "h0", address(2, version), 64, tos)
        seen = tap.frame_with(PAYLOAD, MRC)
    inner = seen[MRC].payload
    assert bytes(inner[Raw].load) == PAYLOAD
    volatile = {"seq": seen[MRC].seq, "tx_ns": seen[MRC].tx_ns}
    assert volatile["tx_ns"] > 0
    built = outer(plan, path, inner, smac="02:00:00:00:00:01", dmac="02:00:00:00:00:02", mrc=volatile)
    expected = bytes(_behind_t0(Ether(bytes(built))))
    assert bytes(seen[IPv6]) == expected


def test_packets_on_the_wire_have_the_headers_of_encap_red(fabric: Lab) -> None:
    path = next(p for p in _plan(fabric).peers if p.host.name == "h2").evs[EV]
    segments = ",".join(str(s) for s in path.segments)
    target = "fd00:77::1"
    encap = ["encap", "seg6", "mode", "encap.red", "segs", segments]
    route = ["ip", "-6", "route", "add", f"{target}/128", *encap, "via", "fe80::1", "dev", "p0"]
    fabric.exec("h0", route, check=True)
    try:
        with Tap(fabric) as tap:
            _send(fabric, "h0", target, 1)
            kernel = tap.frame_with(PAYLOAD)
            _send(fabric, "h0", address(2, 6), 64)
            ours = tap.frame_with(PAYLOAD, MRC)
    finally:
        fabric.exec("h0", ["ip", "-6", "route", "del", f"{target}/128"], check=True)
    assert MRC not in kernel
    assert ours[IPv6].dst == kernel[IPv6].dst
    assert ours[IPv6].src == kernel[IPv6].src
    assert ours[IPv6].hlim == kernel[IPv6].hlim
    assert (IPv6ExtHdrSegmentRouting in ours) == (IPv6ExtHdrSegmentRouting in kernel) == (len(path.segments) > 1)
    if IPv6ExtHdrSegmentRouting in ours:
        # Apart from the next header field: UDP there, IPv6 here.
        size = 8 + 16 * (len(path.segments) - 1)
        assert bytes(ours[IPv6ExtHdrSegmentRouting])[1:size] == bytes(kernel[IPv6ExtHdrSegmentRouting])[1:size]
