# SPDX-License-Identifier: BSD-2-Clause
"""Reports readiness and liveness to systemd (sd_notify(3)), if it started mrcd."""

import asyncio
import os
import socket

from mrcd.timed_wait import is_set_within

PATIENCE_S = 2.0


def notify(state: str) -> None:
    """Send one message, such as READY=1."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


def watchdog_s() -> float | None:
    """Return the seconds within which systemd expects a message; None without a watchdog (sd_watchdog_enabled(3))."""
    usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not usec.isdigit() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 1e6


async def report(routed: asyncio.Event) -> None:
    """Send READY=1 when `routed` is set, or after PATIENCE_S; then feed the watchdog.

    A unit that starts after mrcd finds resolved first hops, and peers that have answered. A host without an answering
    peer must not delay the boot. The event loop of the daemon feeds the watchdog, so systemd notices if it hangs.
    """
    await is_set_within(routed, PATIENCE_S)
    notify("READY=1")
    every = watchdog_s()
    while every is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(every / 3)
