# SPDX-License-Identifier: BSD-2-Clause
"""Tests the metrics: their values from tables, the number of series, and that docs/metrics.md lists them all."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from mrcd.api.metrics import ev_sums
from mrcd.api.metrics.collector import (
    MOST_EV_SERIES,
    MOST_FAULT_SERIES,
    TablesCollector,
    full_sweep_s,
    in_use_ratio,
    sweep_age_s,
)
from mrcd.api.metrics.ev_sums import NO_PROBE
from mrcd.api.metrics.rows import encode
from mrcd.config import cluster_file
from mrcd.daemon import write_tables
from mrcd.daemon.daemon import Daemon
from mrcd.fabric import topology
from mrcd.fleet.keys import FleetFile
from mrcd.fleet.source import FileSource, Loaded
from mrcd.health.diagnosis.causes import Cause, Confidence, Kind, Share
from mrcd.health.links.verdicts import Counts, State
from mrcd.health.links.watch import LinkWatch, Verdicts
from mrcd.kernel import abi, enums, pinned
from mrcd.kernel.enums import EvState, Histogram, Reason
from mrcd.kernel.histograms import Durations
from mrcd.view import documents
from tests import cluster_files
from tests.lists import compare
from tests.unit.arrays import TEXT, Arrays

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
S = 10**9
SENT = {"tx_packets": 1000, "tx_bytes": 99_000, "probe_seq": 40}
ARRIVED = {"judged": 900, "lost_before": 5, "deficit": 4, "rtt_ns": 30_000, "replies": 39, "rx_ce": 6, "skips": 7}
RECEIVED = {"packets": 70, "bytes": 7000}


class Host(Arrays):
    """h0's tables: all EVs GOOD, and counts of the programs on EV 5 to h1."""

    def __init__(self, text: str = TEXT, peers: int = 4, evs: int = 8) -> None:
        super().__init__(peers, evs)
        self.plan = topology.plan(cluster_file.parse(text), "h0")
        shown = cast(pinned.Tables, self)
        write_tables.write_peers(shown, self.plan, lambda row: None)
        self.evs["state"][self.evs["configured"] != 0] = EvState.GOOD
        for table, fields in ((self.evs, SENT), (self.path_stats, ARRIVED), (self.rxs, RECEIVED)):
            for name, value in fields.items():
                table[name][1, 5] = value
        self.programs: Any = SimpleNamespace(hooks=[])
        self.monitor = SimpleNamespace(ticks=Durations())
        self.causes: list[Cause] = []
        self.key_ids: list[int] = []
        self.source = FileSource(Path("/nowhere/mrcd.toml"), Path("/nowhere"))
        self.source.running = Loaded(self.plan.config, text, None)
        self.view = documents.View(shown, self.plan, [], Path("/nowhere"))
        self.counts = np.zeros((enums.HISTOGRAMS, abi.BUCKETS), np.uint64)

    def unsent_packets(self) -> list[int]:
        return [7] + [0] * 7

    def drops(self) -> dict[str, int]:
        return {r.text: 2 for r in enums.Drop if r is not enums.Drop.NONE}

    def histograms(self) -> Any:
        return self.counts

    def text(self, accept: str = "") -> str:
        """One scrape, with what the process says of itself."""
        registry = CollectorRegistry()
        monitor = self.monitor
        daemon = SimpleNamespace(
            plan=self.plan,
            tables=self,
            view=self.view,
            monitor=monitor,
            programs=self.programs,
            faults=SimpleNamespace(causes=self.causes),
            started=time.monotonic(),
            keyring=SimpleNamespace(ids=self.key_ids),
        )
        registry.register(TablesCollector(cast(Daemon, daemon), self.source))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        return encode(registry, accept)[0].decode()

    def scrape(self) -> dict[str, float]:
        """Series → value."""
        lines = [line for line in self.text().splitlines() if not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


@pytest.fixture
def host() -> Host:
    return Host()


PER_EV = "[metrics]\nper_ev = true"
EV_5 = 'ev="5",peer="h1",plane="1"'
NAN = pytest.approx(np.nan, nan_ok=True)
PUT = Sequence[tuple[str, Any, Any]]
# More of the cluster file, what is put into the tables, and series without their first "mrc_".
SERIES: dict[str, tuple[str, PUT, dict[str, Any]]] = {
    "counters": (
        "", [("changes.count", (EvState.ASSUMED_BAD, Reason.LOSS), 5), ("changes.lost_events", (2, 3), 3)],
        {
            'tx_packets_total{peer="h1",plane="1"}': 1000, 'tx_packets_total{peer="h1",plane="0"}': 0,
            'tx_bytes_total{peer="h1"}': 99_000, 'rx_packets_total{peer="h1"}': 70, 'rx_bytes_total{peer="h1"}': 7000,
            'judged_tx_packets_total{peer="h1"}': 900, 'judged_rx_packets_total{peer="h1"}': 891,
            'probes_sent_total{peer="h1"}': 40, 'probe_replies_total{peer="h1"}': 39,
            'peer_ce_packets_total{peer="h1"}': 6, 'ev_skips_total{peer="h1"}': 7,
            'peer_rtt_seconds{peer="h1"}': 0.00003, 'peer_rtt_seconds{peer="h2"}': NAN,
            'ev_min_active{peer="h1"}': 2, 'plane_judged_tx_packets_total{plane="1"}': 900,
            'plane_judged_rx_packets_total{plane="1"}': 891, "events_lost_total": 3,
            'ev_transitions_total{reason="loss",to="ASSUMED_BAD"}': 5,
            'ev_transitions_total{reason="grey_loss",to="ASSUMED_BAD"}': 0, 'auth_mode_info{mode="off"}': 1,
        },
    ),
    "permissive": ('[auth]\nmode = "permissive"', [], {'auth_mode_info{mode="permissive"}': 1}),
    "untagged": ("", [("auths.untagged", 2, 9)], {'untagged_packets_total{peer="h2"}': 9}),
    "refused": ("", [("peers.refused", 1, 6)], {'peer_refused_packets_total{peer="h1"}': 6}),
    "states": (
        "", [("evs.state", (1, [0, 1]), EvState.DENIED), ("peers.usable", (1, 0), 0b1011 << 4)],
        {
            'evs{peer="h1",state="GOOD"}': 6, 'evs{peer="h1",state="DENIED"}': 2, 'evs{peer="h1",state="SKIP"}': 0,
            'usable_evs{peer="h1",plane="0"}': 0, 'usable_evs{peer="h1",plane="1"}': 3,
        },
    ),
    "all EVs on request": (
        PER_EV, [],
        {
            f"ev_tx_packets_total{{{EV_5}}}": 1000, f"ev_judged_tx_packets_total{{{EV_5}}}": 900,
            f"ev_judged_rx_packets_total{{{EV_5}}}": 891, f"ev_rtt_seconds{{{EV_5}}}": 0.00003,
        },
    ),
    "a failed EV has no round trip": (
        PER_EV, [("evs.state", (1, 5), EvState.ASSUMED_BAD)],
        {f"ev_rtt_seconds{{{EV_5}}}": NAN, 'peer_rtt_seconds{peer="h1"}': NAN},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("more", "put", "wanted"), SERIES.values(), ids=SERIES)
def test_series(more: str, put: PUT, wanted: dict[str, Any]) -> None:
    host = Host(f"{TEXT}\n{more}\n")
    for place, rows, value in put:
        host.put(place, rows, value)
    series = host.scrape()
    assert {name: series[f"mrc_{name}"] for name in wanted} == wanted
    # Only peers that have such packets have a series of them; each EV has four, h2 under the same T0 has one per plane.
    rare = {name[4:] for name in series if name.startswith(("mrc_untagged", "mrc_peer_refused"))}
    assert rare == {name for name in wanted if name.startswith(("untagged", "peer_refused"))}
    assert more != PER_EV or put or sum('ev="' in name for name in series) == 4 * (8 + 2 + 8)


def test_peers_that_were_heard(host: Host) -> None:
    host.peers["heard_ns"][1], host.peers["heard_ns"][2] = time.monotonic_ns(), time.monotonic_ns() - 4 * S
    series = host.scrape()
    assert [series[f'mrc_peer_reachable{{peer="h{p}"}}'] for p in (1, 2, 3)] == [1, 0, 0]


@pytest.mark.parametrize("at_once", [1, 2])
def test_peers_that_are_read_in_parts_have_the_same_series(
    host: Host, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.evs["flaps"], host.path_stats["probe_ns"] = 5, 1
    host.path_stats["rtt_ns"] = np.arange(host.path_stats.size).reshape(host.path_stats.shape)
    host.evs["state"][2, 0] = EvState.ASSUMED_BAD
    whole = host.scrape()
    monkeypatch.setattr(ev_sums, "_AT_ONCE", at_once)
    found = {name: value for name, value in host.scrape().items() if not name.startswith("process_")}
    assert found == pytest.approx({name: whole[name] for name in found}, rel=1e-3, nan_ok=True)
    assert found["mrc_evs_flapping"] > 0


def test_only_evs_that_are_not_good_have_series(host: Host) -> None:
    host.evs["state"][1, 5], host.evs["reason"][1, 5] = EvState.ASSUMED_BAD, Reason.LOSS
    host.evs["state_since_ns"][1, 5] = time.monotonic_ns() - 60 * S
    series = {k: v for k, v in host.scrape().items() if 'ev="' in k}
    (name,) = series
    label = 'ev="5",peer="h1",plane="1",reason="loss",state="ASSUMED_BAD"'
    assert name == f"mrc_ev_state_timestamp_seconds{{{label}}}"
    assert series[name] == pytest.approx(time.time() - 60, abs=2)
    host.evs["state"][1, 5], host.path_stats["lag_ns"][1, 5] = EvState.SKIP, time.monotonic_ns() - 5 * S
    (since,) = (v for k, v in host.scrape().items() if 'state="SKIP"' in k and 'ev="5"' in k)
    assert since == pytest.approx(time.time() - 5, abs=2)


def test_a_host_without_peers_has_metrics() -> None:
    alone = Host(f"[cluster]\nt0s = 2\nt1s = 4\nplanes = 4\nevs_per_peer = 16\n{cluster_files.host(0, t0=0, port=0)}")
    assert not alone.plan.peers
    assert alone.scrape()["mrc_evs_flapping"] == 0


def test_flaps_in_metrics_are_forgotten_as_in_the_programs(host: Host) -> None:
    now = time.monotonic_ns()
    for ev, state, flaps, ago_s in (
        (0, EvState.GOOD, 3, 10),  # hold_down_max_ms, 60 s, has not passed
        (1, EvState.GOOD, 3, 70),
        (2, EvState.GOOD, 4, 70),
        (3, EvState.ASSUMED_BAD, 3, 70),  # was not well meanwhile
        (4, EvState.GOOD, 2, 1),
    ):
        host.evs["state"][1, ev], host.evs["flaps"][1, ev] = state, flaps
        host.evs["state_since_ns"][1, ev] = now - ago_s * S
    assert host.scrape()["mrc_evs_flapping"] == 3


def test_hooks(host: Host) -> None:
    host.programs.hooks[:] = [
        {"plane": 0, "hook": "xdp + tcx", "hook_reason": "native", "fallback": False},
        {"plane": 1, "hook": "tcx", "hook_reason": "native XDP refused: …", "fallback": True},
        {"hook": "tc egress mrc0"},
    ]
    series = host.scrape()
    assert [series[f'mrc_hook_fallback{{plane="{p}"}}'] for p in "01"] == [0, 1]
    assert series['mrc_hook_info{hook="xdp + tcx",interface="p0",plane="0"}'] == 1


def test_histograms_are_cumulative_at_powers_of_two(host: Host) -> None:
    host.counts[Histogram.DETECTION, 76] = 2  # 2^20 ns and a fourth more
    host.counts[Histogram.AFTER_GOOD, [0, 3]] = 1, 4
    host.counts[Histogram.RTT + 1, 56] = 5  # 2^15 ns
    host.counts[Histogram.REINSTATEMENT, 116] = 1  # 2^30 ns
    series = host.scrape()
    assert series['mrc_detection_seconds_bucket{le="0.001048576"}'] == 0
    assert series['mrc_detection_seconds_bucket{le="0.002097152"}'] == 2
    assert series['mrc_detection_seconds_bucket{le="+Inf"}'] == series["mrc_detection_seconds_count"] == 2
    assert series["mrc_detection_seconds_sum"] == pytest.approx(2 * 1.125 * 2**20 / 1e9, rel=0.01)
    assert [series[f'mrc_packets_before_detection_bucket{{le="{le}"}}'] for le in ("0.0", "1.0", "3.0")] == [1, 1, 5]
    assert series["mrc_packets_before_detection_sum"] == 12
    assert series['mrc_rtt_seconds_bucket{le="6.5536e-05",plane="1"}'] == 5
    assert series['mrc_rtt_seconds_bucket{le="+Inf",plane="0"}'] == 0
    assert series['mrc_reinstatement_seconds_bucket{le="1.073741824"}'] == 0
    assert series['mrc_reinstatement_seconds_bucket{le="2.147483648"}'] == 1


def cause(target: str) -> Cause:
    return Cause(Kind.T1, target, "", "", Confidence.LIKELY, Share())


@pytest.mark.parametrize(
    ("count", "others"), [(0, None), (1, None), (MOST_FAULT_SERIES, None), (MOST_FAULT_SERIES + 1, 2), (500, 469)]
)
def test_faults_have_a_bounded_number_of_series(host: Host, count: int, others: int | None) -> None:
    host.causes += [cause(f"t1:1:{i}") for i in range(count)]
    found = {k: v for k, v in host.scrape().items() if k.startswith("mrc_fault")}
    assert len(found) == min(count, MOST_FAULT_SERIES)
    assert found.get('mrc_fault{cause="others",target="others"}') == others
    if count:
        assert found['mrc_fault{cause="t1",target="t1:1:0"}'] == 1


def test_what_a_host_cannot_tell_apart_shares_one_fault(host: Host) -> None:
    doubt = Cause(
        Kind.OWN_CABLE, "nic:h0:1", "", "", Confidence.AMBIGUOUS, Share(), None, ("t0:1:0", "nic:h1:1", "link:1:0:2")
    )
    host.causes += [doubt, cause("t1:1:2"), Cause(Kind.LINK, "link:1:0:2", "", "", Confidence.LIKELY, Share())]
    assert {k: v for k, v in host.scrape().items() if k.startswith("mrc_fault")} == {
        'mrc_fault{cause="own_cable",target="nic:h0:1"}': 0.25,
        'mrc_fault{cause="t0",target="t0:1:0"}': 0.25,
        'mrc_fault{cause="peer_nic",target="nic:h1:1"}': 0.25,
        'mrc_fault{cause="link",target="link:1:0:2"}': 1,
        'mrc_fault{cause="t1",target="t1:1:2"}': 1,
    }


@pytest.mark.parametrize(("planes", "most"), [(4, 3000), (8, 3000), (abi.MAX_PLANES, 4500)])
def test_the_series_with_64_peers_of_256_evs_are_bounded(planes: int, most: int) -> None:
    """Everything is broken at once, and every transition has happened for every reason."""
    hosts = "".join(cluster_files.host(i, t0=i % 8, port=i // 8) for i in range(65))
    host = Host(f"[cluster]\nt0s = 8\nt1s = 64\nplanes = {planes}\nevs_per_peer = 256\n{hosts}", 65, 256)
    assert len(host.plan.peers) == 64
    host.evs["state"] = EvState.UNKNOWN
    host.evs["state"][:, :3] = EvState.ASSUMED_BAD
    host.changes["count"] = 1
    host.auths["untagged"] = 1
    series = host.scrape()
    assert len(series) < most, len(series)
    each = [k for k in series if k.startswith("mrc_ev_state_timestamp_seconds")]
    assert len(each) == MOST_EV_SERIES
    known = host.evs["state"][host.evs["configured"] != 0]
    assert sum("ASSUMED_BAD" in k for k in each) == (known == EvState.ASSUMED_BAD).sum()  # the worst first
    assert series["mrc_ev_series_omitted"] == len(known) - MOST_EV_SERIES


def test_what_hosts_must_have_in_common(host: Host) -> None:
    def info() -> dict[str, str]:
        (line,) = [line for line in host.text().splitlines() if line.startswith("mrc_config_info{")]
        return dict(re.findall(r'(\w+)="([^"]*)"', line))

    own = info()
    assert own.keys() == {"t0", "agreed", "sha256", "generation", "key_ids"}
    assert (own["t0"], own["generation"], own["key_ids"]) == ("0", "", "")
    assert (len(own["agreed"]), len(own["sha256"])) == (4, 12)
    host.key_ids = [3, 4]
    host.source.running = Loaded(host.plan.config, TEXT, FleetFile(4711, TEXT))
    assert info() == own | {"generation": "4711", "key_ids": "3,4"}
    other = Host(TEXT.replace("t1s = 4", "t1s = 3"))
    host.plan, host.source, host.key_ids = other.plan, other.source, []
    assert {key for key, value in info().items() if value != own[key]} == {"agreed", "sha256"}


def test_evs_in_use_and_the_last_full_sweep(host: Host) -> None:
    host.path_stats["probe_ns"] = time.monotonic_ns() - 5 * S
    host.node["plane_mask"] = 0b11
    host.node["idle_us"] = 4_000_000
    series = host.scrape()
    assert series["mrc_evs_in_use_ratio"] == 1
    assert 5 <= series["mrc_full_sweep_age_seconds"] < 6
    assert series["mrc_full_sweep_seconds"] == 4
    host.evs["state"][:, 0] = EvState.ASSUMED_BAD
    host.path_stats["probe_ns"][2, 5] = 0
    series = host.scrape()
    assert series["mrc_evs_in_use_ratio"] == 0.875  # h1 and h3 have 8 EVs, h2 under the same T0 has 2
    assert series["mrc_full_sweep_age_seconds"] < 6  # h2 has no EV 5
    host.path_stats["probe_ns"][3, 5] = 0
    assert host.scrape()["mrc_full_sweep_age_seconds"] == np.inf
    host.watches["silent"][3] = 1  # as a new host that is not up yet: it makes no other host unready
    assert host.scrape()["mrc_full_sweep_age_seconds"] < 6
    host.watches["silent"][3] = 0
    host.node["plane_mask"] = 0b01  # EV 5 is of plane 1, on which nothing is sent now
    assert host.scrape()["mrc_full_sweep_age_seconds"] < 6


def by_state(*in_use: int, of: int = 4) -> NDArray[np.int64]:
    """Returns the EVs by state of peers that have so many in use."""
    found = np.zeros((len(in_use), len(EvState)), np.int64)
    found[:, EvState.GOOD], found[:, EvState.ASSUMED_BAD] = in_use, of - np.array(in_use)
    return found


def test_the_median_leaves_out_single_peers_and_silent_ones() -> None:
    nobody = np.zeros(4, bool)
    assert in_use_ratio(by_state(0, 4, 4, 4), nobody) == 1
    assert in_use_ratio(by_state(0, 3, 3, 3), nobody) == 0.75
    assert in_use_ratio(by_state(0, 0, 3, 3), nobody) == 0.375
    assert in_use_ratio(by_state(0, 0, 3, 3), np.array([True, True, False, False])) == 0.75
    assert np.isnan(in_use_ratio(by_state(0, 0, 3, 3), ~nobody))
    assert np.isnan(in_use_ratio(by_state(0, 0, 0, 0, of=0), nobody))


def test_the_oldest_ev_makes_the_age_of_the_sweep() -> None:
    def oldest(*ns: int) -> NDArray[np.uint64]:
        return np.array(ns, np.uint64)

    assert sweep_age_s(oldest(3 * S, 9 * S, NO_PROBE), 10 * S) == 7
    assert sweep_age_s(oldest(0, 9 * S), 10 * S) == np.inf
    assert np.isnan(sweep_age_s(oldest(NO_PROBE), 10 * S))
    assert np.isnan(sweep_age_s(oldest(), 10 * S))


@pytest.mark.parametrize(
    ("idle_us", "idle_evs", "seconds"),
    [(100_000, 0, 1), (2_000_000, 0, 2), (2_000_000, 256, 2), (2_000_000, 100, 6), (34_800_000, 16, 556.8)],
)
def test_a_full_sweep_takes_as_many_sweeps_as_cover_all_evs(idle_us: int, idle_evs: int, seconds: float) -> None:
    assert full_sweep_s(idle_us, idle_evs, 256, 1000) == pytest.approx(seconds)


ROW = re.compile(r"^\| `(mrc_\w+)` \| (\w+) \| ([\w, `]*) \| (.+) \|$", re.M)


def test_the_page_lists_all_metrics() -> None:
    """Name, type, labels; the last column is for people."""
    host = Host(TEXT + "\n[metrics]\nper_ev = true\n")
    host.causes.append(cause("t1:1:2"))
    host.evs["state"][1, 0] = EvState.SKIP
    host.auths["untagged"][1] = 1
    host.peers["refused"][1] = 1
    shape = 1 + host.plan.config.cluster.t1s, len(host.plan.interfaces)
    counts = Counts(np.zeros(shape, np.int64), np.zeros(shape, np.int64))
    states = np.full(shape, State.DEAD, np.int8)
    host.view.link_watch = cast(LinkWatch, SimpleNamespace(verdicts=Verdicts(states, counts.lost, counts)))
    found = {}
    for family in text_string_to_metric_families(host.text()):
        if family.name.startswith("mrc_"):
            name = family.name + {"counter": "_total"}.get(family.type, "")
            labels = {label for s in family.samples for label in s.labels} - {"le"}
            found[name] = (family.type, labels)
    rows = [m for m in ROW.finditer(PAGE.read_text(encoding="utf-8")) if not m[1].startswith("mrc_fabric_")]
    listed = {m[1]: (m[2], set(re.findall(r"\w+", m[3]))) for m in rows}
    compare(listed, found, in_file="docs/metrics.md", known_from="mrcd/api/metrics/")
    differing = {name: (listed[name], found[name]) for name in found if listed[name] != found[name]}
    assert not differing, f"docs/metrics.md has another type or other labels: metric → (there, scraped) {differing}"


@pytest.mark.parametrize("escaping", ["", ";escaping=underscores", ";escaping=dots", "; escaping=values"])
def test_all_names_have_the_one_escaping_that_is_told(escaping: str) -> None:
    text = Host().text(f"application/openmetrics-text;version=1.0.0{escaping},text/plain;q=0.5")
    names = re.findall(r"^(mrc_\w+)", text, re.M)
    assert names
    assert not [name for name in names if "__" in name]
