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
from prometheus_client.core import InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mrcd.api.metrics.collector import Series, counter
from mrcd.daemon.daemon import Daemon
from mrcd.health.snapshot import Columns, Snapshot

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
        plan = self._daemon.plan
        s = Snapshot(self._daemon.tables, plan)
        with self._lock:
            if self._counts is None or self._counts.plan is not plan:
                self._counts = _Counts(s)
            sent, arrived = self._counts.add(s, time.monotonic_ns())
        values = {"host": plan.host.name, "t0": str(plan.host.t0), "rails": str(plan.config.cluster.rails)}
        yield InfoMetricFamily("mrc_fabric_host", "This host's name and T0, and the rails of the cluster.", values)
        yield from _families(s, sent, arrived)


class _Counts:
    """Judged packets of each EV, and those of them that arrived, since the first scrape with this plan.

    So all sums begin at 0 with the daemon and with each plan, and Prometheus sees that each of them was reset. With
    older packets they would fall by those of a peer that leaves the cluster: Prometheus would count all that was lost
    before once more, or, of a dead peer, see a reset of the sent packets only.

    The kernel keeps 16-bit counts of the judged probes. Their growth between two scrapes is added here.
    """

    def __init__(self, s: Snapshot) -> None:
        self.plan = s.plan
        self._first = _data(s)
        self._judged, self._arrived, self._probes_sent, self._probes_arrived = (
            np.zeros(self._first[0].shape, np.int64) for _ in range(4)
        )
        self._before: tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint32]] | None = None
        self._read_ns = 0

    def add(self, s: Snapshot, now_ns: int) -> tuple[Counts, Counts]:
        """Add what was judged since the last time. Return the judged packets and those that arrived, (peers, EVs)."""
        judged, arrived = (now - first for now, first in zip(_data(s), self._first, strict=True))
        # The programs write meanwhile, so a packet can be judged before it is known to be lost. No count may fall.
        self._judged = np.maximum(self._judged, judged)
        self._arrived = np.minimum(np.maximum(self._arrived, arrived), self._judged)
        self._add_probes(s.path_stats, now_ns)
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


def _data(s: Snapshot) -> tuple[Counts, Counts]:
    """Return the data packets that were ever judged, and those of them that arrived."""
    judged, lost = s.judged_and_lost
    return judged.astype(np.int64), (judged - lost).astype(np.int64)


def _families(s: Snapshot, sent: Counts, arrived: Counts) -> Iterator[Metric]:
    """Yield the three sums of EVs (peers, EVs)."""
    t1s, peers = s.plan.config.cluster.t1s, s.plan.peers
    t1_of_ev = s.plan.paths.t1s
    plane_of_ev = np.arange(t1_of_ev.shape[1]) // (t1_of_ev.shape[1] // s.planes)
    has_t1 = t1_of_ev >= 0
    uplink_of_ev = (plane_of_ev * t1s + t1_of_ev)[has_t1]
    t0s, place_of_peer = np.unique(np.array([p.host.t0 for p in peers], np.int64), return_inverse=True)
    uplinks = [(str(plane), str(t1)) for plane in range(s.planes) for t1 in range(t1s)] if has_t1.any() else []
    for way, values in (("tx", sent), ("rx", arrived)):
        words = "judged: arrived or lost" if way == "tx" else "that arrived"
        by_uplink = np.bincount(uplink_of_ev, values[has_t1], len(uplinks)).astype(np.int64).tolist()
        text = f"Packets by the T0's link to the T1, {words}."
        series: Series = zip(uplinks, by_uplink, strict=False)  # no uplink: no series
        yield counter(f"mrc_fabric_uplink_{way}_packets", text, ["plane", "t1"], series)
        by_t0 = np.zeros((s.planes, len(t0s)), np.int64)
        np.add.at(by_t0.T, place_of_peer, s.per_plane(values).astype(np.int64))
        text = f"Packets to hosts under the T0, {words}."
        series = (([str(plane), str(t0s[i])], int(n)) for (plane, i), n in np.ndenumerate(by_t0))
        yield counter(f"mrc_fabric_t0_{way}_packets", text, ["plane", "peer_t0"], series)
        text, by_peer = f"Packets to the peer, {words}.", values.sum(axis=1).tolist()
        series = (([p.host.name, str(p.host.t0)], n) for p, n in zip(peers, by_peer, strict=True))
        yield counter(f"mrc_fabric_peer_{way}_packets", text, ["peer", "peer_t0"], series)
