# SPDX-License-Identifier: BSD-2-Clause
"""Replaces programs that speak another wire version. Hosts of different versions send each other plain SRv6."""

from collections.abc import Awaitable, Callable

from mrcd.daemon.quiet import wait_quiet
from mrcd.fabric.topology import Plan
from mrcd.health.probe_pace import pace
from mrcd.kernel import abi
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.migration import arrivals
from mrcd.kernel.pinned import Tables, change_field


async def replace_programs(
    plan: Plan,
    dataplane: Dataplane,
    tables: Tables,
    write_routes: Callable[[], Awaitable[None]],
    attach: Callable[[], None],
) -> None:
    """Attaches programs in place of those of dataplane.other_wire, so that no packet is lost.

    No host may spray to this one meanwhile, and this host may spray to none. The old programs tell their peers that
    this host detaches; the new ones tell those that know of versions which one they speak.
    """
    old, rows = dataplane.other_wire, [p.host.id for p in plan.peers]
    if old is None:
        raise ValueError("the attached programs speak the same wire version")
    window = pace(plan.config.health, len(rows), plan.ev_count, plan.config.cluster.evs_per_peer).window
    change_field(old / "mrc_node", "status", lambda status: status | abi.STATUS_DETACHED)
    tables.node["status"] = int(tables.node["status"]) | abi.STATUS_DETACHED  # of other tables, if these are new
    try:
        await wait_quiet(lambda: arrivals(old), lambda: [dataplane.sweep(row, 0, window) for row in rows])
        await write_routes()
        attach()  # all but mrc_push
        tables.peers["heard_ns"] = 0  # a peer that was heard by the old programs may speak their version only
    finally:
        for pins in {old, dataplane.tables}:
            change_field(pins / "mrc_node", "status", lambda status: status & ~abi.STATUS_DETACHED)
    attach()
    dataplane.other_wire = None
