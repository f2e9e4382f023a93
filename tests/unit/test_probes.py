# SPDX-License-Identifier: BSD-2-Clause
"""Tests how often peers are swept, what is shown of probes and of the tick, and the state of peers as wholes."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mrcd.api.metrics.recent_events import event_lines
from mrcd.config import cluster_file
from mrcd.config.cluster_file import Health
from mrcd.ctl.phrases import sentence
from mrcd.fabric import topology
from mrcd.fabric.topology import Plan
from mrcd.health import peers, probe_pace
from mrcd.health.events import EventLog
from mrcd.health.peers import PeerWatch
from mrcd.kernel import abi, pinned
from tests.cluster_files import TWO
from tests.unit.arrays import TEXT, Arrays

MS = 1_000_000


@pytest.mark.parametrize(("peers", "evs"), [(1, 256), (3, 48), (3, 384), (15, 360)])
def test_small_clusters_probe_all_evs_in_every_idle_interval(peers: int, evs: int) -> None:
    assert probe_pace.pace(Health(), 4, peers, evs, 256) == probe_pace.Pace(0, 100 * MS)


@pytest.mark.parametrize(
    ("peers", "evs_per_peer", "window", "interval_ms"),
    [(8, 256, 49, 800), (64, 256, 5, 768), (64, 16, 5, 768), (4096, 256, 4, 40_960), (4096, 2, 2, 24_576)],
)
def test_idle_probes_of_many_peers_are_spread_over_time(
    peers: int, evs_per_peer: int, window: int, interval_ms: float
) -> None:
    found = probe_pace.pace(Health(), 4, peers, peers * evs_per_peer, evs_per_peer)
    assert (found.window, found.interval_ns / MS) == (window, interval_ms)
    # An eighth of the budget: the rest is for retries.
    assert peers * (found.window + 1) / (found.interval_ns / 1e9) == Health().idle_probes / 8


@pytest.mark.parametrize(("peers", "silent_ms"), [(3, 3000), (64, 3000), (4096, 3 * 40_960)])
def test_rarely_probed_peers_get_more_time_to_answer(peers: int, silent_ms: int) -> None:
    config = cluster_file.parse(f"[cluster]\nevs_per_peer = 256\n{TWO}")
    plan = SimpleNamespace(config=config, peers=range(peers), ev_count=256 * peers)
    assert probe_pace.unreachable_ns(cast(Plan, plan)) == silent_ms * MS


ROWS = np.array([1, 2, 3])
SECOND = 10**9


class Watched:
    """The peers h1 to h3 of h0, all heard, with all planes."""

    def __init__(self, encapsulation: str = "usid") -> None:
        self.arrays = Arrays(4, 8)
        self.arrays.peers["heard_ns"], self.arrays.peers["plane_mask"] = 1, 0b11
        self.now = 10**12
        self.log = EventLog()
        self.changed: list[int] = []
        self.plan = topology.plan(
            cluster_file.parse(TEXT.replace("[cluster]", f'[cluster]\nencapsulation = "{encapsulation}"')), "h0"
        )
        self.watch = self.another()

    def another(self) -> PeerWatch:
        return PeerWatch(self.plan, cast(pinned.Tables, self.arrays), self.log, self.changed.append)

    def look(self, seconds: float = 0.1) -> list[int]:
        """Advances the time, then checks the peers. Returns the rows whose routes may have changed."""
        self.changed.clear()
        self.now += int(seconds * SECOND)
        self.watch.check(ROWS, self.now)
        return self.changed

    def said(self) -> list[dict[str, Any]]:
        return asyncio.run(self.log.after(0, 0))


def test_a_status_change_of_a_peer_is_reported_once() -> None:
    w = Watched()
    assert w.look() == [1, 2, 3]
    assert w.look() == []
    w.arrays.peers["status"][2] = abi.STATUS_DETACHED
    assert w.look() == [2]
    w.arrays.peers["status"][2] = 0
    assert w.look() == [2]
    assert [(e["peer"], e["to"]) for e in w.said()] == [("h2", "detached"), ("h2", "attached")]


def test_a_start_reports_peers_that_are_detached_or_heard_for_the_first_time_only() -> None:
    w = Watched()
    w.arrays.peers["heard_ns"][1], w.arrays.peers["status"][2] = 0, abi.STATUS_DETACHED
    w.look()
    w.arrays.peers["heard_ns"][1] = 1
    w.look()
    assert [(e["peer"], e["to"]) for e in w.said()] == [("h2", "detached"), ("h1", "attached")]


def test_a_plane_lost_by_a_peer_is_reported() -> None:
    w = Watched()
    w.look()
    w.arrays.peers["plane_mask"][3] = 0b01
    assert w.look() == [3]
    assert (w.said()[-1]["peer"], w.said()[-1]["evidence"]) == ("h3", {"planes_up": [0]})


def test_many_changes_of_peers_are_summed() -> None:
    w = Watched()
    w.look()
    for number in range(200):
        w.arrays.peers["plane_mask"][[1, 2]] = (0b01, 0b11)[number % 2]
        w.look(0)
    w.watch.log_sums()
    w.watch.log_sums()
    *alone, down, up = w.said()
    assert [e["peer"] for e in alone] == ["h1", "h2"] * 128
    assert (down["peer"], down["evidence"]) == (None, {"peers": 2, "planes_up": [0]})
    assert (up["peer"], up["evidence"]) == (None, {"peers": 2, "planes_up": [0, 1]})
    assert sentence(down).endswith(" UTC 2 peers: port_status")
    assert event_lines([down])[0]["text"].startswith("2 peers: port_status (")


def test_a_new_plan_reports_nothing_again() -> None:
    w = Watched()
    w.look()
    w.arrays.watches["silent"][1] = 1
    w.watch.silent = {1}
    before, w.watch = w.watch, w.another()
    w.watch.take_over(before)
    told = len(w.said())
    assert (w.look(), w.watch.silent) == ([], {1})
    assert len(w.said()) == told


def test_routes_follow_the_usable_evs_at_intervals() -> None:
    w = Watched()
    w.look()
    assert not w.watch.usable_for_routes(2).any()
    w.arrays.peers["usable"][2, 0] = 0b0111
    w.look()
    w.arrays.peers["usable"][2, 0] = 0  # an EV came for a moment
    w.look(3)
    assert w.changed == []
    w.arrays.peers["usable"][2, 0] = 0b0111
    w.look()
    w.look(1.9)
    assert w.changed == []
    w.look()
    assert w.changed == [2]
    assert w.watch.usable_for_routes(2)[0] == 0b0111
    w.look()
    assert w.changed == []


def test_routes_of_a_moment_are_written_again() -> None:
    """They were written for another reason while an EV was out of use for less than the time between two checks."""
    w = Watched()
    w.look()
    usable = w.arrays.peers["usable"]
    usable[2, 0] = 0b01
    w.watch.usable_for_routes(2)
    usable[2, 0] = 0
    assert w.look() == [2]
    w.watch.usable_for_routes(2)
    assert w.look(5) == []


def test_silence_and_its_end_are_reported_after_a_grace_time(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Watched()
    w.look()
    told = len(w.said())
    w.arrays.watches["silent"][[1, 2]] = 1
    w.look()
    assert (len(w.said()), w.watch.silent) == (told, set())
    monkeypatch.setattr(peers, "GRACE_S", -1.0)
    w.arrays.watches["silent"][2] = 0
    w.look()
    w.look()
    w.arrays.watches["silent"][1] = 0
    w.look()
    w.look()
    assert [(e["peer"], e["to"]) for e in w.said()[told:]] == [("h1", "unreachable"), ("h1", "reachable")]
    assert w.watch.silent == set()


def test_the_fields_of_peers_are_at_the_offsets_that_are_read() -> None:
    """plane_mask and status are a 64-bit word, the second."""
    fields = abi.PEER.fields
    assert fields is not None
    assert [fields[n][1] for n in ("plane_mask", "status")] == [8, 12]
    assert abi.PEER.itemsize % 8 == 0


@pytest.mark.parametrize(
    ("encapsulation", "sprayed"),
    [("usid", [False, True, False]), ("ecmp", [True, True, False])],  # h1 was never heard, h3 is detached
)
def test_traffic_is_sprayed_to_peers_that_are_attached_and_were_heard(encapsulation: str, sprayed: list[bool]) -> None:
    w = Watched(encapsulation)
    w.arrays.peers["heard_ns"][1], w.arrays.peers["status"][3] = 0, abi.STATUS_DETACHED
    assert w.watch.can_spray(ROWS).tolist() == sprayed == [bool(w.watch.can_spray(row)) for row in (1, 2, 3)]
    w.arrays.node["status"] = abi.STATUS_DETACHED
    assert not w.watch.can_spray(ROWS).any()


def test_nothing_is_sprayed_to_a_peer_of_another_wire_version_and_that_is_reported_once() -> None:
    w = Watched()
    w.look()
    told = len(w.said())
    w.arrays.peers["status"][2] = 9 << abi.STATUS_WIRE
    assert w.look() == [2]
    assert w.watch.can_spray(ROWS).tolist() == [True, False, True]
    assert w.look(5) == []
    w.arrays.peers["status"][1:4] = 2 << abi.STATUS_WIRE  # as a host that tells nothing
    assert w.look() == [2]
    assert w.watch.can_spray(ROWS).all()
    found = [(e["peer"], e["from"], e["to"], e["reason"]) for e in w.said()[told:]]
    said = ("version 2", "version 9")
    assert found == [("h2", *said, "wire_version"), ("h2", *said[::-1], "wire_version")]
    w.arrays.node["status"] = w.arrays.peers["status"][1] = pinned.CHANGING << abi.STATUS_WIRE
    assert not w.watch.can_spray(ROWS).any()
    assert w.look() == [1]
    assert w.said()[-1]["to"] == "changing"
