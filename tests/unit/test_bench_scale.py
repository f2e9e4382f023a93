# SPDX-License-Identifier: BSD-2-Clause
"""Tests the scale benchmark without a daemon: its cluster file, requirements and tables."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from labkit.bench.scale import part, picture, probe
from labkit.cluster import emulated_peers
from mrcd.config import cluster_file
from mrcd.fabric import topology
from tests.unit.arrays import Arrays
from tests.unit.test_bench_scale_control import busy


@pytest.mark.parametrize("peers", [1, 64, 65, 4096])
def test_every_emulated_peer_has_256_evs_and_the_address_that_the_program_answers_from(peers: int) -> None:
    plan = topology.plan(cluster_file.parse(emulated_peers.cluster_file(peers)), emulated_peers.HOST)
    assert len(plan.peers) == peers < emulated_peers.HOSTS_MOST
    assert plan.ev_count == peers * emulated_peers.EVS
    for peer in (plan.peers[0], plan.peers[-1]):
        # bpf/lab/echo.bpf.c: make_reply()
        t0 = 1 + (peer.host.id - 1) // emulated_peers.HOSTS_PER_T0
        assert [str(a) for a in peer.addresses][2] == str(plan.addresses[2])[: len("fd10:0:2")] + f":{t0:x}::" + (
            f"{peer.host.id + 1:x}"
        )
        assert str(peer.host.prefixes[0].network_address) == emulated_peers.address(peer.host.id)


def run(**other: Any) -> dict[str, Any]:
    times = {"count": 9.0, "mean_s": 0.01, "longest_s": 0.012}
    answers = {name: {"s": 0.1, "bytes": 9} for name in ("scrape", "status", "paths_of_a_peer")}
    found: dict[str, Any] = {
        "peers": 4096,
        "evs": 1_048_576,
        "start_s": 2.0,
        "restart_s": 2.0,
        "kernel_bytes": 319_000_000,
        "idle_cpu_ratio": 0.0075,
        "look_s": 0.03,
        "busy_peers": 256,
        "busy_cpu_ratio": 0.3,
        "memory": {"own_bytes": 200_000_000, "pss_bytes": 500_000_000},
        "answers": answers,
        "reload": {name: {"s": 1.5} for name in ("same", "programs", "fewer", "more")},
        "own": {"tick": times},
        "own_after_all": {"tick": times},
        "control": [busy()],
    }
    return found | other


def test_all_requirements_can_be_met() -> None:
    assert [r["met"] for r in part.requirements(run())] == [True] * 10


@pytest.mark.parametrize(
    ("index", "other"),
    [
        (0, {"own": run()["own"] | {"tick": {"count": 1.0, "mean_s": 0.051, "longest_s": 0.1}}}),
        (0, {"own": run()["own"] | {"tick": {"count": 0.0, "mean_s": None, "longest_s": 0.0}}}),
        (0, {"look_s": 0.051}),
        (1, {"memory": {"own_bytes": 300_000_001, "pss_bytes": 700_000_000}}),
        (2, {"kernel_bytes": 320_000_001}),
        (3, {"start_s": 10.1}),
        (3, {"restart_s": 10.1}),
        (4, {"idle_cpu_ratio": 0.0101}),
        (5, {"answers": run()["answers"] | {"scrape": {"s": 1.1, "bytes": 9}}}),
        (6, {"answers": run()["answers"] | {"paths_of_a_peer": {"s": 0.151, "bytes": 9}}}),
    ],
)
def test_each_requirement_can_be_missed(index: int, other: dict[str, Any]) -> None:
    assert [r["met"] for r in part.requirements(run(**other))] == [i != index for i in range(10)]


def test_a_check_of_all_peers_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = topology.plan(cluster_file.parse(emulated_peers.cluster_file(3)), emulated_peers.HOST)

    class Opened(Arrays):
        closed = False

        def close(self) -> None:
            self.closed = True

    opened = Opened(4, emulated_peers.EVS)
    monkeypatch.setattr(probe, "Tables", lambda pins, writable: opened)
    assert 0 < probe.look_s(Path("/nowhere"), plan) < 10
    assert opened.closed


def test_the_tables_have_a_line_for_each_size() -> None:
    found = part.lines({"runs": [run(peers=1), run()]})
    assert sum(line.startswith("4096 ") for line in found) == 3
    assert any("0.75%" in line and "30.0% (256)" in line for line in found)


def test_the_picture_shows_each_measure_as_a_share_of_what_is_allowed() -> None:
    runs = [run(peers=1, evs=256), run(idle_cpu_ratio=0.01)]
    drawn = picture.picture({"runs": runs})
    root = ElementTree.fromstring(drawn)
    lines = [e.get("points", "").split() for e in root.iter() if e.tag.endswith("polyline")]
    assert len(lines) == 7
    assert all(len(points) == 2 for points in lines)
    goals = [float(e.get("y1", 0)) for e in root.iter() if "goal" in (e.get("class") or "")][1:]  # without the legend's
    idle = [points for points in lines if float(points[1].split(",")[1]) == goals[0]]
    assert len(idle) == 1  # at the bound, and at 75 % of it with fewer EVs
    assert float(idle[0][0].split(",")[1]) > goals[0]
    assert "1,048,576" in drawn
