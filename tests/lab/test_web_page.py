# SPDX-License-Identifier: BSD-2-Clause
"""Reads the web page's document and the checks of a real daemon: healthy, with a dead T1, detached, restarted."""

import http.client
import json
import os
import signal
import socket
from typing import Any

from labkit.cluster.api import Lab
from tests.lab.conftest import wait_until

ADDRESS = ("127.0.0.1", 9479)
ALL_GOOD = [2, 0, 0, 0, 0]  # h2 and h3 are under the other T0


def fetch(lab: Lab, path: str) -> tuple[int, str]:
    """Returns status and text of an answer of h0's endpoint."""
    with lab.inside("h0"):
        connection = http.client.HTTPConnection(*ADDRESS, timeout=5)
        connection.sock = socket.create_connection(ADDRESS, 5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def document(lab: Lab) -> dict[str, Any]:
    status, text = fetch(lab, "/status.json")
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def cells(lab: Lab) -> list[list[int]]:
    """Returns the counts of each T1, plane by plane."""
    return [cell for plane in document(lab)["path_map"]["planes"] for cell in plane["t1s"]]


def test_a_dead_t1_is_one_bad_cell(healthy: Lab) -> None:
    assert cells(healthy) == [ALL_GOOD] * 16
    assert document(healthy)["headline"] == "All well"
    assert fetch(healthy, "/healthz")[0] == fetch(healthy, "/readyz")[0] == 200
    healthy.fail("t1:1:2")
    others = [ALL_GOOD] * 15
    wait_until("the cell of T1 2 in plane 1 is bad", lambda: cells(healthy)[6] == [0, 0, 2, 0, 0])
    found = document(healthy)
    assert [c for i, c in enumerate(cells(healthy)) if i != 6] == others
    assert found["level"] == "critical"
    assert any("ASSUMED_BAD" in line["text"] for line in found["events"])
    healthy.heal()
    wait_until("all is well again", lambda: document(healthy)["headline"] == "All well")


def test_rates_are_those_of_the_nics(healthy: Lab) -> None:
    healthy.exec("h0", ["ping", "-c", "20", "-i", "0.05", "-s", "60000", "10.99.0.3"], check=True)

    def has_sent() -> bool:
        planes = document(healthy)["rates"]["planes"]
        return len(planes) == 4 and all(max((b or 0 for b in p["tx_bits_per_s"]), default=0) > 100_000 for p in planes)

    wait_until("every plane has sent", has_sent)


def test_a_detached_host_is_not_ready(healthy: Lab) -> None:
    healthy.exec("h0", ["mrcctl", "detach"], check=True)
    try:
        status, text = fetch(healthy, "/readyz")
        assert (status, "mrcctl attach" in text) == (503, True)
        assert fetch(healthy, "/healthz")[0] == 200
        wait_until("the page says so", lambda: document(healthy)["level"] == "warning")
    finally:
        healthy.exec("h0", ["mrcctl", "attach"], check=True)
    assert fetch(healthy, "/readyz")[0] == 200


def test_a_new_daemon_is_healthy_at_once(healthy: Lab) -> None:
    pid = healthy.daemon_pid("h0")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until("the daemon is gone", lambda: healthy.daemon_pid("h0") is None)
    healthy.up()
    wait_until("it is ready", lambda: fetch(healthy, "/readyz")[0] == 200)
    assert fetch(healthy, "/healthz")[0] == 200
    wait_until("all is well", lambda: document(healthy)["headline"] == "All well")
