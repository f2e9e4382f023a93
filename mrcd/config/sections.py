# SPDX-License-Identifier: BSD-2-Clause
"""Defines the sections [auth], [fleet], [health] and [switches] of the cluster file, and the base class of all."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mrcd.config.sizes import MAX_PORTS

DEFAULT_PORT = 2379  # of etcd's clients

Granularity = Literal["burst", "bundle", "packet"]
LossRule = Literal["ratio", "any"]
Mode = Literal["off", "permissive", "required"]
_Path = Annotated[str, Field(pattern="^/")]


class Section(BaseModel):
    """A table of the file: unknown keys and values of another type are errors; its values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Auth(Section):
    """Whether packets are authenticated, and by which secrets."""

    mode: Mode = Field(
        default="off",
        description="required: packets without a tag are dropped; permissive: they are accepted and counted, for the "
        "time in which hosts change from off to required; off: no tags are made or looked at",
    )
    secret_file: Annotated[str, Field(min_length=1)] = Field(
        default="/etc/mrcd/secrets",
        description="the file with the secrets of the cluster or of this host's pairs, mode 0600: an absolute path, or "
        "the name of a systemd credential (LoadCredential=)",
    )


class Fleet(Section):
    """The etcd cluster that gives all hosts the cluster file and fleet-wide denials. Each host reads its own file."""

    etcd: list[str] = Field(
        default_factory=list,
        description="the URLs of etcd's members, as https://etcd1:2379; without any, all comes from this file",
    )
    prefix: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", max_length=200)] = Field(
        default="/mrcd", description="under which the keys of this cluster are; each cluster needs one of its own"
    )
    ca_file: _Path | None = Field(
        default=None, description="certificates of the authorities that etcd is verified by; the system's if unset"
    )
    cert_file: _Path | None = Field(default=None, description="this host's certificate for etcd, with key_file")
    key_file: _Path | None = Field(default=None, description="the private key of cert_file")
    user_file: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="a file of one line NAME:PASSWORD, the user at etcd, mode 0600: an absolute path, or the name of "
        "a systemd credential (LoadCredential=)",
    )

    @model_validator(mode="after")
    def _endpoints(self) -> Self:
        for url in self.etcd:
            base_url(url)
            if url.startswith("http://") and (self.user_file or self.cert_file or self.ca_file):
                raise ValueError(f"etcd {url!r} is not encrypted: with user_file or TLS files write https://")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together: give both or none")
        return self


def base_url(url: str) -> str:
    """Returns the URL of an etcd member with its port. Raises ValueError."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise ValueError(f'etcd {url!r} is not a URL; write "https://etcd1:2379"') from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("an etcd URL has a user or a password: write them into user_file, not into this file")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(f'etcd {url!r} is not a URL of a member; write "https://etcd1:2379"')
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


class Health(Section):
    """When an EV is taken out of use, and when it returns. The name of a time ends with its unit.

    A peer reports how many packets have arrived on every EV. While traffic flows, the eBPF programs request these
    reports and judge each EV by them. Besides, a periodic tick in the kernel probes all EVs in turn.

    Many attributes because each threshold and interval of path health is a key of its own.
    """

    probe_interval_ms: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=20,
        description="interval between probes of an EV that has failed and answers again; EVs of a peer that has not "
        "answered are probed four times as often",
    )
    idle_interval_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=100, description="interval between probes of each EV, with and without traffic"
    )
    idle_probes: Annotated[int, Field(ge=100, le=100_000_000)] = Field(
        default=4000,
        description="probes per second that a host may send however little traffic it has; if these are too few for "
        "all EVs in every idle interval, mrcd probes some peers, and some of their EVs, at a time",
    )
    probe_packets: Annotated[int, Field(ge=1, le=32_768)] | None = Field(
        default=None,
        description="wire packets that a CPU pushes before it requests a report; if unset, 8 in burst granularity and "
        "64 in packet granularity",
    )
    probe_gap_us: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=300, description="least time between two requests for reports"
    )
    probe_late_ms: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None,
        description="the next packet requests a report if the last request is at least this old; if unset, 1 in burst "
        "granularity and 5 in packet granularity",
    )
    reorder_us: Annotated[int, Field(ge=50, le=1_000_000)] = Field(
        default=50, description="least reordering window; the programs widen it by the variation of round-trip times"
    )
    overdue_ms: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=10,
        description="an EV becomes ASSUMED_BAD if nothing arrives on it for this time while later packets on other EVs "
        "arrive",
    )
    skip_delay_us: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        default=1000,
        description="an EV is skipped once if its delay exceeds that of the others by this, and the round trip is more "
        "than twice the peer's usual one; 0: never",
    )
    loss_rule: LossRule = Field(
        default="ratio",
        description='"any": any loss that persists is a failure (for fabrics that trim packets); "ratio": loss_ratio, '
        "loss_samples and loss_window_ms decide",
    )
    loss_ratio: Annotated[float, Field(ge=0.000001, le=1)] = 0.02
    loss_samples: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=10,
        description="samples with loss that the window must have (samples are reports with new packets, and probes); "
        "twice as many if fewer than 8 EVs are in use, three times if fewer than 3",
    )
    loss_window_ms: Annotated[int, Field(ge=10, le=60_000)] = 200
    good_probes: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=10, description="consecutive reports with arrivals and without loss after which an EV returns"
    )
    hold_down_ms: Annotated[int, Field(ge=1, le=3_600_000)] = Field(
        default=1000,
        description="how long probes must arrive without loss before an EV returns; doubles with each flap after "
        "the first",
    )
    hold_down_max_ms: Annotated[int, Field(ge=1, le=86_400_000)] = Field(
        default=60_000,
        description="upper limit of the hold-down; for each such time in use, the next failure forgets one flap",
    )
    ramp_ms: Annotated[int, Field(ge=0, le=60_000)] = Field(
        default=400,
        description="time in which an EV that has returned takes 1/8, then 1/4, then 1/2 of its share of the traffic",
    )
    probe_backoff_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=1000, description="longest interval between probes of an EV on which nothing arrives"
    )
    unanswered: Annotated[int, Field(ge=2, le=100)] = Field(
        default=4,
        description="the peer is silent after so many sweeps of its EVs in a row without a reply; its EVs keep their "
        "states",
    )
    grey_ratio: Annotated[float, Field(ge=0.000001, le=1)] = Field(
        default=0.001,
        description="least loss ratio of a grey failure: a small, lasting loss that the other EVs do not have",
    )
    grey_false_alarms: Annotated[float, Field(ge=0.000001, le=1000)] = Field(
        default=1.0, description="most EVs per peer and year that the grey-loss test may judge failed by chance"
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
            raise ValueError("overdue_ms is less than reorder_us: reordered packets would be counted as lost")
        if self.loss_window_ms * 1000 < self.loss_samples * self.probe_gap_us:
            raise ValueError("loss_window_ms has no room for loss_samples, which come probe_gap_us apart at best")
        return self

    def packets_per_report(self, granularity: Granularity) -> int:
        """Returns the least wire packets between requests for reports, per CPU."""
        return self.probe_packets or (64 if granularity == "packet" else 8)

    def late_ms(self, granularity: Granularity) -> int:
        """Returns after how many milliseconds without a request the next packet requests a report."""
        return self.probe_late_ms or (5 if granularity == "packet" else 1)


class Switches(Section):
    """Settings of the switches for `mrcctl fabric config`. Hosts do not use it."""

    downlinks: Annotated[int, Field(ge=1, le=MAX_PORTS)] | None = Field(
        default=None,
        description="the ports of a T0 for hosts: host ports from 0, then the T1s; the highest port of a host + 1 if "
        "unset",
    )
    port_names: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description='the names of the switches\' ports: "swp{1}" counts from 1, "Ethernet{0+4}" from 0 by 4, and '
        '"{neighbour}" is the name at the other end; the format\'s own if unset',
    )
    source_filters: bool = Field(
        default=True, description="T0s forward from a host's port only what has the host's own plane address as source"
    )
