# SPDX-License-Identifier: BSD-2-Clause
"""Sends link probes in their pace, and has the links judged."""

import asyncio
import time
from collections.abc import Callable

from mrcd.errors import MrcdError
from mrcd.health.links.watch import LinkWatch
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.pinned import Tables


async def probe_links(
    links: LinkWatch, in_force: Callable[[], tuple[Dataplane, Tables] | None], warn: Callable[[str], None]
) -> None:
    """Runs until cancelled. `in_force` returns the programs and their tables; None while no link may be probed."""
    while True:
        begun = time.monotonic()
        if found := in_force():
            dataplane, tables = found
            try:
                links.probe(dataplane.probe_links)
                links.check(tables, begun)
            except MrcdError as e:
                warn(f"links are not probed: {e}")
        await asyncio.sleep(max(0.0, begun + links.pace.interval_s - time.monotonic()))
