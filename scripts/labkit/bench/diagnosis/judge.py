# SPDX-License-Identifier: BSD-2-Clause
"""Compares the diagnoses of the hosts with the faults of a case. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit.cluster.observe import Document

Diagnoses = Mapping[str, Sequence[Document]]  # host → causes, as in GET /v1/status


@dataclass(frozen=True)
class Truth:
    """A fault that hosts must name. `targets` are the names of the same thing for different hosts."""

    causes: frozenset[str]  # each of them is right: hosts see the same fault from different sides
    targets: frozenset[str]
    hosts: tuple[str, ...]  # that must name it; others may
    exit_status: int = 2  # of `status --check` on these hosts


def truth(causes: str, targets: str, hosts: Sequence[str], exit_status: int = 2) -> Truth:
    """Returns a Truth from words separated by spaces."""
    return Truth(frozenset(causes.split()), frozenset(targets.split()), tuple(hosts), exit_status)


def is_sure(cause: Document, of: Truth) -> bool:
    """Returns whether a cause is the fault, and no other."""
    return cause["cause"] in of.causes and cause["target"] in of.targets and not cause["or_targets"]


def may_be(cause: Document, of: Truth) -> bool:
    """Returns whether a cause is the fault, or one of several that the host cannot tell apart includes it."""
    if cause["target"] in of.targets:
        return cause["cause"] in of.causes
    return bool(of.targets & set(cause["or_targets"]))


def unnamed(truths: Sequence[Truth], found: Diagnoses) -> list[str]:
    """Returns what is missing: hosts that do not name a fault, and faults of which no host is sure."""
    missing = []
    for t in truths:
        silent = [h for h in t.hosts if not any(may_be(c, t) for c in found[h])]
        missing += [f"{h} does not name {min(t.targets)}" for h in silent]
    return missing


def wrong(truths: Sequence[Truth], found: Diagnoses) -> list[str]:
    """Returns what hosts name although it is no fault of the case. Denials are no faults."""
    return [
        f"{host} names {c['cause']} {c['target']}"
        for host, causes in found.items()
        for c in causes
        if c["severity"] != "ok" and not any(may_be(c, t) for t in truths)
    ]


def sure(truths: Sequence[Truth], found: Diagnoses) -> list[int]:
    """Returns, per fault, how many hosts are sure of it."""
    return [sum(any(is_sure(c, t) for c in causes) for causes in found.values()) for t in truths]


def expected_status(truths: Sequence[Truth], host: str) -> int:
    """Returns the exit status that `status --check` must have on a host."""
    return max((t.exit_status for t in truths if host in t.hosts), default=0)
