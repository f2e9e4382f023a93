# SPDX-License-Identifier: BSD-2-Clause
"""Runs the part: one host among 1, 64, 1,024 and 4,096 peers of 256 EVs, which answer probes (emulated_peers.py)."""

import time
from collections.abc import Callable

from labkit.bench.part import Options, Part
from labkit.bench.scale import control, probe, report, t1_failure
from labkit.cluster import emulated_peers
from labkit.cluster.api import Lab
from labkit.cluster.emulated_peers import EmulatedPeers
from labkit.cluster.observe import Document
from labkit.entry import progress
from mrcd.config import cluster_file
from mrcd.ctl.client import Client
from mrcd.errors import MachineError
from mrcd.fabric import topology

SIZES, SHORT_SIZES = (1, 64, 1024, 4096), (1, 4096)
BUSY = 256  # peers
_T1_FAILURE_PEERS = 1024  # with fewer peers, all their EVs are probed in each idle interval
PER_PEER_S = 100  # packets per second to each busy peer
_IDLE_S, _SHORT_IDLE_S, _BUSY_S = 75.0, 38.0, 10.0  # idle probes reach all 4,096 peers in 35 s
_WARM_UP_S = 5.0
_HEARD_S = 90.0


def measure(lab: Lab, options: Options) -> Document:
    """Measures size by size. The requirements apply to the last."""
    sizes = options.peers or (SIZES if options.full else SHORT_SIZES)
    runs = [_run(lab, peers, idle_s(peers, options.full)) for peers in sizes]
    return {"runs": runs, "requirements": report.requirements(runs[-1])}


def idle_s(peers: int, full: bool) -> float:
    """Returns how long an idle daemon is watched: until all peers have been probed, if they are many. Pure."""
    return _IDLE_S if full else _SHORT_IDLE_S if peers > 64 else _BUSY_S


def _run(lab: Lab, peers: int, idle_for_s: float) -> Document:
    emulated = EmulatedPeers(lab, peers)
    emulated.up()
    run: Document = {"peers": peers, "evs": peers * emulated_peers.EVS}
    progress(f"scale: {peers} peers, {run['evs']} EVs: start")
    run["start_s"] = emulated.start()
    _wait_until_heard(emulated)
    run["stop_s"] = emulated.stop()
    emulated.all_good()
    run["restart_s"] = emulated.start()
    pid = emulated.daemon.pid
    run["kernel_bytes_by_type"] = probe.kernel_tables(pid)
    run["kernel_bytes"] = sum(run["kernel_bytes_by_type"].values())
    _wait_until_quiet(pid)
    run["look_s"] = probe.look_s(
        emulated.pins, topology.plan(cluster_file.parse(emulated_peers.cluster_file(peers)), emulated_peers.HOST)
    )
    progress(f"scale: {peers} peers: idle for {idle_for_s:g} s")
    before = probe.scrape(emulated)[2]
    requests = emulated.seen().requests
    run["idle_cpu_ratio"] = probe.cpu_ratio(pid, idle_for_s)
    run["idle_requests_per_s"] = (emulated.seen().requests - requests) / idle_for_s
    run["own"] = _own(probe.scrape(emulated)[2], before)
    run["idle_memory"] = probe.memory(pid)
    run["control"] = control.measure(emulated)
    if peers >= _T1_FAILURE_PEERS:
        run["t1_failure"] = t1_failure.measure(emulated)
    run["answers"] = _time_answers(emulated, peers)
    run["own_while_answering"] = _own(probe.scrape(emulated)[2])
    run["busy_peers"] = min(BUSY, peers)
    progress(f"scale: {peers} peers: {run['busy_peers']} of them busy, for {_BUSY_S:g} s")
    run |= _busy(emulated, run["busy_peers"])
    run["memory"] = probe.memory(pid)
    run["own_after_all"] = _own(probe.scrape(emulated)[2])
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
        if probe.cpu_ratio(pid, 2.0) < 0.1:
            return


def _time_answers(emulated: EmulatedPeers, peers: int) -> Document:
    """Returns the answer times in seconds: medians of three."""
    timed: dict[str, Callable[[], tuple[float, int]]] = {
        "scrape": lambda: probe.scrape(emulated)[:2],
        "status": lambda: probe.command_s(emulated, ["status"]),
        "peers": lambda: probe.command_s(emulated, ["peers"]),
        "paths_of_a_peer": lambda: probe.command_s(emulated, ["paths", "--peer", f"h{peers}"]),
        "paths_not_good": lambda: probe.command_s(emulated, ["paths", "--state", "ASSUMED_BAD"]),
    }
    if peers <= 64:
        timed["paths"] = lambda: probe.command_s(emulated, ["paths"])
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
        found[name] = {"s": probe.command_s(emulated, ["--timeout", "120", "reload"])[0]}
    return found


def _busy(emulated: EmulatedPeers, peers: int) -> Document:
    """Returns the CPU time while UDP is sprayed to `peers` peers, which count it and answer probes."""
    with control.sending(emulated, peers, PER_PEER_S, 1):
        time.sleep(_WARM_UP_S)
        before, begun = emulated.seen(), time.monotonic()
        used = probe.cpu_ratio(emulated.daemon.pid, _BUSY_S)
        sent = emulated.seen().since(before).data_packets
    return {"busy_cpu_ratio": used, "busy_packets_per_s": sent / (time.monotonic() - begun)}


def _own(series: dict[str, float], before: dict[str, float] | None = None) -> Document:
    """Returns the daemon's ticks, in seconds; count and mean since `before`."""
    names = (f"mrc_tick_seconds_{of}" for of in ("count", "sum"))
    count, total = (series[name] - (before or {}).get(name, 0.0) for name in names)
    mean_s = total / count if count else None
    return {"tick": {"count": count, "mean_s": mean_s, "longest_s": series["mrc_tick_longest_seconds"]}}


PART = Part("scale", measure, report.lines, report.picture)
