# SPDX-License-Identifier: BSD-2-Clause
"""Tests a NIC's cable that loses a little: its plane is left, and no other EV, for any number of EVs."""

import contextlib
from typing import Any

import pytest

from tests.lab.conftest import a_lab, event_times, mrcctl, states, wait_until
from tests.lab.flows import tcp_flow


@pytest.mark.parametrize(
    ("planes", "t1s", "failed"), [(2, 96, []), (4, 4, [3])], ids=["of two, in two parts of a report", "of four"]
)
def test_a_cable_that_loses_5_percent_fails_its_plane(planes: int, t1s: int, failed: list[int]) -> None:
    """`failed`: EVs of plane 2, whose T1 is dead."""
    with a_lab("lossy", hosts=3, planes=planes, t1=t1s) as lab, contextlib.ExitStack() as flows:
        for _ in range(4):  # one alone sends too little while it repairs losses
            flows.enter_context(tcp_flow(lab, rate=0))
        wait_until("the flows run", lambda: mrcctl(lab, "h0", "peers")[1]["tx_packets"] > 10_000)
        last = planes - 1
        dead = {2 * t1s + slot for slot in failed}
        for slot in failed:
            lab.fail(f"t1:2:{slot}")
        wait_until("a dead T1 is left", lambda: out(states(lab, "h0", "h2")) == dead)
        began = lab.fail(f"nic:h0:{last}", drop=0.05)["monotonic_ns"]
        plane = set(range(last * t1s, planes * t1s))
        found = wait_until(
            "the plane is left", lambda: whole(event_times(lab, "h0", "h2", "ASSUMED_BAD", began), plane)
        )
        assert set(found) == plane


def out(evs: dict[int, str]) -> set[int]:
    return {ev for ev, state in evs.items() if state == "ASSUMED_BAD"}


def whole(found: dict[int, int], plane: set[int]) -> Any:
    """Returns the first events, once all EVs of the plane have one."""
    return found if plane <= found.keys() else None
