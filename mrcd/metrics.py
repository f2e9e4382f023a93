"""Prometheus metrics, read from the tables at scrape time: counters live in the kernel."""

import time
from collections.abc import Iterator

import numpy as np
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mrcd import __version__, histograms
from mrcd.abi import ABI_VERSION, STATUS_DETACHED, EvState, Reason
from mrcd.daemon import Daemon
from mrcd.view import UNREACHABLE_NS, lost_packets


class TablesCollector(Collector):
    """One scrape is one pass over the tables. Labels are bounded by peers × planes."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def describe(self) -> list[Metric]:
        """Nothing is known before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every family once."""
        yield from self._build()
        yield from self._per_peer_and_plane()
        yield from self._histograms()
        yield from self._host()

    def _build(self) -> Iterator[Metric]:
        cluster = self._daemon.plan.config.cluster
        info = InfoMetricFamily("mrc_build", "Version and mode of mrcd on this host.")
        info.add_metric(
            [],
            {
                "version": __version__,
                "abi": str(ABI_VERSION),
                "host": self._daemon.plan.host.name,
                "steering": cluster.steering,
                "granularity": cluster.granularity,
            },
        )
        yield info

    def _per_peer_and_plane(self) -> Iterator[Metric]:
        labels = ["peer", "plane"]
        counters = {
            "tx_packets": CounterMetricFamily("mrc_tx_packets", "Data packets put on the plane.", labels=labels),
            "tx_bytes": CounterMetricFamily("mrc_tx_bytes", "Inner bytes put on the plane.", labels=labels),
            "probe_seq": CounterMetricFamily("mrc_probes_sent", "Probe requests sent.", labels=labels),
            "skips": CounterMetricFamily("mrc_ev_skips", "Changes of EVs to SKIP.", labels=labels),
        }
        reported = {
            "judged": CounterMetricFamily("mrc_settled_tx_packets", "Data packets sent and judged.", labels=labels),
            "rx_ce": CounterMetricFamily("mrc_peer_ce_packets", "CE marks that the peer saw.", labels=labels),
            "replies": CounterMetricFamily("mrc_probe_replies", "Probe replies received.", labels=labels),
        }
        arrived = CounterMetricFamily(
            "mrc_settled_rx_packets", "Of the judged, data packets that the peer received.", labels=labels
        )
        received = CounterMetricFamily("mrc_rx_packets", "Data packets received from the peer.", labels=labels)
        received_bytes = CounterMetricFamily("mrc_rx_bytes", "Inner bytes received from the peer.", labels=labels)
        states = GaugeMetricFamily("mrc_evs", "EVs by state.", labels=[*labels, "state"])
        usable = GaugeMetricFamily("mrc_usable_evs", "EVs that carry traffic.", labels=labels)
        median = GaugeMetricFamily("mrc_ev_rtt_seconds", "Median over the EVs' smoothed round trips.", labels=labels)
        tables, width = self._daemon.tables, self._daemon.plan.config.cluster.evs_per_plane
        for peer in self._daemon.plan.peers:
            row = peer.host.id
            evs, ledgers, rxs = tables.evs[row].copy(), tables.ledgers[row].copy(), tables.rxs[row].copy()
            words = tables.peers[row]["usable"]
            for plane in range(len(self._daemon.plan.interfaces)):
                at = [peer.host.name, str(plane)]
                slots = slice(plane * width, (plane + 1) * width)
                for field, family in counters.items():
                    family.add_metric(at, float(evs[slots][field].sum(dtype=np.uint64)))
                for field, family in reported.items():
                    family.add_metric(at, float(ledgers[slots][field].sum(dtype=np.uint64)))
                settled = ledgers[slots]["judged"] - lost_packets(ledgers[slots])
                arrived.add_metric(at, float(settled.sum(dtype=np.uint64)))
                received.add_metric(at, float(rxs[slots]["packets"].sum()))
                received_bytes.add_metric(at, float(rxs[slots]["bytes"].sum()))
                configured = evs[slots]["configured"] != 0
                for state in EvState:
                    states.add_metric([*at, state.name], float((evs[slots]["state"][configured] == state).sum()))
                usable.add_metric(at, float(sum(int(w).bit_count() for w in words[plane])))
                rtts = ledgers[slots]["rtt_ns"][configured & (ledgers[slots]["replies"] > 0)]
                median.add_metric(at, float(np.median(rtts)) / 1e9 if len(rtts) else float("nan"))
        yield from (*counters.values(), *reported.values(), arrived)
        yield from (received, received_bytes, states, usable, median)

    def _histograms(self) -> Iterator[Metric]:
        """The kernel's, at powers of two. Sums are estimates from the buckets."""
        families = {
            "detection": (_DETECTION, range(14, 38)),
            "after_good": (_AFTER_GOOD, range(25)),
            "rtt": (_RTT, range(10, 35)),
        }
        made = {
            name: HistogramMetricFamily(metric, text, labels=["plane"] if name == "rtt" else [])
            for name, ((metric, text), _) in families.items()
        }
        counts = self._daemon.tables.histograms()
        for index, name, unit, plane in histograms.each(len(self._daemon.plan.interfaces)):
            mine, scale = counts[index], 1e9 if unit == "ns" else 1
            # A bucket includes its bound; times are so fine that one more nanosecond does not matter.
            bounds = [(2**p / 1e9 if unit == "ns" else 2**p - 1, p) for p in families[name][1]]
            buckets = [(str(float(bound)), float(histograms.below(mine, p))) for bound, p in bounds]
            buckets.append(("+Inf", float(mine.sum())))
            labels = [] if plane is None else [str(plane)]
            made[name].add_metric(labels, buckets, histograms.about(mine) / scale)
        yield from made.values()

    def _host(self) -> Iterator[Metric]:
        daemon, tables = self._daemon, self._daemon.tables
        drops = CounterMetricFamily("mrc_drops", "Packets that the programs dropped, by reason.", labels=["reason"])
        for reason, count in tables.drops().items():
            drops.add_metric([reason], count)
        yield drops
        transitions = CounterMetricFamily(
            "mrc_ev_transitions", "EV transitions since the daemon started.", labels=["to", "reason"]
        )
        for state in EvState:
            for why in Reason:
                count = daemon.monitor.transitions.get((state, why), 0)
                if count or (state, why) in _USUAL:
                    transitions.add_metric([state.name, why.text], count)
        yield transitions
        yield CounterMetricFamily(
            "mrc_events_lost", "EVs whose transition was not told: the ring buffer was full.",
            value=daemon.monitor.lost_events,
        )  # fmt: skip
        up = GaugeMetricFamily("mrc_plane_up", "1 if this host's link on the plane works.", labels=["plane"])
        for plane in range(len(daemon.plan.interfaces)):
            up.add_metric([str(plane)], int(tables.node["ports"]) >> plane & 1)
        yield up
        now = time.monotonic_ns()
        reachable = GaugeMetricFamily("mrc_peer_reachable", "1 if the peer was heard lately.", labels=["peer"])
        for peer in daemon.plan.peers:
            heard = int(tables.peers[peer.host.id]["heard_ns"])
            reachable.add_metric([peer.host.name], float(bool(heard) and now - heard < UNREACHABLE_NS))
        yield reachable
        attached = not int(tables.node["status"]) & STATUS_DETACHED
        yield GaugeMetricFamily("mrc_attached", "1 if this host sprays.", value=float(attached))
        started = time.time() - (time.monotonic() - daemon.started)
        yield GaugeMetricFamily("mrc_start_time_seconds", "When the daemon started, Unix time.", value=started)


_DETECTION = "mrc_detection_seconds", "From the last packet known to have arrived on an EV to ASSUMED_BAD."
_AFTER_GOOD = "mrc_packets_after_good", "Data packets put on an EV in that time."
_RTT = "mrc_rtt_seconds", "Round trips of probes."

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
