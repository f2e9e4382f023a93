"""What a check is, what it looks at and what it says. Pure."""

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
    """`evidence` is one sentence of what was seen; `fix` a command, or what to do, where something is wrong."""

    status: Status
    evidence: str
    fix: str = ""


def passed(evidence: str) -> Outcome:
    """All is well."""
    return Outcome("PASS", evidence)


def warn(evidence: str, fix: str) -> Outcome:
    """It works, but not as well as it could."""
    return Outcome("WARN", evidence, fix)


def fail(evidence: str, fix: str) -> Outcome:
    """It does not work, or loses packets."""
    return Outcome("FAIL", evidence, fix)


def skip(why: str) -> Outcome:
    """It cannot be told, for this reason."""
    return Outcome("SKIP", why)


@dataclass(frozen=True)
class Site:
    """What the cluster file wants of this host."""

    host: str
    interfaces: tuple[str, ...]
    mtu: int
    inner_mtu: int
    encapsulation: str = "usid"
    granularity: str = "burst"
    overlay: str = "mrc0"
    gateway: str = "fe80::1"
    reordering: int = 300
    networks: tuple[str, ...] = ()  # prefixes behind this host, that are not its own addresses
    pins: str | None = None  # where its tables are pinned
    srh: bool = False  # its packets have one
    udp_port: int = 4797
    hook: Hook = "auto"


@dataclass(frozen=True)
class Answers:
    """What came back of the probes on one EV: small ones, ones as long as the planes' MTU, ones a byte longer."""

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
    """What checks look at. `installed`: mrcd runs here (doctor). The rest is empty before that."""

    machine: "Machine"
    site: Site | None = None
    installed: bool = False
    status: Mapping[str, Any] | None = None
    peers: Sequence[Mapping[str, Any]] = ()
    answers: Sequence[Answers] = ()
    overlay: Mapping[str, str] = field(default_factory=dict)  # peer → what is wrong with full packets into mrc0
    down: str | None = None  # why mrcd does not answer


Function = Callable[[Context], Outcome]


@dataclass(frozen=True)
class Check:
    """A check by its id."""

    id: str
    when: When
    needs_site: bool
    function: Function


CHECKS: list[Check] = []


def check(id: str, when: When = "both", *, site: bool = False) -> Callable[[Function], Function]:
    """Register a check. With `site` it is skipped where no cluster file is known."""

    def add(function: Function) -> Function:
        CHECKS.append(Check(id, when, site, function))
        return function

    return add


def examine(context: Context) -> list[Document]:
    """Run the checks that apply, each for itself: one that cannot read what it needs is skipped."""
    now = "doctor" if context.installed else "preflight"
    found = []
    for c in CHECKS:
        if c.when in ("both", now):
            found.append(_document(c, _run(c, context)))
    return found


def _run(c: Check, context: Context) -> Outcome:
    if c.needs_site and context.site is None:
        return skip("no cluster file: name it with --config FILE")
    try:
        return c.function(context)
    except MrcdError as e:
        return skip(f"cannot be told: {e.args[0]}")
    except OSError as e:
        return skip(f"cannot be told: {e.filename or ''}: {e.strerror or e}")


def _document(c: Check, outcome: Outcome) -> Document:
    return {
        "id": c.id,
        "status": outcome.status,
        "evidence": outcome.evidence,
        "fix": outcome.fix or None,
    }


def some(things: Sequence[object], most: int = 4) -> str:
    """A list that stays short."""
    words = [str(t) for t in things[:most]]
    return ", ".join(words) + (f" and {len(things) - most} more" if len(things) > most else "")
