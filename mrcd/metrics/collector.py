"""Prometheus metrics, read from the tables at scrape time: counters live in the kernel.

What grows with peers × planes are two families alone; the others grow with the peers or with the planes. EVs have
series while they are not GOOD, and no more than MOST_EV_SERIES of them; or all of them, if the configuration asks.
"""

import time
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mrcd import __version__
from mrcd.daemon.daemon import Daemon
from mrcd.tables import histograms
from mrcd.tables.abi import ABI_VERSION, EvState, Reason
from mrcd.tables.columns import Columns, ev_bits, medians, settled
from mrcd.tables.pinned import is_detached
from mrcd.view.documents import unreachable_ns

MOST_EV_SERIES = 350

_FLAPPING = 3
_WORST_FIRST = (EvState.ASSUMED_BAD, EvState.DENIED, EvState.SKIP, EvState.UNKNOWN)


class TablesCollector(Collector):
    """One scrape is one pass over the tables."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def collect(self) -> Iterator[Metric]:
        """Yield every family once."""
        paths = Paths(self._daemon)
        yield from self._build()
        yield from paths.traffic()
        yield from paths.health()
        yield from self._peers(paths)
        yield from self._planes()
        yield from self._histograms()
        yield from self._host()
        yield from self._ticks()
        yield from paths.not_good()
        if self._daemon.plan.config.metrics.per_ev:
            yield from paths.each()

    def _build(self) -> Iterator[Metric]:
        cluster = self._daemon.plan.config.cluster
        info = InfoMetricFamily("mrc_build", "Version and mode of mrcd on this host.")
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

    def _peers(self, paths: "Paths") -> Iterator[Metric]:
        records = self._daemon.tables.peers[paths.rows]
        heard, now = records["heard_ns"].astype(np.int64), time.monotonic_ns()
        yield paths.by_peer(
            GaugeMetricFamily("mrc_peer_reachable", "1 if the peer was heard lately.", labels=["peer"]),
            (heard > 0) & (now - heard < unreachable_ns(self._daemon.plan)),
        )
        yield paths.by_peer(
            GaugeMetricFamily("mrc_ev_min_active", "Never fewer usable EVs than this: the floor.", labels=["peer"]),
            records["floor"],
        )
        yield paths.by_peer(
            CounterMetricFamily("mrc_dup_acks", "Acknowledgements that went to the peer twice.", labels=["peer"]),
            records["dup_acks"],
        )

    def _planes(self) -> Iterator[Metric]:
        daemon = self._daemon
        planes = range(len(daemon.plan.interfaces))
        up = GaugeMetricFamily("mrc_plane_up", "1 if this host's link on the plane works.", labels=["plane"])
        for plane in planes:
            up.add_metric([str(plane)], int(daemon.tables.node["plane_mask"]) >> plane & 1)
        yield up
        hooks = {h["plane"]: h for h in daemon.programs.hooks if "plane" in h}
        info = InfoMetricFamily("mrc_hook", "Where packets are received on a plane.", labels=["plane"])
        fallback = GaugeMetricFamily(
            "mrc_hook_fallback",
            "1 if packets are received by a slower hook than the NIC might offer.",
            labels=["plane"],
        )
        for plane in planes:
            hook = hooks.get(plane)
            name = str(hook["hook"]) if hook else "none"
            info.add_metric([str(plane)], {"interface": daemon.plan.interfaces[plane], "hook": name})
            fallback.add_metric([str(plane)], float(bool(hook and hook.get("fallback"))))
        yield info
        yield fallback

    def _histograms(self) -> Iterator[Metric]:
        """The kernel's, at powers of two. Sums are estimates from the buckets."""
        made = {
            name: HistogramMetricFamily(metric, text, labels=["plane"] if name == "rtt" else [])
            for name, (metric, text, _) in _HISTOGRAMS.items()
        }
        counts = self._daemon.tables.histograms()
        for index, name, unit, plane in histograms.each(len(self._daemon.plan.interfaces)):
            mine, scale = counts[index], 1e9 if unit == "ns" else 1
            # A bucket includes its bound; times are so fine that one more nanosecond does not matter.
            bounds = [(2**p / 1e9 if unit == "ns" else 2**p - 1, p) for p in _HISTOGRAMS[name][2]]
            buckets = [(str(float(bound)), float(histograms.below(mine, p))) for bound, p in bounds]
            buckets.append(("+Inf", float(mine.sum())))
            labels = [] if plane is None else [str(plane)]
            made[name].add_metric(labels, buckets, histograms.about(mine) / scale)
        yield from made.values()

    def _ticks(self) -> Iterator[Metric]:
        """Yields how long the daemon's ticks take."""
        ticks, text = self._daemon.monitor.ticks, "The daemon ran the programs' tick, and checked losses and peers."
        buckets = [(str(bound), float(count)) for bound, count in ticks.cumulative()]
        yield HistogramMetricFamily("mrc_tick_seconds", text, buckets=buckets, sum_value=ticks.sum_s)
        yield GaugeMetricFamily("mrc_tick_longest_seconds", f"The longest. {text}", value=ticks.longest_s)

    def _host(self) -> Iterator[Metric]:
        daemon, tables = self._daemon, self._daemon.tables
        drops = CounterMetricFamily("mrc_drops", "Packets that the programs dropped, by reason.", labels=["reason"])
        for reason, count in tables.drops().items():
            drops.add_metric([reason], count)
        yield drops
        unsent = CounterMetricFamily(
            "mrc_plane_unsent_packets",
            "Data packets that a queueing discipline of this host dropped.",
            labels=["plane"],
        )
        for plane, count in enumerate(tables.unsent_packets()[: daemon.plan.config.cluster.planes]):
            unsent.add_metric([str(plane)], count)
        yield unsent
        changes = tables.transitions()
        transitions = CounterMetricFamily(
            "mrc_ev_transitions", "Changes of EVs' states but for SKIP, by what they became.", labels=["to", "reason"]
        )
        for state in EvState:
            for why in Reason:
                count = int(changes[state, why]["count"])
                if count or (state, why) in _USUAL:
                    transitions.add_metric([state.name, why.text], count)
        yield transitions
        yield CounterMetricFamily(
            "mrc_events_lost", "Of these, changes that were not told: the ring buffer was full.",
            value=float(changes["untold"].sum()),
        )  # fmt: skip
        attached = not is_detached(tables.node)
        yield GaugeMetricFamily("mrc_attached", "1 if this host sprays.", value=float(attached))
        started = time.time() - (time.monotonic() - daemon.started)
        yield GaugeMetricFamily("mrc_start_time_seconds", "When the daemon started, Unix time.", value=started)


class Paths:
    """The EVs of all peers at one moment, as arrays: (peers, EVs), or (peers, planes, EVs of a plane)."""

    def __init__(self, daemon: Daemon) -> None:
        plan, tables = daemon.plan, daemon.tables
        self._names = [p.host.name for p in plan.peers]
        self.rows = np.array([p.host.id for p in plan.peers], np.int64)
        self._planes, self._width = len(plan.interfaces), plan.config.cluster.evs_per_plane
        self._forget_ns = plan.config.health.hold_down_max_ms * 1_000_000
        used = slice(0, self._planes * self._width)
        self._usable = tables.peers["usable"][self.rows]
        self._evs = Columns(tables.evs, self.rows, used)
        self._ledgers = Columns(tables.path_stats, self.rows, used)
        self._rxs = Columns(tables.rxs, self.rows, used)
        self._judged, lost = settled(self._ledgers)
        self._arrived = self._judged - lost
        self._configured = self._evs["configured"] != 0

    def by_peer(self, family: Metric, values: NDArray[np.generic]) -> Metric:
        """Add a value per peer, (peers,)."""
        for name, value in zip(self._names, values.tolist(), strict=True):
            family.add_metric([name], float(value))  # type: ignore[attr-defined]
        return family

    def _by_plane(self, family: Metric, values: NDArray[np.generic]) -> Metric:
        """Add a value per plane, (planes,)."""
        for plane, value in enumerate(values.tolist()):
            family.add_metric([str(plane)], float(value))  # type: ignore[attr-defined]
        return family

    def _by_both(self, family: Metric, values: NDArray[np.generic]) -> Metric:
        """Add a value per peer and plane, (peers, planes)."""
        for name, row in zip(self._names, values.tolist(), strict=True):
            for plane, value in enumerate(row):
                family.add_metric([name, str(plane)], float(value))  # type: ignore[attr-defined]
        return family

    def _per_plane(self, values: NDArray[np.generic]) -> NDArray[np.uint64]:
        """(peers, EVs) → sums (peers, planes)."""
        split = values.reshape(len(self.rows), self._planes, self._width)
        return np.asarray(split.sum(axis=2, dtype=np.uint64))

    def traffic(self) -> Iterator[Metric]:
        """Counters of packets."""
        evs, path_stats, rxs = self._evs, self._ledgers, self._rxs
        yield self._by_both(
            CounterMetricFamily("mrc_tx_packets", "Data packets put on the plane.", labels=["peer", "plane"]),
            self._per_plane(evs["tx_packets"]),
        )
        for name, text, values in (
            ("mrc_tx_bytes", "Inner bytes sent to the peer.", evs["tx_bytes"]),
            ("mrc_rx_packets", "Data packets received from the peer.", rxs["packets"]),
            ("mrc_rx_bytes", "Inner bytes received from the peer.", rxs["bytes"]),
            ("mrc_settled_tx_packets", "Data packets sent to the peer and judged.", self._judged),
            ("mrc_settled_rx_packets", "Of the judged, data packets that the peer received.", self._arrived),
            ("mrc_peer_ce_packets", "CE marks that the peer saw.", path_stats["rx_ce"]),
            ("mrc_probes_sent", "Probe requests sent.", evs["probe_seq"]),
            ("mrc_probe_replies", "Probe replies received.", path_stats["replies"]),
            ("mrc_ev_skips", "Changes of EVs to SKIP.", path_stats["skips"]),
        ):
            yield self.by_peer(CounterMetricFamily(name, text, labels=["peer"]), values.sum(axis=1, dtype=np.uint64))
        for name, text, values in (
            ("mrc_plane_settled_tx_packets", "Data packets put on the plane and judged.", self._judged),
            ("mrc_plane_settled_rx_packets", "Of the judged, data packets that peers received.", self._arrived),
        ):
            sums = self._per_plane(values).sum(axis=0)
            yield self._by_plane(CounterMetricFamily(name, text, labels=["plane"]), sums)

    def health(self) -> Iterator[Metric]:
        """What the EVs are like."""
        states = GaugeMetricFamily("mrc_evs", "EVs by state.", labels=["peer", "state"])
        for state in EvState:
            counts = (self._configured & (self._evs["state"] == state)).sum(axis=1)
            for name, count in zip(self._names, counts.tolist(), strict=True):
                states.add_metric([name, state.name], float(count))
        yield states
        # One fall is forgotten for each period of being well; the table is brought up to date by the next fall.
        idle = time.monotonic_ns() - self._evs["state_since_ns"].astype(np.int64)
        well = np.where(self._evs["state"] == EvState.ASSUMED_BAD, 0, idle // self._forget_ns)
        falls = np.where(self._configured, self._evs["flaps"].astype(np.int64) - well, 0)
        yield GaugeMetricFamily(
            "mrc_evs_flapping",
            f"EVs with {_FLAPPING} falls or more that are not forgotten.",
            value=float((falls >= _FLAPPING).sum()),
        )
        bits = ev_bits(self._usable)[:, : self._planes * self._width]
        usable = GaugeMetricFamily("mrc_usable_evs", "EVs that carry traffic.", labels=["peer", "plane"])
        in_planes = bits.reshape(len(self.rows), self._planes, self._width)
        yield self._by_both(usable, in_planes.sum(axis=2, dtype=np.uint64))
        median = GaugeMetricFamily(
            "mrc_peer_rtt_seconds", "Median over the EVs' smoothed round trips; NaN: none yet.", labels=["peer"]
        )
        answered = self._configured & (self._ledgers["replies"] > 0)
        yield self.by_peer(median, medians(self._ledgers["rtt_ns"], answered) / 1e9)

    def not_good(self) -> Iterator[Metric]:
        """A series for each EV that is not GOOD, the worst first while there is room."""
        family = GaugeMetricFamily(
            "mrc_ev_state_timestamp_seconds",
            "Since when an EV that is not GOOD is what it is, Unix time; NaN: not known.",
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
            why = Reason(int(record["skip_reason" if state is EvState.SKIP else "reason"]))
            since = int(self._ledgers.record(row, ev)["lag_ns"] if state is EvState.SKIP else record["state_since_ns"])
            labels = [self._names[row], str(int(record["plane"])), str(ev), state.name, why.text]
            family.add_metric(labels, since / 1e9 + offset if since else float("nan"))
        yield family
        yield GaugeMetricFamily(
            "mrc_ev_series_omitted",
            "EVs that are not GOOD and have no series, for want of room.",
            value=float(count - len(found)),
        )

    def each(self) -> Iterator[Metric]:
        """Series for every EV."""
        labels = ["peer", "plane", "ev"]
        tx = CounterMetricFamily("mrc_ev_tx_packets", "Data packets put on the EV.", labels=labels)
        settled = CounterMetricFamily("mrc_ev_settled_tx_packets", "Of these, judged.", labels=labels)
        arrived = CounterMetricFamily("mrc_ev_settled_rx_packets", "Of the judged, received.", labels=labels)
        rtt = GaugeMetricFamily("mrc_ev_rtt_seconds", "Smoothed round trip of the EV's probes.", labels=labels)
        values: Iterable[tuple[CounterMetricFamily | GaugeMetricFamily, NDArray[np.generic]]] = (
            (tx, self._evs["tx_packets"]),
            (settled, self._judged),
            (arrived, self._arrived),
            (rtt, self._ledgers["rtt_ns"] / 1e9),
        )
        for row, ev in np.argwhere(self._configured).tolist():
            at = [self._names[row], str(int(self._evs.record(row, ev)["plane"])), str(ev)]
            for family, of in values:
                family.add_metric(at, float(of[row, ev]))
        yield from (tx, settled, arrived, rtt)


_HISTOGRAMS = {
    "detection": (
        "mrc_detection_seconds", "From the last packet known to have arrived on an EV to ASSUMED_BAD.", range(14, 38),
    ),
    "after_good": ("mrc_packets_after_good", "Data packets put on an EV in that time.", range(25)),
    "reinstatement": ("mrc_reinstatement_seconds", "From ASSUMED_BAD to GOOD.", range(28, 44)),
    "rtt": ("mrc_rtt_seconds", "Round trips of probes.", range(10, 35)),
}  # fmt: skip
"""Name, help and bounds (powers of two, of nanoseconds or packets) of the programs' histograms."""

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
"""Series that exist from the start, at 0: a rate over a series that appears misses its first step."""
