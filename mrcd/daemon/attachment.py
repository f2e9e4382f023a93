# SPDX-License-Identifier: BSD-2-Clause
"""Detaches and attaches the data plane, for `mrcctl detach` and `mrcctl attach`."""

import asyncio
import time

from mrcd.daemon.daemon import Daemon
from mrcd.daemon.quiet import wait_quiet
from mrcd.errors import MrcdError, UsageError
from mrcd.kernel import abi

ANNOUNCED_S = 2.0  # and this long until probes have told all peers


async def detach(daemon: Daemon, force: bool) -> str:
    """Stop spraying on this host and on its peers: traffic takes the kernel's SRv6 routes. Returns a message.

    `force` also detaches mrc_pop, after the peers have had time to notice.
    """
    async with daemon.admin_lock:
        if daemon.detached and not daemon.dataplane.has_push() and not (force and daemon.dataplane.attached()):
            return "already detached"
        if daemon.plan.config.cluster.encapsulation == "ecmp" and not force:
            raise UsageError(
                "with encapsulation ecmp there is no SRv6 to fall back to: peers would be cut off",
                hint="`mrcctl detach --force` cuts them off",
            )
        before = "detached" if daemon.detached else "attached"
        daemon.tables.node["status"] = int(daemon.tables.node["status"]) | abi.STATUS_DETACHED
        await _announced(daemon)  # until then peers refuse packets without MRC headers (bpf/kernel_sids.h)
        async with daemon.netlink_lock:
            await daemon.write_routes()  # before mrc_push is detached: if this fails, the command can be repeated
            daemon.attach_programs()  # all but mrc_push
        quiet = await wait_quiet(daemon.tables, daemon.monitor.announce) if force else True
        if force:
            daemon.programs.remove(daemon.dataplane, daemon.nics)
        daemon.save_running()
        daemon.events.add("daemon", reason="admin", before=before, after="detached")
        text = "detached: traffic takes the kernel's SRv6 routes, flow by flow"
        if not force:
            return text + "; mrc_pop stays for peers that have yet to notice (--force removes it)"
        return text if quiet else text + "; some peers still spray to this host, and what they send is lost"


async def _announced(daemon: Daemon) -> None:
    """Announce the status to all peers, and wait until probes have carried it, ANNOUNCED_S at most."""
    daemon.monitor.announce()
    rows = daemon.plan.rows
    until = time.monotonic() + ANNOUNCED_S
    while time.monotonic() < until:
        watches = daemon.tables.watches[rows]
        if not (watches["announce"].astype(bool) & (watches["silent"] == 0)).any():
            return
        await asyncio.sleep(0.01)


async def attach(daemon: Daemon) -> str:
    """Attach the data plane again. Returns a message."""
    async with daemon.admin_lock, daemon.netlink_lock:
        if not daemon.detached:
            return "already attached"
        popped = daemon.dataplane.attached()
        daemon.tables.node["status"] = int(daemon.tables.node["status"]) & ~abi.STATUS_DETACHED
        try:
            daemon.attach_programs()
        except BaseException:
            daemon.tables.node["status"] = int(daemon.tables.node["status"]) | abi.STATUS_DETACHED
            try:
                if not popped:  # `detach` with force had removed mrc_pop
                    daemon.programs.remove(daemon.dataplane, daemon.nics)
                daemon.attach_programs()
            except MrcdError:
                daemon.attach_anew()
            raise
        daemon.save_running()
        daemon.monitor.announce()
        daemon.events.add("daemon", reason="admin", before="detached", after="attached")
        try:
            await daemon.write_routes()
        except MrcdError:
            daemon.look_at_routes()  # the programs stay attached; failed routes are tried again
            raise
        return "attached"
