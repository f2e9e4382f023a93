# SPDX-License-Identifier: BSD-2-Clause
"""Tests the settings that the programs get from the configuration: units and defaults."""

import pytest

from mrcd.config import cluster_file
from mrcd.fabric import topology
from mrcd.kernel import settings
from tests.cluster_files import host

HOSTS = host(0, id=3) + host(1, id=4, t0=1)


PROBES = """probe_late_ms = 7
overdue_ms = 11
loss_window_ms = 300
reorder_us = 60
skip_delay_us = 0
hold_down_ms = 700
hold_down_max_ms = 5000
good_probes = 6
ramp_ms = 90
probe_interval_ms = 21
probe_backoff_ms = 800
unanswered = 9
idle_probes = 1234"""
LOSS = 'loss_rule = "any"\nloss_ratio = 0.0000014\nloss_samples = 3'
# Keys of [cluster], of [health] and what follows, and settings that they make.
CASES: list[tuple[str, str, dict[str, int]]] = [
    ("", "", {
        "planes": 2, "evs_per_peer": 9, "evs_per_plane": 4, "host_id": 4, "srh": 0, "loss_any": 0, "loss_ppm": 20_000,
        "loss_samples": 10, "probe_packets": 8, "source_check": 1, "peers": 5,  # the highest host id is 4
    }),
    ("mtu = 1500\nudp_port = 99", "", {"udp_port": 99, "inner_mtu": 1420}),
    ('encapsulation = "srh"', "", {"srh": 1}),
    ("", PROBES, {  # times are microseconds
        "probe_late_us": 7000, "overdue_us": 11_000, "loss_window_us": 300_000, "probe_gap_us": 300, "reorder_us": 60,
        "skip_delay_us": 0, "hold_down_ms": 700, "hold_down_max_ms": 5000, "good_probes": 6, "ramp_us": 90_000,
        "probe_interval_us": 21_000, "probe_backoff_us": 800_000, "unanswered": 9, "idle_probes": 1234,
    }),
    ('granularity = "packet"', "", {"probe_packets": 64}),
    ('granularity = "burst"', "probe_packets = 5", {"probe_packets": 5}),
    ('granularity = "packet"', "probe_packets = 5", {"probe_packets": 5}),
    ("", LOSS, {"loss_any": 1, "loss_ppm": 1, "loss_samples": 3}),
    ("", '[overlay]\nsource_check = "off"', {"source_check": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("cluster", "more", "made"), CASES, ids=range(len(CASES)))
def test_settings_by_the_cluster_file(cluster: str, more: str, made: dict[str, int]) -> None:
    text = f"[cluster]\nt0s = 2\nplanes = 2\nevs_per_peer = 9\n{cluster}\n[health]\n{more}\n{HOSTS}"
    record = settings.settings(topology.plan(cluster_file.parse(text), "h1"))
    assert {name: int(record[name]) for name in made} == made


def test_the_key_of_link_probes_and_the_rows_of_tables() -> None:
    plan = topology.plan(cluster_file.parse(HOSTS.join(("[cluster]\nt0s = 2\n", ""))), "h1")
    record = settings.settings(plan, link_key=bytes(range(16)), peers=72)
    assert (record["link_key"].tobytes(), record["peers"]) == (bytes(range(16)), 72)
