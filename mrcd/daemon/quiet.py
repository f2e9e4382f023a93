# SPDX-License-Identifier: BSD-2-Clause
"""Waits until the peers no longer spray to this host."""

import asyncio
from collections.abc import Callable

from mrcd.kernel.pinned import Tables

QUIET_MS, QUIET_TRIES = 200, 15


async def wait_quiet(tables: Tables, announce: Callable[[], object]) -> bool:
    """Announce the status until no sprayed packet arrives for QUIET_MS. Returns False if packets keep arriving."""
    last = -1
    for _ in range(QUIET_TRIES):
        announce()
        await asyncio.sleep(QUIET_MS / 1000)
        count = int(tables.rxs["packets"].sum())
        if count == last:
            return True
        last = count
    return False
