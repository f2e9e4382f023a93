# SPDX-License-Identifier: BSD-2-Clause
"""Computes the whole fabric as data from the parameters. Pure: nothing here touches the machine.

Long because one data model is easier to check in one place.

    h0 p0 ─── h0 ┌────────┐ t1-0 ── t0-0 ┌────────┐
                 │ t0-P-0 ├──────────────┤ t1-P-0 ├── …        one such fabric per plane P
    h1 p0 ─── h1 └────────┘ t1-1 ┐       └────────┘
                                 └ t0-0  ┌────────┐
    h2 p0 ─── h2 ┌────────┐ t1-0 …       │ t1-P-1 │
                 │ t0-P-1 ├──────────────┤        │
                 └────────┘ t1-1 ── t0-1 └────────┘

Every interface of a switch has its neighbour's name; a host's NICs are p0, p1, … as mrcd expects.
On every link the end nearer to the core (the "upper" one) is fe80::1 and the other fe80::2, so a
host's first hop is fe80::1 in every plane. Switches are configured as `mrcctl fabric config` prints it, and have static
neighbours, so that silence on a path never becomes a failed neighbour; hosts resolve fe80::1 by real neighbour
discovery.

With `direct` there are no switches: h0 p0 ─── p0 h1, h0 p1 ─── p1 h1, …. There fe80::1 is a static neighbour,
the other host, and the one path per plane is the peer's own SID.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network
from typing import Any, Literal, NamedTuple

from mrcd.config import cluster_file as config
from mrcd.config import toml_text
from mrcd.config.sections import Mode
from mrcd.config.sizes import MAX_EVS_PER_PEER
from mrcd.errors import UsageError
from mrcd.fabric import topology
from mrcd.planner.switches.formats import FORMATS
from mrcd.planner.switches.model import Switch

HOST_END = "fe80::2"  # [interfaces] address

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
NODE = r"(?:h\d+|t0-\d+-\d+|t1-\d+-\d+)"
SECRETS = "secrets"  # a file in the directory of the lab
MAX_HOSTS = 254  # 10.99.0.1 to 10.99.0.254
MAX_T1S = 256  # one byte of the MAC address

Kind = Literal["host", "t0", "t1"]


@dataclass(frozen=True)
class Parameters:
    """Parameters of `lab up`. Two labs with equal parameters are the same lab."""

    hosts: int = 4
    hosts_per_t0: int = 2
    planes: int = 4
    rails: int = 1  # NICs that share T1s
    t1: int = 4
    mtu: int = 9100
    rate_bits_per_s: int | None = None
    granularity: config.Granularity = "burst"
    encapsulation: config.Encapsulation = "usid"
    hook: config.Hook = "auto"
    auth: Mode = "required"  # [auth] mode
    daemon: bool = True
    source_filters: bool = True  # [switches] source_filters: without them hosts can send with others' addresses
    health: dict[str, float | str] = field(default_factory=dict)  # non-default keys of the cluster file's [health]
    overlay: dict[str, float | str] = field(default_factory=dict)  # non-default keys of its [overlay]
    direct: bool = False  # two hosts without switches; `hosts`, `hosts_per_t0` and `t1` are ignored

    def __post_init__(self) -> None:
        if self.direct:
            for name, value in (("hosts", 2), ("hosts_per_t0", 2), ("t1", 0)):
                object.__setattr__(self, name, value)
        for name, low, high in (("hosts", 1, MAX_HOSTS), ("hosts_per_t0", 1, MAX_HOSTS), ("t1", 0, MAX_T1S)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} = {value} is out of range", hint=f"the lab takes {low} to {high}")

    @property
    def t0s(self) -> int:
        """Returns the number of T0 switches per plane."""
        return math.ceil(self.hosts / self.hosts_per_t0)

    def as_json(self) -> dict[str, Any]:
        """Returns a plain dictionary."""
        return dataclasses.asdict(self)

    def differences(self, other: "Parameters") -> dict[str, tuple[Any, Any]]:
        """Returns the parameters in which `other` differs, with both values."""
        mine, theirs = self.as_json(), other.as_json()
        return {k: (mine[k], theirs[k]) for k in mine if mine[k] != theirs[k]}


class PortRef(NamedTuple):
    """One end of a link."""

    node: str
    port: str


@dataclass(frozen=True)
class Port:
    """An interface of a node."""

    name: str
    mac: str
    address: str  # link-local
    gateway: str  # link-local address of the other end
    gateway_mac: str | None  # None: neighbour discovery resolves it
    routes: tuple[IPv6Network, ...] = ()  # of a bare host
    own: IPv6Address | None = None  # a bare host's address on this plane


@dataclass(frozen=True)
class Node:
    """A host or a switch: one network namespace. A switch is configured as `mrcctl fabric config` prints it."""

    name: str
    kind: Kind
    ports: tuple[Port, ...]
    switch: Switch | None = None


@dataclass(frozen=True)
class Link:
    """A veth pair; `upper` is the end nearer to the core."""

    plane: int
    upper: PortRef
    lower: PortRef


@dataclass(frozen=True)
class Fabric:
    """Everything that `up` builds."""

    name: str
    parameters: Parameters
    config: config.Config
    nodes: dict[str, Node]
    links: tuple[Link, ...]

    def namespace(self, node: str) -> str:
        """Returns the name of a node's network namespace. Raises UsageError for an unknown node."""
        if node not in self.nodes:
            raise UsageError(
                f"lab {self.name} has no node {node!r}", hint=f"it has {', '.join(list(self.nodes)[:6])}, …"
            )
        return namespace(self.name, node)

    @property
    def toml(self) -> str:
        """Returns the cluster file."""
        return cluster_text(self.name, self.parameters)

    @property
    def namespaces(self) -> dict[str, str]:
        """Returns node → namespace."""
        return {n: namespace(self.name, n) for n in self.nodes}

    @property
    def hosts(self) -> list[str]:
        """Returns the names of the hosts."""
        return [n.name for n in self.nodes.values() if n.kind == "host"]

    def address(self, host: str, version: int = 4) -> str:
        """Returns the address of a host on the overlay."""
        prefixes = self.config.host(host).prefixes
        return next(str(p.network_address) for p in prefixes if p.version == version)

    def port(self, ref: PortRef) -> Port:
        """Returns the port of a reference."""
        return next(p for p in self.nodes[ref.node].ports if p.name == ref.port)


def check_name(name: str) -> str:
    """Returns a lab's name if it fits into namespace names and paths. Raises UsageError."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid lab name",
            hint="lower-case letters, digits and dashes, at most 31, e.g. --name test1",
        )
    return name


def parse_setting(text: str) -> tuple[str, float | str]:
    """Parses `hold_down_ms=100` → ("hold_down_ms", 100), and `source_check=off` → ("source_check", "off").

    mrcd.config checks key and value. Raises UsageError.
    """
    key, _, value = text.partition("=")
    if not (key and value):
        raise UsageError(f"{text!r} is not a setting", hint="KEY=VALUE, e.g. hold_down_ms=100")
    try:
        return key, int(value) if value.isdecimal() else float(value)
    except ValueError:
        return key, value


def namespace(lab: str, node: str) -> str:
    """Returns the namespace of a node, e.g. mrc-default-t1-0-2."""
    return f"mrc-{lab}-{node}"


def owns(lab: str, namespace_name: str) -> bool:
    """Returns whether a namespace belongs to that lab. Exact: labs `a` and `a-t0` never take each other's."""
    return re.fullmatch(re.escape(f"mrc-{lab}-") + NODE, namespace_name) is not None


def t0_name(plane: int, t0: int) -> str:
    """Returns the node name of a T0."""
    return f"t0-{plane}-{t0}"


def t1_name(plane: int, t1: int) -> str:
    """Returns the node name of a T1."""
    return f"t1-{plane}-{t1}"


def burst_bytes(rate_bits_per_s: int) -> int:
    """Returns the longest burst for planes of a rate: 1 ms of it, at least two packets of MTU 9100."""
    return max(2 * 9100, min(65_535, rate_bits_per_s // 8000))


def cluster_text(name: str, p: Parameters) -> str:
    """Returns the TOML file that every host's mrcd reads (mrcd/config/)."""
    evs_per_plane = max(1, min(p.t1, MAX_EVS_PER_PEER // p.planes))
    burst = {"burst_bytes": burst_bytes(p.rate_bits_per_s)} if p.rate_bits_per_s else {}
    document: dict[str, dict[str, Any]] = {
        "cluster": {
            "name": name,
            "planes": p.planes,
            "rails": p.rails,
            "t0s": p.t0s,
            "t1s": p.t1,
            "evs_per_peer": p.planes * evs_per_plane,
            "encapsulation": p.encapsulation,
            "granularity": p.granularity,
            "mtu": p.mtu,
        },
        "auth": {"mode": p.auth, "secret_file": SECRETS},
        "interfaces": {"hook": p.hook} | ({} if p.direct else {"address": HOST_END}),
        "switches": {} if p.direct else {"source_filters": p.source_filters},
        "overlay": burst | p.overlay,
        "health": p.health,
    }
    lines = toml_text.lines({k: v for k, v in document.items() if v}, defaults=False)
    for i in range(p.hosts):
        # The host's own addresses, and prefixes for containers behind it.
        prefixes = [f"10.99.0.{i + 1}/32", f"fd00:99::{i + 1:x}/128", f"10.100.{i}.0/24", f"fd00:100:{i:x}::/64"]
        lines += ["", host_table(i, i // p.hosts_per_t0, i % p.hosts_per_t0, prefixes)]
    if p.direct and p.encapsulation != "ecmp":  # no T0 consumes its uSID
        block = config.Cluster().block
        for source, peer in ((0, 1), (1, 0)):
            for plane in range(p.planes):
                sid = topology.carrier(block, [topology.host_usid(plane, peer)])
                path = {"source": f"h{source}", "peer": f"h{peer}", "plane": plane, "segments": [str(sid)]}
                lines += ["", *toml_text.lines({"paths": [path]}, defaults=False)]
    return "\n".join([f"# The cluster of lab {name}, written by scripts/lab up.", *lines]) + "\n"


def host_table(number: int, t0: int, port: int, prefixes: Sequence[str], name: str | None = None) -> str:
    """Returns the [[hosts]] table of h`number`, or of `name` if given."""
    table = {"name": name or f"h{number}", "id": number, "t0": t0, "port": port, "prefixes": list(prefixes)}
    return "\n".join(toml_text.lines({"hosts": [table]}, defaults=False))


def build(name: str, parameters: Parameters) -> Fabric:
    """Computes the fabric. Raises UsageError (or ConfigError from mrcd's own validation)."""
    check_name(name)
    cluster = config.parse(cluster_text(name, parameters), "the lab's cluster file")
    shape = _Shape(cluster, parameters)
    if parameters.direct:
        back_to_back = [shape.direct(h) for h in range(2)]
        cables = [Link(p, PortRef("h0", f"p{p}"), PortRef("h1", f"p{p}")) for p in range(parameters.planes)]
        return Fabric(name, parameters, cluster, {n.name: n for n in back_to_back}, tuple(cables))
    nodes = [shape.host(h) for h in range(parameters.hosts)] + list(shape.switches())
    links: list[Link] = []
    for plane in range(parameters.planes):
        for h in cluster.hosts:
            links.append(Link(plane, PortRef(t0_name(plane, h.t0), h.name), PortRef(h.name, f"p{plane}")))
    for switch in (n.switch for n in nodes if n.kind == "t1" and n.switch):
        for port in switch.ports:
            lower = PortRef(port.far_switch or "", f"t1-{switch.number}")
            links.append(Link(port.plane, PortRef(switch.name, port.name), lower))
    return Fabric(name, parameters, cluster, {n.name: n for n in nodes}, tuple(links))


def _mac(fabric_link: bool, plane: int, t0: int, index: int, upper: bool) -> str:
    """Returns a fixed, locally administered address: unique within a lab, readable in a capture."""
    return f"02:4d:{fabric_link:x}{plane:x}:{t0:02x}:{index:02x}:{1 if upper else 2:02x}"


class _Shape:
    """Builds the nodes of a fabric, one method per kind."""

    def __init__(self, cluster_file: config.Config, parameters: Parameters) -> None:
        self.hosts = cluster_file.hosts
        self.cluster = cluster_file.cluster
        self.parameters = parameters
        self._gateway = str(cluster_file.interfaces.gateway)
        self._file = cluster_file

    def host(self, index: int) -> Node:
        """Returns a host: with link-local addresses only, since mrcd adds the rest.

        A host without mrcd gets what the kernel's own SRv6 needs: its plane addresses, and routes to each plane and
        to the first uSID of every path.
        """
        me = self.hosts[index]
        ports = []
        bare = not self.parameters.daemon
        for plane in range(self.parameters.planes):
            t0 = topology.usid_prefix(self.cluster.block, topology.t0_usid(plane, me.t0))
            sids = (t0,) if self.parameters.encapsulation != "ecmp" else ()
            networks = (topology.plane_network(self.cluster.underlay, plane), *sids)
            ports.append(
                Port(
                    name=f"p{plane}",
                    mac=_mac(False, plane, me.t0, me.port, upper=False),
                    address=HOST_END,
                    gateway=self._gateway,
                    gateway_mac=None,
                    routes=networks if bare else (),
                    own=topology.plane_address(self.cluster.underlay, plane, me) if bare else None,
                )
            )
        return Node(me.name, "host", tuple(ports))

    def direct(self, index: int) -> Node:
        """Returns a host whose first hop is the other host: a static neighbour, since neither is fe80::1."""
        node = self.host(index)
        ports = [
            dataclasses.replace(
                port,
                address=f"fe80::{index + 2:x}",
                gateway_mac=_mac(False, plane, 0, self.hosts[1 - index].port, upper=False),
            )
            for plane, port in enumerate(node.ports)
        ]
        return dataclasses.replace(node, ports=tuple(ports))

    def switches(self) -> Iterator[Node]:
        """Yields the switches of the cluster file."""
        places = {h.name: (h.t0, h.port) for h in self.hosts}
        switches = FORMATS["iproute2"].switches(self._file)
        for switch in map(switches.switch, switches.names):
            ports = []
            for port in switch.ports:
                number = port.neighbour.rpartition("-")[2]
                if switch.kind == "t1":
                    link, is_upper = (True, port.plane, int(number), switch.number), True
                elif port.is_uplink:
                    link, is_upper = (True, switch.plane, switch.number, int(number)), False
                else:
                    link, is_upper = (False, switch.plane, *places[port.neighbour]), True
                macs = (_mac(*link, upper=upper) for upper in (is_upper, not is_upper))
                ports.append(Port(port.name, next(macs), port.address, port.next_hop, next(macs)))
            yield Node(switch.name, switch.kind, tuple(ports), switch)
