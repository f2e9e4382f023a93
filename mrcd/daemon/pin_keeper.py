# SPDX-License-Identifier: BSD-2-Clause
"""Restores pins of tables and links that another program has removed: without a pin, they end with the daemon."""

import asyncio
import logging
from collections.abc import Callable

from mrcd.errors import MrcdError
from mrcd.health.events import EventLog
from mrcd.loader.dataplane import Dataplane

log = logging.getLogger("mrcd")

_INTERVAL_S = 1.0


async def keep_pins(
    lock: asyncio.Lock, dataplane: Callable[[], Dataplane], events: EventLog, save_running: Callable[[], None]
) -> None:
    """Look for lost pins each second, until cancelled. `lock` is held while another plan is adopted."""
    last_error = ""
    while True:
        await asyncio.sleep(_INTERVAL_S)
        async with lock:
            lost = dataplane().missing_pin()
            if not lost:
                last_error = ""
                continue
            try:
                dataplane().restore_pins()
            except MrcdError as e:
                if e.args[0] != last_error:
                    last_error = str(e.args[0])
                    events.add("daemon", reason="pins_lost", evidence={"lost": lost, "error": last_error})
                    log.error("%s; forwarding ends when this daemon ends: see `mrcctl doctor`", last_error)
                continue
            events.add("daemon", reason="pins_restored", evidence={"lost": lost})
            log.warning("pins were removed (%s): pinned again", lost)
            save_running()
