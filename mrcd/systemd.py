"""What mrcd tells systemd (sd_notify(3)), if it listens."""

import asyncio
import os
import socket


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


async def keep_alive() -> None:
    """Feed the watchdog from the loop that does the work, so that a loop that hangs is noticed."""
    every = watchdog_s()
    while every is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(every / 3)
