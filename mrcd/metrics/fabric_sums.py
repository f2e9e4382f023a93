# SPDX-License-Identifier: BSD-2-Clause
"""Sums the packets of all EVs per own uplink, per peer's T0 and per peer, so that losses can be localised.

An uplink is the link from this host's T0 to a T1. Every judged packet, data or probe, counts once in each of the three
sums. With P planes they have 2 × (P × T1s + P × T0s + peers) series.
"""

import threading
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import CounterMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mrcd.daemon.daemon import Daemon
from mrcd.fabric.topology import Plan
from mrcd.tables.columns import Columns, judged_and_lost

_LONGEST_GAP_NS = 60_000_000_000  # the kernel's 16-bit counts of probes can wrap in a longer time

Counts = NDArray[np.int64]


class FabricCollector(Collector):
    """Collects the sums of a daemon's EVs.

    The kernel keeps 16-bit counts of the judged probes. The growth between two scrapes is added here.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._lock = threading.Lock()  # scrapes run in worker threads
        self._probes: _Probes | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        daemon = self._daemon
        plan, tables = daemon.plan, daemon.tables
        rows = np.array([p.host.id for p in plan.peers], np.int64)
        used = slice(0, len(plan.interfaces) * plan.config.cluster.evs_per_plane)
        path_stats, evs = Columns(tables.path_stats, rows, used), Columns(tables.evs, rows, used)
        judged, lost = judged_and_lost(path_stats)
        with self._lock:
            if self._probes is None or not self._probes.is_of(plan):
                self._probes = _Probes(plan, evs["probe_seq"])
            probes_sent, probes_arrived = self._probes.add(path_stats, time.monotonic_ns())
        sent = judged.astype(np.int64) + probes_sent
        arrived = (judged - lost).astype(np.int64) + probes_arrived
        info = InfoMetricFamily("mrc_fabric_host", "This host's name and T0.")
        info.add_metric([], {"host": plan.host.name, "t0": str(plan.host.t0)})
        yield info
        yield from _families(plan, sent, arrived)


class _Probes:
    """Judged probes of each EV, and those of them that arrived.

    The counts begin with the probes that the kernel has sent so far, so that they do not fall when the daemon restarts.
    """

    def __init__(self, plan: Plan, probes_sent: NDArray[np.uint32]) -> None:
        self._plan = plan
        self._sent = probes_sent.astype(np.uint32)
        self._arrived = self._sent.copy()
        self._before: tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint32]] | None = None
        self._read_ns = 0

    def is_of(self, plan: Plan) -> bool:
        """Return whether the EVs are those of this plan."""
        return self._plan is plan

    def add(self, path_stats: Columns, now_ns: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Add what was judged since the last time. Return the sent probes and those that arrived, (peers, EVs)."""
        arrived, missed, generation = (path_stats[name] for name in ("rx_probes", "missed", "generation"))
        if self._before is not None and now_ns - self._read_ns < _LONGEST_GAP_NS:
            same = generation == self._before[2]
            grown = np.where(same, arrived - self._before[0], 0)
            # A probe that arrives late is not missed any more.
            lost = np.where(same, (missed - self._before[1]).view(np.int16), 0)
            self._arrived += grown
            self._sent += np.maximum(grown.astype(np.int32) + lost, 0).astype(np.uint32)
        self._before, self._read_ns = (arrived, missed, generation), now_ns
        return self._sent, np.minimum(self._arrived, self._sent)


def _families(plan: Plan, sent: Counts, arrived: Counts) -> Iterator[Metric]:
    """Yield the three sums of EVs (peers, EVs)."""
    cluster, planes = plan.config.cluster, len(plan.interfaces)
    t1s = plan.paths.t1s
    plane_of_ev = np.arange(t1s.shape[1]) // cluster.evs_per_plane
    has_t1 = t1s >= 0
    uplink_of_ev = (plane_of_ev * cluster.t1s + t1s)[has_t1]
    t0_of_peer = np.array([p.host.t0 for p in plan.peers], np.int64)
    t0s = np.unique(t0_of_peer)
    place_of_peer = np.searchsorted(t0s, t0_of_peer)

    def by_uplink(values: Counts) -> Counts:
        size = planes * cluster.t1s
        return np.bincount(uplink_of_ev, values[has_t1], size).reshape(planes, -1).astype(np.int64)

    def by_t0(values: Counts) -> Counts:
        found = np.zeros((len(t0s), planes), np.int64)
        np.add.at(found, place_of_peer, values.reshape(len(values), planes, -1).sum(axis=2))
        return found.T

    for way, values in (("tx", sent), ("rx", arrived)):
        words = "judged: arrived or lost" if way == "tx" else "that arrived"
        uplinks = CounterMetricFamily(
            f"mrc_fabric_uplink_{way}_packets", f"Packets by the T0's link to the T1, {words}.", labels=["plane", "t1"]
        )
        for plane, row in enumerate(by_uplink(values).tolist() if has_t1.any() else []):
            for t1, count in enumerate(row):
                uplinks.add_metric([str(plane), str(t1)], count)
        yield uplinks
        by_peer_t0 = CounterMetricFamily(
            f"mrc_fabric_t0_{way}_packets", f"Packets to hosts under the T0, {words}.", labels=["plane", "peer_t0"]
        )
        for plane, row in enumerate(by_t0(values).tolist()):
            for t0, count in zip(t0s.tolist(), row, strict=True):
                by_peer_t0.add_metric([str(plane), str(t0)], count)
        yield by_peer_t0
        peers = CounterMetricFamily(
            f"mrc_fabric_peer_{way}_packets", f"Packets to the peer, {words}.", labels=["peer", "peer_t0"]
        )
        for peer, count in zip(plan.peers, values.sum(axis=1).tolist(), strict=True):
            peers.add_metric([peer.host.name, str(peer.host.t0)], count)
        yield peers
