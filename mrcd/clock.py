# SPDX-License-Identifier: BSD-2-Clause
"""Reads the time and sleeps, by functions that a test replaces."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """The clock of a process: CLOCK_MONOTONIC and the time since 1970 in nanoseconds, and a pause in seconds."""

    monotonic_ns: Callable[[], int] = time.monotonic_ns
    wall_ns: Callable[[], int] = time.time_ns
    sleep: Callable[[float], None] = time.sleep


SYSTEM = Clock()
