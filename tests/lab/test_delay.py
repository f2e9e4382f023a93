# SPDX-License-Identifier: BSD-2-Clause
"""Tests a slow link of the lab: its packets arrive later, in its direction only."""

import pytest

from labkit.cluster import netns, observe
from labkit.cluster.api import Lab
from tests.lab.conftest import wait_until
from tests.lab.flows import tcp_flow, tcp_transfer


def _longer_ms(lab: Lab, host: str, peer: str) -> float:
    """Returns by how much the least round trip of plane 1's EVs is longer than plane 0's."""
    rtts = [(p["plane"], float(p["rtt_ns"] or 0) / 1e6) for p in observe.paths(lab, host, peer)]
    return min(rtt for plane, rtt in rtts if plane == 1) - min(rtt for plane, rtt in rtts if plane == 0)


@pytest.mark.parametrize(("direction", "host", "peer"), [("up", "h2", "h0"), ("down", "h0", "h2")])
def test_a_delay_is_seen_by_the_probes_that_cross_it_and_gone_when_healed(
    healthy: Lab, direction: str, host: str, peer: str
) -> None:
    """Their replies do not: they leave a slow plane, as data does."""
    record = healthy.fail("nic:h2:1", delay="8ms", direction=direction)  # type: ignore[arg-type]
    assert record["what"] == f"delay 8 ms ({direction} only)"
    wait_until("round trips on plane 1 take longer", lambda: _longer_ms(healthy, host, peer) > 6)
    tcp_transfer(healthy, 6, 1_000_000)  # complete, although a quarter of it arrives late
    relays = list(healthy.state.exec_dir.glob("delay-*"))
    assert len(relays) == 1
    healthy.heal("nic:h2:1")
    assert not relays[0].exists()
    with healthy.inside("t0-1-1"):
        assert not [name for name in netns.interfaces() if name.startswith("slow-")]
    wait_until("round trips on plane 1 are short again", lambda: _longer_ms(healthy, host, peer) < 6)


def test_the_rto_min_of_the_route_bounds_the_tcp_timeout(healthy: Lab) -> None:
    """The least timeout that the kernel has for a flow is that of the configuration."""
    with tcp_flow(healthy):

        def least_ms() -> float:
            words = healthy.exec("h0", ["ss", "-tino", "state", "established"], check=True).stdout.split()
            return min((float(w.removeprefix("rto:")) for w in words if w.startswith("rto:")), default=1000)

        wait_until("a timeout is below Linux' own least of 200 ms", lambda: least_ms() < 150)
