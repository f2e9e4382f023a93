# SPDX-License-Identifier: BSD-2-Clause
"""Defines checks, their input and their outcomes, and runs them. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mrcd.config.cluster_file import Hook
from mrcd.errors import MrcdError

if TYPE_CHECKING:
    from mrcd.ctl.examine.machine import Machine

Status = Literal["PASS", "WARN", "FAIL", "SKIP"]
When = Literal["both", "preflight", "doctor"]
Document = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The result of a check. `evidence` says what was found; `fix` is a command or an action, if something is wrong."""

    status: Status
    evidence: str
    fix: str = ""


def passed(evidence: str) -> Outcome:
    """Return a PASS."""
    return Outcome("PASS", evidence)


def warn(evidence: str, fix: str) -> Outcome:
    """Return a WARN: mrcd works, but worse than it could."""
    return Outcome("WARN", evidence, fix)


def fail(evidence: str, fix: str) -> Outcome:
    """Return a FAIL: mrcd does not work, or loses packets."""
    return Outcome("FAIL", evidence, fix)


def skip(reason: str) -> Outcome:
    """Return a SKIP: the check cannot run, for this reason."""
    return Outcome("SKIP", reason)


@dataclass(frozen=True)
class Site:
    """The requirements of the cluster file on this host."""

    host: str
    interfaces: tuple[str, ...]
    mtu: int
    inner_mtu: int
    encapsulation: str = "usid"
    granularity: str = "burst"
    overlay: str = "mrc0"
    gateway: str = "fe80::1"
    reordering: int = 300
    networks: tuple[str, ...] = ()  # prefixes behind this host, without its own addresses
    pins: str | None = None  # directory of the pinned tables
    srh: bool = False  # whether its packets have an SRH
    udp_port: int = 4797
    hook: Hook = "auto"


@dataclass(frozen=True)
class Answers:
    """The probes sent and received on one EV: small ones, ones of the planes' MTU, ones a byte longer."""

    peer: str
    ev: int
    plane: int
    state: str
    small: tuple[int, int]  # sent, received
    full: tuple[int, int]
    over: tuple[int, int]
    small_error: str | None = None  # the error of a small probe that could not be sent
    full_error: str | None = None


@dataclass(frozen=True)
class Context:
    """The input of checks. `installed`: mrcd runs here (doctor); else the later fields are empty."""

    machine: "Machine"
    site: Site | None = None
    installed: bool = False
    status: Mapping[str, Any] | None = None
    peers: Sequence[Mapping[str, Any]] = ()
    answers: Sequence[Answers] = ()
    overlay: Mapping[str, str] = field(default_factory=dict)  # peer → the problem with full packets into mrc0
    down: str | None = None  # why mrcd does not answer
    is_alive: bool = False  # it runs all the same


Function = Callable[[Context], Outcome]


@dataclass(frozen=True)
class Check:
    """A registered check."""

    id: str
    when: When
    needs_site: bool
    function: Function


CHECKS: list[Check] = []


def check(id: str, when: When = "both", *, site: bool = False) -> Callable[[Function], Function]:
    """Register a check. With `site` it is skipped without a cluster file."""

    def add(function: Function) -> Function:
        CHECKS.append(Check(id, when, site, function))
        return function

    return add


def examine(context: Context) -> list[Document]:
    """Run the checks that apply. A check that cannot read its data is skipped; the others still run."""
    now = "doctor" if context.installed else "preflight"
    found = []
    for c in CHECKS:
        if c.when in ("both", now):
            found.append(_document(c, _run(c, context)))
    return found


def _run(c: Check, context: Context) -> Outcome:
    if c.needs_site and context.site is None:
        return skip("needs a cluster file: name it with --config FILE")
    try:
        return c.function(context)
    except MrcdError as e:
        return skip(f"not known: {e.args[0]}")
    except OSError as e:
        return skip(f"not known: {e.filename or ''}: {e.strerror or e}")


def _document(c: Check, outcome: Outcome) -> Document:
    return {
        "id": c.id,
        "status": outcome.status,
        "evidence": outcome.evidence,
        "fix": outcome.fix or None,
    }


def some(things: Sequence[object], most: int = 4) -> str:
    """Return a list as text, at most `most` items of it."""
    words = [str(t) for t in things[:most]]
    return ", ".join(words) + (f" and {len(things) - most} more" if len(things) > most else "")
