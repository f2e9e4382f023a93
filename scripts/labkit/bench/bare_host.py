# SPDX-License-Identifier: BSD-2-Clause
"""Runs one host's data plane without a daemon, with tables of any size, in a network namespace of its own.

    m0 ══ m0p              the overlay interface: packets routed there are pushed; mrc_probe sends copies at m0p
    n0 ══ w0, n1 ══ w1, …  the plane NICs and their far ends: frames for mrc_pop are sent on w0

Every other host id is a peer, and every path is GOOD. Packets that leave a NIC end at its far end.
"""

import contextlib
import ipaddress
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.packet import Packet, Raw
from scapy.utils import checksum

from labkit.cluster import netns
from labkit.cluster.fabric import host_table
from labkit.measure import progstats
from labkit.traffic import wire
from mrcd.config import cluster_file
from mrcd.config.cluster_file import Encapsulation
from mrcd.daemon import write_tables
from mrcd.fabric import topology
from mrcd.kernel import libbpf
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.enums import Policy
from mrcd.kernel.pinned import Tables, prefix_key

PLANES, EVS = 4, 256  # unless a host has more planes
VLAN = 7
_COPIES_PER_S = 1_000_000  # more than are sent
_POLICY_SHIFT = 16  # of a prefix's value
_MTU = 9100
_SENDER = 4  # offset of sender and EV in struct mrc_hdr
_TARGET = {4: "10.98.0.1", 6: "fd00:98::1"}  # of received packets: within this host's prefixes
_OUR_MAC, _WIRE_MAC = "02:00:00:00:00:{:02x}", "02:00:00:00:01:{:02x}"


def cluster(hosts: int, encapsulation: Encapsulation, planes: int = PLANES) -> str:
    """Returns a cluster file with this host and the last of the others, whose rows are copied for all others."""
    lines = ["[cluster]", f"planes = {planes}", "t0s = 2", f"t1s = {EVS // planes}", f"evs_per_peer = {EVS}"]
    lines += [f"mtu = {_MTU}", f'encapsulation = "{encapsulation}"', "[overlay]", f"copies_per_s = {_COPIES_PER_S}"]
    for t0, number in enumerate((0, hosts - 1)):
        lines.append(host_table(number, t0, 0, [f"{address(number, 4)}/32", f"{address(number, 6)}/128"]))
    return "\n".join(lines)


def address(host: int, version: int) -> str:
    """Returns the overlay address of a host."""
    number = host + 1
    return f"10.99.{number >> 8}.{number & 0xFF}" if version == 4 else f"fd00:99::{number:x}"


class BareHost:
    """Host h0 of a cluster of `hosts` hosts. Raises MrcdError."""

    def __init__(
        self,
        namespace: str,
        hosts: int,
        encapsulation: Encapsulation = "usid",
        program: Path | None = None,
        planes: int = PLANES,
    ) -> None:
        self.namespace, self.hosts, self.planes, self.slots = namespace, hosts, planes, EVS // planes
        text = cluster_file.parse(cluster(hosts, encapsulation, planes), "the bench's cluster file")
        self.plan = topology.plan(text, "h0")
        self._far = topology.plan(text, f"h{hosts - 1}")
        with contextlib.ExitStack() as undo:
            netns.batch(("ip",), [f"netns add {namespace}"])
            undo.callback(netns.batch, ("ip",), [f"netns del {namespace}"])
            directory = Path(tempfile.mkdtemp(prefix="mrcd-bench-"))
            undo.callback(shutil.rmtree, directory)
            undo.callback(netns.unmount_below, directory)
            with netns.inside(namespace):
                self._interfaces()
                self.ifindex = {name: index for index, name in socket.if_nameindex()}
            self.dataplane = Dataplane(self.plan, directory, program=program)
            undo.callback(self.dataplane.close)
            self.dataplane.load()
            self.dataplane.commit()
            self.tables = Tables(self.dataplane.pins, writable=True)
            undo.callback(self.tables.close)
            self._fill()
            self.empty = progstats.load_empty()
            undo.callback(os.close, self.empty)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Removes the namespace, the tables and the programs."""
        self._undo.close()

    def _interfaces(self) -> None:
        netns.write_sysctls([("ipv6/conf/default/disable_ipv6", "1")])  # interfaces would send packets of their own
        lines = [f"link add m0 mtu {_MTU - 200} type veth peer name m0p mtu {_MTU - 200}"]
        for p in range(self.planes):
            ours, theirs = _OUR_MAC.format(p), _WIRE_MAC.format(p)
            lines.append(
                f"link add n{p} mtu {_MTU} address {ours} type veth peer name w{p} mtu {_MTU} address {theirs}"
            )
        names = ["lo", "m0", "m0p", *(f"{side}{p}" for p in range(self.planes) for side in "nw")]
        netns.batch(("ip",), lines + [f"link set {name} up" for name in names])
        netns.write_sysctls([(f"ipv6/conf/{name}/disable_ipv6", "0") for name in ("lo", "m0")])
        own = [f"address add {address(0, 4)}/32 dev m0", f"address add {address(0, 6)}/128 dev m0 nodad"]
        netns.batch(("ip",), ["link set m0 arp off", *own, "route add 10.99.0.0/16 dev m0"])
        netns.batch(("ip", "-6"), ["route add fd00:99::/64 dev m0"])

    def _fill(self) -> None:
        for p in range(self.planes):
            plane = self.tables.planes[p : p + 1].reshape(())
            plane["ifindex"] = self.ifindex[f"n{p}"]
            plane["smac"], plane["dmac"] = _octets(_OUR_MAC.format(p)), _octets(_WIRE_MAC.format(p))
            plane["address"] = np.frombuffer(self.plan.addresses[p].packed, np.uint8)
            plane["sid"] = np.frombuffer(self.plan.sids[p].packed, np.uint8)
        self.tables.node["plane_mask"] = (1 << self.planes) - 1
        self.tables.node["overlay_ifindex"] = self.ifindex["m0"]
        last = self.hosts - 1
        write_tables.write_peers(self.tables, self.plan, self.dataplane.refresh)
        self.tables.evs["state"][last] = 1  # GOOD
        self.dataplane.refresh(last)
        for name in ("evs", "peers"):
            rows: Any = getattr(self.tables, name)
            rows[1:last] = rows[last]
        if len(self.tables.srhs) > 1:
            rows = self.tables.srhs.reshape(-1, EVS)
            rows[1:last] = rows[last]
        addresses = [(address(host, version), host) for host in range(self.hosts) for version in (4, 6)]
        addresses += [(target, 0) for target in _TARGET.values()]
        self._prefixes = {prefix_key(p, 8 * len(p)): host for a, host in addresses for p in [_packed(a)]}
        self.dataplane.set_prefixes(self._prefixes)

    def set_critical(self, critical: bool) -> None:
        """Sets whether all packets to other hosts are critical."""
        if bool(self.tables.node["probe_ifindex"]) == critical:
            return
        self.tables.node["probe_ifindex"] = self.ifindex["m0p"] if critical else 0
        policy = Policy.CRITICAL << _POLICY_SHIFT if critical else 0
        self.dataplane.set_prefixes({key: host | policy for key, host in self._prefixes.items()})

    def set_vlan(self, tagged: bool) -> None:
        """Sets whether the planes are VLANs of their NICs."""
        self.tables.planes["vlan"][: self.planes] = VLAN if tagged else 0

    def program(self, name: str) -> int:
        """Returns the descriptor of one of mrcd's programs."""
        return self.dataplane.program(name)

    @contextlib.contextmanager
    def attached(self, name: str, interface: str, point: int, flags: int = 0) -> Iterator[None]:
        """A block in which a program is attached to an interface, at tc behind an empty program; and mrc_probe."""
        links = []
        try:
            with netns.inside(self.namespace):
                if point != libbpf.XDP:
                    links.append(libbpf.create_link(self.empty, self.ifindex[interface], point))
                links.append(libbpf.create_link(self.program(name), self.ifindex[interface], point, flags))
                links.append(libbpf.create_link(self.program("mrc_probe"), self.ifindex["m0p"], libbpf.TCX_EGRESS))
            yield
        finally:
            for fd in links:
                os.close(fd)

    def frame(self, version: int, size: int, *, vlan: bool = False, ce: bool = False, **mrc: int) -> Packet:
        """Returns a frame of the last host on EV 0, as it leaves the last switch; the inner packet has `size` bytes."""
        path = next(e for p in self._far.peers for e in p.evs if e.ev == 0)
        # No interface has the target's address, so the stack drops the packet right after mrc_pop.
        ends = {"src": address(self.hosts - 1, version), "dst": _TARGET[version]}
        ip = IP(tos=2, **ends) if version == 4 else IPv6(tc=2, **ends)
        headers = len(ip / UDP())
        inner = ip / UDP(sport=1, dport=2, chksum=0) / Raw(bytes(size - headers))
        smac, dmac = _WIRE_MAC.format(0), _OUR_MAC.format(0)
        frame = wire.outer(self._far, path, inner, smac=smac, dmac=dmac, vlan=VLAN if vlan else 0, mrc=mrc)
        frame[IPv6].dst, frame[IPv6].hlim = str(self.plan.sids[0]), wire.HOP_LIMIT - 3
        if ce:
            frame[IPv6].tc |= 3
        if IPv6ExtHdrSegmentRouting in frame:
            frame[IPv6ExtHdrSegmentRouting].segleft = 0
        return frame

    def sent_by(self, frame: Packet, ends: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns the same frame from other hosts, on other EVs of its plane: (host id, EV) each."""
        mrc, inner = (len(frame) - len(part) for part in (frame[wire.MRC], frame[wire.MRC].payload))
        raw = bytearray(bytes(frame))
        version = raw[inner] >> 4
        found = []
        for host, ev in ends:
            source = _packed(address(host, version))
            struct.pack_into("!HH", raw, mrc + _SENDER, host, ev)
            at = inner + (12 if version == 4 else 8)
            raw[at : at + len(source)] = source
            if version == 4:
                struct.pack_into("!H", raw, inner + 10, 0)
                struct.pack_into("!H", raw, inner + 10, checksum(bytes(raw[inner : inner + 20])))
            found.append(bytes(raw))
        return found


def _packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


def _octets(mac: str) -> NDArray[np.uint8]:
    return np.frombuffer(bytes.fromhex(mac.replace(":", "")), np.uint8)
