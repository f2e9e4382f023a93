# SPDX-License-Identifier: BSD-2-Clause
"""Reads Prometheus metrics from the tables at scrape time; the counters live in the kernel.

Two families have peers × planes series; the others have a series per peer or per plane. An EV has a series of its own
while it is not GOOD, for at most MOST_EV_SERIES EVs. So has each of at most MOST_FAULT_SERIES faults, and each of some
bad links (link_probes.py). With [metrics] per_ev every EV has its own series.
"""

import time
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mrcd import __version__
from mrcd.api.metrics import link_probes
from mrcd.daemon.daemon import Daemon
from mrcd.kernel import histograms
from mrcd.kernel.abi import ABI_VERSION
from mrcd.kernel.columns import Columns, ev_bits, has_round_trip, judged_and_lost, medians
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.pinned import is_detached

MOST_EV_SERIES = 220
MOST_FAULT_SERIES = 32

_FLAPPING = 3  # flaps
_WORST_FIRST = (EvState.ASSUMED_BAD, EvState.DENIED, EvState.SKIP, EvState.UNKNOWN)


class TablesCollector(Collector):
    """Collects all metrics of a daemon in one pass over its tables."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        paths = EvMetrics(self._daemon)
        yield from self._build()
        yield from paths.traffic()
        yield from paths.health()
        yield from self._peers(paths)
        yield from self._planes()
        yield from link_probes.families(self._daemon.view.links())
        yield self._faults()
        yield from self._histograms()
        yield from self._host()
        yield from self._ticks()
        yield from paths.not_good()
        if self._daemon.plan.config.metrics.per_ev:
            yield from paths.each()

    def _build(self) -> Iterator[Metric]:
        cluster = self._daemon.plan.config.cluster
        info = InfoMetricFamily("mrc_build", "Version, encapsulation and granularity of mrcd on this host.")
        info.add_metric(
            [],
            {
                "version": __version__,
                "abi": str(ABI_VERSION),
                "host": self._daemon.plan.host.name,
                "encapsulation": cluster.encapsulation,
                "granularity": cluster.granularity,
            },
        )
        yield info

    def _peers(self, paths: "EvMetrics") -> Iterator[Metric]:
        records = self._daemon.tables.peers[paths.rows]
        yield paths.by_peer(
            GaugeMetricFamily(
                "mrc_peer_reachable",
                "1 if a packet from the peer arrived in the last 3 s (with many peers: longer).",
                labels=["peer"],
            ),
            self._daemon.view.reachable(records["heard_ns"]),
        )
        yield paths.by_peer(
            GaugeMetricFamily(
                "mrc_ev_min_active", "The floor: while fewer EVs are good, others stay usable too.", labels=["peer"]
            ),
            records["floor"],
        )
        yield paths.by_peer(
            CounterMetricFamily("mrc_dup_acks", "TCP ACKs sent to the peer on a second path too.", labels=["peer"]),
            records["dup_acks"],
        )
        refused = CounterMetricFamily(
            "mrc_peer_refused_packets",
            "Packets of the peer refused for their inner addresses; only peers that have sent some.",
            labels=["peer"],
        )
        for peer, count in zip(self._daemon.plan.peers, records["refused"].tolist(), strict=True):
            if count:
                refused.add_metric([peer.host.name], count)
        yield refused
        yield from self._authentication(paths)

    def _authentication(self, paths: "EvMetrics") -> Iterator[Metric]:
        """Yield the mode of authentication, and the untagged packets of peers that have sent any."""
        info = InfoMetricFamily("mrc_auth_mode", "Whether packets are authenticated: off, permissive or required.")
        info.add_metric([], {"mode": self._daemon.plan.config.auth.mode})
        yield info
        counts = self._daemon.tables.auths["untagged"][paths.rows]
        untagged = CounterMetricFamily(
            "mrc_untagged_packets", "Packets accepted from the peer without a tag.", labels=["peer"]
        )
        for peer, count in zip(self._daemon.plan.peers, counts.tolist(), strict=True):
            if count:
                untagged.add_metric([peer.host.name], count)
        yield untagged

    def _planes(self) -> Iterator[Metric]:
        daemon = self._daemon
        planes = range(len(daemon.plan.interfaces))
        up = GaugeMetricFamily("mrc_plane_up", "1 if the NIC has carrier and its first hop resolves.", labels=["plane"])
        for plane in planes:
            up.add_metric([str(plane)], int(daemon.tables.node["plane_mask"]) >> plane & 1)
        yield up
        hooks = {h["plane"]: h for h in daemon.programs.hooks if "plane" in h}
        info = InfoMetricFamily("mrc_hook", "The hook that receives packets on the plane.", labels=["plane"])
        fallback = GaugeMetricFamily(
            "mrc_hook_fallback",
            "1 if native XDP was refused and a slower hook receives packets.",
            labels=["plane"],
        )
        for plane in planes:
            hook = hooks.get(plane)
            name = str(hook["hook"]) if hook else "none"
            info.add_metric([str(plane)], {"interface": daemon.plan.interfaces[plane], "hook": name})
            fallback.add_metric([str(plane)], float(bool(hook and hook.get("fallback"))))
        yield info
        yield fallback

    def _faults(self) -> Metric:
        """Return a series per cause that the daemon's diagnosis names; the least urgent are summed if they are many."""
        family = GaugeMetricFamily(
            "mrc_fault",
            "What is wrong now, by cause and target: 1, or 1/n for each of n targets that would explain the same.",
            labels=["cause", "target"],
        )
        values: dict[tuple[str, str], float] = {}
        for cause in self._daemon.faults.causes:
            candidates = cause.candidates(self._daemon.plan.host.name)
            for kind, target in candidates:
                key = kind.value, target
                values[key] = max(values.get(key, 0.0), 1 / len(candidates))
        shown = list(values)[: MOST_FAULT_SERIES if len(values) <= MOST_FAULT_SERIES else MOST_FAULT_SERIES - 1]
        for key in shown:
            family.add_metric(key, values.pop(key))
        if values:
            family.add_metric(["others", "others"], len(values))
        return family

    def _histograms(self) -> Iterator[Metric]:
        """Yield the kernel's histograms with powers of two as bounds. Sums are estimated from the buckets."""
        made = {
            name: HistogramMetricFamily(metric, text, labels=["plane"] if name == "rtt" else [])
            for name, (metric, text, _) in _HISTOGRAMS.items()
        }
        counts = self._daemon.tables.histograms()
        for index, name, unit, plane in histograms.histograms_in_use(len(self._daemon.plan.interfaces)):
            mine, scale = counts[index], 1e9 if unit == "ns" else 1
            # Prometheus includes the bound in a bucket and the kernel does not; for times 1 ns does not matter.
            bounds = [(2**p / 1e9 if unit == "ns" else 2**p - 1, p) for p in _HISTOGRAMS[name][2]]
            buckets = [(str(float(bound)), float(histograms.count_below(mine, p))) for bound, p in bounds]
            buckets.append(("+Inf", float(mine.sum())))
            labels = [] if plane is None else [str(plane)]
            made[name].add_metric(labels, buckets, histograms.approximate_sum(mine) / scale)
        yield from made.values()

    def _ticks(self) -> Iterator[Metric]:
        """Yield the durations of the daemon's ticks."""
        ticks = self._daemon.monitor.ticks
        text = "Duration of the daemon's ticks: the programs' tick, then checks of losses and peers."
        buckets = [(str(bound), float(count)) for bound, count in ticks.cumulative()]
        yield HistogramMetricFamily("mrc_tick_seconds", text, buckets=buckets, sum_value=ticks.sum_s)
        yield GaugeMetricFamily("mrc_tick_longest_seconds", "Duration of the longest tick.", value=ticks.longest_s)

    def _host(self) -> Iterator[Metric]:
        daemon, tables = self._daemon, self._daemon.tables
        drops = CounterMetricFamily("mrc_drops", "Packets dropped by the programs, by reason.", labels=["reason"])
        for reason, count in tables.drops().items():
            drops.add_metric([reason], count)
        yield drops
        unsent = CounterMetricFamily(
            "mrc_plane_unsent_packets",
            "Data packets dropped by queueing disciplines of this host.",
            labels=["plane"],
        )
        for plane, count in enumerate(tables.unsent_packets()[: daemon.plan.config.cluster.planes]):
            unsent.add_metric([str(plane)], count)
        yield unsent
        changes = tables.transitions()
        transitions = CounterMetricFamily(
            "mrc_ev_transitions",
            "EV state changes except between GOOD and SKIP.",
            labels=["to", "reason"],
        )
        for state in EvState:
            for why in Reason:
                count = int(changes[state, why]["count"])
                if count or (state, why) in _USUAL:
                    transitions.add_metric([state.name, why.text], count)
        yield transitions
        yield CounterMetricFamily(
            "mrc_events_lost", "State changes without an event, because the ring buffer was full.",
            value=float(changes["lost_events"].sum()),
        )  # fmt: skip
        attached = not is_detached(tables.node)
        yield GaugeMetricFamily("mrc_attached", "1 if the data plane of this host is attached.", value=float(attached))
        started = time.time() - (time.monotonic() - daemon.started)
        yield GaugeMetricFamily("mrc_start_time_seconds", "Start time of the daemon, Unix time.", value=started)


class EvMetrics:
    """Makes metrics from the EVs of all peers at one moment: arrays (peers, EVs) or (peers, planes, EVs of a plane)."""

    def __init__(self, daemon: Daemon) -> None:
        plan, tables = daemon.plan, daemon.tables
        self._names = [p.host.name for p in plan.peers]
        self.rows = np.array([p.host.id for p in plan.peers], np.int64)
        self._planes, self._width = len(plan.interfaces), plan.config.cluster.evs_per_plane
        self._forget_ns = plan.config.health.hold_down_max_ms * 1_000_000
        used = slice(0, self._planes * self._width)
        self._usable = tables.peers["usable"][self.rows]
        self._evs = Columns(tables.evs, self.rows, used)
        self._path_stats = Columns(tables.path_stats, self.rows, used)
        self._rxs = Columns(tables.rxs, self.rows, used)
        self._judged, lost = judged_and_lost(self._path_stats)
        self._arrived = self._judged - lost
        self._configured = self._evs["configured"] != 0

    def by_peer(self, family: Metric, values: NDArray[np.generic]) -> Metric:
        """Add values (peers,) to a family and return it."""
        for name, value in zip(self._names, values.tolist(), strict=True):
            family.add_metric([name], float(value))  # type: ignore[attr-defined]
        return family

    def _by_plane(self, family: Metric, values: NDArray[np.generic]) -> Metric:
        """Add values (planes,) to a family and return it."""
        for plane, value in enumerate(values.tolist()):
            family.add_metric([str(plane)], float(value))  # type: ignore[attr-defined]
        return family

    def _by_both(self, family: Metric, values: NDArray[np.generic]) -> Metric:
        """Add values (peers, planes) to a family and return it."""
        for name, row in zip(self._names, values.tolist(), strict=True):
            for plane, value in enumerate(row):
                family.add_metric([name, str(plane)], float(value))  # type: ignore[attr-defined]
        return family

    def _per_plane(self, values: NDArray[np.generic]) -> NDArray[np.uint64]:
        """Sum values (peers, EVs) to (peers, planes)."""
        split = values.reshape(len(self.rows), self._planes, self._width)
        return np.asarray(split.sum(axis=2, dtype=np.uint64))

    def traffic(self) -> Iterator[Metric]:
        """Yield the packet counters."""
        evs, path_stats, rxs = self._evs, self._path_stats, self._rxs
        yield self._by_both(
            CounterMetricFamily("mrc_tx_packets", "Data packets sent on the plane.", labels=["peer", "plane"]),
            self._per_plane(evs["tx_packets"]),
        )
        for name, text, values in (
            ("mrc_tx_bytes", "Inner bytes sent to the peer.", evs["tx_bytes"]),
            ("mrc_rx_packets", "Data packets received from the peer.", rxs["packets"]),
            ("mrc_rx_bytes", "Inner bytes received from the peer.", rxs["bytes"]),
            ("mrc_judged_tx_packets", "Data packets sent to the peer and judged: arrived or lost.", self._judged),
            ("mrc_judged_rx_packets", "Those of mrc_judged_tx_packets_total that arrived.", self._arrived),
            ("mrc_peer_ce_packets", "Packets with CE marks that the peer received.", path_stats["rx_ce"]),
            ("mrc_probes_sent", "Probe requests sent.", evs["probe_seq"]),
            ("mrc_probe_replies", "Probe replies received.", path_stats["replies"]),
            ("mrc_ev_skips", "Changes of EVs to the state SKIP.", path_stats["skips"]),
        ):
            yield self.by_peer(CounterMetricFamily(name, text, labels=["peer"]), values.sum(axis=1, dtype=np.uint64))
        for name, text, values in (
            (
                "mrc_plane_judged_tx_packets",
                "Data packets sent on the plane and judged: arrived or lost.",
                self._judged,
            ),
            ("mrc_plane_judged_rx_packets", "Those of mrc_plane_judged_tx_packets_total that arrived.", self._arrived),
        ):
            sums = self._per_plane(values).sum(axis=0)
            yield self._by_plane(CounterMetricFamily(name, text, labels=["plane"]), sums)

    def health(self) -> Iterator[Metric]:
        """Yield the states, usable counts and round trips of EVs."""
        states = GaugeMetricFamily("mrc_evs", "Number of EVs by state.", labels=["peer", "state"])
        for state in EvState:
            counts = (self._configured & (self._evs["state"] == state)).sum(axis=1)
            for name, count in zip(self._names, counts.tolist(), strict=True):
                states.add_metric([name, state.name], float(count))
        yield states
        # Each period in good health forgets one flap. The table is updated only at the next flap, so compute it here.
        idle = time.monotonic_ns() - self._evs["state_since_ns"].astype(np.int64)
        well = np.where(self._evs["state"] == EvState.ASSUMED_BAD, 0, idle // self._forget_ns)
        flaps = np.where(self._configured, self._evs["flaps"].astype(np.int64) - well, 0)
        yield GaugeMetricFamily(
            "mrc_evs_flapping",
            f"EVs with at least {_FLAPPING} recent flaps.",
            value=float((flaps >= _FLAPPING).sum()),
        )
        bits = ev_bits(self._usable)[:, : self._planes * self._width]
        usable = GaugeMetricFamily("mrc_usable_evs", "Number of EVs that carry traffic.", labels=["peer", "plane"])
        in_planes = bits.reshape(len(self.rows), self._planes, self._width)
        yield self._by_both(usable, in_planes.sum(axis=2, dtype=np.uint64))
        median = GaugeMetricFamily(
            "mrc_peer_rtt_seconds", "Median of the EVs' smoothed round-trip times; NaN without any.", labels=["peer"]
        )
        measured = self._configured & has_round_trip(self._evs["state"], self._path_stats["replies"])
        yield self.by_peer(median, medians(self._path_stats["rtt_ns"], measured) / 1e9)

    def not_good(self) -> Iterator[Metric]:
        """Yield a series for each EV that is not GOOD, up to MOST_EV_SERIES, the worst states first."""
        family = GaugeMetricFamily(
            "mrc_ev_state_timestamp_seconds",
            "Start of the present state of an EV that is not GOOD, Unix time; NaN if unknown.",
            labels=["peer", "plane", "ev", "state", "reason"],
        )
        offset = time.time() - time.monotonic()
        count, found = 0, list[tuple[int, int, EvState]]()
        for state in _WORST_FIRST:
            which = np.flatnonzero(self._configured & (self._evs["state"] == state))
            count += len(which)
            some = np.divmod(which[: MOST_EV_SERIES - len(found)], self._configured.shape[1])
            found += [(row, ev, state) for row, ev in zip(*(a.tolist() for a in some), strict=True)]
        for row, ev, state in found:
            record = self._evs.record(row, ev)
            reason = Reason(int(record["skip_reason" if state is EvState.SKIP else "reason"]))
            since = int(
                self._path_stats.record(row, ev)["lag_ns"] if state is EvState.SKIP else record["state_since_ns"]
            )
            labels = [self._names[row], str(int(record["plane"])), str(ev), state.name, reason.text]
            family.add_metric(labels, since / 1e9 + offset if since else float("nan"))
        yield family
        yield GaugeMetricFamily(
            "mrc_ev_series_omitted",
            "EVs that are not GOOD and exceed the limit of series.",
            value=float(count - len(found)),
        )

    def each(self) -> Iterator[Metric]:
        """Yield series for every EV."""
        labels = ["peer", "plane", "ev"]
        tx = CounterMetricFamily("mrc_ev_tx_packets", "Data packets sent on the EV.", labels=labels)
        judged = CounterMetricFamily(
            "mrc_ev_judged_tx_packets", "Data packets sent on the EV and judged: arrived or lost.", labels=labels
        )
        arrived = CounterMetricFamily("mrc_ev_judged_rx_packets", "Judged data packets that arrived.", labels=labels)
        rtt = GaugeMetricFamily(
            "mrc_ev_rtt_seconds", "Smoothed round-trip time of the EV's probes; NaN if it has failed.", labels=labels
        )
        measured = has_round_trip(self._evs["state"], self._path_stats["replies"])
        values: Iterable[tuple[CounterMetricFamily | GaugeMetricFamily, NDArray[np.generic]]] = (
            (tx, self._evs["tx_packets"]),
            (judged, self._judged),
            (arrived, self._arrived),
            (rtt, np.where(measured, self._path_stats["rtt_ns"] / 1e9, np.nan)),
        )
        for row, ev in np.argwhere(self._configured).tolist():
            at = [self._names[row], str(int(self._evs.record(row, ev)["plane"])), str(ev)]
            for family, of in values:
                family.add_metric(at, float(of[row, ev]))
        yield from (tx, judged, arrived, rtt)


_HISTOGRAMS = {
    "detection": (
        "mrc_detection_seconds", "Time from the last known arrival on an EV to ASSUMED_BAD.", range(14, 38),
    ),
    "packets_before_detection": (
        "mrc_packets_before_detection",
        "Data packets sent on an EV from its last known arrival to ASSUMED_BAD.",
        range(25),
    ),
    "reinstatement": ("mrc_reinstatement_seconds", "Time from ASSUMED_BAD to GOOD.", range(28, 44)),
    "rtt": ("mrc_rtt_seconds", "Round-trip times of probes.", range(10, 35)),
}  # fmt: skip
"""Metric, help text and bounds (powers of two, in nanoseconds or packets) of the programs' histograms."""

_USUAL = {
    (EvState.ASSUMED_BAD, Reason.OVERDUE),
    (EvState.ASSUMED_BAD, Reason.LOSS),
    (EvState.ASSUMED_BAD, Reason.GREY_LOSS),
    (EvState.ASSUMED_BAD, Reason.ICMP_ERROR),
    (EvState.ASSUMED_BAD, Reason.LINK_DOWN),
    (EvState.ASSUMED_BAD, Reason.PEER_LINK_DOWN),
    (EvState.GOOD, Reason.HEALED),
    (EvState.GOOD, Reason.PROBED),
}
"""Series that exist from the start at 0, because a rate over a new series misses its first increment."""
