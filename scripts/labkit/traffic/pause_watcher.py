# SPDX-License-Identifier: BSD-2-Clause
"""Reports when a CPU could not run this program. One per CPU, run as a program of its own (failover/pauses.py).

    pause_watcher.py CPU       reads the clock each millisecond until its stdin closes

It has the highest real-time priority on its CPU, so only interrupts, softirqs and the hypervisor delay it. The CPU's
steal time (proc_stat(5)) shows the hypervisor's part.
Prints lines of JSON: `looks` when it has begun, or `refused` and the reason; at the end `pauses`, each with `begin_ns`
and `end_ns` (CLOCK_MONOTONIC) and `stolen_ticks`.
Standard library only, so that it starts quickly.
"""

import gc
import json
import os
import select
import sys
import time

STEP_S = 0.001
PAUSE_NS = 3_000_000  # a longer time between two readings is a pause
_STEAL_NS = 20_000_000  # largest age of the steal reading when a pause begins
_CPUS_BYTES = 1 << 16  # enough of /proc/stat for the lines of all CPUs
_STEAL = 8  # field of a CPU's line in /proc/stat


def stolen_ticks(stat: bytes, cpu: int) -> int:
    """Returns the steal ticks of a CPU since boot, by /proc/stat: mostly 1/100 s (SC_CLK_TCK)."""
    name = b"cpu%d" % cpu
    return next(int(fields[_STEAL]) for line in stat.splitlines() if (fields := line.split())[0] == name)


def say(**facts: object) -> None:
    """Prints one line for the parent."""
    print(json.dumps(facts), flush=True)


def watch(cpu: int) -> list[dict[str, int]]:
    """Watches until stdin closes."""
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_max(os.SCHED_FIFO)))
    gc.disable()
    clock, found = time.monotonic_ns, []
    stat = os.open("/proc/stat", os.O_RDONLY)
    stolen = stolen_ticks(os.pread(stat, _CPUS_BYTES, 0), cpu)
    last = known = clock()
    say(looks=True)
    while True:
        over = select.select([sys.stdin], [], [], STEP_S)[0]
        now = clock()
        if now - last > PAUSE_NS or now - known > _STEAL_NS:
            before, stolen, known = stolen, stolen_ticks(os.pread(stat, _CPUS_BYTES, 0), cpu), now
            if now - last > PAUSE_NS:
                found.append({"begin_ns": last, "end_ns": now, "stolen_ticks": stolen - before})
        if over:
            return found
        last = clock()


if __name__ == "__main__":
    try:
        say(pauses=watch(int(sys.argv[1])))
    except PermissionError as e:
        say(refused=f"a process may not have real-time priority here: {e.strerror}")
