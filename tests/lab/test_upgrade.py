# SPDX-License-Identifier: BSD-2-Clause
"""Tests restarts, kills, upgrades and reloads under a UDP flow: no loss, no reordering. And upgrades host by host.

It is `scripts/bench lifecycle` with two turns of each instead of ten, at a fifth of its rate, which costs less CPU.
"""

from collections.abc import Callable

from labkit.bench import lifecycle, versions
from labkit.cluster.api import Lab
from tests.lab.conftest import all_good, mrcctl, wait_until

TIMES = 2
RATE = lifecycle.RATE // 5


def test_restarts_upgrades_and_reloads_lose_and_reorder_nothing(
    healthy: Lab, record_property: Callable[[str, object], None]
) -> None:
    drops = {h: mrcctl(healthy, h, "status")["drops"] for h in lifecycle.HOSTS}
    result = lifecycle.run(healthy, TIMES, RATE)
    record_property("measured", result.tables[0].lines())
    unmet = [f"{b['bound']}: {b['measured']}" for b in result.bounds if not b["met"]]
    assert [u for u in unmet if "packets per second" not in u] == []  # how many a busy machine sends is no fault
    assert result.detail["socket_drops"] == 0
    assert result.detail["evs"] == 16
    assert {h: mrcctl(healthy, h, "status")["drops"] for h in lifecycle.HOSTS} == drops
    assert not any(p["lost_packets"] for p in mrcctl(healthy, "h0", "paths", "--peer", "h2"))
    wait_until("all EVs are GOOD", lambda: all_good(healthy))
    assert "far" not in {p["peer"] for p in mrcctl(healthy, "h0", "peers")}


def test_hosts_of_another_wire_version_use_plain_srv6_and_their_upgrade_loses_nothing(healthy: Lab) -> None:
    result = versions.run(healthy, rate=RATE, connections=20)
    assert [f"{b['bound']}: {b['measured']}" for b in result.bounds if not b["met"]] == []
    assert result.detail["socket_drops"] == 0
    wait_until("all EVs are GOOD", lambda: all_good(healthy))
