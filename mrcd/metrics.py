"""Prometheus metrics, read from the tables at scrape time: counters live in the kernel."""

import time
from collections.abc import Iterator

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mrcd import __version__
from mrcd.abi import ABI_VERSION, STATUS_DETACHED, EvState, Reason
from mrcd.daemon import Daemon
from mrcd.view import UNREACHABLE_NS


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
            "settled_tx": CounterMetricFamily(
                "mrc_settled_tx_packets", "Data packets sent up to the newest answered probes.", labels=labels
            ),
            "settled_rx": CounterMetricFamily(
                "mrc_settled_rx_packets", "Of these, data packets that the peer received.", labels=labels
            ),
            "rx_ce": CounterMetricFamily("mrc_peer_ce_packets", "CE marks that the peer saw.", labels=labels),
            "probe_seq": CounterMetricFamily("mrc_probes_sent", "Probe requests sent.", labels=labels),
            "replies": CounterMetricFamily("mrc_probe_replies", "Probe replies received.", labels=labels),
        }
        received = CounterMetricFamily("mrc_rx_packets", "Data packets received from the peer.", labels=labels)
        received_bytes = CounterMetricFamily("mrc_rx_bytes", "Inner bytes received from the peer.", labels=labels)
        states = GaugeMetricFamily("mrc_evs", "EVs by state.", labels=[*labels, "state"])
        usable = GaugeMetricFamily("mrc_usable_evs", "EVs that carry traffic.", labels=labels)
        rtt = GaugeMetricFamily("mrc_rtt_seconds", "Median round trip of the EVs' probes.", labels=labels)
        tables, width = self._daemon.tables, self._daemon.plan.config.cluster.evs_per_plane
        for peer in self._daemon.plan.peers:
            evs, rxs = tables.evs[peer.host.id].copy(), tables.rxs[peer.host.id].copy()
            words = tables.peers[peer.host.id]["usable"]
            for plane in range(len(self._daemon.plan.interfaces)):
                at = [peer.host.name, str(plane)]
                some = evs[plane * width : (plane + 1) * width]
                arrived = rxs[plane * width : (plane + 1) * width]
                for field, family in counters.items():
                    family.add_metric(at, float(some[field].sum(dtype=np.uint64)))
                received.add_metric(at, float(arrived["packets"].sum()))
                received_bytes.add_metric(at, float(arrived["bytes"].sum()))
                configured = some[some["configured"] != 0]
                for state in EvState:
                    states.add_metric([*at, state.name], float((configured["state"] == state).sum()))
                usable.add_metric(at, float(sum(int(w).bit_count() for w in words[plane])))
                rtts = configured["rtt_ns"][configured["replies"] > 0]
                rtt.add_metric(at, float(np.median(rtts)) / 1e9 if len(rtts) else float("nan"))
        yield from counters.values()
        yield from (received, received_bytes, states, usable, rtt)

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


_USUAL = {
    (EvState.ASSUMED_BAD, Reason.UNANSWERED),
    (EvState.ASSUMED_BAD, Reason.LOSS),
    (EvState.ASSUMED_BAD, Reason.LINK_DOWN),
    (EvState.ASSUMED_BAD, Reason.PEER_LINK_DOWN),
    (EvState.GOOD, Reason.HEALED),
    (EvState.GOOD, Reason.PROBED),
}
"""Series that exist from the start, at 0: a rate over a series that appears misses its first step."""
