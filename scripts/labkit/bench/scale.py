# SPDX-License-Identifier: BSD-2-Clause
"""Measures one host among 1, 64, 1,024 and 4,096 peers of 256 EVs, which answer probes (emulated_peers.py).

Memory, CPU, answer times and reloads are the daemon's. Probes: mrcd counts requests by kind, and data; the far end of
the NICs counts requests with their bytes. Their CPU is the kernel's run time of the programs: mrc_tick and mrc_timer
only send probes; mrc_pop sees only replies, since these peers send nothing else. Windows with and without piggybacked
probes alternate; their difference is the cost of probes in mrc_push. mrc_probe runs within mrc_push.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit import plot
from labkit.bench.frame import Bench, Bound, Options, Result, Table, judge
from labkit.cluster import emulated_peers
from labkit.cluster.api import Lab
from labkit.cluster.emulated_peers import EmulatedPeers, Seen
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import progstats
from labkit.measure.progstats import Runs
from labkit.places import end_program
from mrcd.config import cluster_file
from mrcd.ctl.client import Client
from mrcd.errors import MachineError
from mrcd.fabric import topology
from mrcd.fabric.topology import Plan
from mrcd.health import grey_loss
from mrcd.health.events import EventLog
from mrcd.health.peers import PeerWatch
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables

SIZES, SHORT_SIZES = (1, 64, 1024, 4096), (1, 4096)
BUSY = 256  # peers
_T1_FAILURE_PEERS = 1024  # with fewer peers, all their EVs are probed in each idle interval
PER_PEER_S = 100  # packets per second to each busy peer
_IDLE_S, _SHORT_IDLE_S, _BUSY_S = 75.0, 38.0, 10.0  # idle probes reach all 4,096 peers in 35 s
_WARM_UP_S = 5.0
_HEARD_S = 90.0

RATE = 1000  # packets per second to each peer
BURSTS = {1: 1, 256: 8, 1000: 8}  # busy peers → packets of a burst; two cores cannot send that many single packets
MOST_PACKETS, MOST_BYTES, MOST_CPU = 0.02, 0.01, 0.05
PROGRAMS = ("mrc_tick", "mrc_timer", "mrc_pop", "mrc_push")
_LOAD = end_program("emulated_peers_load")
_PAIRS, _WINDOW_S, _SETTLE_S, _LOAD_WARM_UP_S = 4, 1.5, 0.3, 3.0

IDLE_S = 2.0  # until all idle peers have left a dead T1
TRAFFIC_S = 0.02  # with traffic to one peer: since its EV is ASSUMED_BAD
IDLE_REQUESTS = 4000  # per second, [health] idle_probes; the budget may hold half a second's
_IDLE_EV, _BUSY_EVS = 77, (33, 99, 150)
_PATIENCE_S, _PACE_S = 60.0, 0.0005
_ETHERNET = 14
_TICKS = os.sysconf("SC_CLK_TCK")

# Of the largest cluster that was measured; panels draw the measured values as shares of these limits.
BOUNDS = (
    Bound("a tick with its check of all peers", 0.05, "_s", lambda r: max(r["own"]["tick"]["mean_s"], r["look_s"])),
    Bound("the daemon's memory: its proportional set size without the mapped kernel tables", 300e6, "_bytes",
          lambda r: r["memory"]["own_bytes"]),
    Bound("kernel tables", 320e6, "_bytes", lambda r: r["kernel_bytes"]),
    Bound("a start, and one with the tables there", 10.0, "_s", lambda r: max(r["start_s"], r["restart_s"])),
    Bound("share of a core when idle", 0.01, "_ratio", lambda r: r["idle_cpu_ratio"]),
    Bound("a scrape", 1.0, "_s", lambda r: r["answers"]["scrape"]["s"]),
    Bound("`paths --peer`, with the start of mrcctl", 0.15, "_s", lambda r: r["answers"]["paths_of_a_peer"]["s"]),
)  # fmt: skip
T1_BOUNDS = (
    Bound("a T1 that dies is left by all idle peers", IDLE_S, "_s", lambda r: r["t1_failure"]["idle"]["all_s"]),
    Bound(
        "requests in these two seconds, beyond those of an idle host and the budget of half a second", 0, "",
        lambda r: _excess(r["t1_failure"]["idle"]),
    ),
    Bound(
        "after the traffic of one peer detects a dead T1, all peers have left it", TRAFFIC_S, "_s",
        lambda r: r["t1_failure"]["busy"]["after_found_s"],
    ),
)  # fmt: skip


def _excess(idle: Document) -> float:
    requests: float = sum(idle["requests"].values())
    excess: float = requests - IDLE_REQUESTS * (idle["taken_s"] + 0.5)
    return max(0.0, excess)


def _probe_bounds(r: Document) -> list[Document]:
    """Returns the bounds of a number of busy peers. A host that sends little has the probes of an idle host."""
    who = f"{r['peers']:,} busy peers"
    floor = r["floor_probes_per_s"]
    is_idle = r["packets_per_s"] * MOST_PACKETS < floor and sum(r["requests_per_s"].values()) <= floor
    shares = () if is_idle else (("packets", MOST_PACKETS), ("bytes", MOST_BYTES))
    found = [
        Bound(f"{who}: requests as a share of the {k}", most, "_ratio").judge(r[f"{k}_ratio"]) for k, most in shares
    ]
    return [*found, Bound(f"{who}: probes' share of a core", MOST_CPU, "_ratio").judge(r["cpu_ratio_all"])]


def measure(lab: Lab, options: Options) -> Result:
    """Measures size by size. The bounds apply to the last."""
    sizes = options.peers or (SIZES if options.full else SHORT_SIZES)
    runs = []
    for peers in sizes:  # idle until all peers have been probed, if they are many
        idle_s = _IDLE_S if options.full else _SHORT_IDLE_S if peers > 64 else _BUSY_S
        runs.append(_run(lab, peers, idle_s))
    last = runs[-1]
    bounds = judge([*BOUNDS, *(T1_BOUNDS if "t1_failure" in last else ())], last)
    for busy in last["control"]:
        bounds += _probe_bounds(busy)
    return Result(_tables(runs), bounds, _picture(runs), {"runs": runs})


def _run(lab: Lab, peers: int, idle_for_s: float) -> Document:
    emulated = EmulatedPeers(lab, peers)
    emulated.up()
    run: Document = {"peers": peers, "evs": peers * emulated_peers.EVS}
    progress(f"scale: {peers} peers, {run['evs']} EVs: start")
    run["start_s"] = emulated.start()
    _wait_until_heard(emulated)
    emulated.stop()
    emulated.all_good()
    run["restart_s"] = emulated.start()
    pid = emulated.daemon.pid
    run["kernel_bytes"] = kernel_tables(pid)
    _wait_until_quiet(pid)
    run["look_s"] = look_s(
        emulated.pins, topology.plan(cluster_file.parse(emulated_peers.cluster_file(peers)), emulated_peers.HOST)
    )
    progress(f"scale: {peers} peers: idle for {idle_for_s:g} s")
    before = scrape(emulated)[2]
    requests = emulated.seen().requests
    run["idle_cpu_ratio"] = cpu_ratio(pid, idle_for_s)
    run["idle_requests_per_s"] = (emulated.seen().requests - requests) / idle_for_s
    run["own"] = _own(scrape(emulated)[2], before)
    run["control"] = [_probes(emulated, n) for n in BURSTS if n <= emulated.peers]
    if peers >= _T1_FAILURE_PEERS:
        run["t1_failure"] = _t1_failure(emulated)
    run["answers"] = _time_answers(emulated, peers)
    run["busy_peers"] = min(BUSY, peers)
    progress(f"scale: {peers} peers: {run['busy_peers']} of them busy, for {_BUSY_S:g} s")
    run |= _busy(emulated, run["busy_peers"])
    run["memory"] = memory(pid)
    run["own_after_all"] = _own(scrape(emulated)[2])
    progress(f"scale: {peers} peers: reload")
    run["reload"] = _reload(emulated)
    emulated.stop()
    return run


def _wait_until_heard(emulated: EmulatedPeers) -> None:
    """Waits until every peer has answered."""
    begun = time.monotonic()
    while (heard := Client(emulated.run_dir, 60.0).get("/v1/status")["peers"]["reachable"]) < emulated.peers:
        if time.monotonic() - begun > _HEARD_S:
            raise MachineError(f"after {_HEARD_S:.0f} s {heard} of {emulated.peers} peers are heard")
        time.sleep(0.5)


def _wait_until_quiet(pid: int) -> None:
    """Waits until a start with many peers has written its routes, which is not idle time."""
    for _ in range(30):
        if cpu_ratio(pid, 2.0) < 0.1:
            return


def _time_answers(emulated: EmulatedPeers, peers: int) -> Document:
    """Returns the answer times in seconds: medians of three."""
    timed: dict[str, Callable[[], tuple[float, int]]] = {
        "scrape": lambda: scrape(emulated)[:2],
        "status": lambda: command_s(emulated, ["status"]),
        "peers": lambda: command_s(emulated, ["peers"]),
        "paths_of_a_peer": lambda: command_s(emulated, ["paths", "--peer", f"h{peers}"]),
        "paths_not_good": lambda: command_s(emulated, ["paths", "--state", "ASSUMED_BAD"]),
    }
    if peers <= 64:
        timed["paths"] = lambda: command_s(emulated, ["paths"])
    found = {}
    for name, request in timed.items():
        seconds, size = sorted(request() for _ in range(3))[1]
        found[name] = {"s": seconds, "bytes": size}
    return found


def _reload(emulated: EmulatedPeers) -> Document:
    """Returns the seconds of `mrcctl reload`, with its start.

    For the same file, another setting of the programs, 64 hosts less, and 64 hosts more.
    """
    found: Document = {}
    for name, text in (
        ("same", emulated_peers.cluster_file(emulated.peers)),
        ("programs", emulated_peers.cluster_file(emulated.peers, "[health]\nloss_samples = 11")),
        ("fewer", emulated_peers.cluster_file(max(1, emulated.peers - 64), "[health]\nloss_samples = 11")),
        ("more", emulated_peers.cluster_file(emulated.peers)),
    ):
        emulated.rewrite(text)
        found[name] = {"s": command_s(emulated, ["--timeout", "120", "reload"])[0]}
    return found


def _busy(emulated: EmulatedPeers, peers: int) -> Document:
    """Returns the CPU time while UDP is sprayed to `peers` peers, which count it and answer probes."""
    with _sending(emulated, peers, PER_PEER_S, 1):
        time.sleep(_WARM_UP_S)
        before, begun = emulated.seen(), time.monotonic()
        used = cpu_ratio(emulated.daemon.pid, _BUSY_S)
        sent = emulated.seen().since(before).data_packets
    return {"busy_cpu_ratio": used, "busy_packets_per_s": sent / (time.monotonic() - begun)}


def _own(series: dict[str, float], before: dict[str, float] | None = None) -> Document:
    """Returns the daemon's ticks, in seconds; count and mean since `before`."""
    names = (f"mrc_tick_seconds_{of}" for of in ("count", "sum"))
    count, total = (series[name] - (before or {}).get(name, 0.0) for name in names)
    mean_s = total / count if count else None
    return {"tick": {"count": count, "mean_s": mean_s, "longest_s": series["mrc_tick_longest_seconds"]}}


# ---- the daemon ----


def kernel_tables(pid: int) -> int:
    """Returns the bytes of the BPF maps that a process holds, as the kernel accounts for them."""
    found: dict[str, int] = {}
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # the process has closed it
            fields = dict(re.findall(r"^(\w+):\s*(\S+)", path.read_text(encoding="ascii"), re.M))
            if "map_id" in fields:
                found[fields["map_id"]] = int(fields["memlock"])
    return sum(found.values())


def memory(pid: int) -> Document:
    """Returns a process's proportional memory: all of it, and the mapped kernel tables."""
    total = tables = 0
    mapped = False
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, rest = line.partition(":")
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            mapped = "anon_inode:bpf-map" in line
        elif name == "Pss":
            size = int(rest.split()[0]) * 1024
            total, tables = total + size, tables + (size if mapped else 0)
    return {"pss_bytes": total, "of_tables_bytes": tables, "own_bytes": total - tables}


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def cpu_ratio(pid: int, seconds: float) -> float:
    """Returns the share of a core that a process uses, over `seconds`."""
    before, begun = _cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (_cpu_s(pid) - before) / (time.monotonic() - begun)


def scrape(emulated: EmulatedPeers) -> tuple[float, int, dict[str, float]]:
    """Returns the seconds and bytes of a scrape, and its series without labels."""
    begun = time.monotonic()
    text = _exec(emulated, ["python3", "-c", _GET])
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
    said = _exec(emulated, ["mrcctl", *argv])
    return time.monotonic() - begun, len(said)


def _exec(emulated: EmulatedPeers, argv: list[str]) -> str:
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


# ---- probes ----


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


def _probes(emulated: EmulatedPeers, peers: int) -> Document:
    progress(f"scale: {peers} busy peers, {RATE:,} packets/s to each: probes")
    tables = Tables(emulated.pins, writable=True)
    rows = np.flatnonzero(tables.peers["configured"])[:peers]
    probe_ifindex = int(tables.node["probe_ifindex"])
    found: dict[bool, list[Reading]] = {True: [], False: []}
    try:
        with contextlib.ExitStack() as stack:
            programs = stack.enter_context(_programs(emulated.daemon.pid))
            stack.enter_context(progstats.counting())
            stack.enter_context(_sending(emulated, peers))
            time.sleep(_LOAD_WARM_UP_S)
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
        **_summary(found[True], found[False], _ETHERNET + topology.plan(parsed, emulated_peers.HOST).overhead),
    }


@contextlib.contextmanager
def _sending(emulated: EmulatedPeers, peers: int, rate: int = RATE, burst: int = 0) -> Iterator[None]:
    """A block in which `peers` peers are busy."""
    argv = [sys.executable, "-I", str(_LOAD), str(rate), str(burst or BURSTS.get(peers, 1))]
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


def _summary(piggybacked: list[Reading], without: list[Reading], headers: int) -> Document:
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


# ---- a T1 fails: one EV to each peer passes it ----


def _t1_failure(emulated: EmulatedPeers) -> Document:
    """Kills a T1 while all peers are idle, then three others while one peer has traffic: the median of these.

    Returns the seconds until all peers have left it: since it died, since the first peer left it, and since the first
    ASSUMED_BAD.
    """
    tables = Tables(emulated.pins, writable=False)
    try:
        rows = np.flatnonzero(tables.peers["configured"])
        idle = _die(emulated, tables, rows, _IDLE_EV)
        with _sending(emulated, 1):
            time.sleep(1.0)
            busy = sorted(
                (_die(emulated, tables, rows, ev) for ev in _BUSY_EVS), key=lambda died: died["after_found_s"]
            )
    finally:
        tables.close()
    return {"idle": idle, "busy": busy[len(busy) // 2], "busy_all": busy}


def _die(emulated: EmulatedPeers, tables: Tables, rows: NDArray[np.int64], ev: int) -> Document:
    """Drops an EV number for all peers until none uses it; then heals it."""
    progress(f"scale: T1 of EV {ev} dies for {len(rows)} peers")
    word, bit = ev // 64, np.uint64(1 << ev % 64)
    _wait_until_good(tables, rows, ev)
    before, begun = tables.probes_sent(), time.monotonic()
    first = found = None
    emulated.kill(ev)
    while True:
        left = (tables.peers["usable"][rows, word] & bit) == 0
        now = time.monotonic()
        if first is None and left.any():
            first = now
        if found is None and (tables.evs["state"][rows, ev] == EvState.ASSUMED_BAD).any():
            found = now
        if left.all():
            break
        if now - begun > _PATIENCE_S:
            raise MachineError(f"after {_PATIENCE_S:.0f} s {int(left.sum())} of {len(rows)} peers have left EV {ev}")
        time.sleep(_PACE_S)
    time.sleep(max(0.0, IDLE_S - (now - begun)))
    sent, taken = tables.probes_sent(), time.monotonic() - begun
    emulated.kill(None)
    return {
        "all_s": now - begun,
        "after_first_s": now - (first or now),
        "after_found_s": now - (found or now),
        "requests": {kind: n - before[kind] for kind, n in sent.items()},
        "taken_s": taken,  # two seconds at least
    }


def _wait_until_good(tables: Tables, rows: NDArray[np.int64], ev: int) -> None:
    """Waits until this EV is GOOD for all peers."""
    begun = time.monotonic()
    while (tables.evs["state"][rows, ev] != EvState.GOOD).any():
        if time.monotonic() - begun > _PATIENCE_S:
            raise MachineError(f"EV {ev} is not GOOD for all peers after {_PATIENCE_S:.0f} s")
        time.sleep(0.1)


# ---- tables, picture ----


def _tables(runs: Sequence[Document]) -> list[Table]:
    rows = [
        {
            "peers": r["peers"],
            "evs": r["evs"],
            "kernel_bytes": r["kernel_bytes"],
            "daemon_bytes": r["memory"]["own_bytes"],
            "start_s": r["start_s"],
            "again_s": r["restart_s"],
            "look_s": r["look_s"],
            "tick_s": r["own"]["tick"]["mean_s"],
            "longest_s": r["own_after_all"]["tick"]["longest_s"],
            "idle_ratio": r["idle_cpu_ratio"],
            "busy_ratio": r["busy_cpu_ratio"],
            "busy_peers": r["busy_peers"],
        }
        for r in runs
    ]
    notes = [
        "A program emulates the peers, and answers probes within the call that sends them, so this is counted too.",
        "LOOK: one check of all peers' state and losses; TICK: a tick of the daemon, with that check; IDLE, BUSY: of a "
        "core; KERNEL: the kernel's accounting of the daemon's maps",
    ]
    answers = [{"peers": r["peers"], **{f"{k}_s": v["s"] for k, v in r["answers"].items()}} for r in runs]
    reloads = [{"peers": r["peers"], **{f"{k}_s": v["s"] for k, v in r["reload"].items()}} for r in runs]
    busy = [
        {
            **{k: c[k] for k in ("peers", "wanted_packets_per_s", "packets_per_s", "burst_packets")},
            **{f"{k}_per_s": n for k, n in c["requests_per_s"].items()},
            **{k: c[k] for k in ("packets_ratio", "bytes_ratio", "replies_per_s")},
            **{f"{k.removeprefix('mrc_')}_ratio": n for k, n in c["cpu_ratio"].items()},
            "all_ratio": c["cpu_ratio_all"],
        }
        for c in runs[-1]["control"]
    ]
    return [
        Table("One host among peers of 256 EVs each, all GOOD", rows, notes),
        Table("Times to answer: medians of three, the start of mrcctl included", answers),
        Table("Times to reload: nothing new, a setting, 64 hosts less, 64 hosts more", reloads),
        Table(
            "Busy peers: UDP in bursts; requests by kind, their share of the data, and the probes' share of a core",
            busy,
        ),
    ]


def _picture(runs: Sequence[Document]) -> plot.Picture:
    """Returns a panel with the bounded values of each size, as shares of their limits."""
    points = sorted(runs, key=lambda r: int(r["evs"]))
    begin, end = points[0]["evs"], max(points[-1]["evs"], points[0]["evs"] * 2)
    series = [
        plot.Series([(float(r["evs"]), (b.read(r) or 0.0) / b.limit) for r in points], "ours", "joined", b.words)
        for b in BOUNDS
    ]
    panel = plot.Panel(
        "What a host with many peers costs", "", "EVs", "share of what is allowed", begin, end, series,
        goals=[plot.Goal(begin, end, 1.0)], ticks=[(r["evs"], f"{r['evs']:,}") for r in points], inches=5.0,
    )  # fmt: skip
    words = "one host among 1 to 4,096 peers of 256 EVs each, all GOOD; a program emulates them"
    legend = ("measured, as a share of what is allowed", "", "allowed")
    return plot.Picture("Scale", words, [panel], legend=legend)


BENCH = Bench("scale", measure)
