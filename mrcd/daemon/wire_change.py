# SPDX-License-Identifier: BSD-2-Clause
"""Leaves one wire version for another: hosts of different versions send each other plain SRv6."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from mrcd.daemon.quiet import QUIET_MS, QUIET_TRIES, wait_quiet
from mrcd.errors import MrcdError
from mrcd.kernel import abi
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.pinned import CHANGING, Tables, change_field, with_wire

log = logging.getLogger("mrcd")


def tell_wire(tables: Tables, dataplane: Dataplane) -> None:
    """Has probes tell the wire version of the loaded programs, and each peer what this host sends to it."""
    tables.node["status"] = with_wire(int(tables.node["status"]) & ~abi.STATUS_PLAIN, dataplane.wire)


async def leave(
    attached: Path,
    dataplane: Dataplane,
    tables: Tables,
    announce: Callable[[], object],
    write_routes: Callable[[], Awaitable[None]],
) -> None:
    """Has all traffic from and to this host take plain SRv6, before programs of another wire version are attached.

    The programs attached now, whose mrc_node is pinned at `attached`, tell the peers. Both kinds of programs understand
    all probes, so nothing else changes.
    """
    log.info("the packets of this mrcd differ (wire version %d): all peers are told first", dataplane.wire)
    change_field(attached, "status", lambda status: with_wire(status, CHANGING))
    tables.node["status"] = with_wire(int(tables.node["status"]), CHANGING)

    def tell() -> None:
        announce()
        dataplane.tick()

    if attached.parent == dataplane.tables:
        if not await wait_quiet(tables, tell):
            log.warning("some peers still spray to this host, and what they send is lost until their mrcd runs")
    else:  # traffic tells them: the tick would count in other tables than the attached programs
        # Until the new programs are attached, only this says that plain SRv6 comes: what is said of one peer is in its
        # record of the new tables.
        change_field(attached, "status", lambda status: status | abi.STATUS_PLAIN)
        await asyncio.sleep(QUIET_MS * QUIET_TRIES / 1000)
    try:
        await write_routes()
    except MrcdError as e:
        log.error("%s; trying again", e)
