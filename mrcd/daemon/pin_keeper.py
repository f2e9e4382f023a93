# SPDX-License-Identifier: BSD-2-Clause
"""Restores what another program has removed: pins, without which tables and links end with the daemon, and filters."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from mrcd.errors import KernelError, MrcdError
from mrcd.health.events import EventLog
from mrcd.kernel.dataplane import Dataplane

log = logging.getLogger("mrcd")

INTERVAL_S = 1.0


async def keep_pins(
    lock: asyncio.Lock,
    dataplane: Callable[[], Dataplane],
    events: EventLog,
    save_running: Callable[[], None],
    attach_anew: Callable[[], None],
) -> None:
    """Look for lost pins and filters each second, until cancelled. `lock` is held while another plan is adopted."""
    last_error = last_filter = ""
    while True:
        await asyncio.sleep(INTERVAL_S)
        async with lock:
            with contextlib.suppress(KernelError):  # the next look may tell
                filter_, before = dataplane().missing_filter(), last_filter
                last_filter = filter_
                if filter_:
                    attach_anew()
                if filter_ and not before:
                    events.add("daemon", reason="filters_removed", evidence={"lost": filter_})
                    log.warning("a clsact filter of mrcd was removed (%s): attaching it again", filter_)
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
