# SPDX-License-Identifier: BSD-2-Clause
"""Measures one host among 1, 64, 1,024 and 4,096 peers of 256 EVs, and among 16,384 of 64.

A program (emulated_peers.py) answers the probes of all peers.

Memory, CPU and answer times are the daemon's. Probes: mrcd counts requests by kind, and data; the far end of
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
from operator import itemgetter
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from labkit import plot
from labkit.bench.frame import Bench, Bound, Options, Result, Table
from labkit.bench.paper_points import middle
from labkit.cluster import emulated_peers
from labkit.cluster.api import Lab
from labkit.cluster.emulated_peers import EmulatedPeers
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import progstats
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

SIZES, SHORT_SIZES = (1, 64, 1024, 4096, 16_384), (1, 4096)
_BOUNDED_PEERS = 4096
_T1_FAILURE_PEERS = 1024  # with fewer peers, all their EVs are probed in each idle interval
_IDLE_S, _SHORT_IDLE_S, _FEW_IDLE_S = 75.0, 38.0, 10.0  # idle probes reach all 4,096 peers in 35 s

RATE = 1000  # packets per second to each peer
BURSTS = {1: 1, 256: 8, 1000: 8}  # busy peers → packets of a burst; two cores cannot send that many single packets
MOST_PACKETS, MOST_BYTES, MOST_CPU = 0.02, 0.01, 0.05
PROGRAMS = ("mrc_tick", "mrc_timer", "mrc_pop", "mrc_push")
_LOAD = end_program("udpend")
_PAIRS, _WINDOW_S, _SETTLE_S, _LOAD_WARM_UP_S = 4, 1.5, 0.3, 3.0

LEFT_S = 2.0  # until all idle peers have left a dead T1
TRAFFIC_S = 0.02  # with traffic to one peer: since its EV is ASSUMED_BAD
IDLE_REQUESTS = 4000  # per second, [health] idle_probes; the budget may hold half a second's
_IDLE_EV, _BUSY_EVS = (1, 7), ((0, 3), (2, 5), (3, 9))  # plane and slot: four T1s
NEW_HOSTS = 64
_SETTING = "[health]\nhold_down_ms = 2000\n"
_CONSTANT = "[overlay]\nflowlet_us = 77\n"
_PATIENCE_S, _PACE_S = 180.0, 0.0005
_ETHERNET = 14
_TICKS = os.sysconf("SC_CLK_TCK")

# Panels draw the measured values as shares of these limits.
Read = Callable[[Document], float]
Counts = dict[str, float]
BOUNDS: tuple[tuple[Bound, Read], ...] = (
    (Bound("a tick with its check of all peers", 0.05, "_s"), lambda r: max(r["tick_s"], r["look_s"])),
    (
        Bound("the daemon's proportional set size, without mapped kernel tables", 300e6, "_bytes"),
        itemgetter("own_bytes"),
    ),
    (Bound("kernel tables", 320e6, "_bytes"), itemgetter("kernel_bytes")),
    (Bound("a start, and one with the tables there", 4.0, "_s"), lambda r: max(r["start_s"], r["restart_s"])),
    (Bound("share of a core when idle", 0.005, "_ratio"), itemgetter("idle_cpu_ratio")),
    (Bound("a scrape", 0.2, "_s"), itemgetter("scrape_s")),
    (Bound("`paths --peer`, with the start of mrcctl", 0.1, "_s"), itemgetter("paths_s")),
    (Bound("a reload of one setting of [health]", 1.0, "_s"), itemgetter("reload_s")),
    (Bound("a reload for which programs are loaded", 1.0, "_s"), itemgetter("reprogrammed_s")),
    (Bound(f"a reload that adds {NEW_HOSTS} hosts", 4.0, "_s"), itemgetter("grown_s")),
)


def _t1_bounds(d: Document) -> list[Document]:
    words = "requests in these two seconds, beyond those of an idle host and the budget of half a second"
    found = "after the traffic of one peer detects a dead T1, all peers have left it"
    return [
        Bound("a T1 that dies is left by all idle peers", LEFT_S, "_s").judge(d["idle"]["all_s"]),
        Bound(words, 0, "").judge(_excess(d["idle"])),
        Bound(found, TRAFFIC_S, "_s").judge(d["busy_after_found_s"]),
    ]


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


def _bounds(run: Document) -> list[Document]:
    found = [bound.judge(read(run)) for bound, read in BOUNDS]
    if "t1_failure" in run:
        found.append(Bound("a scrape, while EVs return", 0.4, "_s").judge(run["busy_scrape_s"]))
        found += _t1_bounds(run["t1_failure"])
    for busy in run["control"]:
        found += _probe_bounds(busy)
    return found


def measure(lab: Lab, options: Options) -> Result:
    """Measures size by size. The bounds apply to those of a million EVs, or to the last."""
    sizes = options.peers or (SIZES if options.full else SHORT_SIZES)
    runs = []
    for peers in sizes:  # idle until all peers have been probed, if they are many
        idle_s = _IDLE_S if options.full else _SHORT_IDLE_S if peers > 64 else _FEW_IDLE_S
        runs.append(_run(lab, peers, idle_s))
    bounded = [r for r in runs if r["peers"] >= _BOUNDED_PEERS] or runs[-1:]
    bounds = [{**b, "bound": f"{run['peers']:,} peers: {b['bound']}"} for run in bounded for b in _bounds(run)]
    return Result(_tables(runs), bounds, _picture(runs), {"runs": runs})


def _run(lab: Lab, peers: int, idle_for_s: float) -> Document:
    emulated = EmulatedPeers(lab, peers)
    emulated.up()
    run: Document = {"peers": peers, "evs": peers * emulated_peers.evs(peers)}
    progress(f"scale: {peers} peers, {run['evs']} EVs: start")
    run["start_s"] = emulated.start()
    client = Client(emulated.run_dir, 60.0)
    _wait("every peer is heard", lambda: client.get("/v1/status")["peers"]["reachable"] >= peers)
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
    before = scrape(emulated)[1]
    run["idle_cpu_ratio"] = cpu_ratio(pid, idle_for_s)
    run["tick_s"] = _mean_tick_s(scrape(emulated)[1], before)
    run["scrape_s"] = median(scrape(emulated)[0] for _ in range(3))
    run["control"] = [_probes(emulated, n) for n in BURSTS if n <= emulated.peers]
    if peers >= _T1_FAILURE_PEERS:
        run["t1_failure"] = _t1_failure(emulated)
    run["busy_scrape_s"] = median(scrape(emulated)[0] for _ in range(3))
    run["paths_s"] = median(command_s(emulated, ["paths", "--peer", f"h{peers}"]) for _ in range(3))
    run["own_bytes"] = own_memory(pid)
    run["longest_tick_s"] = scrape(emulated)[1]["mrc_tick_longest_seconds"]
    # Its EVs return for minutes, because they share [health] idle_probes.
    emulated.stop()
    emulated.all_good()
    emulated.start()
    _wait_until_quiet(emulated.daemon.pid)
    run["reload_s"], run["reprogrammed_s"], run["grown_s"] = _reloads(emulated)
    emulated.stop()
    return run


def _reloads(emulated: EmulatedPeers) -> list[float]:
    """Returns the seconds of reloads: of a setting of [health], of a constant of the programs, and of more hosts."""
    progress(f"scale: {emulated.peers} peers: reloads")
    found: list[float] = []
    for hosts, more in (0, _SETTING), (0, _SETTING + _CONSTANT), (NEW_HOSTS, _SETTING + _CONSTANT):
        if found:
            _wait_until_quiet(emulated.daemon.pid)
        emulated.write(emulated.peers + hosts, more)
        found.append(command_s(emulated, ["--timeout", "120", "reload"]))
    return found


def _wait_until_quiet(pid: int) -> None:
    """Waits until a start with many peers has written its routes and asked for each, which is not idle time."""
    for _ in range(150):
        if cpu_ratio(pid, 2.0) < 0.04:
            return
    progress("scale: the daemon is still busy after five minutes: what follows is no idle time")


def _mean_tick_s(series: dict[str, float], before: dict[str, float]) -> float:
    count, total = (series[f"mrc_tick_seconds_{of}"] - before[f"mrc_tick_seconds_{of}"] for of in ("count", "sum"))
    if not count:
        raise MachineError("the daemon has not ticked meanwhile", hint="see mrcctl events")
    return total / count


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


def own_memory(pid: int) -> int:
    """Returns a process's proportional set size in bytes, without the mapped kernel tables."""
    found, mapped = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, rest = line.partition(":")
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            mapped = "anon_inode:bpf-map" in line
        elif name == "Pss" and not mapped:
            found += int(rest.split()[0]) * 1024
    return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def cpu_ratio(pid: int, seconds: float) -> float:
    """Returns the share of a core that a process uses, over `seconds`."""
    before, begun = _cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (_cpu_s(pid) - before) / (time.monotonic() - begun)


def scrape(emulated: EmulatedPeers) -> tuple[float, dict[str, float]]:
    """Returns the seconds of a scrape, and its series without labels."""
    taken, _, body = _exec(emulated, ["python3", "-c", _GET]).partition("\n")
    return float(taken), {k: float(v) for k, v in re.findall(r"^(\w+) (\S+)$", body, re.M)}


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


def command_s(emulated: EmulatedPeers, argv: Sequence[str]) -> float:
    """Returns the seconds of a mrcctl command, with its start."""
    begun = time.monotonic()
    _exec(emulated, ["mrcctl", *argv])
    return time.monotonic() - begun


def _exec(emulated: EmulatedPeers, argv: list[str]) -> str:
    child = emulated.popen(argv)
    try:
        said, _ = child.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise MachineError(f"{argv[0]} has not ended after 120 s") from None
    if child.returncode:
        raise MachineError(f"{' '.join(argv[:3])} ended with code {child.returncode}")
    return said.decode()


# ---- probes ----


def _probes(emulated: EmulatedPeers, peers: int) -> Document:
    progress(f"scale: {peers} busy peers, {RATE:,} packets/s to each: probes")
    tables = Tables(emulated.pins, writable=True)
    rows = np.flatnonzero(tables.peers["configured"])[:peers]
    probe_ifindex = int(tables.node["probe_ifindex"])
    found: dict[bool, list[Counts]] = {True: [], False: []}
    try:
        with progstats.held(emulated.daemon.pid) as programs, progstats.counting(), _sending(emulated, peers):
            if missing := set(PROGRAMS) - set(programs):
                raise MachineError(f"the daemon holds no program {', '.join(sorted(missing))}")
            time.sleep(_LOAD_WARM_UP_S)
            for window in range(2 * _PAIRS):
                piggybacked = (window + 1) // 2 % 2 == 0
                tables.node["probe_ifindex"] = probe_ifindex if piggybacked else 0
                time.sleep(_SETTLE_S)
                before = _read(emulated, tables, rows, programs)
                time.sleep(_WINDOW_S)
                now = _read(emulated, tables, rows, programs)
                found[piggybacked].append({k: n - before[k] for k, n in now.items()})
    finally:
        tables.node["probe_ifindex"] = probe_ifindex
        tables.close()
    with_them, without = ({k: sum(w[k] for w in windows) for k in windows[0]} for windows in found.values())
    config = cluster_file.parse(emulated_peers.cluster_file(emulated.peers))
    headers = _ETHERNET + topology.plan(config, emulated_peers.HOST).overhead
    return {
        "peers": peers,
        "wanted_packets_per_s": peers * RATE,
        "burst_packets": BURSTS[peers],
        "floor_probes_per_s": config.health.idle_probes,
        **_summary(with_them, without, headers),
    }


@contextlib.contextmanager
def _sending(emulated: EmulatedPeers, peers: int) -> Iterator[None]:
    """A block in which `peers` peers are busy."""
    argv = [sys.executable, "-I", str(_LOAD), "load", str(RATE), str(BURSTS[peers])]
    child = emulated.popen([*argv, *(emulated_peers.address(n + 1) for n in range(peers))])
    try:
        yield
    finally:
        said, _ = child.communicate(timeout=10)
        if child.returncode or not json.loads(said)["packets"]:
            raise MachineError("the packets to the busy peers were not sent")


def _read(emulated: EmulatedPeers, tables: Tables, rows: NDArray[np.int64], programs: dict[str, int]) -> Counts:
    """Returns counters. A burst of data counts its segments; bytes of data are inner."""
    evs = tables.evs[rows[0] : rows[-1] + 1]
    found = {"s": time.monotonic(), "packets": int(evs["tx_packets"].sum()), "bytes": int(evs["tx_bytes"].sum())}
    found |= {f"requests {kind}": n for kind, n in tables.probes_sent().items()}
    found["request_bytes"] = emulated.seen().request_bytes
    for name in PROGRAMS:
        found[f"{name} ns"], found[f"{name} runs"] = progstats.runs(programs[name])
    return found


def _summary(with_them: Counts, without: Counts, headers: int) -> Document:
    """Returns rates and shares while probes are piggybacked; `without`: for their cost in mrc_push. Pure."""
    seconds, packets = with_them["s"], with_them["packets"]
    cpu = {name: with_them[f"{name} ns"] / 1e9 / seconds for name in PROGRAMS}
    push_ns = [c["mrc_push ns"] / max(1, c["mrc_push runs"]) for c in (with_them, without)]
    cpu["mrc_push"] = max(0.0, (push_ns[0] - push_ns[1]) * with_them["mrc_push runs"] / 1e9 / seconds)
    requests = {k.removeprefix("requests "): n for k, n in with_them.items() if k.startswith("requests ")}
    data_bytes = with_them["bytes"] + packets * headers
    return {
        "packets_per_s": packets / seconds,
        "requests_per_s": {kind: n / seconds for kind, n in requests.items()},
        "replies_per_s": with_them["mrc_pop runs"] / seconds,
        "packets_ratio": sum(requests.values()) / packets if packets else None,
        "bytes_ratio": with_them["request_bytes"] / data_bytes if data_bytes else None,
        "cpu_ratio": cpu,
        "cpu_ratio_all": sum(cpu.values()),
    }


# ---- a T1 fails: one EV to each peer passes it ----


def _t1_failure(emulated: EmulatedPeers) -> Document:
    """Kills a T1 while all peers are idle, then three others while one peer has traffic: the median of these."""
    with contextlib.closing(Tables(emulated.pins, writable=False)) as tables:
        rows = np.flatnonzero(tables.peers["configured"])
        per_plane = emulated_peers.evs(emulated.peers) // emulated_peers.PLANES
        idle = _die(emulated, tables, rows, _IDLE_EV[0] * per_plane + _IDLE_EV[1])
        with _sending(emulated, 1):
            time.sleep(1.0)
            after_found_s = middle(
                [_die(emulated, tables, rows, plane * per_plane + slot)["after_found_s"] for plane, slot in _BUSY_EVS]
            )
    return {"idle": idle, "busy_after_found_s": after_found_s}


def _die(emulated: EmulatedPeers, tables: Tables, rows: NDArray[np.int64], ev: int) -> Document:
    """Drops an EV number for all peers until none uses it; then heals it.

    Returns the seconds until all peers have left it: since it died, and since the first was ASSUMED_BAD.
    """
    progress(f"scale: T1 of EV {ev} dies for {len(rows)} peers")
    word, bit = ev // 64, np.uint64(1 << ev % 64)
    states = tables.evs["state"]
    _wait(f"EV {ev} is GOOD for all peers", lambda: bool((states[rows, ev] == EvState.GOOD).all()))
    before, begun = tables.probes_sent(), time.monotonic()
    found: list[float] = []
    emulated.kill(ev)

    def is_left() -> bool:
        left = (tables.peers["usable"][rows, word] & bit) == 0
        if not found and (states[rows, ev] == EvState.ASSUMED_BAD).any():
            found.append(time.monotonic())
        return bool(left.all())

    _wait(f"all peers have left EV {ev}", is_left, _PACE_S)
    now = time.monotonic()
    time.sleep(max(0.0, LEFT_S - (now - begun)))
    sent, taken = tables.probes_sent(), time.monotonic() - begun
    emulated.kill(None)
    return {
        "all_s": now - begun,
        "after_found_s": now - found[0] if found else None,
        "requests": {kind: n - before[kind] for kind, n in sent.items()},
        "taken_s": taken,  # two seconds at least
    }


def _wait(what: str, is_so: Callable[[], bool], pace_s: float = 0.2) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > until:
            raise MachineError(f"after {_PATIENCE_S:.0f} s still not: {what}")
        time.sleep(pace_s)


# ---- tables, picture ----


def _tables(runs: Sequence[Document]) -> list[Table]:
    named = {
        **{"peers": "peers", "evs": "evs", "kernel_bytes": "kernel_bytes", "daemon_bytes": "own_bytes"},
        **{"start_s": "start_s", "again_s": "restart_s", "look_s": "look_s", "tick_s": "tick_s"},
        **{"longest_s": "longest_tick_s", "idle_ratio": "idle_cpu_ratio"},
        **{
            "scrape_s": "scrape_s",
            "busy_scrape_s": "busy_scrape_s",
            "paths_s": "paths_s",
            "reload_s": "reload_s",
            "reprogrammed_s": "reprogrammed_s",
            "grown_s": "grown_s",
        },
    }
    rows = [{heading: r[key] for heading, key in named.items()} for r in runs]
    notes = [
        "A program emulates the peers, and answers probes within the call that sends them, so this is counted too.",
        "LOOK: one check of all peers' state and losses; TICK: a tick of the daemon, with that check; IDLE: of a core; "
        "KERNEL: the kernel's accounting of the daemon's maps",
    ]
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
        Table(
            "Busy peers: UDP in bursts; requests by kind, their share of the data, and the probes' share of a core",
            busy,
        ),
    ]


def _picture(runs: Sequence[Document]) -> plot.Picture:
    """Returns a panel with the bounded values of each size, as shares of their limits."""
    points = sorted(runs, key=lambda r: int(r["peers"]))
    begin, end = points[0]["peers"], max(points[-1]["peers"], points[0]["peers"] * 2)
    series = [
        plot.Series([(float(r["peers"]), read(r) / b.limit) for r in points], "ours", "joined", b.words)
        for b, read in BOUNDS
    ]
    panel = plot.Panel(
        "What a host with many peers costs", "", "peers", "share of what is allowed", begin, end, series,
        goals=[plot.Goal(begin, end, 1.0)], ticks=[(r["peers"], f"{r['peers']:,}") for r in points], inches=5.0,
    )  # fmt: skip
    words = "one host among up to 4,096 peers of 256 EVs, or 16,384 of 64, all GOOD; a program emulates them"
    legend = ("measured, as a share of what is allowed", "", "allowed")
    return plot.Picture("Scale", words, [panel], legend=legend)


BENCH = Bench("scale", measure)
