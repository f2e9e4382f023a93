# SPDX-License-Identifier: BSD-2-Clause
"""What mrcd tells systemd (sd_notify(3)), if it listens."""

import asyncio
import contextlib
import os
import socket

_PATIENCE_S = 2.0


def notify(state: str) -> None:
    """Send one message, such as READY=1."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


def watchdog_s() -> float | None:
    """How often systemd wants to hear from this process at least; None if it does not (sd_watchdog_enabled(3))."""
    usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not usec.isdigit() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 1e6


async def report(settled: asyncio.Event) -> None:
    """READY=1 when all is settled: before, what waits for it would meet planes whose first hop is not resolved yet, and
    peers that have not been heard. A host that has none is no reason to hold up a boot. From then on feed the watchdog,
    from the loop that does the work, so that a loop that hangs is noticed."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(settled.wait(), _PATIENCE_S)
    notify("READY=1")
    every = watchdog_s()
    while every is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(every / 3)
