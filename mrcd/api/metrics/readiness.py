# SPDX-License-Identifier: BSD-2-Clause
"""Makes the metrics that tell, with few series per host, whether a job may start: `mrcctl fleet check` reads them.

None has a label with a peer's name, so that Prometheus answers for thousands of hosts in one query.
"""

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mrcd.config.cluster_file import fingerprint
from mrcd.daemon.daemon import Daemon
from mrcd.fleet.report import file_part
from mrcd.fleet.source import FileSource
from mrcd.kernel.columns import Columns
from mrcd.kernel.enums import EvState

_IN_USE = (EvState.GOOD, EvState.SKIP)


class ReadinessCollector(Collector):
    """Collects what a host runs, how many of its EVs are in use, and how old its last full sweep is."""

    def __init__(self, daemon: Daemon, source: FileSource) -> None:
        self._daemon, self._source = daemon, source

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        plan, tables = self._daemon.plan, self._daemon.tables
        yield self._config()
        rows = np.array([p.host.id for p in plan.peers], np.int64)
        evs_per_peer = plan.config.cluster.evs_per_peer
        evs, stats = (Columns(t, rows, slice(0, evs_per_peer)) for t in (tables.evs, tables.path_stats))
        configured, is_silent = evs["configured"] != 0, tables.watches["silent"][rows] != 0
        yield GaugeMetricFamily(
            "mrc_evs_in_use_ratio",
            "Ratio of EVs that are GOOD or SKIP, to the median of the peers that answer; NaN if none does.",
            value=in_use_ratio(configured, np.isin(evs["state"], _IN_USE), is_silent),
        )
        probed_ns, now_ns = stats["probe_ns"], time.monotonic_ns()  # the clock last: it is never behind a probe
        has_link = (int(tables.node["plane_mask"]) >> evs["plane"].astype(np.int64)) & 1 != 0
        yield GaugeMetricFamily(
            "mrc_full_sweep_age_seconds",
            "Time in which every EV whose plane is up, to peers that answer, was sent a probe; +Inf if one never was.",
            value=sweep_age_s(probed_ns, configured & has_link & ~is_silent[:, None], now_ns),
        )
        yield GaugeMetricFamily(
            "mrc_full_sweep_seconds",
            "Longest time between two probes of an EV, by the schedule.",
            value=full_sweep_s(
                int(tables.node["idle_us"]), int(tables.node["idle_evs"]), evs_per_peer,
                plan.config.health.probe_backoff_ms,
            ),
        )  # fmt: skip

    def _config(self) -> Metric:
        """Return what must be equal on hosts that work together."""
        plan, file = self._daemon.plan, file_part(self._source)
        info = InfoMetricFamily("mrc_config", "The cluster file and the secrets that this host runs with, and its T0.")
        generation = file["generation"]
        info.add_metric(
            [],
            {
                "t0": str(plan.host.t0),
                "agreed": f"{fingerprint(plan.config.cluster):04x}",
                "sha256": file["sha256"],
                "generation": "" if generation is None else str(generation),
                "key_ids": ",".join(str(i) for i in self._daemon.keyring.ids),
            },
        )
        return info


def in_use_ratio(configured: NDArray[np.bool_], in_use: NDArray[np.bool_], is_silent: NDArray[np.bool_]) -> float:
    """Return the median over peers that answer of their ratio of EVs in use; NaN if no peer answers. Pure.

    Arrays are (peers, EVs) and (peers,). The median leaves out what is wrong with single peers.
    """
    counts = configured.sum(axis=1)
    chosen = (counts > 0) & ~is_silent
    if not chosen.any():
        return float("nan")
    return float(np.median((configured & in_use).sum(axis=1)[chosen] / counts[chosen]))


def sweep_age_s(probed_ns: NDArray[np.uint64], which: NDArray[np.bool_], now_ns: int) -> float:
    """Return the age of the oldest newest probe of these EVs (peers, EVs); NaN if there are none. Pure."""
    if not which.any():
        return float("nan")
    oldest = int(probed_ns[which].min())
    return (now_ns - oldest) / 1e9 if oldest else float("inf")


def full_sweep_s(idle_us: int, idle_evs: int, evs_per_peer: int, backoff_ms: int) -> float:
    """Return the longest time between two probes of an EV that the tick's schedule allows. Pure.

    A sweep of a peer probes `idle_evs` of its EVs in turn (0: all), each `idle_us`. An EV on which nothing arrives is
    probed each `backoff_ms` at the latest (mrcd/health/probe_pace.py, bpf/tick.h).
    """
    sweeps = -(-evs_per_peer // idle_evs) if idle_evs else 1
    return max(sweeps * idle_us / 1e6, backoff_ms / 1e3)
