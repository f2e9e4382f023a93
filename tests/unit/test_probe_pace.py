# SPDX-License-Identifier: BSD-2-Clause
"""Tests how often peers are swept, and on how many EVs each time."""

from types import SimpleNamespace
from typing import cast

import pytest

from mrcd.config import cluster_file
from mrcd.config.cluster_file import Health
from mrcd.fabric.topology import Plan
from mrcd.health import probe_pace
from tests.cluster_files import TWO

MS = 1_000_000


@pytest.mark.parametrize(("peers", "evs"), [(1, 256), (3, 48), (3, 384), (15, 360)])
def test_small_clusters_probe_all_evs_in_every_idle_interval(peers: int, evs: int) -> None:
    assert probe_pace.pace(Health(), peers, evs, 256) == probe_pace.Pace(0, 100 * MS)


@pytest.mark.parametrize(
    ("peers", "evs_per_peer", "window", "interval_ms"),
    [(8, 256, 49, 200), (64, 256, 16, 544), (64, 16, 16, 544), (4096, 256, 16, 34_816), (4096, 4, 4, 10_240)],
)
def test_idle_probes_of_many_peers_are_spread_over_time(
    peers: int, evs_per_peer: int, window: int, interval_ms: float
) -> None:
    found = probe_pace.pace(Health(), peers, peers * evs_per_peer, evs_per_peer)
    assert (found.window, found.interval_ns / MS) == (window, interval_ms)
    # At most half of the budget: the rest is for retries.
    assert peers * (found.window + 1) / (found.interval_ns / 1e9) <= Health().idle_probes / 2 * 1.13


@pytest.mark.parametrize(("peers", "silent_ms"), [(3, 3000), (64, 3000), (4096, 3 * 34_816)])
def test_rarely_probed_peers_get_more_time_to_answer(peers: int, silent_ms: int) -> None:
    config = cluster_file.parse(f"[cluster]\nevs_per_peer = 256\n{TWO}")
    plan = SimpleNamespace(config=config, peers=range(peers), ev_count=256 * peers)
    assert probe_pace.unreachable_ns(cast(Plan, plan)) == silent_ms * MS
