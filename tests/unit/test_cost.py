# SPDX-License-Identifier: BSD-2-Clause
"""Tests the pure parts of labkit.bench.cost and its tools."""

import socket
import struct

import pytest

from labkit.bench import bare_host, cache_misses, cost, helper_calls, packet_sender
from labkit.bench.cost import ALL, BUSY_ONES, ONE, ONE_OF_ALL
from labkit.measure import progstats
from labkit.places import REPOSITORY
from mrcd.config import cluster_file


def test_run_times_are_the_difference_of_two_readings() -> None:
    found = progstats.Runs(1500, 12).since(progstats.Runs(1000, 2))
    assert found == (500, 10)
    assert found.mean_ns == 50
    assert progstats.Runs(7, 0).mean_ns is None


@pytest.mark.parametrize(
    ("of_all", "busy", "every", "met"),
    [(1.2, 1.3, 1.3, [True, True, True]), (1.0, 1.0, 3.0, [True, True, False]), (1.0, 1.4, 3.0, [True, False, False])],
)
def test_push_may_cost_little_more_at_the_full_table(of_all: float, busy: float, every: float, met: list[bool]) -> None:
    one = [100.0, 120.0, 90.0]
    costs = {
        ("mrc_push", ONE): one,
        ("mrc_push", ONE_OF_ALL): [x * of_all for x in one],
        ("mrc_push", BUSY_ONES): [x * busy for x in one],
        ("mrc_push", ALL): [x * every for x in one],
        ("mrc_pop", ONE): one,
        ("mrc_pop", ALL): [x * 9 for x in one],  # has no requirement
    }
    assert [r["met"] for r in cost.required(costs)] == met


@pytest.mark.parametrize("peers", cache_misses.SETS)
def test_random_order_visits_each_peer_before_the_next_cycle(peers: int) -> None:
    order = cache_misses.among(range(1, 4096), peers)
    assert len(order) >= 4 * packet_sender.BATCH
    assert len(set(order)) == peers
    assert all(len(set(order[i : i + peers])) == peers for i in range(0, len(order), peers))


def test_runs_send_all_packets_of_a_peer_in_a_row() -> None:
    order = cache_misses.in_runs([3, 1, 2])
    assert order == [3] * cache_misses.RUN + [1] * cache_misses.RUN + [2] * cache_misses.RUN


def test_the_least_cost_includes_one_wait_for_memory() -> None:
    found = cache_misses.floor([100.0, 200.0, 100.0], [10.0, 10.0, 20.0], [160.0, 210.0, 140.0])
    assert (found["wait_ns"], found["min_wait_ns"], found["max_wait_ns"]) == (150, 120, 200)
    assert found["least_ratio"] == pytest.approx(2.2)


def test_every_counted_helper_call_has_a_name() -> None:
    text = (REPOSITORY / "scripts/labkit/bench/counted.h").read_text()
    body = text[text.index("enum {") : text.index("COUNT_MAX")]
    assert body.count("COUNT_") == len(helper_calls.COUNTED)


@pytest.mark.parametrize("hosts", [2, 4096])
def test_a_bare_host_has_a_valid_cluster_file_and_a_row_per_host(hosts: int) -> None:
    assert cluster_file.parse(bare_host.cluster(hosts, "usid")).max_peers == hosts


def test_addresses_of_many_hosts_are_different() -> None:
    for version in (4, 6):
        assert len({bare_host.address(h, version) for h in range(4096)}) == 4096


def test_sent_packets_arrive_at_the_given_addresses() -> None:
    """Two receivers on loopback, in turn."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        mine.bind(("127.0.0.1", 0))
        mine.settimeout(5)
        port = mine.getsockname()[1]
        name = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton("127.0.0.1") + bytes(8)
        out = packet_sender.PacketSender(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), [b"one", b"two"], [name])
        try:
            out.send(2)
            assert {mine.recv(100) for _ in range(2)} == {b"one", b"two"}
        finally:
            out.close()
