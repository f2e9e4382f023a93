# SPDX-License-Identifier: BSD-2-Clause
"""Writes the plane mask, the planes on which this host can send, and logs its changes as events."""

from collections.abc import Sequence

from mrcd.fabric.topology import Plan
from mrcd.health.events import EventLog
from mrcd.kernel.pinned import Tables
from mrcd.net.nics import Nics


class PlaneMask:
    """The planes with a carrier and a resolved first hop, as bits of mrc_node.plane_mask."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._left = 0  # planes without a carrier that `use` has not logged yet

    def leave_lost(self, nics: Nics, tables: Sequence[Tables]) -> bool:
        """Leave the planes whose link has no carrier. Returns whether any was in use. `use` logs them later."""
        mask, lost = int(tables[0].node["plane_mask"]), nics.lost_plane_mask()
        if not mask & lost:
            return False
        self._left |= mask & lost
        for one in tables:
            one.node["plane_mask"] = int(one.node["plane_mask"]) & ~lost
        return True

    def use(self, mask: int, plan: Plan, nics: Nics, tables: Tables) -> bool:
        """Use these planes. Returns whether peers must be told, also if a plane was left and is back already."""
        left, self._left = self._left, 0
        before = int(tables.node["plane_mask"]) | left
        tables.node["plane_mask"] = mask
        if not left and mask == before:
            return False
        for plane in range(plan.config.cluster.planes):
            bit = 1 << plane
            if (before ^ mask) & bit:
                is_up = bool(mask & bit)
                self._events.add(
                    "plane",
                    plane=plane,
                    reason=_reason(plane, nics, plan.config.cluster.mtu, is_up=is_up),
                    before="down" if is_up else "up",
                    after="up" if is_up else "down",
                    evidence={"interface": plan.interfaces[plane]},
                )
        return True


def _reason(plane: int, nics: Nics, mtu: int, *, is_up: bool) -> str:
    port = nics.ports.get(plane)
    if is_up:
        return "link_up"
    if port is None:
        return "no_interface"
    if not port.nic.up or nics.lost_plane_mask() >> plane & 1:
        return "link_down"
    return "small_mtu" if min(port.nic.mtu, port.physical.mtu) < mtu else "first_hop_unresolved"
