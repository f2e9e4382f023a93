# SPDX-License-Identifier: BSD-2-Clause
"""Measures the share of probes in packets, bytes and CPU while many peers are busy.

mrcd counts requests by kind, and data; the far end of the NICs counts requests with their bytes. CPU is the kernel's
run time of the programs: mrc_tick and mrc_timer only send probes; mrc_pop sees only replies, since these peers send
nothing else. Windows with and without piggybacked probes alternate; their difference is the cost of probes in
mrc_push. mrc_probe runs within mrc_push, so its time is included.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from statistics import mean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.bench.part import requirement
from labkit.bench.probing import Wire
from labkit.cluster import emulated_peers
from labkit.cluster.emulated_peers import EmulatedPeers, Seen
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import progstats
from labkit.measure.progstats import Runs
from labkit.places import end_program
from mrcd.config import cluster_file
from mrcd.ctl.terminal.render import Column, table
from mrcd.errors import MachineError
from mrcd.kernel.pinned import Tables

RATE = 1000  # packets per second to each peer
BURSTS = {1: 1, 256: 8, 1000: 8}  # busy peers → packets of a burst; two cores cannot send that many single packets
MOST_PACKETS, MOST_BYTES, MOST_CPU = 0.02, 0.01, 0.05
PROGRAMS = ("mrc_tick", "mrc_timer", "mrc_pop", "mrc_push")
LOAD = end_program("emulated_peers_load")
_PAIRS, _WINDOW_S, _SETTLE_S, _WARM_UP_S = 4, 1.5, 0.3, 3.0


class Reading(NamedTuple):
    """Counters at one moment, or the difference of two."""

    s: float
    packets: int  # data packets; a burst counts its segments
    bytes: int  # inner
    probes: dict[str, int]
    seen: Seen
    runs: dict[str, Runs]

    def since(self, before: "Reading") -> "Reading":
        """Returns the counts since an earlier reading."""
        return Reading(
            self.s - before.s,
            self.packets - before.packets,
            self.bytes - before.bytes,
            {kind: n - before.probes[kind] for kind, n in self.probes.items()},
            self.seen.since(before.seen),
            {name: r.since(before.runs[name]) for name, r in self.runs.items()},
        )


def measure(emulated: EmulatedPeers) -> list[Document]:
    """Measures each number of busy peers. Raises MachineError."""
    return [_run(emulated, n) for n in BURSTS if n <= emulated.peers]


def _run(emulated: EmulatedPeers, peers: int) -> Document:
    progress(f"scale: {peers} busy peers, {RATE:,} packets/s to each: probes")
    tables = Tables(emulated.pins, writable=True)
    rows = np.flatnonzero(tables.peers["configured"])[:peers]
    probe_ifindex = int(tables.node["probe_ifindex"])
    found: dict[bool, list[Reading]] = {True: [], False: []}
    try:
        with contextlib.ExitStack() as stack:
            programs = stack.enter_context(_programs(emulated.daemon.pid))
            stack.enter_context(progstats.counting())
            stack.enter_context(sending(emulated, peers))
            time.sleep(_WARM_UP_S)
            for window in range(2 * _PAIRS):
                piggybacked = (window + 1) // 2 % 2 == 0
                tables.node["probe_ifindex"] = probe_ifindex if piggybacked else 0
                time.sleep(_SETTLE_S)
                before = _read(emulated, tables, rows, programs)
                time.sleep(_WINDOW_S)
                found[piggybacked].append(_read(emulated, tables, rows, programs).since(before))
    finally:
        tables.node["probe_ifindex"] = probe_ifindex
        tables.close()
    text = emulated_peers.cluster_file(emulated.peers)
    parsed = cluster_file.parse(text)
    return {
        "peers": peers,
        "wanted_packets_per_s": peers * RATE,
        "burst_packets": BURSTS[peers],
        "floor_probes_per_s": parsed.health.idle_probes,
        "headers_bytes": Wire.of(parsed, emulated_peers.HOST).headers,
        **summary(found[True], found[False], Wire.of(parsed, emulated_peers.HOST).headers),
    }


@contextlib.contextmanager
def sending(emulated: EmulatedPeers, peers: int, rate: int = RATE, burst: int = 0) -> Iterator[None]:
    """A block in which `peers` peers are busy."""
    argv = [sys.executable, "-I", str(LOAD), str(rate), str(burst or BURSTS.get(peers, 1))]
    child = emulated.popen([*argv, *(emulated_peers.address(n + 1) for n in range(peers))])
    try:
        yield
    finally:
        said, _ = child.communicate(timeout=10)
        if child.returncode or not json.loads(said)["packets"]:
            raise MachineError("the packets to the busy peers were not sent")


@contextlib.contextmanager
def _programs(pid: int) -> Iterator[dict[str, int]]:
    with progstats.held(pid) as found:
        missing = [name for name in PROGRAMS if name not in found]
        if missing:
            raise MachineError(f"the daemon holds no program {', '.join(missing)}")
        yield found


def _read(emulated: EmulatedPeers, tables: Tables, rows: NDArray[np.int64], programs: dict[str, int]) -> Reading:
    evs = tables.evs[rows[0] : rows[-1] + 1]
    return Reading(
        time.monotonic(),
        int(evs["tx_packets"].sum()),
        int(evs["tx_bytes"].sum()),
        tables.probes_sent(),
        emulated.seen(),
        {name: progstats.runs(programs[name]) for name in PROGRAMS},
    )


def summary(piggybacked: list[Reading], without: list[Reading], headers: int) -> Document:
    """Returns rates and shares of the windows with piggybacked probes; of the others only mrc_push's time. Pure."""
    seconds = sum(r.s for r in piggybacked)
    packets, inner = sum(r.packets for r in piggybacked), sum(r.bytes for r in piggybacked)
    requests, request_bytes = (sum(getattr(r.seen, n) for r in piggybacked) for n in ("requests", "request_bytes"))
    cpu = {name: sum(r.runs[name].ns for r in piggybacked) / 1e9 / seconds for name in PROGRAMS}
    push = [mean(r.runs["mrc_push"].mean_ns or 0.0 for r in some) for some in (piggybacked, without)]
    pushes = sum(r.runs["mrc_push"].number for r in piggybacked) / seconds
    cpu["mrc_push"] = max(0.0, (push[0] - push[1]) * pushes / 1e9)
    data_bytes = inner + packets * headers
    return {
        "packets_per_s": packets / seconds,
        "bytes_per_s": data_bytes / seconds,
        "requests_per_s": {kind: sum(r.probes[kind] for r in piggybacked) / seconds for kind in piggybacked[0].probes},
        "seen_requests_per_s": requests / seconds,
        "seen_packets_per_s": sum(r.seen.data_packets for r in piggybacked) / seconds,
        "replies_per_s": sum(r.runs["mrc_pop"].number for r in piggybacked) / seconds,
        "packets_ratio": sum(sum(r.probes.values()) for r in piggybacked) / packets if packets else None,
        "bytes_ratio": request_bytes / data_bytes if data_bytes else None,
        "push_ns": {"with_piggybacked": push[0], "without": push[1]},
        "cpu_ratio": cpu,
        "cpu_ratio_all": sum(cpu.values()),
    }


def requirements(runs: list[Document]) -> list[Document]:
    """Returns the requirements for each number of busy peers. Pure."""
    found = []
    for r in runs:
        who = f"{r['peers']:,} busy peers" if r["peers"] > 1 else "1 busy peer"
        total = sum(r["requests_per_s"].values())
        # A host that sends that little has the probes of an idle host.
        idle = r["packets_per_s"] * MOST_PACKETS < r["floor_probes_per_s"]
        within = idle and total <= r["floor_probes_per_s"]
        at = f"{total:,.0f} requests/s at {r['packets_per_s']:,.0f} packets/s"
        at += f", within the floor of {r['floor_probes_per_s']:,}/s" if within else ""
        for what, most in (("packets", MOST_PACKETS), ("bytes", MOST_BYTES)):
            ratio = r[f"{what}_ratio"]
            words = f"{who}: requests are {most:.0%} of the {what} at most, or of an idle host's number"
            met = ratio is not None and (ratio <= most or within)
            found.append(requirement(words, met, "–" if ratio is None else f"{ratio:.2%}: {at}"))
        cpu = r["cpu_ratio_all"]
        found.append(
            requirement(f"{who}: probes take {MOST_CPU:.0%} of a core at most", cpu <= MOST_CPU, f"{cpu:.2%}: {at}")
        )
    return found


def lines(runs: list[Document]) -> list[str]:
    """Returns a table. Pure."""
    kinds = tuple(runs[0]["requests_per_s"])
    rows = [
        [
            str(r["peers"]),
            f"{r['packets_per_s']:,.0f} of {r['wanted_packets_per_s']:,}",
            str(r["burst_packets"]),
            *(f"{r['requests_per_s'][k]:,.0f}" for k in kinds),
            *("–" if r[k] is None else f"{r[k]:.2%}" for k in ("packets_ratio", "bytes_ratio")),
            f"{r['replies_per_s']:,.0f}",
            *(f"{r['cpu_ratio'][name]:.2%}" for name in PROGRAMS),
            f"{r['cpu_ratio_all']:.2%}",
        ]
        for r in runs
    ]
    headings = ("PACKETS/s REACHED", "BURST", *(k.upper() for k in kinds), "OF PACKETS", "OF BYTES", "REPLIES/s")
    headings += tuple(f"{name.removeprefix('mrc_')} %" for name in PROGRAMS)
    return [
        f"Busy peers: UDP of {RATE:,} packets/s to each, of 1,000 bytes, in bursts; requests per second by",
        "kind, their share of the data packets and bytes, and the probes' share of a core: mrc_tick,",
        "mrc_timer, mrc_pop (only replies), and mrc_push beyond its time without piggybacked probes",
        *table([Column("PEERS"), *(Column(h, True) for h in (*headings, "ALL %"))], rows, colour=False),
    ]
