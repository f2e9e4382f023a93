# SPDX-License-Identifier: BSD-2-Clause
"""Tests MPTCP as the benchmarks use it beside mrcd."""

from collections.abc import Iterator

import pytest

from labkit.cluster import netns
from labkit.cluster.api import Lab
from labkit.traffic import candidates
from labkit.traffic.flow import Ends, Flow
from mrcd.errors import MachineError
from tests.lab.conftest import wait_until

ENOUGH = 1_000_000  # more bytes than probes have


@pytest.fixture
def ends(healthy: Lab) -> Iterator[Ends]:
    if why := candidates.mptcp_missing():
        pytest.skip(why)
    found = candidates.install_mptcp(healthy)
    yield found
    for host in (found.source, found.target):
        netns.batch_in(healthy.ns(host), ("ip",), ["mptcp endpoint flush"])
    for plane in range(healthy.fabric.parameters.planes):
        for host, (line,) in candidates.plane_routes(healthy, plane).items():
            netns.batch_in(healthy.ns(host), ("ip",), [line.replace("replace", "del")])


def _sent(lab: Lab, host: str) -> list[int]:
    with lab.inside(host):
        sent = netns.sent_bytes()
    return [sent[n] for n in lab.fabric.config.interface_names(lab.fabric.config.host(host))]


def _subflows(flow: Flow) -> int:
    flow.poll(0)
    return flow.subflows


def test_an_mptcp_flow_uses_all_planes_and_ends_without_a_reset(healthy: Lab, ends: Ends) -> None:
    before = _sent(healthy, ends.source)
    with Flow(healthy, ends, protocol="mptcp") as flow:

        def carried() -> bool:
            return all(b - a > ENOUGH for a, b in zip(before, _sent(healthy, ends.source), strict=True))

        wait_until("each plane has carried some of the flow", lambda: _subflows(flow) >= 4 and carried())
        candidates.check_mptcp(healthy, flow)
        flow.finish()  # raises if an end was reset
    assert sum(flow.bins.values()) > ENOUGH


def test_an_mptcp_flow_without_a_subflow_is_detected(healthy: Lab, ends: Ends) -> None:
    netns.batch_in(healthy.ns(ends.target), ("ip",), ["mptcp endpoint delete id 3"])
    with Flow(healthy, ends, protocol="mptcp") as flow:
        wait_until("the sender has told of its subflows", lambda: _subflows(flow) == 3)
        with pytest.raises(MachineError, match="3 subflows instead of 4"):
            candidates.check_mptcp(healthy, flow)
