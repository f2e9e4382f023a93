"""Who asks what the tables say is answered from a thread, for it may be long, and the loop has others to serve.

A reload changes the tables while such a thread reads them. Then what was read is neither the configuration before nor
the one after: it is read again. And what a thread may yet use is not closed below it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_THREADS = 4

T = TypeVar("T")


class Readers:
    """Those of one daemon. `stop` comes first: before `go_on` is called there is nothing to read."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._stops = 0
        self._reading: set[object] = set()
        self._to_close: list[tuple[set[object], Callable[[], None]]] = []
        # Of their own: a reload needs threads, too, and does not wait for those who will have to read again.
        self._threads = ThreadPoolExecutor(_THREADS, "reader")

    def stop(self) -> None:
        """What there is to read is about to be changed: who comes waits, who reads will have to read again."""
        self._open.clear()
        self._stops += 1

    def go_on(self) -> None:
        """It is whole again."""
        self._open.set()

    async def read(self, make: Callable[[], T]) -> T:
        """Call `make` in a thread, again if what it reads was changed meanwhile. Raises what it raises."""
        while True:
            await self._open.wait()
            if not self._open.is_set():  # not any more
                continue
            stops = self._stops
            try:
                found = await self._in_a_thread(make)
            except Exception:
                if self._stops == stops:
                    raise
            else:
                if self._stops == stops:
                    return found

    async def _in_a_thread(self, make: Callable[[], T]) -> T:
        me = object()
        self._reading.add(me)
        thread = asyncio.get_running_loop().run_in_executor(self._threads, make)
        thread.add_done_callback(lambda _: self._done(me))
        return await asyncio.shield(thread)  # who asked may be cancelled; the thread reads on

    def close_later(self, close: Callable[[], None]) -> None:
        """Call this when none of those who read now does so any more."""
        if self._reading:
            self._to_close.append((set(self._reading), close))
        else:
            close()

    def _done(self, one: object) -> None:
        self._reading.discard(one)
        for reading, _ in self._to_close:
            reading.discard(one)
        over = [close for reading, close in self._to_close if not reading]
        self._to_close = [c for c in self._to_close if c[0]]
        for close in over:
            close()
