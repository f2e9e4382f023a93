# SPDX-License-Identifier: BSD-2-Clause
"""Judges whether a job's hosts are ready, by the findings of hosts.py and named_faults.py, without what others explain.

Pure.
"""

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from mrcd.config.hostlist import compress
from mrcd.fleet_check import hosts, named_faults
from mrcd.fleet_check.findings import Finding, Level, Limits, Samples
from mrcd.health.diagnosis.causes import Kind

_ORDER = {Level.NOT_READY: 0, Level.DEGRADED: 1, Level.NOTE: 2}
# Cause that others name in mrc_fault → causes that the host's own samples show for the same fault.
_EXPLAINED = {
    Kind.PEER_DOWN: ("not_scraped", "mrcd_down", "old_samples"),
    Kind.PEER_DETACHED: ("detached",),
    Kind.DETACHED: ("detached",),
    Kind.WRONG_KEY: ("wrong_key", "auth_mode"),
    Kind.CONFIG_DIFFERS: ("config_differs", "not_scraped", "mrcd_down"),
}


@dataclass(frozen=True)
class Verdict:
    """The answer for a job: its findings, the worst first."""

    wanted: Sequence[str]
    findings: Sequence[Finding]
    sweep_age_s: float | None  # of the host whose last full sweep is the oldest

    @property
    def word(self) -> str:
        """Returns ready, degraded or not_ready."""
        worst = self.findings[0].level if self.findings else Level.NOTE
        return "ready" if worst is Level.NOTE else worst.value

    @property
    def not_ready_hosts(self) -> list[str]:
        """Returns the hosts to blame, so that a scheduler can take others."""
        blamed = {name for f in self.findings if f.level is Level.NOT_READY for name in f.hosts}
        return [name for name in self.wanted if name in blamed]

    def document(self) -> dict[str, Any]:
        """Returns the verdict as a document."""
        return {
            "verdict": self.word,
            "hosts": len(self.wanted),
            "not_ready_hosts": self.not_ready_hosts,
            "sweep_age_s": self.sweep_age_s,
            "findings": [f.document() for f in self.findings],
        }


def judge(samples: Samples, wanted: Sequence[str], limits: Limits) -> Verdict:
    """Returns the verdict on the wanted hosts."""
    own = list(hosts.findings(samples, wanted, limits))
    known = {kind: {name for f in own if f.cause in by for name in f.hosts} for kind, by in _EXPLAINED.items()}
    named = named_faults.findings(samples, wanted, known)
    silent = {n.target.removeprefix("peer:") for n in samples.named if n.cause == Kind.PEER_DOWN}
    told = {target for f in named for target in f.target.split(" or ")}
    found = [*(_with_silence(f, silent) for f in own), *named, *hosts.planes_down(samples, told)]
    ages = [s.sweep_age_s for s in samples.hosts.values() if s.sweep_age_s is not None and math.isfinite(s.sweep_age_s)]
    return Verdict(wanted, sorted(found, key=lambda f: _ORDER[f.level]), max(ages, default=None))


def _with_silence(finding: Finding, silent: AbstractSet[str]) -> Finding:
    """Returns a finding about hosts without samples, with those that peers do not hear either."""
    unheard = [name for name in finding.hosts if name in silent]
    if finding.cause not in _EXPLAINED[Kind.PEER_DOWN] or not unheard:
        return finding
    return replace(finding, sentence=f"{finding.sentence}; other hosts do not hear {compress(unheard)} either")
