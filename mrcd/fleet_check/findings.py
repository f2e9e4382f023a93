# SPDX-License-Identifier: BSD-2-Clause
"""Defines what Prometheus knows of the job's hosts, and what the check finds. Pure."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mrcd.config.hostlist import compress

_BRIEF = 32  # characters


def brief(names: Sequence[str]) -> str:
    """Returns names for a line that has other things too: a list, or only how many they are."""
    written = compress(names)
    return written if len(written) <= _BRIEF or len(names) == 1 else f"{len(names)} hosts"


def each_of(names: Sequence[str]) -> str:
    """Returns the hosts on which something is to be done, of which one is named."""
    return names[0] if len(names) == 1 else f"each, such as {names[0]}"


class Level(StrEnum):
    """The consequence of a finding for the job."""

    NOT_READY = "not_ready"
    DEGRADED = "degraded"  # the job can run, with less
    NOTE = "note"  # no fault


@dataclass(frozen=True)
class Finding:
    """One thing to fix, however many hosts it concerns.

    `hosts` are those to blame, `target` is what to repair, as `mrcctl deny` takes it, or "". `seen_by` is the number
    of hosts that see it; None if Prometheus does.
    """

    level: Level
    cause: str
    brief: str
    sentence: str
    do: str
    hosts: Sequence[str] = ()
    target: str = ""
    seen_by: int | None = None

    def document(self) -> dict[str, Any]:
        """Returns the finding as a part of the document."""
        return {
            "level": self.level.value,
            "cause": self.cause,
            "target": self.target or None,
            "hosts": list(self.hosts),
            "seen_by_hosts": self.seen_by,
            "brief": self.brief,
            "sentence": self.sentence,
            "do": self.do,
        }


@dataclass(frozen=True)
class Limits:
    """The limits of a host that is ready: the age of samples and of full sweeps, and the ratio of EVs in use."""

    sample_s: float = 60.0
    least_in_use: float = 0.5
    least_sweep_s: float = 10.0
    sweeps: float = 3.0  # as many full sweeps may have been missed

    def sweep_s(self, full_sweep_s: float) -> float:
        """Returns the age of a full sweep that is too old, of a host whose full sweep takes so long."""
        return max(self.least_sweep_s, self.sweeps * full_sweep_s)


# ---- what is known ----


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
