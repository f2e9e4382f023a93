# SPDX-License-Identifier: BSD-2-Clause
"""Runs a command of mrcctl, and measures what it takes."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mrcd.errors import MachineError


@dataclass(frozen=True)
class Run:
    """A command that ended, and what it printed."""

    seconds: float
    cpu_s: float
    peak_bytes: int
    output: bytes


def mrcctl(*arguments: str | Path, statuses: tuple[int, ...] = (0,)) -> Run:
    """Runs mrcctl. Raises MachineError if it ends with another status than these."""
    begun = time.monotonic()
    with subprocess.Popen([sys.executable, "-m", "mrcd.ctl", *map(str, arguments)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        output = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in statuses:
        raise MachineError(f"mrcctl {' '.join(map(str, arguments))} ended with code {child.returncode}")
    return Run(time.monotonic() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, output)
