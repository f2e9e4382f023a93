# SPDX-License-Identifier: BSD-2-Clause
"""Names the links that a host watches by link probes, and computes the carriers that turn round on them. Pure.

The table of links (struct mrc_link) has MAX_PLANES links per row. Row 0 are the links between the host's NICs and its
T0s, row 1 + n those between its T0s and T1 n.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address

from mrcd.config.sizes import MAX_PLANES
from mrcd.fabric.srv6 import carrier, host_usid, t0_usid, t1_usid
from mrcd.fabric.topology import Plan

_ROWS_STEP = 64  # so that a few more T1s need no new tables


@dataclass(frozen=True)
class Link:
    """A link between this host's NIC and its T0 (`t1` is None), or between this T0 and a T1."""

    number: int  # index in the table
    plane: int
    t1: int | None
    carrier: IPv6Address  # of the probes, which come back from the far end of the link


def table_size(t1s: int) -> int:
    """Returns the entries of the table of links."""
    return -(-(1 + t1s) // _ROWS_STEP) * _ROWS_STEP * MAX_PLANES


def links(plan: Plan) -> Iterator[Link]:
    """Yields this host's links by their numbers; none unless carriers name the switches (encapsulation usid)."""
    c = plan.config.cluster
    if c.encapsulation != "usid":
        return
    for t1 in (None, *range(c.t1s)):
        for plane in range(c.planes):
            t0 = t0_usid(plane, plan.host.t0)
            out = [t0] if t1 is None else [t0, t1_usid(plane, t1), t0]
            to = carrier(c.block, [*out, host_usid(plane, plan.host.port)])
            yield Link(number(plane, t1), plane, t1, to)


def number(plane: int, t1: int | None) -> int:
    """Returns the index of a link in the table."""
    return (0 if t1 is None else 1 + t1) * MAX_PLANES + plane
