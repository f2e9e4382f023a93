# SPDX-License-Identifier: BSD-2-Clause
"""Tests the settings that the programs get from the configuration: units and defaults."""

import pytest

from mrcd.config import cluster_file
from mrcd.fabric import topology
from mrcd.kernel import settings
from tests.cluster_files import host

HOSTS = host(0, id=3) + host(1, id=4, t0=1)


def known(cluster: str = "", health: str = "", peers: int = 0, more: str = "") -> dict[str, int]:
    text = f"[cluster]\nt0s = 2\nplanes = 2\nevs_per_peer = 9\n{cluster}\n[health]\n{health}\n{HOSTS}{more}"
    record = settings.settings(topology.plan(cluster_file.parse(text), "h1"), peers=peers)
    return {name: int(record[name]) for name in record.dtype.names or () if not record[name].ndim}


def test_the_fabric() -> None:
    s = known("mtu = 1500\nudp_port = 99")
    assert (s["planes"], s["evs_per_peer"], s["evs_per_plane"]) == (2, 9, 4)
    assert (s["host_id"], s["udp_port"], s["inner_mtu"], s["srh"]) == (4, 99, 1420, 0)
    assert known('encapsulation = "srh"')["srh"] == 1


def test_the_key_of_link_probes() -> None:
    plan = topology.plan(cluster_file.parse(HOSTS.join(("[cluster]\nt0s = 2\n", ""))), "h1")
    assert settings.settings(plan, link_key=bytes(range(16)))["link_key"].tobytes() == bytes(range(16))


def test_times_are_microseconds() -> None:
    s = known("", "probe_late_ms = 7\noverdue_ms = 11\nloss_window_ms = 300\nreorder_us = 60\nskip_delay_us = 0")
    assert (s["probe_late_us"], s["overdue_us"], s["loss_window_us"]) == (7000, 11_000, 300_000)
    assert (s["probe_gap_us"], s["reorder_us"], s["skip_delay_us"]) == (300, 60, 0)


def test_the_deadlines_of_an_ev_that_is_not_in_use() -> None:
    s = known(
        "",
        "hold_down_ms = 700\nhold_down_max_ms = 5000\ngood_probes = 6\nramp_ms = 90\n"
        "probe_interval_ms = 21\nprobe_backoff_ms = 800\nunanswered = 9\nidle_probes = 1234",
    )
    assert (s["hold_down_ms"], s["hold_down_max_ms"], s["good_probes"], s["ramp_us"]) == (700, 5000, 6, 90_000)
    assert (s["probe_interval_us"], s["probe_backoff_us"]) == (21_000, 800_000)
    assert (s["unanswered"], s["idle_probes"]) == (9, 1234)


def test_the_rows_of_the_peers_tables() -> None:
    assert known(peers=72)["peers"] == 72
    assert known()["peers"] == 5  # the highest host id is 4


@pytest.mark.parametrize(
    ("granularity", "health", "packets"),
    [("burst", "", 8), ("packet", "", 64), ("burst", "probe_packets = 5", 5), ("packet", "probe_packets = 5", 5)],
)
def test_reports_by_granularity(granularity: str, health: str, packets: int) -> None:
    assert known(f'granularity = "{granularity}"', health)["probe_packets"] == packets


def test_the_loss_rule() -> None:
    s = known()
    assert (s["loss_any"], s["loss_ppm"], s["loss_samples"]) == (0, 20_000, 10)
    s = known("", 'loss_rule = "any"\nloss_ratio = 0.0000014\nloss_samples = 3')
    assert (s["loss_any"], s["loss_ppm"], s["loss_samples"]) == (1, 1, 3)


@pytest.mark.parametrize(("value", "on"), [("strict", 1), ("off", 0)])
def test_inner_addresses_are_checked_unless_that_is_off(value: str, on: int) -> None:
    assert known(more=f'[overlay]\nsource_check = "{value}"')["source_check"] == on
