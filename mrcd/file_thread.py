# SPDX-License-Identifier: BSD-2-Clause
"""Writes files and the log in threads: a disk or journal that does not answer must not stop the event loop."""

import asyncio
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from mrcd.errors import MachineError

log = logging.getLogger("mrcd.file_thread")

T = TypeVar("T")
Put = Callable[[Callable[[], object]], bool]
Do = Callable[[Callable[[], Any]], Awaitable[Any]]

_MOST = 10_000  # jobs that wait
_LIMIT_S = 2.0
_END_S = 2.0


class FileThread:
    """A thread that does jobs in their order. It does not keep the process from ending."""

    def __init__(self, name: str = "files") -> None:
        self._is_stuck = False  # a job takes too long: nobody waits for those after it
        self._jobs: queue.Queue[Callable[[], object] | None] = queue.Queue(_MOST)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], object]) -> bool:
        """Have a job done. Returns whether it will be: not if too many wait. The job raises nothing."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    async def do(self, job: Callable[[], T]) -> T:
        """Returns what a job returns, or raises what it raises; MachineError if it takes too long. It goes on then."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = job()
            except Exception as e:
                settle(done.set_exception, e)
            else:
                settle(done.set_result, result)

        def settle(set_: Callable[[Any], None], value: object) -> None:
            def at_home() -> None:
                if not done.done():
                    set_(value)

            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(at_home)

        if self.put(work) and not self._is_stuck:
            await asyncio.wait({done}, timeout=_LIMIT_S)
        if not done.done():
            self._is_stuck = True
            done.cancel()
            raise MachineError("the disk does not answer")
        return done.result()

    def close(self) -> None:
        """Wait a moment for the jobs that are waiting."""
        with contextlib.suppress(queue.Full):
            self._jobs.put_nowait(None)
            self._thread.join(_END_S)

    def _run(self) -> None:
        while job := self._jobs.get():
            try:
                job()
            except Exception:  # the next ones must be done
                log.exception("a file was not written")
            self._is_stuck = False


class LogThread(logging.Handler):
    """Writes log lines to a file descriptor in a thread. Lines for which it has no room are counted.

    Not to a stream: whoever waits in a write would hold its lock, also while the process ends.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd, self._lost = fd, 0
        self._thread = FileThread("log")

    def emit(self, record: logging.LogRecord) -> None:
        """Has a line written."""
        try:
            line = self.format(record)
        except Exception:  # wrong arguments of a log call
            self.handleError(record)
            return
        if self._thread.put(partial(self._write, f"{self._missing()}{line}\n")):
            self._lost = 0
        else:
            self._lost += 1

    def _missing(self) -> str:
        return f"ERROR {self._lost} lines of this log are missing: nobody read it\n" if self._lost else ""

    def _write(self, text: str) -> None:
        left = text.encode(errors="backslashreplace")
        with contextlib.suppress(OSError):  # its reader is gone
            while left:
                left = left[os.write(self._fd, left) :]

    def flush(self) -> None:
        """Waits a moment for the lines that are waiting."""
        done = threading.Event()
        if self._thread.put(done.set):
            done.wait(_END_S)

    def close(self) -> None:
        """The same, and ends the thread."""
        if self._lost:
            self._thread.put(partial(self._write, self._missing()))
        self._thread.close()
        super().close()


def put_now(job: Callable[[], object]) -> bool:
    """Do a job at once, as FileThread.put."""
    job()
    return True


async def do_now(job: Callable[[], T]) -> T:
    """Do a job at once, as FileThread.do."""
    return job()
