# SPDX-License-Identifier: BSD-2-Clause
"""Maps the name of a fault's target, and a direction, to the ports that the fault touches. Pure.

t1:P:S       the T1 number S of plane P          link:P:T:S   the link between T0 T and T1 S
t0:P:T       the T0 number T of plane P          nic:HOST:P   the link between a host's NIC and its T0

Directions are those of the fabric: `up` is host → T0 → T1, `down` is T1 → T0 → host. A link fails for
packets in that direction, a T0 for packets that enter it so: from its hosts (up), from its T1s (down).
A T1 has no direction, since every packet comes up and goes down through it; its links have.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from labkit.cluster.fabric import Fabric, PortRef, t0_name, t1_name
from mrcd.denials import targets as denied
from mrcd.errors import UsageError

Hook = Literal["ingress", "egress"]
Direction = Literal["both", "up", "down"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


@dataclass(frozen=True)
class Target:
    """A target of faults."""

    text: str
    taps: tuple[tuple[PortRef, Hook], ...]  # where the fault program runs; each packet passes one
    ends: tuple[PortRef, ...]  # where a rate or delay applies: the sending ends of every affected link
    closers: tuple[PortRef, ...]  # the ends to set down so that every affected link loses its carrier

    @property
    def slug(self) -> str:
        """Returns the target as a file name."""
        return self.text.replace(":", "-")


def parse(fabric: Fabric, text: str, direction: Direction = "both") -> Target:
    """Finds a target in the fabric. Raises UsageError."""
    if fabric.parameters.direct:
        raise UsageError(
            f"lab {fabric.name} has no switches, and faults are made there", hint="scripts/lab up, without --direct"
        )
    place = denied.parse([text]).place
    if place is None:
        raise UsageError(
            f"{text!r} is not a target", hint="t1:PLANE:T1, t0:PLANE:T0, link:PLANE:T0:T1 or nic:HOST:PLANE"
        )
    if place.kind == "t1" and place.plane < fabric.parameters.planes:  # rails have several names for one T1
        place = replace(place, plane=fabric.config.cluster.t1_planes(place.plane)[0])
        text = f"t1:{place.plane}:{place.t1}"
    target = _find(fabric, text, place, direction)
    if not target.ends:
        raise UsageError(f"lab {fabric.name} has no {text}", hint=_what_there_is(fabric))
    return target


def _find(fabric: Fabric, text: str, at: denied.Place, direction: Direction) -> Target:
    plane = at.plane
    up, down = direction != "down", direction != "up"
    taps: list[tuple[PortRef, Hook]] = []
    if at.kind == "nic":
        links = [k for k in fabric.links if k.lower == PortRef(at.host, f"p{plane}")]
        closers = tuple(k.upper for k in links)
        # Both directions at the T0's port, since the hooks in the host's namespace are mrcd's own.
        ways: list[tuple[bool, Hook]] = [(up, "ingress"), (down, "egress")]
        taps += [(end, hook) for end in closers for wanted, hook in ways if wanted]
    elif at.kind == "link":
        lower = PortRef(t0_name(plane, at.t0), f"t1-{at.t1}")
        links = [k for k in fabric.links if k.lower == lower]
        closers = tuple(k.upper for k in links)
        taps += [(end, "ingress") for k in links for end in [k.upper] * up + [k.lower] * down]
    else:
        if at.kind == "t1" and direction != "both":
            raise UsageError(
                f"{text}: a T1 has no direction: every packet comes up and goes down through it",
                hint=f"name one of its links: link:{plane}:T0:{at.t1} with direction {direction}",
            )
        node = t1_name(plane, at.t1) if at.kind == "t1" else t0_name(plane, at.t0)
        links = [k for k in fabric.links if node in (k.upper.node, k.lower.node)]
        closers = tuple(e for k in links for e in (k.upper, k.lower) if e.node == node)
        below = {k.upper for k in links}  # ports towards the hosts
        taps += [(e, "ingress") for e in closers if at.kind == "t1" or (up if e in below else down)]
    senders = [end for k in links for end in [k.upper] * down + [k.lower] * up]
    return Target(text, tuple(taps), tuple(senders), closers)


def _what_there_is(fabric: Fabric) -> str:
    p = fabric.parameters
    return f"planes 0 to {p.planes - 1}, T0s 0 to {p.t0s - 1}, T1s 0 to {p.t1 - 1}, hosts h0 to h{p.hosts - 1}"
