# SPDX-License-Identifier: BSD-2-Clause
"""Limits the process's memory and the work of its garbage collector, which grow with the number of peers.

The numbers are of 4,096 peers with 256 EVs each (`scripts/bench scale --peers 4096`).
"""

import contextlib
import ctypes
import gc
import threading
from collections.abc import Iterator

_M_ARENA_MAX = -8  # malloc.h of glibc
_pausing = threading.RLock()


def use_one_arena() -> None:
    """Makes all threads allocate from one arena, before any thread exists. Without glibc it does nothing.

    Scrapes and answers are made in several threads, and glibc keeps freed memory in an arena of each: the daemon had
    276 to 338 MB instead of 233 to 240. Little is allocated in parallel, because one thread at a time runs Python.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def settle() -> None:
    """Collects garbage, exempts all objects that are left from later collections, and gives free memory back.

    The objects of a configuration live for hours. While each collection examined them again, collections took a quarter
    of a scrape's CPU time. To load programs, libbpf parses the kernel's type information: megabytes in small pieces.
    """
    gc.unfreeze()  # objects of an earlier configuration may be garbage now
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the collector, which walks all hosts again and again while they are made: 1.3 s of 2.1 s.

    Other threads wait for the end of the pause before they begin one.
    """
    with _pausing:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()
