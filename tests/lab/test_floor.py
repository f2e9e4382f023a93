# SPDX-License-Identifier: BSD-2-Clause
"""Tests that when nearly everything is broken, only the rest is used, and traffic continues."""

from labkit.cluster.api import Lab
from labkit.measure import goodput
from labkit.traffic.flow import Ends, Flow
from tests.lab.conftest import a_lab, all_good, mrcctl, states, wait_until
from tests.lab.flows import address

S = 1_000_000_000
SECONDS = 5
SURVIVORS = {3, 12}  # EV = plane × 8 + T1


def test_a_flow_continues_over_two_of_sixteen_paths() -> None:
    with a_lab("floor", planes=2, t1=8) as lab:
        _carry_on(lab)


def _carry_on(lab: Lab) -> None:
    every = {p["ev"]: f"t1:{p['plane']}:{p['t1']}" for p in mrcctl(lab, "h0", "paths", "--peer", "h2")}
    with Flow(lab, Ends("h0", address(0, 4), "h2", address(2, 4))) as flow:
        flow.poll(1)
        for ev in every.keys() - SURVIVORS:
            lab.fail(every[ev])

        def left() -> bool:
            flow.poll(0)
            return _bad(lab, "h0", "h2") == _bad(lab, "h2", "h0") == every.keys() - SURVIVORS

        wait_until("all but two EVs are left, both ways", left)
        flow.poll(1)
        begin_ns = max(flow.bins)
        for _ in range(SECONDS):
            flow.poll(1)
            paths = mrcctl(lab, "h0", "paths", "--peer", "h2")
            # ev_min_active is 4, but nothing arrives on the others.
            assert {p["ev"] for p in paths if p["usable"]} == SURVIVORS
        end_ns = max(flow.bins)
        lab.heal()
        wait_until("all EVs are GOOD again", lambda: all_good(lab))
        flow.finish()
    received = goodput.regular(flow.bins, begin_ns, end_ns, S)
    assert len(received) >= SECONDS - 2
    assert all(received), received


def _bad(lab: Lab, host: str, peer: str) -> set[int]:
    return {e for e, s in states(lab, host, peer).items() if s == "ASSUMED_BAD"}
