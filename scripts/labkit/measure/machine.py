# SPDX-License-Identifier: BSD-2-Clause
"""Reads and makes the load of the machine's CPUs, and watches for pauses in which they did not run."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from labkit.places import end_program
from mrcd.errors import MachineError

_BUSY, _STEAL = (0, 1, 2, 5, 6), 7  # of /proc/stat: user, nice, system, irq, softirq; not idle, iowait, steal
_TICK_NS = 10_000_000  # a tick of /proc/stat; USER_HZ is 100 on every kernel
_PATIENCE_S = 10.0
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


class Usage(NamedTuple):
    """CPU seconds over all CPUs, since boot or between two readings."""

    busy_s: float
    total_s: float
    stolen_s: float  # steal time: taken by the hypervisor

    def since(self, before: "Usage") -> "Usage":
        """Returns the CPU time from `before` to this reading."""
        return Usage(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def busy_ratio(self) -> float:
        """Returns the busy share of all CPUs, 0 to 1."""
        return self.busy_s / self.total_s if self.total_s else 0.0

    @property
    def stolen_ratio(self) -> float:
        """Returns the stolen share of all CPUs, 0 to 1."""
        return self.stolen_s / self.total_s if self.total_s else 0.0


def read_cpu() -> Usage:
    """Returns a reading of all processes and interrupts together (/proc/stat, proc(5))."""
    # Guest time, behind these fields, is in user time already.
    ticks = [int(f) for f in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    hz = os.sysconf("SC_CLK_TCK")
    return Usage(sum(ticks[i] for i in _BUSY) / hz, sum(ticks) / hz, ticks[_STEAL] / hz)


@contextlib.contextmanager
def busy_cpus() -> Iterator[str]:
    """A block in which every CPU has endless work. Yields its description. Raises MachineError."""
    if not shutil.which("stress-ng"):
        raise MachineError("stress-ng is not installed", hint="make set-up")
    with subprocess.Popen(["stress-ng", "--quiet", "--cpu", "0"], stdin=subprocess.DEVNULL) as child:
        try:
            yield f"stress-ng on {os.cpu_count()} CPUs"
        finally:
            child.terminate()  # it ends its own children


def _no_priority() -> MachineError:
    return MachineError("a process may not have real-time priority here", hint="run as root, outside a container")


def stall(seconds: float, meanwhile: Callable[[float], None], cpus: Collection[int] = ()) -> int:
    """Lets only interrupts run on these CPUs, or on any, for `seconds`.

    Returns the longest time in ns in which another process ran there.

    `seconds` should be below the share that real-time processes may take; beyond it the kernel runs other processes.
    `meanwhile(s)` is called until it is over. Raises MachineError without the right to real-time priority.
    """
    begin_ns = time.monotonic_ns() + int(_START_S * 1e9)
    end_ns = begin_ns + int(seconds * 1e9)
    pipe = subprocess.PIPE
    hogs = [
        subprocess.Popen([sys.executable, "-I", "-c", _HOG, str(cpu), str(begin_ns), str(end_ns)], stdout=pipe)
        for cpu in sorted(cpus or os.sched_getaffinity(0))
    ]
    try:
        meanwhile(_START_S + seconds)
        said = [hog.communicate(timeout=10)[0] for hog in hogs]
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    if not all(said):
        raise _no_priority()
    return max(int(s) for s in said)


# The same again and again: for each of these times, as far apart.
_HOGS = f"""
import itertools, os, sys, time
cpu, apart_s, *lengths_s = map(float, sys.argv[1:])
os.sched_setaffinity(0, {{int(cpu)}})
for length_s in itertools.cycle(lengths_s):
    time.sleep(apart_s)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param({_PRIORITY}))
    end = time.monotonic() + length_s
    while time.monotonic() < end:
        pass
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
"""


@contextlib.contextmanager
def stalls(lengths_s: Iterable[float], apart_s: float) -> Iterator[None]:
    """A block in which only interrupts run on the last CPU for these times, again and again, `apart_s` apart."""
    numbers = [max(os.sched_getaffinity(0)), apart_s, *lengths_s]
    hog = subprocess.Popen([sys.executable, "-I", "-c", _HOGS, *map(str, numbers)])
    try:
        yield
        if hog.poll() is not None:
            raise _no_priority()
    finally:
        hog.kill()
        hog.wait()


class Pause(NamedTuple):
    """An interval in which only interrupts ran on a CPU. CLOCK_MONOTONIC, ns."""

    cpu: int
    begin_ns: int
    end_ns: int
    stolen_ticks: int  # ticks stolen by the hypervisor meanwhile; 0: another cause, or less than a tick


def stood_still_ns(found: Iterable[Pause], begin_ns: int, end_ns: int) -> int:
    """Returns the most time of that interval in which the hypervisor kept one CPU from running.

    A pause counts no more than its stolen ticks, which are whole. Pure.
    """
    by_cpu: dict[int, int] = {}
    for p in found:
        if p.stolen_ticks > 0:
            both_ns = max(0, min(p.end_ns, end_ns) - max(p.begin_ns, begin_ns))
            by_cpu[p.cpu] = by_cpu.get(p.cpu, 0) + min(both_ns, (p.stolen_ticks + 1) * _TICK_NS)
    return max(by_cpu.values(), default=0)


class PauseWatcher:
    """Watches every CPU from `with` to `finish`: a program of highest priority per CPU reports when it could not run.

    `unwatched` tells after `finish` why the pauses are unknown.
    """

    unwatched: str | None = None

    def __enter__(self) -> "PauseWatcher":
        program, pipe = str(end_program("pause_watcher")), subprocess.PIPE
        self._children = {
            cpu: subprocess.Popen([sys.executable, "-I", program, str(cpu)], stdin=pipe, stdout=pipe, text=True)
            for cpu in sorted(os.sched_getaffinity(0))
        }
        return self

    def finish(self) -> list[Pause]:
        """Returns the pauses of all CPUs; none if one could not be watched."""
        found: list[Pause] = []
        for cpu, child in self._children.items():
            try:
                document = json.loads(child.communicate("", _PATIENCE_S)[0].splitlines()[-1])
            except (ValueError, IndexError):
                document = {"refused": f"the pause watcher of CPU {cpu} ended by itself"}
            if "refused" in document:
                self.unwatched = document["refused"]
                return []
            found += [Pause(cpu, **p) for p in document["pauses"]]
        return found

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.kill()
            child.communicate()
