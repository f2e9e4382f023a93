# SPDX-License-Identifier: BSD-2-Clause
"""Tests what the fabric reports of a path: no route, or congestion."""

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from labkit.cluster.api import Lab
from tests.lab.conftest import a_lab, all_good, event_times, mrcctl, states, wait_until
from tests.lab.flows import address, tcp_flow

EV = 6  # plane 1, T1 2
T0 = "t0-1-0"  # T0 of h0 and h1
SHORT_MTU = 1300


def _path(lab: Lab) -> Any:
    return mrcctl(lab, "h0", "paths", "--peer", "h2")[EV]


@pytest.fixture
def slow_to_judge() -> Iterator[Lab]:
    """A lab in which silence fails no EV for a while: switches send an error per second at most."""
    with a_lab("errors", health={"overdue_ms": 1000}) as lab:
        wait_until("all EVs are GOOD", lambda: all_good(lab))
        yield lab


def test_an_icmp_error_of_a_switch_fails_the_ev_at_once(slow_to_judge: Lab) -> None:
    """Its error quotes the packet, which names the EV, so no timeout is needed."""
    show = ["ip", "-6", "route", "show", "dev", "t1-2", "5f00:0:8802::/48"]
    route = slow_to_judge.exec(T0, show, check=True).stdout.split()
    with tcp_flow(slow_to_judge):
        wait_until("the flow runs", lambda: mrcctl(slow_to_judge, "h0", "peers")[1]["tx_packets"] > 1_000)
        last = mrcctl(slow_to_judge, "h0", "events")[-1]["monotonic_ns"]
        slow_to_judge.exec(T0, ["ip", "-6", "route", "del", route[0], "dev", "t1-2"], check=True)
        try:
            wait_until("the EV is left", lambda: _path(slow_to_judge)["state"] == "ASSUMED_BAD")
            path = _path(slow_to_judge)
            told = wait_until("it is told", lambda: event_times(slow_to_judge, "h0", "h2", "ASSUMED_BAD", last + 1))
            assert set(told) == {EV}
        finally:
            slow_to_judge.exec(T0, ["ip", "-6", "route", "add", *route, "dev", "t1-2"], check=True)
    assert path["reason"] == "icmp_error"
    ours = [e for e in mrcctl(slow_to_judge, "h0", "events") if e.get("reason") == "icmp_error" and e["ev"] == EV]
    assert ours[-1]["evidence"] | {"icmp_type": 1, "icmp_code": 0} == ours[-1]["evidence"]
    wait_until("it is back", lambda: states(slow_to_judge, "h0", "h2")[EV] == "GOOD")


def test_a_path_that_drops_long_packets_is_left_and_does_not_return(healthy: Lab) -> None:
    """Such a path answers short probes: without long ones it would return, and fail again, without end."""
    link = f"ip link set dev t1-2 mtu {SHORT_MTU}".split()
    was = str(json.loads(healthy.exec(T0, ["ip", "-j", "link", "show", "dev", "t1-2"], check=True).stdout)[0]["mtu"])
    with tcp_flow(healthy):
        wait_until("the flow runs", lambda: mrcctl(healthy, "h0", "peers")[1]["tx_packets"] > 1_000)
        healthy.exec(T0, link, check=True)
        try:
            wait_until("the EV is left", lambda: _path(healthy)["state"] == "ASSUMED_BAD")
            left = _path(healthy)
            # The EV would return after ten small probes and the hold-down, and then fail again.
            wait_until("two hold-downs pass", lambda: _path(healthy)["since_s"] > 2 * left["hold_down_s"] + 1)
            assert (_path(healthy)["state"], _path(healthy)["flaps"]) == ("ASSUMED_BAD", left["flaps"])
        finally:
            healthy.exec(T0, [*link[:-1], was], check=True)
    ours = [e for e in mrcctl(healthy, "h0", "events") if e.get("reason") == "icmp_error" and e["ev"] == EV]
    assert ours[-1]["evidence"]["icmp"] == "packet too big for a link of the path"
    wait_until("it is back", lambda: states(healthy, "h0", "h2")[EV] == "GOOD")


def test_a_congested_path_is_skipped_and_stays_in_use(healthy: Lab) -> None:
    before = mrcctl(healthy, "h0", "paths", "--peer", "h2")
    began = healthy.fail("t1:1:2", drop=None, ce=1.0)["monotonic_ns"]
    stop = threading.Event()
    with healthy.inside("h0"):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0b10)  # ECT(0)

    def send() -> None:
        while not stop.wait(0.0005):
            s.sendto(bytes(1000), (address(2, 4), 9))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        wait_until("it has let turns pass", lambda: _path(healthy)["skips"] >= before[EV]["skips"] + 20)
    finally:
        stop.set()
        sender.join()
        s.close()
    after = mrcctl(healthy, "h0", "paths", "--peer", "h2")
    sent = [b["tx_packets"] - a["tx_packets"] for a, b in zip(before, after, strict=True)]
    others = [n for ev, n in enumerate(sent) if ev != EV]
    assert 0 < sent[EV] < 0.8 * min(others), sent
    assert after[EV]["usable"]
    assert EV not in event_times(healthy, "h0", "h2", "ASSUMED_BAD", began)
