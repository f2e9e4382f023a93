# SPDX-License-Identifier: BSD-2-Clause
"""The table of checks of `mrcctl preflight` and `mrcctl doctor`: each reads a Context, and makes an Outcome."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mrcd.errors import MrcdError
from mrcd.fabric.topology import Plan
from mrcd.net.hooks import Port, ports
from mrcd.net.messages import Link
from mrcd.probes.exchange import Tally

if TYPE_CHECKING:
    from mrcd.ctl.examine.machine import Machine

Status = Literal["PASS", "WARN", "FAIL", "SKIP"]
When = Literal["both", "preflight", "doctor"]
Document = dict[str, Any]


class NoFile(Exception):
    """A check needs a cluster file, and none was given."""


@dataclass(frozen=True)
class Outcome:
    """The result of a check. `evidence` says what was found; `fix` is a command or an action, if something is wrong."""

    status: Status
    evidence: str
    fix: str = ""


def passed(evidence: str) -> Outcome:
    """Return that all is well."""
    return Outcome("PASS", evidence)


def warn(evidence: str, fix: str) -> Outcome:
    """Return that mrcd works, but worse than it could."""
    return Outcome("WARN", evidence, fix)


def fail(evidence: str, fix: str) -> Outcome:
    """Return that mrcd does not work, or loses packets."""
    return Outcome("FAIL", evidence, fix)


def skip(evidence: str) -> Outcome:
    """Return that the check cannot run, for the reason in the evidence."""
    return Outcome("SKIP", evidence)


@dataclass(frozen=True)
class Answers:
    """The probes sent and answered on one EV: small ones, ones of the planes' MTU, ones a byte longer."""

    peer: str
    ev: int
    plane: int
    state: str
    small: Tally
    full: Tally
    over: Tally


@dataclass(frozen=True)
class Context:
    """The input of checks. `installed`: mrcd runs here (doctor); else the later fields are empty."""

    machine: "Machine"
    plan: Plan | None = None  # of the cluster file, as this host sees it
    installed: bool = False
    pins: str | None = None  # directory of the pinned tables
    status: Mapping[str, Any] | None = None
    peers: Sequence[Mapping[str, Any]] = ()
    answers: Sequence[Answers] = ()
    overlay: Mapping[str, str] = field(default_factory=dict)  # peer → the problem with full packets into mrc0
    down: str | None = None  # why mrcd does not answer
    is_alive: bool = False  # it runs all the same

    @property
    def wanted(self) -> Plan:
        """The plan. Raises NoFile without one, by which a check that needs it is skipped."""
        if self.plan is None:
            raise NoFile
        return self.plan

    @property
    def mtu(self) -> int:
        """The planes' MTU."""
        return self.wanted.config.cluster.mtu

    @property
    def nics(self) -> list[Link]:
        """The plane NICs that exist."""
        links = self.machine.links()
        return [links[n] for n in self.wanted.interfaces if n in links]

    @property
    def ports(self) -> list[Port]:
        """The plane NICs that exist, each with the NIC below its VLAN."""
        return list(ports(self.wanted.interfaces, self.machine.links(), self.machine.device).values())


Function = Callable[[Context], Outcome]
CHECKS: dict[str, tuple[When, Function]] = {}
"""Every check by its id, in the order of the output."""


def check(id: str, when: When = "both") -> Callable[[Function], Function]:
    """Register a check. One that asks for the plan is skipped without a cluster file."""

    def add(function: Function) -> Function:
        CHECKS[id] = when, function
        return function

    return add


def examine(context: Context) -> list[Document]:
    """Run the checks that apply. A check that cannot read its data is skipped; the others still run."""
    now = "doctor" if context.installed else "preflight"
    found = [(id, run(id, context)) for id, (when, _) in CHECKS.items() if when in ("both", now)]
    return [{"id": id, "status": o.status, "evidence": o.evidence, "fix": o.fix or None} for id, o in found]


def run(id: str, context: Context) -> Outcome:
    """Run one check."""
    try:
        return CHECKS[id][1](context)
    except NoFile:
        return skip("needs a cluster file: name it with --config FILE")
    except MrcdError as e:
        return skip(f"not known: {e.args[0]}")
    except OSError as e:
        return skip(f"not known: {e.filename or ''}: {e.strerror or e}")
