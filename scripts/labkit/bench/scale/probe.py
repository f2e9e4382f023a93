# SPDX-License-Identifier: BSD-2-Clause
"""Measures one running daemon from /proc, from its metrics, and by requests."""

import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from labkit.cluster.emulated_peers import EmulatedPeers
from labkit.cluster.observe import Document
from mrcd.errors import MachineError
from mrcd.fabric.topology import Plan
from mrcd.health import grey_loss
from mrcd.health.events import EventLog
from mrcd.health.peers import PeerWatch
from mrcd.kernel.pinned import Tables

_TICKS = os.sysconf("SC_CLK_TCK")
_TABLES = "anon_inode:bpf-map"


def kernel_tables(pid: int) -> dict[str, int]:
    """Returns the bytes of the BPF maps that a process holds, as the kernel accounts for them, by type."""
    found: dict[str, tuple[str, int]] = {}
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            fields = dict(re.findall(r"^(\w+):\s*(\S+)", path.read_text(encoding="ascii"), re.M))
        except OSError:  # the process has closed it
            continue
        if "map_id" in fields:
            found[fields["map_id"]] = fields["map_type"], int(fields["memlock"])
    by_type: dict[str, int] = {}
    for kind, size in found.values():
        by_type[kind] = by_type.get(kind, 0) + size
    return by_type


def memory(pid: int) -> Document:
    """Returns a process's proportional memory: all of it, and the mapped kernel tables."""
    total = tables = private = 0
    mapped = False
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, rest = line.partition(":")
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            mapped = _TABLES in line
        elif name == "Pss":
            size = int(rest.split()[0]) * 1024
            total, tables = total + size, tables + (size if mapped else 0)
        elif name == "Anonymous":
            private += int(rest.split()[0]) * 1024
    return {"pss_bytes": total, "of_tables_bytes": tables, "own_bytes": total - tables, "anonymous_bytes": private}


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def cpu_ratio(pid: int, seconds: float) -> float:
    """Returns the share of a core that a process uses, over `seconds`."""
    before, begun = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - begun)


def scrape(emulated: EmulatedPeers) -> tuple[float, int, dict[str, float]]:
    """Returns the seconds and bytes of a scrape, and its series without labels."""
    begun = time.monotonic()
    text = _run(emulated, ["python3", "-c", _GET])
    seconds = time.monotonic() - begun
    taken, _, body = text.partition("\n")
    series = dict(re.findall(r"^(\w+) (\S+)$", body, re.M))
    return min(seconds, float(taken)), len(body), {k: float(v) for k, v in series.items()}


_GET = """
import time, urllib.request
begun = time.monotonic()
body = urllib.request.urlopen("http://127.0.0.1:9479/metrics", timeout=60).read().decode()
print(time.monotonic() - begun)
print(body, end="")
"""


def look_s(pins: Path, plan: Plan) -> float:
    """Returns the seconds of one check of all peers' state and losses by the daemon's code: median of three."""
    tables = Tables(pins, writable=False)
    rows, taken = np.array([p.host.id for p in plan.peers], np.int64), []
    peerwatch = PeerWatch(plan, tables, EventLog(), lambda row: None)
    losses = grey_loss.Watch(plan.config.health, tables, rows)
    peerwatch.check(rows, time.monotonic_ns())  # what is new of each peer is told once
    for _ in range(3):
        begun = time.perf_counter()
        peerwatch.check(rows, time.monotonic_ns())
        losses.find_alarms(time.monotonic_ns())
        taken.append(time.perf_counter() - begun)
    tables.close()
    return sorted(taken)[1]


def command_s(emulated: EmulatedPeers, argv: Sequence[str]) -> tuple[float, int]:
    """Returns the seconds and bytes of a mrcctl command, with its start."""
    begun = time.monotonic()
    said = _run(emulated, ["mrcctl", *argv])
    return time.monotonic() - begun, len(said)


def _run(emulated: EmulatedPeers, argv: list[str]) -> str:
    child = emulated.popen(argv)
    try:
        said, _ = child.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        raise MachineError(f"{argv[0]} has not ended after 120 s") from None
    if child.returncode:
        raise MachineError(f"{' '.join(argv[:3])} ended with code {child.returncode}")
    return said.decode()
