"""The cluster file: one TOML document for every host, validated at the edge.

Unknown keys, overlapping prefixes, two hosts on one port and the like are errors that name the
place and the remedy; nothing behind this module has to doubt the configuration again.
"""

import ipaddress
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mrcd.config.checks import cpu_list, distinct, port_range, unique
from mrcd.config.devices import peer_of, timer_of, timer_peer_of
from mrcd.config.prefixes import Address6, Network, Network6, no_overlap
from mrcd.errors import ConfigError

MAX_PLANES = 8
MAX_EVS_PER_PEER = 256
MAX_SEGMENTS = 6

Encapsulation = Literal["usid", "srh", "ecmp"]
Granularity = Literal["burst", "packet"]
Hook = Literal["auto", "xdp", "xdp-generic", "tc"]
LossRule = Literal["ratio", "any"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Cluster(_Model):
    """What every host and switch of the cluster agrees on."""

    name: str = "mrc"
    block: Network6 = Field(
        default=ipaddress.IPv6Network("5f00::/32"),
        description="the SRv6 uSID locator block, a /32 (RFC 9800; 5f00::/16 is set aside for SIDs by RFC 9602)",
    )
    underlay: Network6 = Field(
        default=ipaddress.IPv6Network("fd10::/32"),
        description="the /32 from which the hosts' addresses on the planes are computed",
    )
    planes: Annotated[int, Field(ge=1, le=MAX_PLANES)] = 4
    t0s: Annotated[int, Field(ge=1, le=512)] = 1
    t1s: Annotated[int, Field(ge=0, le=512)] = 4
    evs_per_peer: Annotated[int, Field(ge=1, le=MAX_EVS_PER_PEER)] = 256
    ev_min_active: Annotated[int, Field(ge=1, le=MAX_EVS_PER_PEER)] | None = Field(
        default=None, description="never fewer usable EVs than this per peer; a quarter of the peer's EVs if unset"
    )
    encapsulation: Encapsulation = "usid"
    granularity: Granularity = "burst"
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
        return self

    @property
    def evs_per_plane(self) -> int:
        """Width of one plane in a peer's EV table; EV = plane × evs_per_plane + slot on every host."""
        return self.evs_per_peer // self.planes


class Host(_Model):
    """One host: where its NICs are plugged in, and which overlay prefixes live behind it."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    id: Annotated[int, Field(ge=0, le=65534)]
    t0: Annotated[int, Field(ge=0, le=511)] = 0
    port: Annotated[int, Field(ge=0, le=1023)]
    prefixes: Annotated[list[Network], Field(min_length=1)]
    interfaces: list[str] | None = Field(default=None, description="this host's NICs, where they have other names")
    hook: Hook | None = Field(default=None, description="where this host receives, if not as the others")


class Path_(_Model):
    """One explicit path, for fabrics that the uSID arithmetic does not describe."""

    source: str = Field(description="the host that sends by it")
    peer: str = Field(description="the host that it leads to")
    plane: Annotated[int, Field(ge=0, lt=MAX_PLANES)] = Field(description="by whose NIC it leaves")
    segments: Annotated[list[Address6], Field(min_length=1, max_length=MAX_SEGMENTS)] = Field(
        description="destination addresses in travel order; more than one are carried in an SRH"
    )
    label: str = Field(default="", description="shown by mrcctl, for people")


class Interfaces(_Model):
    """How the plane NICs are named, and how mrcd reaches their first hop."""

    names: list[str] = Field(default_factory=list, description="one NIC per plane; p0, p1, … if unset")
    gateway: Address6 = Field(
        default=ipaddress.IPv6Address("fe80::1"), description="link-local address of the T0 on every plane NIC"
    )
    hook: Hook = "auto"


class Health(_Model):
    """When an EV is left and when it comes back. The unit of a time is at the end of its name.

    The programs judge by *reports* of what has arrived on every EV, which a host asks of its peers while
    traffic flows; the programs' tick probes where none does.
    """

    probe_interval_ms: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=20,
        description="between probes of an EV that has failed and answers again; four times as often, EVs of a peer "
        "are probed that owes an answer",
    )
    idle_interval_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=100, description="between sweeps of a quiet peer"
    )
    idle_probes: Annotated[int, Field(ge=100, le=100_000_000)] = Field(
        default=4000,
        description="most probes per second to quiet peers, all together; where these are too few for all EVs in every "
        "idle interval, peers and their EVs take turns",
    )
    probe_packets: Annotated[int, Field(ge=1, le=32_768)] | None = Field(
        default=None,
        description="wire packets pushed before a CPU asks for a report; 8 or, in packet granularity, 64 if unset",
    )
    probe_gap_us: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=300, description="no report is asked for sooner than this after the last"
    )
    probe_late_ms: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None,
        description="a report is asked for with the next packet when the last is so long ago; 1 in burst granularity, "
        "5 in packet, if unset",
    )
    reorder_us: Annotated[int, Field(ge=50, le=1_000_000)] = Field(
        default=50, description="least reordering window; the programs widen it by the spread of round trips"
    )
    overdue_ms: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=10, description="an EV by which nothing arrives, while later packets on others do, is left for good"
    )
    skip_delay_us: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        default=1000, description="an EV with so much more delay than the others is passed over; 0: never"
    )
    loss_rule: LossRule = Field(
        default="ratio",
        description='"any": a loss that lasts means failure (fabrics that trim packets); "ratio": see the next three',
    )
    loss_ratio: Annotated[float, Field(ge=0.000001, le=1)] = 0.02
    loss_samples: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=10,
        description="samples of the window (reports with new packets, and probes) that must have seen losses; "
        "twice as many where fewer than 8 EVs are in use",
    )
    loss_window_ms: Annotated[int, Field(ge=10, le=60_000)] = 200
    good_probes: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=10, description="reports in a row with arrivals and without loss, for an EV to come back"
    )
    hold_down_ms: Annotated[int, Field(ge=1, le=3_600_000)] = Field(
        default=1000, description="no loss for so long, for an EV to come back; doubles with each flap"
    )
    hold_down_max_ms: Annotated[int, Field(ge=1, le=86_400_000)] = Field(
        default=60_000, description="the hold-down's cap; being well for so long makes one flap forgotten"
    )
    ramp_ms: Annotated[int, Field(ge=0, le=60_000)] = Field(
        default=400, description="an EV that came back takes 1/8, 1/4, 1/2 of its turns before all of them"
    )
    probe_backoff_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=1000, description="most time between the probes of an EV by which nothing arrives"
    )
    unanswered: Annotated[int, Field(ge=2, le=100)] = Field(
        default=4, description="sweeps in a row without any reply: the peer is unreachable, and no EV is blamed"
    )
    grey_ratio: Annotated[float, Field(ge=0.000001, le=1)] = Field(
        default=0.001, description="least loss that is a grey failure: small, lasting, and not the other EVs'"
    )
    grey_false_alarms: Annotated[float, Field(ge=0.000001, le=1000)] = Field(
        default=1.0, description="EVs that the grey test may take for failed by chance, per peer and year, at most"
    )

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.hold_down_max_ms < self.hold_down_ms:
            raise ValueError("hold_down_max_ms is less than hold_down_ms")
        if self.idle_interval_ms < self.probe_interval_ms:
            raise ValueError("idle_interval_ms is less than probe_interval_ms")
        if self.probe_backoff_ms < self.probe_interval_ms:
            raise ValueError("probe_backoff_ms is less than probe_interval_ms")
        if (self.probe_late_ms or 1) * 1000 < self.probe_gap_us:
            raise ValueError("probe_late_ms is less than probe_gap_us")
        if self.overdue_ms * 1000 < self.reorder_us:
            raise ValueError("overdue_ms is less than reorder_us: what is reordered would be taken for lost")
        if self.loss_window_ms * 1000 < self.loss_samples * self.probe_gap_us:
            raise ValueError("loss_window_ms has no room for loss_samples, which come probe_gap_us apart at best")
        return self

    def packets_per_report(self, granularity: Granularity) -> int:
        """skbs between reports, per CPU: an skb is a burst, or a wire packet."""
        return self.probe_packets or (8 if granularity == "burst" else 64)

    def late_ms(self, granularity: Granularity) -> int:
        """Reports are asked for with the next packet when the last is so long ago."""
        return self.probe_late_ms or (1 if granularity == "burst" else 5)


class Overlay(_Model):
    """The interface that the host's traffic is routed into."""

    interface: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,12}$")] = "mrc0"
    metric: Annotated[int, Field(ge=1, le=65535)] = 100
    fallback_metric: Annotated[int, Field(ge=1, le=65535)] = 4000
    reordering: Annotated[int, Field(ge=3, le=10_000)] = Field(
        default=300, description="the routes' TCP reordering metric, packets (see ip-route(8))"
    )
    flowlet_us: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=500, description="a flow of a class under policy flowlet may change its path after so long a pause"
    )
    dup_ack_us: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=100,
        description="a TCP acknowledgement without data goes by two paths if its flow's last is so old: lost, it would "
        "cost both ends their timers; 0: never",
    )
    burst_bytes: Annotated[int, Field(ge=2048, le=65_535)] = Field(
        default=65_535,
        description="the longest burst that TCP hands over whole, with headers; where planes are slow, as much as one "
        "carries in a millisecond",
    )
    rto_min_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=8,
        description="the routes' least TCP retransmission timeout; Linux 6.7 and newer delay acknowledgements by less",
    )

    rps_cpus: str = Field(
        default="all",
        description="the CPUs over which received flows spread, each on one of them, by whichever NIC and queue its "
        'packets came, and in packet granularity sent ones too (receive packet steering): "all", "none" or a list as '
        '"0-3,8"',
    )

    @property
    def peer(self) -> str:
        """The other end of the interface."""
        return peer_of(self.interface)

    @property
    def timer(self) -> str:
        """Another veth, on which a packet goes round (bpf/timer_packet.h)."""
        return timer_of(self.interface)

    @property
    def timer_peer(self) -> str:
        """Its other end, which holds back what it sends."""
        return timer_peer_of(self.interface)

    @property
    def interfaces(self) -> tuple[str, ...]:
        """All that mrcd makes."""
        return self.interface, self.peer, self.timer, self.timer_peer

    @model_validator(mode="after")
    def _cpus(self) -> Self:
        if self.rps_cpus not in ("all", "none"):
            cpu_list(self.rps_cpus)
        return self

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.metric >= self.fallback_metric:
            raise ValueError("metric must be lower than fallback_metric, or the kernel's fallback routes would win")
        return self


class Class(_Model):
    """Traffic that is not simply sprayed, by its destination, its ports or its DSCP. The first class that names one
    of them holds; a destination's policy comes before a port's, and that before a DSCP's."""

    policy: Literal["spray", "flowlet", "pinned"] = Field(
        description="another path with every packet, whenever the flow pauses (overlay.flowlet_us), or when it fails"
    )
    prefixes: list[Network] = Field(default_factory=list, description="of destinations, within a host's prefixes")
    ports: list[int | str] = Field(
        default_factory=list, description='TCP or UDP ports at either end; ranges are written "6000-6010"'
    )
    dscp: list[Annotated[int, Field(ge=0, le=63)]] = Field(default_factory=list, description="of the inner packet")

    @property
    def port_ranges(self) -> list[tuple[int, int]]:
        """First and last port of each range."""
        return [port_range(p) for p in self.ports]

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.prefixes or self.ports or self.dscp):
            raise ValueError("a class needs prefixes, ports or dscp: else it is of no traffic")
        _ = self.port_ranges
        return self


class Metrics(_Model):
    """Where Prometheus scrapes."""

    address: str = "127.0.0.1:9479"
    web_config: Annotated[str, Field(pattern="^/")] | None = Field(
        default=None, description="a Prometheus web configuration file for TLS and basic authentication; plain if unset"
    )
    per_ev: bool = Field(default=False, description="series for every EV, and not only for those that are not GOOD")

    @model_validator(mode="after")
    def _host_port(self) -> Self:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f'address {self.address!r} is not "host:port", e.g. "127.0.0.1:9479" or "[::1]:9479"')
        return self


class Config(_Model):
    """The whole cluster file."""

    cluster: Cluster = Cluster()
    interfaces: Interfaces = Interfaces()
    overlay: Overlay = Overlay()
    health: Health = Health()
    metrics: Metrics = Metrics()
    hosts: Annotated[list[Host], Field(min_length=1)]
    paths: list[Path_] = Field(default_factory=list)
    classes: list[Class] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        c = self.cluster
        unique("id", [(h.id, h.name) for h in self.hosts])
        unique("name", [(h.name, f"id {h.id}") for h in self.hosts])
        unique("place (t0, port)", [((h.t0, h.port), h.name) for h in self.hosts])
        for h in self.hosts:
            if h.t0 >= c.t0s:
                raise ValueError(f"host {h.name}: t0 = {h.t0}, but the cluster has t0s = {c.t0s} (0 to {c.t0s - 1})")
            distinct(f"host {h.name}: interfaces", self.interface_names(h), self.overlay.interfaces)
            if h.interfaces is not None and len(h.interfaces) != c.planes:
                raise ValueError(f"host {h.name}: {len(h.interfaces)} interfaces for {c.planes} planes; name one each")
        names = self.interfaces.names
        if names and len(names) != c.planes:
            raise ValueError(f"interfaces.names has {len(names)} entries for {c.planes} planes; name one NIC per plane")
        if c.t1s == 0 and not self.paths and len({h.t0 for h in self.hosts}) > 1:
            raise ValueError("t1s = 0, but the hosts sit under several T0s: there is no way from one T0 to another")
        no_overlap([(n, h.name) for h in self.hosts for n in h.prefixes], (c.block, c.underlay))
        for k in self.classes:
            for n in k.prefixes:
                self.owner(n)
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

    def owner(self, network: Network) -> Host:
        """The host whose prefixes contain a network. Raises ValueError."""
        for h in self.hosts:
            if any(n.version == network.version and network.subnet_of(n) for n in h.prefixes):  # type: ignore[arg-type]
                return h
        raise ValueError(f"classes: {network} is not within any host's prefixes")

    def host(self, name: str) -> Host:
        """The host of that name; ConfigError if the file has none."""
        for h in self.hosts:
            if h.name == name:
                return h
        some = ", ".join(h.name for h in self.hosts[:5])
        raise ConfigError(
            f"the configuration has no host named {name!r}",
            hint=f"it has {some}{', …' if len(self.hosts) > 5 else ''}; set [[hosts]] name to this host's "
            "`hostname`, or start mrcd with --host NAME",
        )

    def interface_names(self, host: Host) -> list[str]:
        """The plane NICs of a host, one per plane."""
        return host.interfaces or self.interfaces.names or [f"p{p}" for p in range(self.cluster.planes)]

    def hook(self, host: Host) -> Hook:
        """Where mrc_pop is to be attached on a host's plane NICs."""
        return host.hook or self.interfaces.hook

    @cached_property
    def max_peers(self) -> int:
        """Rows of the peer tables: the host id is the index."""
        return max(h.id for h in self.hosts) + 1


def parse(text: str, source: str = "configuration") -> Config:
    """Validate TOML text. Raises ConfigError that lists every fault with its place."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{source}: not valid TOML: {e}", hint="see https://toml.io for the syntax") from None
    try:
        return Config.model_validate(data)
    except ValidationError as e:
        faults = [_explain(dict(f)) for f in e.errors()]
        raise ConfigError(f"{source}: " + "; ".join(faults), hint="nothing was changed; mend the file") from None


def load(path: Path) -> Config:
    """Read and validate the cluster file. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(
            f"{path}: {e.strerror}",
            hint="name the cluster file (mrcd: --config FILE); scripts/deploy/mrcd.toml is a commented example",
        ) from None
    except UnicodeDecodeError as e:
        raise ConfigError(
            f"{path}: not UTF-8 text: {e.reason} at byte {e.start}", hint="save the file in UTF-8, as TOML asks"
        ) from None
    return parse(text, str(path))


def _explain(fault: dict[str, object]) -> str:
    loc = fault["loc"]
    assert isinstance(loc, tuple)
    parts = [p for p in loc if isinstance(p, int) or p.isidentifier()]  # without pydantic's own notes
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts).lstrip(".")
    if fault["type"] == "extra_forbidden":
        return f"{place}: unknown key; remove it or check its spelling"
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message
