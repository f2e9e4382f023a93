# SPDX-License-Identifier: BSD-2-Clause
"""Tests [metrics] peers: sums by T0 and over all peers, the number of series, and what rules and commands need."""

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from mrcd.api.metrics.collector import TablesCollector
from mrcd.api.metrics.rows import encode
from mrcd.config import cluster_file
from mrcd.daemon.daemon import Daemon
from mrcd.errors import ConfigError
from mrcd.fabric import topology
from mrcd.fleet_check.read import HOST_METRICS
from mrcd.health.links.verdicts import Counts, State
from mrcd.health.links.watch import LinkWatch, Verdicts
from mrcd.kernel.enums import EvState, Reason
from tests import cluster_files
from tests.unit.arrays import TEXT
from tests.unit.test_fabric_sums import Endpoint
from tests.unit.test_metrics import PAGE, Host

RULES = Path(__file__).parents[2] / "scripts/deploy/prometheus"
MODES = ("all", "groups", "off")


def text(mode: str, of: str = TEXT) -> str:
    return f'{of}\n[metrics]\npeers = "{mode}"\n'


class Scraped(Host):
    """A host whose daemon, and so its collector, stays from scrape to scrape."""

    def __init__(self, mode: str, of: str = TEXT, peers: int = 4, evs: int = 8) -> None:
        super().__init__(text(mode, of), peers, evs)
        shape = 1 + self.plan.config.cluster.t1s, len(self.plan.interfaces)
        counts = Counts(np.zeros(shape, np.int64), np.zeros(shape, np.int64))
        states = np.full(shape, State.OK, np.int8)
        self.view.link_watch = cast(LinkWatch, SimpleNamespace(verdicts=Verdicts(states, counts.lost, counts)))
        self._daemon = SimpleNamespace(
            plan=self.plan,
            tables=self,
            view=self.view,
            monitor=self.monitor,
            programs=self.programs,
            faults=SimpleNamespace(causes=self.causes),
            started=time.monotonic(),
            keyring=SimpleNamespace(ids=[]),
        )
        self._registry = CollectorRegistry()
        self._registry.register(TablesCollector(cast(Daemon, self._daemon), self.source))

    def adopt(self, mode: str) -> None:
        """Has the daemon adopt the file with another mode, as a reload does."""
        self._daemon.plan = self.plan = topology.plan(cluster_file.parse(text(mode)), "h0")

    def text(self, accept: str = "") -> str:
        return encode(self._registry, accept)[0].decode()


# h1 and h3 are under T0 1; h2 is under T0 0, as this host is.
SUMS: dict[str, dict[str, float]] = {
    "all": {
        'tx_packets_total{peer="h1",plane="1"}': 1500, 'tx_bytes_total{peer="h1"}': 99_000,
        'evs{peer="h1",state="DENIED"}': 2, 'usable_evs{peer="h1",plane="1"}': 3, 'ev_min_active{peer="h1"}': 2,
        'peer_reachable{peer="h1"}': 1, 'peers{state="ok"}': 1, 'peers{state="below_floor"}': 1,
        'peers{state="unreachable"}': 1, 'peer_rtt_seconds{peer="h3"}': 0.00005,
        'untagged_packets_total{peer="h2"}': 9, 'peer_refused_packets_total{peer="h1"}': 6,
    },
    "groups": {
        'tx_packets_total{peer_t0="1",plane="1"}': 507, 'tx_packets_total{peer_t0="0",plane="1"}': 0,
        'tx_bytes_total{peer_t0="1"}': 0, 'evs{peer_t0="1",state="DENIED"}': 10, 'evs{peer_t0="0",state="GOOD"}': 2,
        'usable_evs{peer_t0="1",plane="1"}': 4, 'ev_min_active{peer_t0="1"}': 4,
        'peers{peer_t0="1",state="ok"}': 1, 'peers{peer_t0="1",state="below_floor"}': 1,
        'peers{peer_t0="0",state="unreachable"}': 1, 'peer_rtt_seconds{peer_t0="1"}': 0.00004,
        'untagged_packets_total{peer_t0="0"}': 4, 'peer_refused_packets_total{peer_t0="1"}': 0,
    },
    "off": {
        'tx_packets_total{plane="1"}': 507, "tx_bytes_total": 0, 'evs{state="DENIED"}': 10, 'evs{state="GOOD"}': 8,
        'usable_evs{plane="1"}': 4, "ev_min_active": 5, 'peers{state="ok"}': 1, 'peers{state="below_floor"}': 1,
        'peers{state="unreachable"}': 1, "peer_rtt_seconds": 0.00004, "untagged_packets_total": 4,
    },
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_values(mode: str) -> None:
    host = Scraped(mode)
    host.auths["untagged"][2] = 5
    host.peers["refused"][1] = 6
    host.scrape()
    host.evs["tx_packets"][1, 5] += 500
    host.evs["tx_packets"][3, 5] += 7
    host.auths["untagged"][2] = 9
    host.evs["state"][1, :2] = host.evs["state"][3, :8] = EvState.DENIED
    host.peers["usable"][[1, 3], 0] = 0b1011 << 4, 0b10000
    host.path_stats["rtt_ns"][3, 5], host.path_stats["replies"][3, 5] = 50_000, 1
    host.peers["heard_ns"][[1, 3]] = time.monotonic_ns()
    series = host.scrape()
    assert {name: series[f"mrc_{name}"] for name in SUMS[mode]} == pytest.approx(SUMS[mode])
    assert re.findall(r'mrc_build_info\{.*peers="(\w+)"', "\n".join(series)) == [mode]
    labels = {label for name in series for label in re.findall(r"(\w+)=", name)}
    assert labels & {"peer", "peer_t0"} == {"all": {"peer"}, "groups": {"peer_t0"}, "off": set()}[mode]


@pytest.mark.parametrize("mode", ["groups", "off"])
def test_evs_without_series_are_counted(mode: str) -> None:
    host = Scraped(mode)
    host.evs["state"][1, 5], host.evs["reason"][1, 5] = EvState.ASSUMED_BAD, Reason.LOSS
    series = host.scrape()
    assert not [name for name in series if 'ev="' in name]
    assert series["mrc_ev_series_omitted"] == 1


@pytest.mark.parametrize("mode", ["groups", "off"])
def test_sums_never_fall_but_for_a_new_file(mode: str) -> None:
    host, name = Scraped(mode), 'mrc_tx_packets_total{peer_t0="1",plane="1"}'
    name = name if mode == "groups" else 'mrc_tx_packets_total{plane="1"}'
    found = []
    for packets in (1000, 1500, 1400, 1600):
        host.evs["tx_packets"][1, 5] = packets
        found.append(host.scrape()[name])
    assert found == [0, 500, 500, 600]
    host.adopt(mode)
    assert host.scrape()[name] == 0


def test_a_new_file_changes_the_mode() -> None:
    host = Scraped("all")
    for mode in ("groups", "off", "all"):
        host.adopt(mode)
        assert host.scrape().keys() >= {f"mrc_{name}" for name in SUMS[mode] if "untagged" not in name} - {
            'mrc_peer_refused_packets_total{peer="h1"}'
        }


@pytest.mark.parametrize("mode", MODES)
def test_a_host_without_peers(mode: str) -> None:
    alone = f"[cluster]\nt0s = 2\nt1s = 4\nplanes = 4\nevs_per_peer = 16\n{cluster_files.host(0, t0=0, port=0)}"
    assert Scraped(mode, alone).scrape()["mrc_evs_flapping"] == 0


def test_series_of_evs_need_those_of_peers() -> None:
    with pytest.raises(ConfigError, match="per_ev = true has series for every peer"):
        cluster_file.parse(text("groups") + "per_ev = true\n")


@pytest.mark.parametrize("mode", MODES)
def test_openmetrics(mode: str) -> None:
    lines = Scraped(mode).text("application/openmetrics-text;version=1.0.0").splitlines()
    assert lines[-1] == "# EOF"
    assert not [line for line in lines if "{}" in line or "{," in line]


# ---- the number of series ----


def count(mode: str, peers: int, t0s: int, planes: int) -> int:
    """Returns the series of a host with `peers` peers under `t0s` T0s, all well, without those of its process."""
    fixed = 152 + 38 * planes
    if mode == "all":
        return fixed + 3 + peers * (18 + 2 * planes)
    return fixed + (t0s if mode == "groups" else 1) * (22 + 2 * planes)


def count_fabric(peers: int, t0s: int, t1s: int, planes: int) -> int:
    """Returns the series of GET /metrics/fabric."""
    return 1 + 2 * (planes * (t1s + t0s) + peers)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("peers", "t0s", "planes", "evs"), [(64, 8, 4, 256), (64, 8, 4, 64), (63, 4, 8, 64), (30, 2, 1, 16)]
)
def test_the_number_of_series(mode: str, peers: int, t0s: int, planes: int, evs: int) -> None:
    hosts = "".join(cluster_files.host(i, t0=i % t0s, port=i // t0s) for i in range(peers + 1))
    cluster = f"[cluster]\nt0s = {t0s}\nt1s = 16\nplanes = {planes}\nevs_per_peer = {evs}\n{hosts}"
    host = Scraped(mode, cluster, peers + 1, evs)
    assert len(host.scrape()) == count(mode, peers, t0s, planes)
    assert len(Endpoint(host).scrape()) == count_fabric(peers, t0s, 16, planes)


def test_the_page_has_these_numbers() -> None:
    found = re.findall(r"^\| ([\d,]+) \| ([\d,]+) \| (.+) \|$", PAGE.read_text(), re.M)
    assert found
    for hosts, t0s, numbers in found:
        h, t = (int(word.replace(",", "")) for word in (hosts, t0s))
        each = [*(count(mode, h - 1, t, 4) for mode in MODES), count_fabric(h - 1, t, 64, 4)]
        assert numbers == " | ".join(f"{n:,}; {_short(n * h)}" for n in each), (hosts, t0s)


def _short(n: int) -> str:
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if n >= size:
            return f"{n / size:.3g} {word}"
    return f"{n:,}"


# ---- what rules, dashboard and commands read ----

BY_PEER_ONLY = {"mrc_peer_reachable", "mrc_ev_state_timestamp_seconds"}


@pytest.mark.parametrize("mode", ["groups", "off"])
def test_what_is_read_exists(mode: str) -> None:
    """Of all that is read in Prometheus only BY_PEER_ONLY is missing if peers have no series of their own."""
    every, some = (
        {re.sub(r"_bucket$", "", re.split(r"[{ ]", line)[0]) for line in Scraped(m).text().splitlines()}
        for m in ("all", mode)
    )
    page = set(re.findall(r"`(mrc_\w+)`", PAGE.read_text()))
    fabric = {name for name in page if name.startswith("mrc_fabric")}
    used = set[str]()
    for name in ("alerts.yml", "recording.yml", "dashboard.json"):
        words = re.findall(r"(?<![\w:])mrc_\w+", (RULES / name).read_text())
        used |= {re.sub(r"_bucket$", "", w) for w in words} & page
    rare = {"mrc_fault", "mrc_ev_state_timestamp_seconds"}  # no series while all is well
    assert used - fabric - some - rare == BY_PEER_ONLY - rare
    assert set(HOST_METRICS) <= some
    assert every - some <= BY_PEER_ONLY | {"mrc_ev_state_timestamp_seconds"}


def test_panels_say_that_they_need_series_by_peer() -> None:
    panels = json.loads((RULES / "dashboard.json").read_text())["panels"]
    for panel in panels:
        read = " ".join(target["expr"] for target in panel.get("targets", []))
        if any(name in read for name in BY_PEER_ONLY):
            assert '[metrics] peers = "all"' in panel["description"], panel["title"]
