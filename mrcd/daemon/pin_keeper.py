"""Pins that somebody took away: what forwards is held by the daemon meanwhile, and is pinned again."""

import asyncio
import logging
from typing import TYPE_CHECKING

from mrcd.errors import MrcdError

if TYPE_CHECKING:
    from mrcd.daemon.daemon import Daemon

log = logging.getLogger("mrcd")

_INTERVAL_S = 1.0


async def keep_pins(daemon: "Daemon") -> None:
    """Look after them each second, until cancelled."""
    said = ""
    while True:
        await asyncio.sleep(_INTERVAL_S)
        async with daemon.netlink_lock:  # not while another plan is being adopted
            lost = daemon.dataplane.lost()
            if not lost:
                said = ""
                continue
            try:
                daemon.dataplane.pin_what_is_lost()
            except MrcdError as e:
                if e.args[0] != said:
                    said = str(e.args[0])
                    daemon.events.add("daemon", reason="pins_lost", evidence={"lost": lost, "error": said})
                    log.error("%s; what forwards ends with this daemon: see `mrcctl doctor`", said)
                continue
            daemon.events.add("daemon", reason="pins_restored", evidence={"lost": lost})
            log.warning("somebody took pins away (%s): pinned again", lost)
            daemon.save_running()
