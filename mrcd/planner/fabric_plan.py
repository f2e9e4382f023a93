# SPDX-License-Identifier: BSD-2-Clause
"""Plans the fabric of a cluster: how many T0s and T1s of which ports, and which cables. Pure.

Each plane has two tiers. Hosts are spread evenly over the T0s, and each T0 has one link to each T1: the number of a T1
is the uplink of the T0, as in the uSIDs (srv6.py). So the T1s of a plane are as many as the uplinks of a T0.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from mrcd.config import ranges
from mrcd.config.cluster_file import Cluster
from mrcd.config.sizes import MAX_EVS_PER_PEER, MAX_HOST_ID, MAX_PLANES, MAX_PORTS, MAX_T0S, MAX_T1S
from mrcd.errors import UsageError
from mrcd.fabric import srv6

HOST_END = "fe80::2"
"""The link-local address of every host on its plane NICs."""

Network = IPv4Network | IPv6Network


@dataclass(frozen=True)
class Wanted:
    """The wanted fabric: the input of a plan."""

    hosts: int
    planes: int = Cluster.model_fields["planes"].default
    rails: int = Cluster.model_fields["rails"].default
    """NICs of a host whose ports lead to the same T1s."""
    radix: int = 64
    """Ports of a switch."""
    evs_per_peer: int = MAX_EVS_PER_PEER
    hosts_per_t0: int | None = None
    t1s: int | None = None
    name: str = Cluster.model_fields["name"].default
    host_name: str = "gpu"
    mtu: int = Cluster.model_fields["mtu"].default
    prefixes: tuple[Network, ...] = (IPv4Network("10.64.0.1/32"), IPv6Network("fd00:99::1/128"))
    """Those of the first host; each further host has the next ones."""


@dataclass(frozen=True)
class FabricPlan:
    """A fabric that can be wired. Numbers of switches are per plane; rails share the T1s of their planes."""

    wanted: Wanted
    t0s: int
    t1s: int
    hosts_per_t0: int

    @property
    def planes(self) -> int:
        """Returns the number of planes."""
        return self.wanted.planes

    @property
    def nics(self) -> int:
        """Returns the number of NICs, which is that of the cables between hosts and T0s."""
        return self.wanted.hosts * self.planes

    @property
    def links(self) -> int:
        """Returns the number of cables between T0s and T1s."""
        return self.planes * self.t0s * self.t1s

    @property
    def planes_with_t1s(self) -> int:
        """Returns the planes that have T1s of their own: the ports of a NIC."""
        return self.planes // self.wanted.rails

    @property
    def switches(self) -> int:
        """Returns the number of switches."""
        return self.planes * self.t0s + self.planes_with_t1s * self.t1s

    @property
    def evs_per_plane(self) -> int:
        """Returns the EVs to a peer under another T0, per plane: at most one per T1."""
        return min(max(self.t1s, 1), self.wanted.evs_per_peer // self.planes)

    @property
    def evs_per_peer(self) -> int:
        """Returns the EVs to a peer under another T0."""
        return self.planes * self.evs_per_plane

    @property
    def oversubscription(self) -> float:
        """Returns the hosts of a T0 per uplink: 1 or less, and every host can send all that it has across T1s."""
        return self.hosts_per_t0 / self.t1s if self.t1s else 0.0

    def host_name(self, number: int) -> str:
        """Returns the name of a host, numbered from 0."""
        return ranges.parse(self.host_range).name(number) if self.wanted.hosts > 1 else self.host_range

    @property
    def host_range(self) -> str:
        """Returns the names of all hosts as the cluster file has them, "gpu[0001-4096]"."""
        digits, last = len(str(self.wanted.hosts)), self.wanted.hosts
        first = f"{1:0{digits}}"
        return f"{self.wanted.host_name}[{first}-{last}]" if last > 1 else f"{self.wanted.host_name}{first}"

    def usids(self) -> dict[str, list[str]]:
        """Returns the first and the last uSID of each kind, per plane, in hexadecimal."""
        found = {}
        for plane in range(self.planes):
            ends = [f"{srv6.t0_usid(plane, t0):04x}" for t0 in (0, self.t0s - 1)]
            ends += [f"{srv6.t1_usid(plane, t1):04x}" for t1 in (0, self.t1s - 1) if self.t1s]
            ends += [f"{srv6.host_usid(plane, port):04x}" for port in (0, self.hosts_per_t0 - 1)]
            found[str(plane)] = ends
        return found

    def cables(self) -> Iterator[tuple[str, str, str, str]]:
        """Yields each cable: a host's NIC or a T0, its port; a T0 or a T1, its port. Ports of switches are from 0."""
        for plane in range(self.planes):
            for host in range(self.wanted.hosts):
                t0, port = divmod(host, self.hosts_per_t0)
                yield self.host_name(host), f"nic {plane}", f"t0-{plane}-{t0}", str(port)
            for t0 in range(self.t0s):
                for t1 in range(self.t1s):
                    rail, first = divmod(plane, self.planes_with_t1s)
                    upper_port = rail * self.t0s + t0
                    yield f"t0-{plane}-{t0}", str(self.hosts_per_t0 + t1), f"t1-{first}-{t1}", str(upper_port)

    def cluster_file(self) -> str:
        """Returns the cluster file as TOML."""
        w = self.wanted
        of_host = [f"name = {json.dumps(self.host_range)}", "id = 0", "t0 = 0", "port = 0"]
        if w.hosts > 1:
            of_host.append(f"per_t0 = {self.hosts_per_t0}")
        lines = [
            f"# {w.hosts} hosts, {self.planes} planes of {self.t0s} T0s and {self.t1s} T1s: {self.nics} NICs.",
            "[cluster]",
            f"name = {json.dumps(w.name)}",
            f"planes = {self.planes}",
            *([f"rails = {w.rails}"] if w.rails > 1 else []),
            f"t0s = {self.t0s}",
            f"t1s = {self.t1s}",
            f"mtu = {w.mtu}",
            f"evs_per_peer = {self.evs_per_peer}",
            "",
            "[interfaces]",
            f"address = {json.dumps(HOST_END)} # the T0s route to it; mrcd adds it to every plane NIC",
            "",
            "[switches]",
            f"downlinks = {self.hosts_per_t0} # ports of a T0 for hosts; the T1s are behind them",
            "",
            "[[hosts]]",
            *of_host,
            f"prefixes = {json.dumps([str(prefix) for prefix in w.prefixes])} # of the first host",
        ]
        return "\n".join(lines) + "\n"


def plan(wanted: Wanted) -> FabricPlan:
    """Returns the fabric. Raises UsageError with every reason for which it cannot be wired."""
    faults = list(_wrong_numbers(wanted))
    if not faults:
        half = wanted.radix // 2
        most_per_t0 = wanted.hosts_per_t0 or min(wanted.hosts if wanted.hosts <= half else half, MAX_PORTS)
        t0s = math.ceil(wanted.hosts / most_per_t0)
        hosts_per_t0 = wanted.hosts_per_t0 or math.ceil(wanted.hosts / t0s)
        t1s = wanted.t1s if wanted.t1s is not None else hosts_per_t0 if t0s > 1 else 0
        found = FabricPlan(wanted, t0s, t1s, hosts_per_t0)
        faults = list(_faults(found))
    if faults:
        raise UsageError("this fabric cannot be wired: " + "; ".join(faults), hint=_remedy(wanted))
    return found


def _wrong_numbers(w: Wanted) -> Iterator[str]:
    most = MAX_HOST_ID + 1
    for what, value, low, high in (
        ("hosts", w.hosts, 1, most),
        ("planes", w.planes, 1, MAX_PLANES),
        ("rails", w.rails, 1, MAX_PLANES),
        ("radix", w.radix, 2, MAX_PORTS),
        ("evs", w.evs_per_peer, w.planes, MAX_EVS_PER_PEER),
        ("hosts-per-t0", w.hosts_per_t0 or 1, 1, MAX_PORTS),
        ("t1s", w.t1s or 0, 0, MAX_T1S),
    ):
        if not low <= value <= high:
            reason = {
                "hosts": f": host ids in packets are 0 to {MAX_HOST_ID}",
                "evs": ": every plane needs one at least" if value < low else ": the programs know no more",
            }.get(what, "")
            yield f"{value} {what}, but {low} to {high} are possible{reason}"
    if w.rails > 0 and w.planes % w.rails:
        yield f"{w.planes} planes are no multiple of {w.rails} rails: each NIC has as many ports"


def _faults(p: FabricPlan) -> Iterator[str]:
    radix, hosts, t1s, rails = p.wanted.radix, p.hosts_per_t0, p.t1s, p.wanted.rails
    if hosts + t1s > radix:
        yield f"a T0 needs {hosts} + {t1s} ports for hosts and T1s, but a switch has {radix}"
    if t1s and p.t0s * rails > radix:
        of = f"{p.t0s} T0s" if rails == 1 else f"{rails} × {p.t0s} T0s"
        yield f"a T1 needs a port for each of {of}, but a switch has {radix}: a third tier would be needed"
    if p.t0s > MAX_T0S:
        yield f"{p.t0s} T0s in a plane, but mrcd knows {MAX_T0S} at most"
    if t1s > MAX_T1S:
        yield f"{t1s} T1s in a plane, but mrcd knows {MAX_T1S} at most"
    if p.t0s > 1 and t1s == 0:
        yield f"{p.t0s} T0s without a T1: no path leads from one to another"
    for prefix in p.wanted.prefixes:
        try:
            ranges.shifted(prefix, p.wanted.hosts - 1)
        except ValueError:
            yield f"{p.wanted.hosts} prefixes from {prefix} on go beyond the last address"


def _remedy(w: Wanted) -> str:
    half = min(w.radix // 2, MAX_PORTS, MAX_T1S)
    most = min(half * min(w.radix // max(w.rails, 1), MAX_T0S), MAX_HOST_ID + 1)
    if not most:
        return f"a T1 needs a port for a T0 of each rail: take switches of {w.rails} ports at least, or fewer rails"
    return (
        f"without oversubscription, switches of {w.radix} ports wire {most} hosts in two tiers; take larger switches, "
        "or more hosts per T0 with fewer T1s (--hosts-per-t0, --t1s)"
    )
