# SPDX-License-Identifier: BSD-2-Clause
"""Reads Prometheus metrics from the tables at scrape time; the counters live in the kernel.

Two families have peers × planes series; the others have a series per peer or per plane. With [metrics] peers "groups"
or "off" they are summed over the peers under a T0, or over all (peer_series.py). An EV has a series of its own while it
is not GOOD, for at most MOST_EV_SERIES EVs, unless peers have none. So has each of at most MOST_FAULT_SERIES faults,
and each of some bad links. With [metrics] per_ev every EV has its own series.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mrcd import __version__
from mrcd.api.metrics.ev_sums import FLAPPING, NO_PROBE, EvSums, ev_sums
from mrcd.api.metrics.peer_series import PeerSeries
from mrcd.config.cluster_file import fingerprint
from mrcd.daemon.daemon import Daemon
from mrcd.fleet.report import file_part
from mrcd.fleet.source import FileSource
from mrcd.health.links.verdicts import State
from mrcd.health.snapshot import Snapshot
from mrcd.kernel import histograms
from mrcd.kernel.abi import ABI_VERSION
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.pinned import is_detached

MOST_EV_SERIES = 220
MOST_FAULT_SERIES = 32
MOST_LINK_SERIES = 32

_WORST_FIRST = (EvState.ASSUMED_BAD, EvState.DENIED, EvState.SKIP, EvState.UNKNOWN)
_IN_USE = (EvState.GOOD, EvState.SKIP)

Series = Iterable[tuple[Sequence[str], float]]
"""Values of labels, and the value of the series."""


def counter(name: str, text: str, labels: Sequence[str], series: Series) -> Metric:
    """Return a counter with these series."""
    made = CounterMetricFamily(name, text, labels=labels)
    for at, value in series:
        made.add_metric(at, value)
    return made


def gauge(name: str, text: str, labels: Sequence[str], series: Series) -> Metric:
    """Return a gauge with these series."""
    made = GaugeMetricFamily(name, text, labels=labels)
    for at, value in series:
        made.add_metric(at, value)
    return made


class TablesCollector(Collector):
    """Collects all metrics of a daemon from one snapshot of its tables."""

    def __init__(self, daemon: Daemon, source: FileSource) -> None:
        self._daemon, self._source = daemon, source
        self._peers: PeerSeries | None = None  # of the last scrape

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        plan = self._daemon.plan
        s = Snapshot(self._daemon.tables, plan)
        peers = self._peers
        if peers is None or peers.plan is not plan:
            self._peers = peers = PeerSeries(plan)
        yield InfoMetricFamily(
            "mrc_build",
            "Version, encapsulation and granularity of mrcd on this host, and [metrics] peers.",
            {
                "version": __version__,
                "abi": str(ABI_VERSION),
                "host": plan.host.name,
                "encapsulation": plan.config.cluster.encapsulation,
                "granularity": plan.config.cluster.granularity,
                "peers": plan.config.metrics.peers,
            },
        )
        sums = ev_sums(s)
        yield from _traffic(sums, peers)
        yield from _health(sums, peers)
        yield from _peers(s, sums, peers)
        yield from self._planes()
        yield from link_families(self._daemon.view.links())
        yield self._faults()
        yield from self._histograms()
        yield from self._host()
        yield from self._ticks()
        yield from _not_good(s, peers)
        if plan.config.metrics.per_ev:
            yield from _each(s)
        yield self._config()
        yield from _readiness(s, sums)

    def _planes(self) -> Iterator[Metric]:
        plan, mask = self._daemon.plan, int(self._daemon.tables.node["plane_mask"])
        planes = [(str(plane), name, plane) for plane, name in enumerate(plan.interfaces)]
        yield gauge(
            "mrc_plane_up", "1 if the NIC has carrier and its first hop has been resolved.", ["plane"],
            (([label], mask >> plane & 1) for label, _, plane in planes),
        )  # fmt: skip
        hooks: dict[int, Mapping[str, Any]] = {h["plane"]: h for h in self._daemon.programs.hooks if "plane" in h}
        receivers = InfoMetricFamily("mrc_hook", "The hook that receives packets on the plane.", labels=["plane"])
        for label, name, plane in planes:
            hook = str(hooks[plane]["hook"]) if plane in hooks else "none"
            receivers.add_metric([label], {"interface": name, "hook": hook})
        yield receivers
        yield gauge(
            "mrc_hook_fallback", "1 if native XDP was refused and a slower hook receives packets.", ["plane"],
            (([label], float(bool(hooks.get(plane, {}).get("fallback")))) for label, _, plane in planes),
        )  # fmt: skip

    def _faults(self) -> Metric:
        """Return a series per cause that the daemon's diagnosis names; the least urgent are summed if they are many."""
        values: dict[tuple[str, str], float] = {}
        for cause in self._daemon.faults.causes:
            candidates = cause.candidates(self._daemon.plan.host.name)
            for kind, target in candidates:
                key = kind.value, target
                values[key] = max(values.get(key, 0.0), 1 / len(candidates))
        shown = list(values.items())
        if len(shown) > MOST_FAULT_SERIES:
            others = len(shown) - MOST_FAULT_SERIES + 1
            shown[-others:] = [(("others", "others"), others)]
        return gauge(
            "mrc_fault",
            "What is wrong now, by cause and target: 1, or 1/n for each of n targets that would explain the same.",
            ["cause", "target"],
            shown,
        )

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
        yield GaugeMetricFamily("mrc_tick_longest_seconds", "Duration of the longest tick.", ticks.longest_s)

    def _host(self) -> Iterator[Metric]:
        daemon, tables = self._daemon, self._daemon.tables
        drops = (([reason], count) for reason, count in tables.drops().items())
        yield counter("mrc_drops", "Packets dropped by the programs, by reason.", ["reason"], drops)
        unsent = tables.unsent_packets()[: daemon.plan.config.cluster.planes]
        text = "Data packets dropped by queueing disciplines of this host."
        yield counter("mrc_plane_unsent_packets", text, ["plane"], _numbered(unsent))
        changes = tables.transitions()
        counts = ((state, why, int(changes[state, why]["count"])) for state in EvState for why in Reason)
        yield counter(
            "mrc_ev_transitions", "EV state changes except between GOOD and SKIP.", ["to", "reason"],
            (([state.name, why.text], n) for state, why, n in counts if n or (state, why) in _USUAL),
        )  # fmt: skip
        text = "State changes without an event, because the ring buffer was full."
        yield counter("mrc_events_lost", text, [], [([], float(changes["lost_events"].sum()))])
        yield GaugeMetricFamily(
            "mrc_attached", "1 if the data plane of this host is attached.", float(not is_detached(tables.node))
        )
        started = time.time() - (time.monotonic() - daemon.started)
        yield GaugeMetricFamily("mrc_start_time_seconds", "Start time of the daemon, Unix time.", started)

    def _config(self) -> Metric:
        """Return what must be equal on hosts that work together. `mrcctl fleet check` reads it."""
        plan, file = self._daemon.plan, file_part(self._source)
        generation = file["generation"]
        return InfoMetricFamily(
            "mrc_config",
            "The cluster file and the secrets that this host runs with, and its T0.",
            {
                "t0": str(plan.host.t0),
                "agreed": f"{fingerprint(plan.config.cluster):04x}",
                "sha256": file["sha256"],
                "generation": "" if generation is None else str(generation),
                "key_ids": ",".join(str(i) for i in self._daemon.keyring.ids),
            },
        )


def _numbered(values: Iterable[float]) -> Series:
    """Yield a series per plane."""
    return (([str(plane)], value) for plane, value in enumerate(values))


def _traffic(sums: EvSums, peers: PeerSeries) -> Iterator[Metric]:
    """Yield the packet counters."""
    text = "Data packets sent on the plane."
    yield peers.counter("mrc_tx_packets", text, sums["tx_packets"], "plane")
    for name, text, values in (
        ("mrc_tx_bytes", "Inner bytes sent to the peer.", sums["tx_bytes"]),
        ("mrc_rx_packets", "Data packets received from the peer.", sums["rx_packets"]),
        ("mrc_rx_bytes", "Inner bytes received from the peer.", sums["rx_bytes"]),
        ("mrc_judged_tx_packets", "Data packets sent to the peer and judged: arrived or lost.", sums["judged"]),
        ("mrc_judged_rx_packets", "Those of mrc_judged_tx_packets_total that arrived.", sums["arrived"]),
        ("mrc_peer_ce_packets", "Packets with CE marks that the peer received.", sums["rx_ce"]),
        ("mrc_probes_sent", "Probe requests sent.", sums["probe_seq"]),
        ("mrc_probe_replies", "Probe replies received.", sums["replies"]),
        ("mrc_ev_skips", "Changes of EVs to the state SKIP.", sums["skips"]),
    ):
        yield peers.counter(name, text, values.sum(axis=1) if values.ndim == 2 else values)
    for way, text, values in (
        ("tx", "Data packets sent on the plane and judged: arrived or lost.", sums["judged"]),
        ("rx", "Those of mrc_plane_judged_tx_packets_total that arrived.", sums["arrived"]),
    ):
        by_plane = values.sum(axis=0).tolist()
        yield counter(f"mrc_plane_judged_{way}_packets", text, ["plane"], _numbered(float(n) for n in by_plane))


def _health(sums: EvSums, peers: PeerSeries) -> Iterator[Metric]:
    """Yield the states, usable counts and round trips of EVs."""
    yield peers.gauge("mrc_evs", "Number of EVs by state.", sums["states"], "state")
    text = f"EVs with at least {FLAPPING} recent flaps."
    yield GaugeMetricFamily("mrc_evs_flapping", text, float(sums["flapping"].sum()))
    text = "Number of EVs that carry traffic."
    yield peers.gauge("mrc_usable_evs", text, sums["usable"], "plane")
    text = "Median of the EVs' smoothed round-trip times; NaN without any."
    yield peers.median("mrc_peer_rtt_seconds", text, sums["rtt_s"])


def _peers(s: Snapshot, sums: EvSums, peers: PeerSeries) -> Iterator[Metric]:
    floors = s.peers["floor"]
    if peers.is_by_peer:
        text = "1 if a packet from the peer arrived in the last 3 s (with many peers: longer)."
        yield peers.gauge("mrc_peer_reachable", text, s.is_reachable.astype(np.uint8))
    is_low = sums["states"][:, EvState.GOOD] < floors
    text = "Peers: unreachable, or heard lately and with fewer GOOD EVs than the floor, or ok."
    states = [s.is_reachable & ~is_low, s.is_reachable & is_low, ~s.is_reachable]
    yield peers.peers("mrc_peers", text, np.stack(states, axis=1))
    text = "The floor: while fewer EVs are good, others stay usable too."
    yield peers.gauge("mrc_ev_min_active", text, floors)
    text = "Critical packets sent to the peer on two paths."
    yield peers.counter("mrc_critical_sent_twice", text, s.copies["sent"])
    critical = s.critical
    for name, text in (
        ("sent_once", "Critical packets sent on one path, because a CPU had copied too many."),
        ("delivered", "Critical packets delivered: the first copy of each."),
        ("unchecked", "Critical packets delivered that were too old to tell whether the other copy had come."),
        ("eliminated", "Second copies, which were eliminated. Where one is missing, the other saved it."),
    ):
        yield counter(f"mrc_critical_{name}", text, [], [([], float(critical[name]))])
    text = "Packets of the peer refused for their inner addresses; only peers that have sent some."
    yield _rare("mrc_peer_refused_packets", text, s, peers, s.peers["refused"])
    text = "Whether packets are authenticated: off, permissive or required."
    yield InfoMetricFamily("mrc_auth_mode", text, {"mode": s.plan.config.auth.mode})
    text = "Packets accepted from the peer without a tag."
    yield _rare("mrc_untagged_packets", text, s, peers, s.auths["untagged"])


def _rare(name: str, text: str, s: Snapshot, peers: PeerSeries, values: NDArray[np.generic]) -> Metric:
    """Return a counter that is 0 for nearly all peers: only the others have series of their own."""
    if not peers.is_by_peer:
        return peers.counter(name, text, values)
    some = np.flatnonzero(values).tolist()
    return counter(name, text, ["peer"], (([s.plan.peers[row].host.name], float(values[row])) for row in some))


def _not_good(s: Snapshot, peers: PeerSeries) -> Iterator[Metric]:
    """Yield a series for each EV that is not GOOD, up to MOST_EV_SERIES, the worst states first.

    All are omitted if peers have no series of their own.
    """
    offset = time.time() - time.monotonic()
    most = MOST_EV_SERIES if peers.is_by_peer else 0
    count, found = 0, list[tuple[int, int, EvState]]()
    for state in _WORST_FIRST:
        which = np.flatnonzero(s.configured & (s.state == state))
        count += len(which)
        some = np.divmod(which[: most - len(found)], s.configured.shape[1])
        found += [(row, ev, state) for row, ev in zip(*(a.tolist() for a in some), strict=True)]

    def series() -> Series:
        for row, ev, state in found:
            record, is_skip = s.evs.record(row, ev), state is EvState.SKIP
            if record["state"] != state:  # it has changed since
                continue
            reason = Reason(int(record["skip_reason" if is_skip else "reason"]))
            since = int(s.path_stats.record(row, ev)["lag_ns"] if is_skip else record["state_since_ns"])
            at = [s.plan.peers[row].host.name, str(int(record["plane"])), str(ev), state.name, reason.text]
            yield at, since / 1e9 + offset if since else float("nan")

    if peers.is_by_peer:
        yield gauge(
            "mrc_ev_state_timestamp_seconds",
            "Start of the present state of an EV that is not GOOD, Unix time; NaN if unknown.",
            ["peer", "plane", "ev", "state", "reason"],
            series(),
        )
    text = "EVs that are not GOOD and exceed the limit of series."
    yield GaugeMetricFamily("mrc_ev_series_omitted", text, count - len(found))


def _each(s: Snapshot) -> Iterator[Metric]:
    """Yield series for every EV."""
    planes, (judged, lost) = s.evs["plane"], s.judged_and_lost
    at = [(row, ev) for row, ev in np.argwhere(s.configured).tolist()]
    labels = [[s.plan.peers[row].host.name, str(int(planes[row, ev])), str(ev)] for row, ev in at]
    for make, name, text, values in (
        (counter, "mrc_ev_tx_packets", "Data packets sent on the EV.", s.evs["tx_packets"]),
        (counter, "mrc_ev_judged_tx_packets", "Data packets sent on the EV and judged: arrived or lost.", judged),
        (counter, "mrc_ev_judged_rx_packets", "Judged data packets that arrived.", judged - lost),
        (
            gauge,
            "mrc_ev_rtt_seconds",
            "Smoothed round-trip time of the EV's probes; NaN if it has failed.",
            s.rtt_ns / 1e9,
        ),
    ):
        yield make(name, text, ["peer", "plane", "ev"], zip(labels, (float(values[i]) for i in at), strict=True))


def link_families(documents: list[dict[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of link probes from the documents of GET /v1/links."""
    probes, losses = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for d in documents:
        key = str(d["plane"]), "t0" if d["t1"] is None else "t1"
        probes[key] += d["probes"]
        losses[key] += d["lost_probes"]
    ends = ["plane", "end"]
    yield counter("mrc_link_probe_judged", "Link probes that came back or were lost.", ends, probes.items())
    yield counter("mrc_link_probe_lost", "Link probes that did not come back.", ends, losses.items())
    count = Counter(d["state"] for d in documents)
    states = (([state.text], count[state.text]) for state in State)
    yield gauge("mrc_links", "Number of links of this host, by state.", ["state"], states)
    losing = [d for d in documents if d["state"] in (State.LOSSY.text, State.DEAD.text)]
    worst = sorted(losing, key=_loss, reverse=True)[:MOST_LINK_SERIES]
    yield gauge(
        "mrc_link_probe_loss_ratio",
        "Ratio of packets that a lossy or dead link loses now, both directions together; only the worst links.",
        ["plane", "t1"],
        (([str(d["plane"]), "" if d["t1"] is None else str(d["t1"])], _loss(d)) for d in worst),
    )


def _loss(document: dict[str, Any]) -> float:
    return 1.0 if document["state"] == State.DEAD.text else float(document["recent_loss_ratio"] or 0)


# ---- whether a job may start: no label has a peer's name, so that one query serves thousands of hosts ----


def _readiness(s: Snapshot, sums: EvSums) -> Iterator[Metric]:
    """Yield how many EVs are in use, and how old the last full sweep is. `mrcctl fleet check` reads them."""
    text = "Ratio of EVs that are GOOD or SKIP, to the median of the peers that answer; NaN if none does."
    yield GaugeMetricFamily("mrc_evs_in_use_ratio", text, in_use_ratio(sums["states"], s.is_silent))
    text = "Time in which every EV whose plane is up, to peers that answer, was sent a probe; +Inf if one never was."
    oldest_ns, now_ns = sums["oldest_probe_ns"][~s.is_silent], time.monotonic_ns()  # the clock last: no probe is later
    yield GaugeMetricFamily("mrc_full_sweep_age_seconds", text, sweep_age_s(oldest_ns, now_ns))
    node = s.tables.node
    config = s.plan.config
    text = "Longest time between two probes of an EV, by the schedule."
    yield GaugeMetricFamily(
        "mrc_full_sweep_seconds",
        text,
        full_sweep_s(
            int(node["idle_us"]), int(node["idle_evs"]), config.cluster.evs_per_peer, config.health.probe_backoff_ms
        ),
    )


def in_use_ratio(states: NDArray[np.int64], is_silent: NDArray[np.bool_]) -> float:
    """Return the median over peers that answer of their ratio of EVs in use; NaN if no peer answers. Pure.

    `states` counts the EVs of each peer by state. The median leaves out what is wrong with single peers.
    """
    counts = states.sum(axis=1)
    chosen = (counts > 0) & ~is_silent
    if not chosen.any():
        return float("nan")
    return float(np.median(states[:, _IN_USE].sum(axis=1)[chosen] / counts[chosen]))


def sweep_age_s(oldest_ns: NDArray[np.uint64], now_ns: int) -> float:
    """Return the age of the oldest of these probes, by peer NO_PROBE if it has no EV; NaN if there is none. Pure."""
    oldest = int(oldest_ns.min(initial=NO_PROBE))
    if oldest == NO_PROBE:
        return float("nan")
    return (now_ns - oldest) / 1e9 if oldest else float("inf")


def full_sweep_s(idle_us: int, idle_evs: int, evs_per_peer: int, backoff_ms: int) -> float:
    """Return the longest time between two probes of an EV that the tick's schedule allows. Pure.

    A sweep of a peer probes `idle_evs` of its EVs in turn (0: all), each `idle_us`. An EV on which nothing arrives is
    probed each `backoff_ms` at the latest (mrcd/health/probe_pace.py, bpf/tick.h).
    """
    sweeps = -(-evs_per_peer // idle_evs) if idle_evs else 1
    return max(sweeps * idle_us / 1e6, backoff_ms / 1e3)


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
    *((EvState.ASSUMED_BAD, why) for why in (Reason.OVERDUE, Reason.LOSS, Reason.GREY_LOSS, Reason.ICMP_ERROR)),
    *((EvState.ASSUMED_BAD, why) for why in (Reason.LINK_DOWN, Reason.PEER_LINK_DOWN)),
    *((EvState.GOOD, why) for why in (Reason.HEALED, Reason.PROBED)),
}
"""Series that exist from the start at 0, because a rate over a new series misses its first increment."""
