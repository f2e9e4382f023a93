# SPDX-License-Identifier: BSD-2-Clause
"""Tests bundle granularity: TCP makes bursts of few segments, so one flow is even over all EVs at once."""

import json
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from labkit.cluster.api import Lab
from labkit.measure.host_tables import Cluster
from labkit.traffic.flow import Ends, Flow
from tests.lab.conftest import a_lab
from tests.lab.flows import address

PAIR = ("h0", "h1")
_SECOND_S = 1.0


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    with a_lab("bundle", hosts=2, hosts_per_t0=1, planes=4, t1=2, granularity="bundle", mtu=1600) as lab:
        yield lab


@pytest.mark.parametrize("version", [4, 6])
def test_one_flow_is_even_over_planes_and_evs(
    two: Lab, version: int, record_property: Callable[[str, object], None]
) -> None:
    ends = Ends("h0", address(0, version), "h1", address(1, version))
    with Cluster(two) as cluster, Flow(two, ends) as flow:
        flow.poll(_SECOND_S)
        numbers, repeated = cluster.configured(PAIR), flow.retransmitted_segments
        before = cluster.sent(PAIR, numbers)
        flow.poll(_SECOND_S)
        sent = (cluster.sent(PAIR, numbers) - before).astype(np.int64)
        repeated = flow.retransmitted_segments - repeated
        flow.finish()
    by_plane = sent.reshape(4, -1).sum(axis=1)
    evs, planes = (abs(n / n.mean() - 1).max() for n in (sent, by_plane))
    devices = json.loads(two.exec("h0", ["ip", "-d", "-j", "link", "show", "mrc0"], check=True).stdout)
    assert devices[0]["gso_max_segs"] == 8
    words = f"IPv{version}: {sent.sum()} packets, EVs within {evs:.2%}, planes within {planes:.2%}, {repeated} repeated"
    record_property("measured", [words])
    assert evs < 0.05
    assert planes < 0.05
