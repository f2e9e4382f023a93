# SPDX-License-Identifier: BSD-2-Clause
"""Reads and validates the cluster file: one TOML document for all hosts of a cluster.

Every fault is an error that names its place in the file and a remedy: unknown keys, overlapping prefixes, two hosts
on one port. Other modules can rely on a valid configuration.
"""

import hashlib
import ipaddress
import json
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, PlainSerializer, ValidationError, model_validator

from mrcd import heap
from mrcd.config.devices import peer_of, timer_of, timer_peer_of
from mrcd.config.explain import explain
from mrcd.config.hosts import Address6, Hosts, Network, Network6, no_overlap, printable, tables_of
from mrcd.config.hosts import Hook as Hook
from mrcd.config.hosts import Host as Host
from mrcd.config.sections import Auth, Fleet, Section, Switches
from mrcd.config.sections import Granularity as Granularity
from mrcd.config.sections import Health as Health
from mrcd.config.sizes import MAX_EVS_PER_PEER, MAX_PLANES, MAX_PREFIXES, MAX_T0S, MAX_T1S
from mrcd.errors import ConfigError, UnknownHost

MAX_SEGMENTS = 6
_ERRORS_NAMED = 10
_MAX_CPUS = 8192  # NR_CPUS of the largest kernels
# These define EV numbers, addresses and headers, so a packet's sender and receiver must have the same.
AGREED = ("block", "underlay", "planes", "evs_per_peer", "encapsulation", "udp_port")
# With another of these a host knows paths that do not exist, or does not use all that do.
FABRIC = ("t0s", "t1s")

# Two hosts, to check a machine. The verifier sees settings as constants and skips dead code: here none is dead.
EXAMPLE = """
[cluster]
encapsulation = "srh"
t0s = 2
[[hosts]]
name = "a"
id = 0
port = 0
prefixes = ["10.0.0.1/32"]
[[hosts]]
name = "b"
id = 1
t0 = 1
port = 0
prefixes = ["10.0.0.2/32"]
"""

Encapsulation = Literal["usid", "srh", "ecmp"]
S = TypeVar("S", bound=Section)


class Cluster(Section):
    """The settings that all hosts and switches of the cluster share."""

    name: Annotated[str, AfterValidator(printable)] = "mrc"
    block: Network6 = Field(
        default=ipaddress.IPv6Network("5f00::/32"),
        description="the SRv6 uSID locator block, a /32 (RFC 9800; RFC 9602 reserves 5f00::/16 for SIDs)",
    )
    underlay: Network6 = Field(
        default=ipaddress.IPv6Network("fd10::/32"),
        description="the /32 prefix of the hosts' addresses on the planes, which mrcd computes",
    )
    planes: Annotated[int, Field(ge=1, le=MAX_PLANES)] = 4
    rails: Annotated[int, Field(ge=1, le=MAX_PLANES)] = Field(
        default=1,
        description="NICs of a host whose ports lead to the same T1s: port p of NIC r is plane r × planes / rails + p. "
        "A T1 is then one target, `t1:PLANE:NUMBER` with any of its planes",
    )
    t0s: Annotated[int, Field(ge=1, le=MAX_T0S)] = 1
    t1s: Annotated[int, Field(ge=0, le=MAX_T1S)] = 4
    evs_per_peer: Annotated[int, Field(ge=1, le=MAX_EVS_PER_PEER)] = 256
    ev_min_active: Annotated[int, Field(ge=1, le=MAX_EVS_PER_PEER)] | None = Field(
        default=None,
        description="while fewer EVs of a peer are good, the best of the others stay usable up to this number, if "
        "anything arrives on them; a quarter of the peer's EVs if unset",
    )
    encapsulation: Encapsulation = "usid"
    granularity: Granularity = "burst"
    bundle_segments: Annotated[int, Field(ge=2, le=64)] = Field(
        default=8, description='most TCP segments that take one EV together, with `granularity = "bundle"`'
    )
    mtu: Annotated[int, Field(ge=1500, le=65000)] = Field(default=9100, description="MTU of the plane NICs, bytes")
    udp_port: Annotated[int, Field(ge=1, le=65535)] = 4797

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.block.prefixlen != 32:
            raise ValueError(f"block {self.block} must be a /32: 16-bit uSIDs follow a 32-bit locator (RFC 9800)")
        if self.underlay.prefixlen != 32:
            raise ValueError(f"underlay {self.underlay} must be a /32: plane, T0 and host follow in 16-bit steps")
        if self.block.overlaps(self.underlay):
            raise ValueError(f"block {self.block} and underlay {self.underlay} overlap; give them different prefixes")
        if self.evs_per_peer < self.planes:
            raise ValueError(
                f"evs_per_peer {self.evs_per_peer} is less than planes {self.planes}: every plane needs at least one EV"
            )
        if self.planes % self.rails:
            raise ValueError(f"planes {self.planes} is no multiple of rails {self.rails}: each NIC has as many ports")
        return self

    def t1_planes(self, plane: int) -> range:
        """Returns the planes that have the T1s of a plane: those of the same port of all rails."""
        return t1_planes(plane, self.planes, self.rails)

    @property
    def evs_per_plane(self) -> int:
        """Returns the EVs of one plane in a peer's table: EV = plane × evs_per_plane + slot, on every host."""
        return self.evs_per_peer // self.planes


def t1_planes(plane: int, planes: int, rails: int) -> range:
    """Returns the planes that have the T1s of a plane."""
    ports = planes // rails
    return range(plane % ports, planes, ports)


def fingerprint(cluster: Cluster) -> int:
    """Returns 16 bits of the keys that all hosts must have equal, never 0; the same in all versions with these keys.

    Probes carry it. So a host learns that a peer has another file while some of the peer's packets arrive.
    """
    values = cluster.model_dump(mode="json", include={*AGREED, *FABRIC})
    digest = hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % 0xFFFF


class Path_(Section):
    """One explicit path, for fabrics whose uSIDs mrcd cannot compute."""

    source: str = Field(description="the host that sends on this path")
    peer: str = Field(description="the host that the path leads to")
    plane: Annotated[int, Field(ge=0, lt=MAX_PLANES)] = Field(description="the plane whose NIC sends")
    segments: Annotated[list[Address6], Field(min_length=1, max_length=MAX_SEGMENTS)] = Field(
        description="destination addresses in travel order; two or more need an SRH"
    )
    label: Annotated[str, AfterValidator(printable)] = Field(default="", description="a text that mrcctl shows")


class Interfaces(Section):
    """The names of the plane NICs, and their first hop."""

    names: list[str] = Field(default_factory=list, description="one NIC per plane; p0, p1, … if unset")
    gateway: Address6 = Field(
        default=ipaddress.IPv6Address("fe80::1"), description="link-local address of the T0 on every plane NIC"
    )
    address: Address6 | None = Field(
        default=None,
        description="link-local address that mrcd adds to every plane NIC, to which the T0s route; none if unset",
    )
    hook: Hook = "auto"


class Overlay(Section):
    """The interface to which the host's traffic is routed."""

    interface: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,12}$")] = "mrc0"
    metric: Annotated[int, Field(ge=1, le=65535)] = 100
    fallback_metric: Annotated[int, Field(ge=1, le=65535)] = 4000
    reordering: Annotated[int, Field(ge=3, le=10_000)] = Field(
        default=300, description="the routes' TCP reordering metric, packets (see ip-route(8))"
    )
    flowlet_us: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=500,
        description="a flow of a class with policy flowlet may change its path after such a pause",
    )
    dup_ack_us: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=1000,
        description="a TCP acknowledgement without data is critical if its flow's last one is at least this old: "
        "both ends would have to wait for timers if it was lost; 0: never",
    )
    copies_per_s: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=20_000,
        description="so many critical packets per second does each CPU send on two paths; further ones take one path; "
        "0: none takes two",
    )
    burst_bytes: Annotated[int, Field(ge=2048, le=65_535)] = Field(
        default=65_535,
        description="the longest burst that TCP hands over, with headers; on slow planes, set it to what one plane "
        "carries in a millisecond",
    )
    rto_min_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=8,
        description="the least TCP retransmission timeout of the routes; Linux 6.7 and newer also delay "
        "acknowledgements by less",
    )

    source_check: Literal["strict", "off"] = Field(
        default="strict",
        description="strict: a host sends only from its own prefixes, and receives only what a peer sends from the "
        "peer's prefixes to its own; off: for hosts that route for others",
    )
    source_port: Literal["flow", "ev"] = Field(
        default="flow",
        description="the UDP source port of data packets. flow: a different one for each inner flow, so that each NIC "
        "of the receiver keeps a flow in one queue; ev: a different one for each EV, where switches hash it between "
        "segments of a path (LAG, ECMP): then probes take the way of data. With encapsulation ecmp and with [[paths]] "
        "always ev",
    )
    rps_cpus: str = Field(
        default="all",
        description="the CPUs for received flows (receive packet steering): each flow stays on one of them, whichever "
        "NIC and queue its packets arrive at. In packet granularity they also process sent flows. "
        '"all", "none" or a list like "0-3,8"',
    )

    @property
    def peer(self) -> str:
        """Returns the name of the other end of the veth pair."""
        return peer_of(self.interface)

    @property
    def timer(self) -> str:
        """Returns the name of the veth on which the timer packet circulates (bpf/timer_packet.h)."""
        return timer_of(self.interface)

    @property
    def timer_peer(self) -> str:
        """Returns the name of the other end of the timer's veth, whose tbf qdisc paces the timer packet."""
        return timer_peer_of(self.interface)

    @property
    def interfaces(self) -> tuple[str, ...]:
        """Returns the names of all interfaces that mrcd creates."""
        return self.interface, self.peer, self.timer, self.timer_peer

    @model_validator(mode="after")
    def _cpus(self) -> Self:
        if self.rps_cpus not in ("all", "none"):
            cpu_list(self.rps_cpus)
        return self

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.metric >= self.fallback_metric:
            raise ValueError(
                "metric must be lower than fallback_metric, or the kernel would prefer the fallback routes"
            )
        return self


class Class(Section):
    """Traffic with a policy of its own, selected by destination, port or DSCP.

    If several classes match, the first one applies. A destination takes precedence over a port, and a port over a
    DSCP.
    """

    policy: Literal["spray", "flowlet", "pinned", "critical"] = Field(
        description="when a flow changes its path: with every packet (spray), after a pause of overlay.flowlet_us "
        "(flowlet), or when the path fails (pinned); critical: each packet takes two paths, and the first is delivered"
    )
    prefixes: list[Network] = Field(
        default_factory=list, description="prefixes of destinations, within a host's prefixes"
    )
    ports: list[int | str] = Field(
        default_factory=list, description='TCP or UDP ports, source or destination; a range is written "6000-6010"'
    )
    dscp: list[Annotated[int, Field(ge=0, le=63)]] = Field(
        default_factory=list, description="DSCPs of the inner packet"
    )

    @property
    def port_ranges(self) -> list[tuple[int, int]]:
        """Returns the first and last port of each range."""
        return [port_range(p) for p in self.ports]

    @model_validator(mode="after")
    def _matches_something(self) -> Self:
        if not (self.prefixes or self.ports or self.dscp):
            raise ValueError("a class needs prefixes, ports or dscp: without them it matches no traffic")
        _ = self.port_ranges
        return self


class Metrics(Section):
    """The endpoint that Prometheus scrapes."""

    address: str = "127.0.0.1:9479"
    web_config: Annotated[str, Field(pattern="^/")] | None = Field(
        default=None,
        description="a Prometheus web configuration file for TLS and basic authentication; plain HTTP if unset",
    )
    peers: Literal["all", "groups", "off"] = Field(
        default="all",
        description="all: series for every peer; groups: sums over the peers under a T0, with the label peer_t0; off: "
        "sums over all peers",
    )
    per_ev: bool = Field(
        default=False, description="export series for every EV; if false, only for EVs that are not GOOD"
    )

    @model_validator(mode="after")
    def _evs_of_peers(self) -> Self:
        if self.per_ev and self.peers != "all":
            raise ValueError(f'per_ev = true has series for every peer, and peers = "{self.peers}" none; leave one out')
        return self

    @model_validator(mode="after")
    def _host_port(self) -> Self:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f'address {self.address!r} is not "host:port", e.g. "127.0.0.1:9479" or "[::1]:9479"')
        return self


class Config(Section):
    """The whole cluster file."""

    cluster: Cluster = Cluster()
    interfaces: Interfaces = Interfaces()
    overlay: Overlay = Overlay()
    health: Health = Health()
    auth: Auth = Auth()
    metrics: Metrics = Metrics()
    fleet: Fleet = Fleet()
    hosts: Annotated[
        list[Host],
        Field(min_length=1),
        AfterValidator(Hosts),
        PlainSerializer(tables_of, return_type=list[Host]),
    ]
    switches: Switches = Switches()
    paths: list[Path_] = Field(default_factory=list)
    classes: list[Class] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        c = self.cluster
        _unique("id", [(h.id, h.name) for h in self.hosts])
        _unique("name", [(h.name, f"id {h.id}") for h in self.hosts])
        _unique("place (t0, port)", [((h.t0, h.port), h.name) for h in self.hosts])
        prefixes = sum(len(h.prefixes) for h in self.hosts) + sum(len(k.prefixes) for k in self.classes)
        if prefixes > MAX_PREFIXES:
            raise ValueError(
                f"hosts and classes have {prefixes:,} prefixes, and the kernel's table has room for {MAX_PREFIXES:,}; "
                "merge neighbouring ones"
            )
        for h in self.hosts:
            if h.t0 >= c.t0s:
                raise ValueError(f"host {h.name}: t0 = {h.t0}, but the cluster has t0s = {c.t0s} (0 to {c.t0s - 1})")
        for h in self.written_hosts:
            _distinct(f"host {h.name}: interfaces", self.interface_names(h), self.overlay.interfaces)
            if h.interfaces is not None and len(h.interfaces) != c.planes:
                raise ValueError(f"host {h.name}: {len(h.interfaces)} interfaces for {c.planes} planes; name one each")
        names = self.interfaces.names
        if names and len(names) != c.planes:
            raise ValueError(f"interfaces.names has {len(names)} entries for {c.planes} planes; name one NIC per plane")
        if c.t1s == 0 and not self.paths and len({h.t0 for h in self.hosts}) > 1:
            raise ValueError("t1s = 0, but the hosts are under several T0s: no path leads from one T0 to another")
        no_overlap([(n, h.name) for h in self.hosts for n in h.prefixes], (c.block, c.underlay))
        for k in self.classes:
            for n in k.prefixes:
                self.host_of(n)
        known = {h.name for h in self.hosts}
        for p in self.paths:
            for role, name in (("source", p.source), ("peer", p.peer)):
                if name not in known:
                    raise ValueError(f"paths: {role} {name!r} is not a host of this file")
            if p.source == p.peer:
                raise ValueError(f"paths: {p.source} is both source and peer of a path")
            if p.plane >= c.planes:
                raise ValueError(f"paths: plane {p.plane} of {p.source} → {p.peer}: the cluster has {c.planes} planes")
        return self

    @property
    def written_hosts(self) -> list[Host]:
        """Returns the [[hosts]] tables as they are written; `hosts` has the hosts of ranges one by one."""
        return tables_of(self.hosts)

    def host_of(self, network: Network) -> Host:
        """Returns the host whose prefixes contain a network. Raises ValueError."""
        for h in self.hosts:
            if any(n.version == network.version and network.subnet_of(n) for n in h.prefixes):  # type: ignore[arg-type]
                return h
        raise ValueError(f"classes: {network} is not within any host's prefixes")

    def host(self, name: str) -> Host:
        """Returns the host of a name, qualified or not. Raises UnknownHost if the file has none, or several."""
        for h in self.hosts:
            if h.name == name:
                return h
        first = [h for h in self.hosts if h.name.partition(".")[0] == name.partition(".")[0]]
        if len(first) == 1 and ("." in name) != ("." in first[0].name):  # one is short: they do not contradict
            return first[0]
        if len(first) > 1 and "." not in name:
            raise UnknownHost(
                f"the configuration has several hosts that {name!r} may be: {first[0].name}, {first[1].name}",
                hint="give this host its full name by `hostnamectl hostname NAME`, or start mrcd with --host NAME",
            )
        some = ", ".join(h.name for h in self.hosts[:5])
        raise UnknownHost(
            f"the configuration has no host named {name!r}",
            hint=f"it has the hosts {some}{', …' if len(self.hosts) > 5 else ''}; set [[hosts]] name to this host's "
            "`hostname`, or start mrcd with --host NAME",
        )

    def interface_names(self, host: Host) -> list[str]:
        """Returns the names of a host's plane NICs, one per plane."""
        return host.interfaces or self.interfaces.names or [f"p{p}" for p in range(self.cluster.planes)]

    def hook(self, host: Host) -> Hook:
        """Returns where mrc_pop is to be attached on a host's plane NICs."""
        return host.hook or self.interfaces.hook

    @property
    def source_port(self) -> Literal["flow", "ev"]:
        """Returns what the outer UDP source port of data packets follows: the EV where switches may hash it."""
        return "ev" if self.cluster.encapsulation == "ecmp" or self.paths else self.overlay.source_port

    @cached_property
    def max_peers(self) -> int:
        """Returns the rows that the peer tables need: their index is the host id."""
        return max(h.id for h in self.hosts) + 1


def parse(text: str, source: str = "configuration") -> Config:
    """Validates TOML text. Raises a ConfigError that lists every fault with its place."""
    return _validated(Config, _toml(text, source), text, source)


def parse_fleet(text: str, source: str) -> tuple[Fleet, bool]:
    """Validates the section [fleet] alone. Returns it, and whether the text has other sections. Raises ConfigError."""
    data = _toml(text, source)
    found = _validated(_OnlyFleet, {k: v for k, v in data.items() if k == "fleet"}, text, source)
    return found.fleet, bool(data.keys() - {"fleet"})


class _OnlyFleet(Section):
    fleet: Fleet = Fleet()


def _toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{source}: not valid TOML: {e}", hint="see https://toml.io for the syntax") from None


def _validated(model: type[S], data: dict[str, Any], text: str, source: str) -> S:
    try:
        with heap.collector_paused():
            return model.model_validate(data)
    except ValidationError as e:
        found = [explain(dict(f), text, model) for f in e.errors()[:_ERRORS_NAMED]]
        hint = "correct the file; mrcd.toml(5) explains each key, and scripts/deploy/mrcd.toml is a commented example"
        left = e.error_count() - len(found)
        more = f"; and {left} more error{'s' * (left > 1)}" if left else ""
        raise ConfigError(f"{source}: " + "; ".join(found) + more, hint=hint) from None


def load(path: Path) -> Config:
    """Reads and validates the cluster file. Raises ConfigError."""
    return parse(read(path), str(path))


def read(path: Path) -> str:
    """Returns the text of a cluster file. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(
            f"{path}: {e.strerror}",
            hint="name the cluster file (mrcd: --config FILE); scripts/deploy/mrcd.toml is a commented example",
        ) from None
    except UnicodeDecodeError as e:
        raise ConfigError(
            f"{path}: not UTF-8 text: {e.reason} at byte {e.start}", hint="save the file in UTF-8, as TOML requires"
        ) from None


# ---- values of keys ----


def _span(text: str, most: int) -> range | None:
    """Returns the numbers of "5" or "5-8"; None if the text is neither, or has a number of `most` or more."""
    first, dash, last = text.partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < most):
        return None
    return range(int(first), int(last) + 1)


def port_range(text: int | str) -> tuple[int, int]:
    """Returns the first and the last port of "4791" or "6000-6010". Raises ValueError."""
    found = _span(str(text), 65536)
    if not found or not found[0]:
        raise ValueError(f'{text!r} is not a port; write 4791 or "6000-6010"')
    return found[0], found[-1]


def cpu_list(text: str) -> set[int]:
    """Returns the CPUs of a list like "0-3,8". Raises ValueError."""
    cpus: set[int] = set()
    for part in text.split(","):
        found = _span(part, _MAX_CPUS)
        if found is None:
            raise ValueError(f'{part!r} is not a CPU; write "0-3,8", "all" or "none"')
        cpus.update(found)
    return cpus


def _distinct(what: str, names: list[str], overlay: tuple[str, ...]) -> None:
    """Raises ValueError if two planes have the same NIC, or a plane has an interface of the overlay."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what}: {name} is named twice; every plane needs a NIC of its own")
        if name in overlay:
            raise ValueError(f"{what}: {name} is the overlay interface; set overlay.interface to another name")


def _unique(what: str, pairs: list[tuple[object, str]]) -> None:
    """Raises ValueError if a key occurs twice in `pairs` of (key, name of its host)."""
    seen: dict[object, str] = {}
    for key, host in pairs:
        if key in seen:
            raise ValueError(f"hosts: {what} {key} is used twice, by {seen[key]} and {host}")
        seen[key] = host
