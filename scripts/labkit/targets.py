"""The name of a fault's place → the ports that it touches. Pure.

t1:P:S       the T1 number S of plane P          link:P:T:S   the link between T0 T and T1 S
t0:P:T       the T0 number T of plane P          nic:HOST:P   the link between a host's NIC and its T0
"""

import re
from dataclasses import dataclass
from typing import Literal

from labkit.fabric import Fabric, Link, PortRef, t0_name, t1_name
from mrcd.errors import UsageError

Direction = Literal["ingress", "egress"]

_FORMS = (
    ("switch", re.compile(r"t1:(?P<plane>\d+):(?P<t1>\d+)")),
    ("switch", re.compile(r"t0:(?P<plane>\d+):(?P<t0>\d+)")),
    ("link", re.compile(r"link:(?P<plane>\d+):(?P<t0>\d+):(?P<t1>\d+)")),
    ("nic", re.compile(r"nic:(?P<host>[^:]+):(?P<plane>\d+)")),
)


@dataclass(frozen=True)
class Target:
    """A place where something can break."""

    text: str
    taps: tuple[tuple[PortRef, Direction], ...]  # where packets are dropped or marked, each packet once
    ends: tuple[PortRef, ...]  # where a rate applies: both ends of every link concerned
    closers: tuple[PortRef, ...]  # the ends to set down so that every link concerned loses its carrier

    @property
    def slug(self) -> str:
        """The target as a file name."""
        return self.text.replace(":", "-")


def parse(fabric: Fabric, text: str) -> Target:
    """Find a target in the fabric. Raises UsageError."""
    for form, pattern in _FORMS:
        match = pattern.fullmatch(text)
        if match:
            target = _find(fabric, form, text, match.groupdict())
            if target.ends:
                return target
            raise UsageError(f"lab {fabric.name} has no {text}", hint=_what_there_is(fabric))
    raise UsageError(f"{text!r} names no target", hint="t1:PLANE:T1, t0:PLANE:T0, link:PLANE:T0:T1 or nic:HOST:PLANE")


def _find(fabric: Fabric, form: str, text: str, at: dict[str, str]) -> Target:
    plane = int(at["plane"])
    if form == "nic":
        links = [k for k in fabric.links if k.lower == PortRef(at["host"], f"p{plane}")]
        # Both directions at the T0's port: the hooks in the host's namespace are mrcd's own.
        taps: list[tuple[PortRef, Direction]] = [(k.upper, d) for k in links for d in _BOTH]
        return Target(text, tuple(taps), _ends(links), tuple(k.upper for k in links))
    if form == "link":
        upper = PortRef(t1_name(plane, int(at["t1"])), f"t0-{int(at['t0'])}")
        links = [k for k in fabric.links if k.upper == upper]
        return Target(text, tuple((e, "ingress") for e in _ends(links)), _ends(links), tuple(k.upper for k in links))
    node = t1_name(plane, int(at["t1"])) if "t1" in at else t0_name(plane, int(at["t0"]))
    links = [k for k in fabric.links if node in (k.upper.node, k.lower.node)]
    own = tuple(e for e in _ends(links) if e.node == node)
    return Target(text, tuple((e, "ingress") for e in own), _ends(links), own)


_BOTH: tuple[Direction, ...] = ("ingress", "egress")


def _ends(links: list[Link]) -> tuple[PortRef, ...]:
    return tuple(end for k in links for end in (k.upper, k.lower))


def _what_there_is(fabric: Fabric) -> str:
    p = fabric.parameters
    return f"planes 0 to {p.planes - 1}, T0s 0 to {p.t0s - 1}, T1s 0 to {p.t1 - 1}, hosts h0 to h{p.hosts - 1}"
