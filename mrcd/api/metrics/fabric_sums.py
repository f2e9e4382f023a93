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
from mrcd.kernel.columns import Columns, judged_and_lost

# The kernel's 16-bit counts of probes can wrap in a longer time: an EV is probed up to 200 times per second by default.
_LONGEST_GAP_NS = 120_000_000_000

Counts = NDArray[np.int64]


class FabricCollector(Collector):
    """Collects the sums of a daemon's EVs."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._lock = threading.Lock()  # scrapes run in worker threads
        self._counts: _Counts | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        daemon = self._daemon
        plan, tables = daemon.plan, daemon.tables
        rows = np.array([p.host.id for p in plan.peers], np.int64)
        used = slice(0, len(plan.interfaces) * plan.config.cluster.evs_per_plane)
        path_stats = Columns(tables.path_stats, rows, used)
        with self._lock:
            if self._counts is None or not self._counts.is_of(plan):
                self._counts = _Counts(plan, path_stats)
            sent, arrived = self._counts.add(path_stats, time.monotonic_ns())
        info = InfoMetricFamily("mrc_fabric_host", "This host's name and T0.")
        info.add_metric([], {"host": plan.host.name, "t0": str(plan.host.t0)})
        yield info
        yield from _families(plan, sent, arrived)


class _Counts:
    """Judged packets of each EV, and those of them that arrived, since the first scrape with this plan.

    So all sums begin at 0 with the daemon and with each plan, and Prometheus sees that each of them was reset. With
    older packets they would fall by those of a peer that leaves the cluster: Prometheus would count all that was lost
    before once more, or, of a dead peer, see a reset of the sent packets only.

    The kernel keeps 16-bit counts of the judged probes. Their growth between two scrapes is added here.
    """

    def __init__(self, plan: Plan, path_stats: Columns) -> None:
        self._plan = plan
        self._first = _data(path_stats)
        self._judged, self._arrived, self._probes_sent, self._probes_arrived = (
            np.zeros(self._first[0].shape, np.int64) for _ in range(4)
        )
        self._before: tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint32]] | None = None
        self._read_ns = 0

    def is_of(self, plan: Plan) -> bool:
        """Return whether the EVs are those of this plan."""
        return self._plan is plan

    def add(self, path_stats: Columns, now_ns: int) -> tuple[Counts, Counts]:
        """Add what was judged since the last time. Return the judged packets and those that arrived, (peers, EVs)."""
        judged, arrived = (now - first for now, first in zip(_data(path_stats), self._first, strict=True))
        # The programs write meanwhile, so a packet can be judged before it is known to be lost. No count may fall.
        self._judged = np.maximum(self._judged, judged)
        self._arrived = np.minimum(np.maximum(self._arrived, arrived), self._judged)
        self._add_probes(path_stats, now_ns)
        probes_arrived = np.minimum(self._probes_arrived, self._probes_sent)
        return self._judged + self._probes_sent, self._arrived + probes_arrived

    def _add_probes(self, path_stats: Columns, now_ns: int) -> None:
        arrived, missed, generation = (path_stats[name] for name in ("rx_probes", "missed", "generation"))
        if self._before is not None and now_ns - self._read_ns < _LONGEST_GAP_NS:
            same = generation == self._before[2]
            grown = np.where(same, arrived - self._before[0], 0).astype(np.int64)
            # A probe that arrives late is not missed any more.
            lost = np.where(same, (missed - self._before[1]).view(np.int16), 0)
            self._probes_arrived += grown
            self._probes_sent += np.maximum(grown + lost, 0)
        self._before, self._read_ns = (arrived, missed, generation), now_ns


def _data(path_stats: Columns) -> tuple[Counts, Counts]:
    """Return the data packets that were ever judged, and those of them that arrived."""
    judged, lost = judged_and_lost(path_stats)
    return judged.astype(np.int64), (judged - lost).astype(np.int64)


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
        np.add.at(found, place_of_peer, values.reshape(len(values), planes, cluster.evs_per_plane).sum(axis=2))
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
