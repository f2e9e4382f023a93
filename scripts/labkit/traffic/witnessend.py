"""A witness of a machine that stands still, run as a program of its own, one per CPU (bench/failover/witness.py).

    witnessend.py CPU       looks at the clock each millisecond until its stdin closes

It goes before everything else on its CPU, so only interrupts, what they do of the network's work, and the hypervisor
keep it from looking. Which it was the time tells that the hypervisor took from the CPU meanwhile (steal, proc_stat(5)).
Prints lines of JSON: `looks`, when it has begun, or `refused` and why; and at the end `pauses`, each with `begin_ns`
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
PAUSE_NS = 3_000_000  # longer than this since it looked last, and it is told
_STEAL_NS = 20_000_000  # so old may be what it knows of stolen time when a pause begins
_CPUS_BYTES = 1 << 16  # of /proc/stat, which begins with the CPUs
_STEAL = 8  # field of a CPU's line in /proc/stat


def stolen_ticks(stat: bytes, cpu: int) -> int:
    """Of a CPU, since boot, by /proc/stat: hundredths of a second, mostly (SC_CLK_TCK)."""
    name = b"cpu%d" % cpu
    return next(int(fields[_STEAL]) for line in stat.splitlines() if (fields := line.split())[0] == name)


def say(**facts: object) -> None:
    """One line for the parent."""
    print(json.dumps(facts), flush=True)


def watch(cpu: int) -> list[dict[str, int]]:
    """Until stdin closes."""
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
