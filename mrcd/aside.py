"""What is made of the tables for who asks: in a thread, for it may be long, and the loop has others to serve."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from mrcd.daemon import Daemon

T = TypeVar("T")


async def aside(daemon: Daemon, make: Callable[[], T]) -> T:
    """Call `make` in a thread. A reload may close the tables meanwhile: then again, to see the new ones."""
    while True:
        view = daemon.view
        try:
            return await asyncio.to_thread(make)
        except Exception:
            if daemon.view is view:
                raise
