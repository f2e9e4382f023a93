# SPDX-License-Identifier: BSD-2-Clause
"""Swaps the cables of two NICs at their T0s: each NIC is then connected to the T0 port of the other."""

from labkit.cluster import netns, render
from labkit.cluster.fabric import Fabric, Link, PortRef
from labkit.faults import inject


def swap(fabric: Fabric, nics: tuple[PortRef, PortRef]) -> None:
    """Connects two NICs, of one host or two, each to the T0 port of the other. Raises MachineError.

    The links lose their carrier meanwhile, as real ones do, and the T0s have the MAC addresses of their new neighbours.
    """
    links = [_link(fabric, nic) for nic in nics]
    _exchange(fabric, links)
    for link, other in zip(links, reversed(links), strict=True):
        port, mac = fabric.port(link.upper), fabric.port(other.lower).mac
        words = f"neighbour replace {port.gateway} lladdr {mac} dev {port.name} nud permanent"
        netns.batch_in(fabric.namespace(link.upper.node), ("ip", "-6"), [words])
    inject.settle(fabric, links)


def restore(fabric: Fabric, nics: tuple[PortRef, PortRef]) -> None:
    """Undoes `swap`. Raises MachineError."""
    links = [_link(fabric, nic) for nic in nics]
    _exchange(fabric, links)
    inject.settle(fabric, links)


def _exchange(fabric: Fabric, links: list[Link]) -> None:
    """Moves the T0s' ends of the two cables, and configures them as before."""
    ends = [link.upper for link in links]
    spaces = [fabric.namespace(end.node) for end in ends]
    for space, end, name in zip(spaces, ends, ("moved0", "moved1"), strict=True):
        netns.batch_in(space, ("ip",), [f"link set dev {end.port} down", f"link set dev {end.port} name {name}"])
    if spaces[0] != spaces[1]:
        netns.batch_in(spaces[0], ("ip",), [f"link set dev moved0 netns {spaces[1]}"])
        netns.batch_in(spaces[1], ("ip",), [f"link set dev moved1 netns {spaces[0]}"])
    netns.batch_in(spaces[0], ("ip",), [f"link set dev moved1 name {ends[0].port}"])
    netns.batch_in(spaces[1], ("ip",), [f"link set dev moved0 name {ends[1].port}"])
    for space, end in zip(spaces, ends, strict=True):
        lines = render.configure(fabric.nodes[end.node])
        netns.batch_in(space, ("ip", "-6"), lines)


def _link(fabric: Fabric, nic: PortRef) -> Link:
    return next(link for link in fabric.links if link.lower == nic)
