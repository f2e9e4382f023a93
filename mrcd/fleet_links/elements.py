# SPDX-License-Identifier: BSD-2-Clause
"""Names the parts of a fabric that can lose packets, as the rest of mrcd names them. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kind of an element."""

    LINK = "link"  # between a T0 and a T1
    NIC = "nic"  # a host's NIC, its cable and the T0's port
    T0 = "t0"
    T1 = "t1"


class Direction(StrEnum):
    """The direction of lost packets: those from hosts to T1s (up), or those from T1s to hosts (down).

    A T0 loses packets that come from its hosts (up) or from its T1s (down). A T1 has no direction.
    """

    UP = "up"
    DOWN = "down"
    BOTH = "both"


@dataclass(frozen=True, order=True)
class Element:
    """An element in a direction. Numbers are indexes; those that its kind does not have are -1."""

    kind: Kind
    direction: Direction
    plane: int
    t0: int = -1
    t1: int = -1
    host: int = -1

    @property
    def part(self) -> tuple[Kind, int, int, int, int]:
        """Returns what identifies the part of the fabric, in any direction."""
        return self.kind, self.plane, self.t0, self.t1, self.host

    @property
    def is_sender(self) -> bool:
        """Returns whether it loses what one host sends."""
        return self.kind is Kind.NIC and self.direction is Direction.UP

    @property
    def is_downlink(self) -> bool:
        """Returns whether it loses what comes down from a T1 to a T0."""
        return self.kind is Kind.LINK and self.direction is Direction.DOWN
