# SPDX-License-Identifier: BSD-2-Clause
"""Tests 16 planes: eight NICs of two ports, whose rails share T1s. One flow takes all; a dead T1 is one fault."""

import json
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from labkit.cluster.api import Lab
from labkit.measure import goodput
from labkit.measure.host_tables import Cluster
from labkit.traffic.flow import Ends, Flow
from tests.lab.conftest import a_lab, wait_until
from tests.lab.flows import STANDSTILL_MS, address

PAIR = ("h0", "h1")
PLANES, RAILS, PORTS = 16, 8, 2
DEAD = "t1:0:1"
"""A switch of all rails: of the planes 0, 2, …, 14."""


@pytest.fixture(scope="module")
def sixteen() -> Iterator[Lab]:
    with a_lab("rails", hosts=2, hosts_per_t0=1, planes=PLANES, rails=RAILS, t1=2) as lab:
        yield lab


def _faults(lab: Lab) -> list[tuple[str, str, list[str]]]:
    document = json.loads(lab.exec("h0", ["mrcctl", "status", "--json"], check=True).stdout)
    return [(c["cause"], c["target"], c["or_targets"]) for c in document["diagnosis"]]


def test_one_flow_takes_all_planes_and_a_t1_of_all_rails_is_one_fault(
    sixteen: Lab, record_property: Callable[[str, object], None]
) -> None:
    ends = Ends("h0", address(0, 4), "h1", address(1, 4))
    with Cluster(sixteen) as cluster, Flow(sixteen, ends) as flow:
        flow.poll(0.5)
        numbers, begun_ns = cluster.configured(PAIR), max(flow.bins)
        before = cluster.sent(PAIR, numbers)
        flow.poll(1.0)
        by_plane = (cluster.sent(PAIR, numbers) - before).astype(np.int64).reshape(PLANES, -1).sum(axis=1)
        usual, failed_ns = goodput.mean(flow.bins, begun_ns, max(flow.bins)), max(flow.bins)
        sixteen.fail(DEAD)
        flow.poll(1.0)
        wait_until("the T1 is named once", lambda: _faults(sixteen) == [("t1", DEAD, [])])
        hole = goodput.longest_hole(flow.bins, failed_ns, max(flow.bins), usual or 0.0)
        sixteen.exec("h0", ["mrcctl", "deny", "t1:4:1"], check=True)
        denied = json.loads(sixteen.exec("h0", ["mrcctl", "paths", "h1", "--state", "DENIED", "--json"]).stdout)
        sixteen.exec("h0", ["mrcctl", "allow", "--all"], check=True)
        flow.finish()
    sixteen.heal()
    uneven = abs(by_plane / by_plane.mean() - 1).max()
    record_property(
        "measured", [f"planes within {uneven:.1%}, {hole.length_ns / 1e6:.1f} ms without data after the T1"]
    )
    assert uneven < 0.05
    assert {p["plane"] for p in denied["paths"]} == set(range(0, PLANES, PORTS))
    assert hole.length_ns / 1e6 < STANDSTILL_MS
