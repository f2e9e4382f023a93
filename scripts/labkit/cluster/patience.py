# SPDX-License-Identifier: BSD-2-Clause
"""Scales deadlines: LAB_PATIENCE is a factor for machines with an emulated CPU. Waits until something is true."""

import os
import time
from collections.abc import Callable

from mrcd.errors import MachineError

FACTOR = float(os.environ.get("LAB_PATIENCE", "1"))
EMULATED = FACTOR > 5  # a busy real machine never needs this factor


def patience(seconds: float) -> float:
    """Returns the deadline on this machine for what takes `seconds` on an idle real one."""
    return seconds * FACTOR


def wait_for(words: str, is_so: Callable[[], bool], seconds: float, every_s: float = 0.05) -> float:
    """Polls until `is_so`, which `words` describe. Returns the seconds that it took.

    Raises MachineError after `seconds` on an idle real machine.
    """
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > patience(seconds):
            raise MachineError(f"not within {patience(seconds):.0f} s: {words}")
        time.sleep(every_s)
    return time.monotonic() - began
