# SPDX-License-Identifier: BSD-2-Clause
"""Watches for pauses of the machine: a program of highest priority per CPU reports when it could not run."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple

from labkit.places import end_program
from mrcd.errors import MachineError

PROGRAM = end_program("pause_watcher")
_PATIENCE_S = 10.0
_TICK_NS = 10_000_000  # a tick of /proc/stat; USER_HZ is 100 on every kernel


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
    """Watches every CPU from `with` to `finish`."""

    children: dict[int, "subprocess.Popen[str]"]  # by CPU

    def __enter__(self) -> "PauseWatcher":
        pipe = subprocess.PIPE
        self.children = {
            cpu: subprocess.Popen([sys.executable, "-I", str(PROGRAM), str(cpu)], stdin=pipe, stdout=pipe, text=True)
            for cpu in sorted(os.sched_getaffinity(0))
        }
        return self

    def finish(self) -> list[Pause]:
        """Returns the pauses of all CPUs. Raises MachineError if one could not be watched."""
        return [p for cpu, child in self.children.items() for p in told(cpu, child.communicate("", _PATIENCE_S)[0])]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for child in self.children.values():
            child.kill()
            child.communicate()


def paused(watch: PauseWatcher) -> tuple[list[Pause], str | None]:
    """Returns the pauses of the machine, or why they are unknown."""
    try:
        return watch.finish(), None
    except MachineError as e:
        return [], str(e)


def told(cpu: int, said: str) -> list[Pause]:
    """Parses the last output of a CPU's watcher into its pauses. Raises MachineError. Pure."""
    try:
        document = json.loads(said.splitlines()[-1])
    except (ValueError, IndexError):
        raise MachineError(f"the pause watcher of CPU {cpu} ended by itself") from None
    if "refused" in document:
        raise MachineError(document["refused"])
    return [Pause(cpu, **p) for p in document["pauses"]]
