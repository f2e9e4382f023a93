# SPDX-License-Identifier: BSD-2-Clause
"""Makes documents from the tables in worker threads, and never during a reload.

A document of a large cluster takes up to some seconds, in which the event loop still answers others. A reload
waits until no document is being made; requests that come during a reload wait for its end.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Readers:
    """The worker threads of one daemon. Closed at first: `go_on` lets them read."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._reading: set[asyncio.Future[Any]] = set()

    async def stop(self) -> None:
        """Holds new requests, and waits until no thread reads the tables."""
        self._open.clear()
        if self._reading:
            await asyncio.wait(set(self._reading))

    def go_on(self) -> None:
        """Lets threads read the tables."""
        self._open.set()

    async def read(self, make: Callable[[], T]) -> T:
        """Returns what `make` returns in a thread. Raises what it raises."""
        while not self._open.is_set():
            await self._open.wait()
        thread = asyncio.get_running_loop().run_in_executor(None, make)
        self._reading.add(thread)
        thread.add_done_callback(self._reading.discard)
        return await asyncio.shield(thread)  # a cancelled request does not end its thread, which `stop` waits for
