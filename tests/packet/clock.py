# SPDX-License-Identifier: BSD-2-Clause
"""Sets the time of the programs: it stands still until a test advances it."""

import contextlib
import mmap
from collections.abc import Iterator

US = 1000
MS = 1000 * US
SECOND = 1000 * MS
_MINUTE = 60 * SECOND

_now = 10_000 * _MINUTE
_clocks: list[mmap.mmap] = []  # of each loaded object


def now() -> int:
    return _now


def advance(ns: int) -> None:
    """Lets time pass for the programs of all benches."""
    global _now
    _now += ns
    for each in _clocks:
        each[:8] = _now.to_bytes(8, "little")


@contextlib.contextmanager
def running() -> Iterator[None]:
    """A block in which each reading by the programs advances their time by a nanosecond."""
    for each in _clocks:
        each[8:16] = (1).to_bytes(8, "little")
    try:
        yield
    finally:
        for each in _clocks:
            each[8:16] = bytes(8)
        advance(MS)


def begin() -> None:
    """Advances to the begin of a minute, a minute or more from now: long after all that happened before.

    Loss windows fade each time that half their length has passed, so each test sees the same.
    """
    advance(2 * _MINUTE - _now % _MINUTE)


def add(section: int) -> mmap.mmap:
    """Makes the programs with this section (its descriptor) use this clock, until remove()."""
    clock = mmap.mmap(section, mmap.PAGESIZE)
    _clocks.append(clock)
    advance(0)
    return clock


def remove(clock: mmap.mmap) -> None:
    """Ends the use of the clock by programs that are unloaded."""
    _clocks.remove(clock)
    clock.close()
