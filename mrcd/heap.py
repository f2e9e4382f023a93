# SPDX-License-Identifier: BSD-2-Clause
"""Keeps the process's memory small and its garbage collector out of the way, with thousands of peers.

The numbers are of 4,096 peers with 256 EVs each (`scripts/bench scale --peers 4096`).
"""

import contextlib
import ctypes
import gc
from collections.abc import Iterator

_M_ARENA_MAX = -8  # malloc.h of glibc


def use_one_arena() -> None:
    """Makes all threads allocate from one arena, before any thread exists.

    Scrapes and answers are made in several threads, and glibc keeps what is freed in the arena of each: 297 MB instead
    of 233. Python's threads take turns, so they need no more than one.
    """
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def settle() -> None:
    """Collects garbage, and exempts all that is left from later collections.

    What a configuration has made stays for hours. Walked again and again, it is a third of a scrape's CPU time.
    """
    gc.unfreeze()  # what an earlier configuration has made may be garbage now
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the collector, which walks all hosts again and again while they are made: 1.3 s of 2.1 s."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
