# SPDX-License-Identifier: BSD-2-Clause
"""Tests GET /metrics/fabric: its sums, judged probes, restarts of the daemon, and the number of series."""

import re
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from mrcd.api.metrics.fabric_sums import FabricCollector
from mrcd.config import cluster_file
from mrcd.daemon.daemon import Daemon
from mrcd.fabric import topology
from tests import cluster_files
from tests.unit.arrays import TEXT
from tests.unit.test_metrics import PAGE, ROW, Host

SENT, LOST, PROBES = 900, 9, 40  # on EV 5 to h1, between two scrapes


class Endpoint:
    """The collector of a host's daemon."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.restart()

    def restart(self) -> None:
        """Starts the daemon anew; the tables stay."""
        self._daemon = SimpleNamespace(plan=self._host.plan, tables=self._host)
        self._collector = FabricCollector(cast(Daemon, self._daemon))

    def adopt(self, text: str) -> None:
        """Has the daemon adopt another cluster file."""
        self._daemon.plan = self._host.plan = topology.plan(cluster_file.parse(text), "h0")

    def text(self) -> str:
        registry = CollectorRegistry()
        registry.register(self._collector)
        return generate_latest(registry).decode()

    def scrape(self) -> dict[str, float]:
        """Returns series → value."""
        lines = [line.rpartition(" ") for line in self.text().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def endpoint(host: Host) -> Endpoint:
    """An endpoint that was scraped once."""
    made = Endpoint(host)
    made.scrape()
    return made


def increase(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Returns what PromQL's increase() makes of two scrapes: a counter that fell began at 0 again."""
    return {k: v - before.get(k, v) if v >= before.get(k, v) else v for k, v in after.items()}


def lost(before: dict[str, float], after: dict[str, float]) -> set[float]:
    """Returns the lost packets between two scrapes, in any sum."""
    grown = increase(before, after)
    return {v - grown[k.replace("_tx_", "_rx_")] for k, v in grown.items() if "_tx_" in k} - {0.0}


def sums(series: dict[str, float], plane: int, t1: int) -> tuple[float, float]:
    tx, rx = (series[f'mrc_fabric_uplink_{w}_packets_total{{plane="{plane}",t1="{t1}"}}'] for w in ("tx", "rx"))
    return tx, rx


def test_every_packet_is_in_each_of_the_three_sums(host: Host, endpoint: Endpoint) -> None:
    """EV 5 goes by T1 1 of plane 1 to h1, under T0 1."""
    host.path_stats["judged"][1, 5] += SENT
    host.path_stats["lost_before"][1, 5] += LOST - 3
    host.path_stats["deficit"][1, 5] += 3
    host.path_stats["rx_probes"][1, 5] += PROBES
    series = endpoint.scrape()
    assert series['mrc_fabric_host_info{host="h0",rails="1",t0="0"}'] == 1
    sent, arrived = SENT + PROBES, SENT + PROBES - LOST
    assert sums(series, 1, 1) == (sent, arrived)
    assert series['mrc_fabric_t0_tx_packets_total{peer_t0="1",plane="1"}'] == sent
    assert series['mrc_fabric_t0_rx_packets_total{peer_t0="1",plane="1"}'] == arrived
    assert series['mrc_fabric_peer_tx_packets_total{peer="h1",peer_t0="1"}'] == sent
    assert series['mrc_fabric_peer_rx_packets_total{peer="h1",peer_t0="1"}'] == arrived
    others = [v for k, v in series.items() if "_packets_total" in k and v]
    assert len(others) == 6


def test_a_peer_under_the_same_t0_uses_no_uplink(host: Host, endpoint: Endpoint) -> None:
    host.path_stats["judged"][2, 0] += 50  # h2 is under T0 0 as h0 is
    series = endpoint.scrape()
    assert series['mrc_fabric_t0_tx_packets_total{peer_t0="0",plane="0"}'] == 50
    assert [sums(series, 0, t1) for t1 in range(4)] == [(0, 0)] * 4


# Rows of: seconds passed, fields of EV 5, then probes sent and arrived since the scrape before (None: any number).
PROBES_OF_EV: dict[str, list[tuple[int, dict[str, int], tuple[int, int] | None]]] = {
    "lost probes count": [
        (0, {"rx_probes": 30, "missed": 7}, (37, 30)),
        (0, {"rx_probes": 33, "missed": 5}, (1, 3)),  # two of the missed ones have arrived late
    ],
    "16-bit counts may wrap": [(0, {"rx_probes": 0xFFFE}, None), (0, {"rx_probes": 3}, (5, 5))],
    "a new generation of the peer's tables is no loss": [
        (0, {"missed": 9}, None), (0, {"generation": 77, "missed": 0}, (0, 0)), (0, {"missed": 2}, (2, 0)),
    ],
    "a scrape after a minute, Prometheus' default, and a little more": [(65, {"missed": 100}, (100, 0))],
    "after two minutes without a scrape probes are not guessed": [(121, {"missed": 100}, (0, 0))],
}  # fmt: skip


@pytest.mark.parametrize("name", PROBES_OF_EV)
def test_probes(host: Host, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    now = 10**18
    monkeypatch.setattr("time.monotonic_ns", lambda: now)
    before = sums(endpoint.scrape(), 1, 1)
    for seconds, fields, wanted in PROBES_OF_EV[name]:
        now += seconds * 10**9
        for field, value in fields.items():
            host.path_stats[field][1, 5] = value
        found = sums(endpoint.scrape(), 1, 1)
        assert wanted in (None, (found[0] - before[0], found[1] - before[1]))
        before = found


def test_no_count_falls_while_the_programs_write(host: Host, endpoint: Endpoint) -> None:
    """A packet can be judged before it is known to be lost: 100 look as if they had arrived."""
    host.path_stats["judged"][1, 5] += 100
    before = endpoint.scrape()
    host.path_stats["deficit"][1, 5] += 90
    after = endpoint.scrape()
    assert all(after[name] >= value for name, value in before.items())
    host.path_stats["judged"][1, 5] += 200
    assert sums(endpoint.scrape(), 1, 1) == (300, 210)


def test_old_losses_do_not_count_again_when_the_daemon_restarts(host: Host, endpoint: Endpoint) -> None:
    host.path_stats["judged"][1, 5] += SENT
    host.path_stats["deficit"][1, 5] += LOST
    host.path_stats["missed"][1, 5] = 7
    before = endpoint.scrape()
    host.path_stats["judged"][1, 5] = 100  # less than before: the tables are new, too
    host.path_stats["deficit"][1, 5] = 60
    endpoint.restart()
    after = endpoint.scrape()
    assert not lost(before, after)
    host.path_stats["deficit"][1, 5] += 5
    host.path_stats["judged"][1, 5] += 5
    assert lost(after, endpoint.scrape()) == {5.0}


@pytest.mark.parametrize("is_dead", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
def test_old_losses_do_not_count_again_when_a_peer_leaves(
    host: Host, endpoint: Endpoint, is_dead: bool, restarts: bool
) -> None:
    """h3, which leaves, is under h1's T0 and has received nothing, or much."""
    host.path_stats["judged"][1], host.path_stats["deficit"][1] = 5000, 100
    host.path_stats["judged"][3], host.path_stats["deficit"][3] = 1000, 1000 if is_dead else 0
    before = endpoint.scrape()
    endpoint.adopt(TEXT.replace(cluster_files.host(3, t0=1, port=1), ""))
    host.path_stats["judged"][1] += 10
    if restarts:
        endpoint.restart()
    assert not lost(before, endpoint.scrape())


def test_a_cluster_of_one_host_has_no_sums() -> None:
    text = f"[cluster]\nt0s = 2\nt1s = 4\nplanes = 2\nevs_per_peer = 8\n{cluster_files.host(0)}"
    series = Endpoint(Host(text)).scrape()
    assert series == {'mrc_fabric_host_info{host="h0",rails="1",t0="0"}': 1}


def test_paths_whose_t1_is_not_known_have_no_uplinks() -> None:
    hosts = "".join(cluster_files.host(i, t0=i % 2, port=i // 2) for i in range(4))
    series = Endpoint(
        Host(f'[cluster]\nt0s = 2\nt1s = 4\nplanes = 2\nevs_per_peer = 8\nencapsulation = "ecmp"\n{hosts}')
    )
    assert not [name for name in series.scrape() if "uplink" in name]


def test_the_page_lists_all_metrics(endpoint: Endpoint) -> None:
    found = {}
    for family in text_string_to_metric_families(endpoint.text()):
        name = family.name + {"counter": "_total"}.get(family.type, "")
        found[name] = (family.type, {label for s in family.samples for label in s.labels})
    listed = {
        m[1]: (m[2], set(re.findall(r"\w+", m[3])))
        for m in ROW.finditer(PAGE.read_text(encoding="utf-8"))
        if m[1].startswith("mrc_fabric_")
    }
    assert listed == found
