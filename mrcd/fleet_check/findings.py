# SPDX-License-Identifier: BSD-2-Clause
"""Defines what the check finds, and how much that matters. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
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
