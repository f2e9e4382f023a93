# SPDX-License-Identifier: BSD-2-Clause
"""Runs mrcd, with the arguments of the command, by a clock that jumps ahead where the event loop would wait.

Netlink, programs and requests are real, so the loop first waits a moment for them. A jump is STEP_S or longer: what is
due several times in it is done once, as on a host that is suspended again and again. On SIGUSR1 the process writes what
it holds into the file REPORT of its run directory.
"""

import asyncio
import ctypes
import gc
import json
import selectors
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

STEP_S = 4.0
REPORT = "held.json"
_FILES_FIRST_S = 0.001
_DUMP = 0x300  # NLM_F_DUMP
_monotonic_ns, _time_ns = time.monotonic_ns, time.time_ns
_skipped_ns = 0
_dumps = 0


class _Selector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        global _skipped_ns
        if not timeout:
            return super().select(timeout)
        found = super().select(min(timeout, _FILES_FIRST_S))
        if not found:
            _skipped_ns += int(max(timeout, STEP_S) * 1e9)
        return found


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(_Selector())
        loop.add_signal_handler(signal.SIGUSR1, _report, loop)
        return loop


def _report(loop: asyncio.AbstractEventLoop) -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    held = {
        "simulated_s": round(time.monotonic() - _started_s, 1),
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        # The daemon's four workers (main.py) are begun one by one, when as many tasks need one at the same time.
        "threads": int(status["Threads"]) - sum(t.name.startswith("worker_") for t in threading.enumerate()),
        "tasks": len(asyncio.all_tasks(loop)),
        "anonymous_kb": int(status["RssAnon"].split()[0]),
        "dumps": _dumps,
    }
    path = Path(sys.argv[sys.argv.index("--run-dir") + 1], REPORT)
    path.with_suffix(".new").write_text(json.dumps(held))
    path.with_suffix(".new").rename(path)


def _use_clock() -> None:
    """Replaces the clocks before any module of mrcd takes one of them as a default."""
    time.monotonic_ns = lambda: _monotonic_ns() + _skipped_ns
    time.monotonic = lambda: time.monotonic_ns() / 1e9
    time.time_ns = lambda: _time_ns() + _skipped_ns
    time.time = lambda: time.time_ns() / 1e9
    asyncio.set_event_loop_policy(_Policy())


def _count_dumps() -> None:
    from pyroute2.netlink.nlsocket import NetlinkRequest

    make = NetlinkRequest.__init__

    def counted(self: Any, *args: Any, **kw: Any) -> None:
        global _dumps
        make(self, *args, **kw)
        _dumps += self.msg["header"]["flags"] & _DUMP == _DUMP

    NetlinkRequest.__init__ = counted


if __name__ == "__main__":
    _use_clock()
    _started_s = time.monotonic()
    from mrcd.main import main
    from mrcd.partial_imports import import_in_part

    import_in_part("pyroute2")  # as mrcd does
    _count_dumps()
    main()
