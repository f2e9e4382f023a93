# SPDX-License-Identifier: BSD-2-Clause
"""Tests the diagnosis at its limits: all down, few hosts, other encapsulations, a million EVs, real interfaces."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mrcd.health.diagnosis.causes import Kind
from mrcd.kernel.enums import EvState
from mrcd.net.link_state import LinkState, link_state
from tests.unit.test_diagnosis import Host, text

# ---- everything is down ----


def test_all_evs_have_failed() -> None:
    c = Host().set("plane:0").set("plane:1").cause()
    assert (c.kind, c.target, c.share.evs, c.share.peers) == (Kind.HOST, "host:h0", 52, 8)


def test_no_peer_answers() -> None:
    h = Host()
    h.watches["silent"] = 1
    c = h.cause()
    assert (c.kind, c.target, c.share.peers) == (Kind.HOST, "host:h0", 8)


def test_all_own_planes_are_down() -> None:
    h = Host()
    h.node["plane_mask"], h.watches["silent"] = 0, 1
    assert h.found() == [("own_cable", "nic:h0:0"), ("own_cable", "nic:h0:1")]


def test_the_own_t0_has_lost_its_t1s() -> None:
    h = Host()
    for t1 in range(4):
        h.set(f"t1:1:{t1}")
    assert h.found() == [("own_t0", "t0:1:0")]
    for t1 in range(4):
        h.set(f"t1:0:{t1}")
    assert h.found() == [("own_t0", "t0:0:0"), ("own_t0", "t0:1:0")]


def test_a_host_with_one_peer_names_what_it_cannot_tell_apart() -> None:
    h = Host(text(t0s=2, hosts=1))
    assert h.set("plane:1").cause().or_targets == ("t0:1:0", "t0:1:1", "nic:h1:1")
    c = h.set("plane:0").cause()
    assert (c.kind, c.target, c.or_targets) == (Kind.PEER_DOWN, "peer:h1", ("host:h0",))
    h = Host(text(t0s=2, hosts=1))
    h.watches["silent"][1] = 1
    assert h.cause().or_targets == ("host:h0",)


def test_a_host_without_peers() -> None:
    assert Host(text(t0s=1, hosts=1)).causes() == []


# ---- encapsulations ----


def test_an_srh_names_the_t1_too() -> None:
    h = Host(text(more='encapsulation = "srh"')).set("t1:1:2")
    assert h.found() == [("t1", "t1:1:2")]
    assert h.cause().do == "`mrcctl trace h3 --ev 6` confirms it"  # it cannot tell the T1 from the link either


def test_trace_tells_a_t1_from_a_link_only_by_a_second_t1() -> None:
    h = Host(text(t1s=1)).set("t1:1:0")
    assert h.found() == [("t1", "t1:1:0")]
    assert h.cause().do.endswith("confirms it")


def test_with_ecmp_nobody_knows_an_ev_s_t1() -> None:
    h = Host(text(more='encapsulation = "ecmp"'))
    for peer in range(3, 9):
        h.set(f"ev:h{peer}:6")
    c = h.cause()
    assert (c.kind, c.target) == (Kind.UNKNOWN, "plane:1")
    assert "with encapsulation ecmp the switches choose the T1" in c.sentence
    assert c.do == "`mrcctl probe h3 --ev 6` confirms it"
    assert Host(text(more='encapsulation = "ecmp"')).set("t0:1:2").found() == [("t0", "t0:1:2")]
    assert Host(text(more='encapsulation = "ecmp"')).set("nic:h4:1").found() == [("peer_nic", "nic:h4:1")]


def test_more_t1s_than_evs_of_a_plane() -> None:
    h = Host(text(t0s=4, hosts=4, t1s=16))
    assert h.set("t1:1:5").found() == [("t1", "t1:1:5")]


# ---- large clusters ----


@pytest.fixture(scope="module")
def large() -> Host:
    return Host(text(t0s=256, hosts=16, t1s=32, planes=8, evs=256))


def lines_run(work: Callable[[], object]) -> int:
    """Returns how many lines of Python a call runs."""
    count = 0

    def trace(*_: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("target", ["", "t1:1:2", "t0:1:2", "nic:h0:1", "nic:h40:1"])
def test_a_million_evs_take_no_loop_over_evs(large: Host, target: str) -> None:
    """4,096 × 256: some lines per peer, and a few per element that may explain a fault."""
    large.evs["state"][large.evs["configured"] != 0] = EvState.GOOD
    t0s = np.array([p.host.t0 for p in large.plan.peers])
    bad = {
        "": np.zeros((4095, 32), bool),
        "t1:1:2": large.plan.paths.t1s[:, 32:64] == 2,
        "t0:1:2": np.repeat(t0s == 2, 32).reshape(-1, 32),
        "nic:h0:1": np.ones((4095, 32), bool),
        "nic:h40:1": np.repeat(np.arange(1, 4096) == 40, 32).reshape(-1, 32),
    }[target]
    large.evs["state"][1:, 32:64][bad & (large.evs["configured"][1:, 32:64] != 0)] = EvState.ASSUMED_BAD
    assert [c.target for c in large.causes()] == [target] * bool(target)
    assert lines_run(large.causes) < 10 * len(large.plan.peers)


def test_many_faults_stay_quick(large: Host) -> None:
    """A thousand EVs at random have nothing in common."""
    large.evs["state"][large.evs["configured"] != 0] = EvState.GOOD
    random = np.random.default_rng(1)
    large.evs["state"][random.integers(16, 4096, 1000), random.integers(0, 256, 1000)] = EvState.ASSUMED_BAD
    assert {kind for kind, _ in large.found()} == {"unknown"}
    assert lines_run(large.causes) < 10 * len(large.plan.peers)


# ---- what it reads ----


def test_the_state_of_interfaces() -> None:
    assert link_state("lo") in (LinkState.UP, LinkState.DISABLED)
    assert link_state("no-such-nic") is LinkState.MISSING
