"""Tunnels over mrc0, as of a container network: the kernel takes one tunnel per packet, and ours is the second."""

from collections.abc import Iterator

import pytest

from labkit import observe
from labkit.api import Lab
from labkit.kernels.guest import TUNNEL, TUNNELS, iperf3, make_tunnel
from tests.lab.conftest import TWO_HOSTS, mrcctl


@pytest.fixture(scope="module")
def small() -> Iterator[Lab]:
    lab = Lab("test-tunnels")
    lab.up(**TWO_HOSTS)
    observe.wait_until_good(lab, ("h0", "h1"))
    yield lab
    lab.down()


@pytest.mark.parametrize("kind", TUNNELS)
def test_bursts_of_a_tunnel_are_sprayed(small: Lab, kind: str) -> None:
    if not make_tunnel(small, TUNNELS[kind]):
        pytest.skip(f"this kernel has no {kind}")
    try:
        before = mrcctl(small, "h0", "status")["drops"].get("push_failed", 0)
        goodput, words = iperf3(small, "h1", 4, 1, [], address=TUNNEL.format(2))
        assert goodput > 0, words
        assert mrcctl(small, "h0", "status")["drops"].get("push_failed", 0) == before
    finally:
        for host in ("h0", "h1"):
            small.exec(host, ["ip", "link", "del", "tunnel"])
