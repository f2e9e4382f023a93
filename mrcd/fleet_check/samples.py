# SPDX-License-Identifier: BSD-2-Clause
"""Defines the input of the check: what Prometheus knows of the job's hosts, as plain values. Pure."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field


@dataclass(frozen=True)
class HostSample:
    """The values of a host's last scrape.

    Values are None, and texts "", where an older mrcd exports no such metric. `in_use` is NaN if no peer answers, the
    sweep's age is NaN if no plane is up, and infinite until the first one is over.
    """

    age_s: float = 0.0
    version: str = ""
    attached: bool = True
    planes_down: Sequence[int] = ()
    auth_mode: str = ""
    key_ids: Sequence[str] = ()  # the newest last
    t0: int | None = None
    agreed: str = ""  # fingerprint of what must be equal on all hosts (config/cluster_file.py)
    sha256: str = ""  # of the whole cluster file
    generation: str = ""  # etcd's; "" if the host runs its own file
    in_use: float | None = None  # ratio of EVs
    sweep_age_s: float | None = None
    full_sweep_s: float = 0.0  # how long a full sweep takes


@dataclass(frozen=True)
class Named:
    """A cause and a target that hosts name in mrc_fault.

    `shares`: its value (1: the host is sure; 1/n: one of n targets that would explain the same) → hosts that say so.
    `hosts`: some of these hosts.
    """

    cause: str
    target: str
    shares: Mapping[float, int]
    hosts: Sequence[str] = ()


@dataclass(frozen=True)
class Samples:
    """All samples that Prometheus has for a check. `hosts` are those that it has samples of.

    Prometheus drops the samples of a host whose last scrape failed. `missed` are such hosts, of which an earlier scrape
    is not too old; `down` are the others of them.
    """

    hosts: Mapping[str, HostSample]
    down: AbstractSet[str] = frozenset()
    missed: AbstractSet[str] = frozenset()
    named: Sequence[Named] = field(default_factory=tuple)

    def knows(self, host: str) -> bool:
        """Returns whether Prometheus scrapes a host."""
        return host in self.hosts or host in self.down or host in self.missed
