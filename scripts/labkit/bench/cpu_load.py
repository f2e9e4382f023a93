# SPDX-License-Identifier: BSD-2-Clause
"""Overloads the machine's CPUs: permanently, or all at once for a moment."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mrcd.errors import MachineError

_ENDLESS = "while True: pass"
_START_S = 0.2  # start-up time of every hog
_PRIORITY = 50
# Runs on one CPU at real-time priority until the end, and prints the longest time in which it did not run.
_HOG = f"""
import os, sys, time
cpu, begin_ns, end_ns = map(int, sys.argv[1:])
os.sched_setaffinity(0, {{cpu}})
time.sleep(max(0, begin_ns - time.monotonic_ns()) / 1e9)
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param({_PRIORITY}))
last, gap = max(begin_ns, time.monotonic_ns()), 0
while last < end_ns:
    now = time.monotonic_ns()
    last, gap = now, max(gap, now - last)
print(gap)
"""


@contextlib.contextmanager
def busy_cpus() -> Iterator[str]:
    """A block in which every CPU has endless work: stress-ng, or loops. Yields its description."""
    cpus = os.cpu_count() or 1
    if shutil.which("stress-ng"):
        commands, words = [["stress-ng", "--quiet", "--cpu", str(cpus)]], f"stress-ng on {cpus} CPUs"
    else:
        commands, words = [[sys.executable, "-I", "-c", _ENDLESS]] * cpus, f"{cpus} busy loops"
    children = [subprocess.Popen(c, stdin=subprocess.DEVNULL) for c in commands]
    try:
        yield words
    finally:
        for child in children:
            child.terminate()  # stress-ng ends its own children
        for child in children:
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def real_time_share() -> float:
    """Returns the share of each CPU that real-time processes may take (sched_rt_runtime_us of sched_rt_period_us)."""
    runtime, period = (
        int(Path(f"/proc/sys/kernel/sched_rt_{k}_us").read_text(encoding="ascii")) for k in ("runtime", "period")
    )
    return 1.0 if runtime < 0 else runtime / period


def stall(seconds: float, meanwhile: Callable[[float], None]) -> int:
    """Lets only interrupts run on any CPU for `seconds`. Returns the longest time in ns in which another process ran.

    `seconds` should be below `real_time_share` of a second; beyond it the kernel runs other processes.
    `meanwhile(s)` is called until it is over. Raises MachineError without the right to real-time priority.
    """
    begin_ns = time.monotonic_ns() + int(_START_S * 1e9)
    end_ns = begin_ns + int(seconds * 1e9)
    pipe = subprocess.PIPE
    hogs = [
        subprocess.Popen([sys.executable, "-I", "-c", _HOG, str(cpu), str(begin_ns), str(end_ns)], stdout=pipe)
        for cpu in sorted(os.sched_getaffinity(0))
    ]
    try:
        meanwhile(_START_S + seconds)
        said = [hog.communicate(timeout=10)[0] for hog in hogs]
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    if not all(said):
        raise MachineError("a process may not have real-time priority here", hint="run as root, outside a container")
    return max(int(s) for s in said)
