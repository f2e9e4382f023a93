# SPDX-License-Identifier: BSD-2-Clause
"""Tests that broken paths are left, healed paths return, and healthy ones do not change."""

import numpy as np

from labkit.cluster.api import Lab
from labkit.traffic import candidates
from labkit.traffic.stream import Stream
from mrcd.kernel.dataplane import pin_directory
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables
from tests.lab.conftest import all_good, event_times, mrcctl, states, wait_until
from tests.lab.flows import STANDSTILL_MS, standstill_ms, tcp_flow

PAIRS = [("h0", "h2"), ("h0", "h3"), ("h1", "h2"), ("h1", "h3")]  # across the T0s


def _wait_state(lab: Lab, host: str, peer: str, evs: set[int], state: str) -> None:
    wait_until(
        f"EVs {evs} of {host} → {peer} are {state}",
        lambda: {e for e, s in states(lab, host, peer).items() if s == state} >= evs,
    )


def _bad(lab: Lab, host: str, peer: str) -> set[int]:
    return {e for e, s in states(lab, host, peer).items() if s == "ASSUMED_BAD"}


def _told(lab: Lab, host: str, peer: str, evs: set[int], since_ns: int) -> dict[int, int]:
    """Returns EV → when it was left, once events report all of `evs`: they come a moment after the tables."""

    def found() -> dict[int, int] | None:
        times = event_times(lab, host, peer, "ASSUMED_BAD", since_ns)
        return times if times.keys() >= evs else None

    times: dict[int, int] = wait_until(f"{host} tells that it has left {evs}", found)
    return times


def test_a_blackholed_t1_is_left_and_returns(healthy: Lab) -> None:
    with tcp_flow(healthy) as flow:
        wait_until("the flow runs", lambda: mrcctl(healthy, "h0", "peers")[1]["tx_packets"] > 1_000)
        fault = healthy.fail("t1:1:2")
        for source, target in PAIRS:
            _wait_state(healthy, source, target, {6}, "ASSUMED_BAD")
        times = {p: _told(healthy, *p, {6}, fault["monotonic_ns"]) for p in PAIRS}
        record = healthy.heal()[0]
        assert times["h0", "h2"][6] > record["first_drop_ns"]
        for pair, found in times.items():
            assert set(found) == {6}, (pair, found)
        _wait_state(healthy, "h0", "h2", set(range(16)), "GOOD")
        wait_until("h0 tells of it", lambda: 6 in event_times(healthy, "h0", "h2", "GOOD", record["monotonic_ns"]))
        assert standstill_ms(flow) < STANDSTILL_MS, flow.bins


def test_a_plane_that_returns_gets_its_share_step_by_step(healthy: Lab) -> None:
    """All EVs of h0's plane 1 return at once; its share grows with their weight, and no T1 gets more than another."""
    evs = Tables(pin_directory(healthy.run_dir("h0") / "bpf"), writable=False).evs[2]
    sent = {weight: np.zeros(16, np.int64) for weight in (1, 2, 4, 8)}  # packets per EV, by the weight
    with Stream(healthy, candidates.overlay(healthy, 4), rate=5_000, burst=1):
        healthy.fail("nic:h0:1")
        _wait_state(healthy, "h0", "h2", {4, 5, 6, 7}, "ASSUMED_BAD")
        healthy.heal()
        before = evs.copy()

        def has_returned() -> bool:
            nonlocal before
            after = evs.copy()
            weights = {*before["weight"][4:8].tolist(), *after["weight"][4:8].tolist()}
            if (after["state"][4:8] == EvState.GOOD).all() and len(weights) == 1:
                sent[weights.pop()] += after["tx_packets"].astype(np.int64) - before["tx_packets"].astype(np.int64)
            before = after
            return bool(sent[8].sum() > 1_000)

        wait_until("plane 1 has all its share again", has_returned)
    # A busy machine may not have looked during a step.
    planes = {weight: packets.reshape(4, 4) for weight, packets in sent.items() if packets.sum() > 100}
    for weight, packets in planes.items():
        assert packets[1].max() <= 1.5 * packets[1].mean() + 1, (weight, packets)
    shares = [packets[1].sum() / packets.sum() for packets in planes.values()]
    print(f"share of the plane that returns, by weight: {dict(zip(planes, shares, strict=True))}")
    assert shares == sorted(shares)
    assert 1 not in planes or shares[0] < 1 / 8


def test_a_lossy_link_is_left_and_no_other_ev(healthy: Lab) -> None:
    with tcp_flow(healthy):
        wait_until("the flow runs", lambda: mrcctl(healthy, "h0", "peers")[1]["tx_packets"] > 1_000)
        fault = healthy.fail("link:2:0:1", drop=0.2)
        _wait_state(healthy, "h0", "h2", {9}, "ASSUMED_BAD")
        found = _told(healthy, "h0", "h2", {9}, fault["monotonic_ns"])
        assert set(found) == {9}
        path = mrcctl(healthy, "h0", "paths", "--peer", "h2")[9]
        assert path["reason"] in ("loss", "grey_loss", "overdue")
        assert not path["usable"]


def test_a_link_that_fails_one_way_is_left_in_that_direction_only(healthy: Lab) -> None:
    """A host remembers the loss of the test before this one for a minute, and may leave that EV again, by grey loss."""
    with tcp_flow(healthy):
        wait_until("the flow runs", lambda: mrcctl(healthy, "h0", "peers")[1]["tx_packets"] > 1_000)
        for direction, (here, there) in (("up", ("h0", "h2")), ("down", ("h2", "h0"))):
            fault = healthy.fail("link:1:0:2", direction=direction)  # type: ignore[arg-type]
            assert (fault["what"], fault["direction"]) == (f"drop 100% ({direction} only)", direction)
            _wait_state(healthy, here, there, {6}, "ASSUMED_BAD")
            listed = healthy.status()["faults"]
            assert [(f["target"], f["direction"]) for f in listed] == [("link:1:0:2", direction)]
            assert listed[0]["dropped_skbs"] > 0
            found = mrcctl(healthy, there, "paths", "--peer", here)
            assert not [p for p in found if p["state"] == "ASSUMED_BAD" and p["reason"] != "grey_loss"]
            healthy.heal()
            _wait_state(healthy, here, there, set(range(16)), "GOOD")
            left = event_times(healthy, there, here, "ASSUMED_BAD", fault["monotonic_ns"])
            assert left.keys() <= {9}


def test_a_dead_nic_link_is_left_by_the_host_and_its_peers(healthy: Lab) -> None:
    fault = healthy.fail("nic:h0:3", down=True)
    _wait_state(healthy, "h0", "h2", {12, 13, 14, 15}, "ASSUMED_BAD")
    _wait_state(healthy, "h2", "h0", {12, 13, 14, 15}, "ASSUMED_BAD")
    _told(healthy, "h0", "h2", {12, 13, 14, 15}, fault["monotonic_ns"])
    _told(healthy, "h2", "h0", {12, 13, 14, 15}, fault["monotonic_ns"])
    # Silence may be detected before the link's own event; the link's state must be known in both cases.
    wait_until("h0 knows", lambda: not mrcctl(healthy, "h0", "status")["planes"][3]["up"])
    wait_until("h2 is told", lambda: mrcctl(healthy, "h2", "peers")[0]["linked_planes"] == [0, 1, 2])
    seen = {p["reason"] for p in mrcctl(healthy, "h0", "paths", "--plane", "3")}
    assert seen <= {"link_down", "overdue", "icmp_error"}
    told = {p["reason"] for p in mrcctl(healthy, "h2", "paths", "--plane", "3", "--peer", "h0")}
    assert told <= {"peer_link_down", "overdue", "icmp_error"}
    assert _bad(healthy, "h2", "h1") == set()
    healthy.exec("h0", ["ping", "-c4", "-i0.01", "-W1", "10.99.0.3"], check=True)
    healthy.heal()
    _wait_state(healthy, "h2", "h0", set(range(16)), "GOOD")


def test_the_fallback_route_follows_the_states_of_evs(healthy: Lab) -> None:
    carrier = mrcctl(healthy, "h0", "paths", "--peer", "h2")[6]["carrier"].removesuffix("::")

    def hops() -> list[str]:
        text = healthy.exec("h0", ["ip", "route", "show", "10.99.0.3", "metric", "4000"], check=True).stdout
        return [line for line in text.splitlines() if "encap.red" in line]

    wait_until("all EVs are in the fallback route", lambda: len(hops()) == 16)
    healthy.fail("t1:1:2")
    wait_until("the withdrawn EV leaves the fallback route", lambda: len(hops()) == 15)
    assert not any(carrier in line for line in hops())
    healthy.heal()
    wait_until("the healed EV is back in the fallback route", lambda: len(hops()) == 16)


def test_hold_down_doubles_while_a_path_flaps(healthy: Lab) -> None:
    for _ in range(2):
        healthy.fail("link:0:0:3")
        _wait_state(healthy, "h0", "h2", {3}, "ASSUMED_BAD")
        healthy.heal()
        _wait_state(healthy, "h0", "h2", {3}, "GOOD")
    held = [
        e["evidence"]["hold_down_ms"]
        for e in mrcctl(healthy, "h0", "events")
        if e["peer"] == "h2" and e["ev"] == 3 and e["reason"] == "healed"
    ]
    assert held[-1] == 2 * held[-2]


def test_the_last_ev_stays_in_use(healthy: Lab) -> None:
    for plane in range(4):
        for t1 in range(4):
            if (plane, t1) != (2, 2):
                healthy.fail(f"link:{plane}:1:{t1}")
    # Each end detects it by itself, and an answer needs the reverse direction.
    wait_until("15 EVs are out", lambda: len(_bad(healthy, "h0", "h2")) == 15)
    wait_until("15 EVs back are out", lambda: len(_bad(healthy, "h2", "h0")) == 15)
    usable = [p for p in mrcctl(healthy, "h0", "paths", "--peer", "h2") if p["usable"]]
    assert [p["ev"] for p in usable] == [10]  # ev_min_active is 4, but nothing arrives on the others
    healthy.exec("h0", ["ping", "-c4", "-i0.01", "-W1", "10.99.0.3"], check=True)
    healthy.heal()
    wait_until("all EVs are GOOD again", lambda: all_good(healthy))
