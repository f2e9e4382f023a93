# SPDX-License-Identifier: BSD-2-Clause
"""Tests two hosts back to back: sprayed, and over the kernel's own SRv6 after detach."""

import os
from collections.abc import Iterator
from functools import partial

import pytest

from labkit.cluster.api import Lab
from tests.lab.conftest import a_lab, mrcctl, wait_until


@pytest.fixture(scope="module")
def back_to_back() -> Iterator[Lab]:
    with a_lab("pytest-direct", direct=True, mtu=1500) as made:
        yield made


def _pings(lab: Lab, version: int, count: int = 1) -> bool:
    address = "10.99.0.2" if version == 4 else "fd00:99::2"
    argv = ["ping", f"-c{count}", "-i0.01", "-W1", "-M", "do", "-s", "1372", address]
    return lab.exec("h0", argv).returncode == 0


@pytest.mark.parametrize("version", [4, 6])
def test_back_to_back_hosts_spray_over_all_planes(back_to_back: Lab, version: int) -> None:
    before = {p["ev"]: p["tx_packets"] for p in mrcctl(back_to_back, "h0", "paths")}
    cpus = os.cpu_count() or 1  # each CPU has a rotation of its own: one of them reaches all EVs
    assert _pings(back_to_back, version, 4 * cpus)
    after = {p["ev"]: p["tx_packets"] for p in mrcctl(back_to_back, "h0", "paths")}
    assert set(before) == {0, 1, 2, 3}
    assert all(after[ev] > before[ev] for ev in before)


def test_detached_hosts_reach_each_other_over_kernel_srv6(back_to_back: Lab) -> None:
    """With listed paths of one segment, the fallback's segment is that segment and a function."""
    mrcctl(back_to_back, "h0", "detach")
    try:
        for version in (4, 6):
            wait_until(f"IPv{version} takes the fallback", partial(_pings, back_to_back, version))
    finally:
        mrcctl(back_to_back, "h0", "attach")
