"""What is known of the peers as wholes: told once, with whose routes are old and who is to be judged anew."""

import asyncio
from typing import Any, cast

import numpy as np
import pytest

from mrcd import abi, config, peerwatch, tables, topology
from mrcd.events import EventLog
from mrcd.peerwatch import PeerWatch
from tests.unit.arrays import TEXT, Arrays

ROWS = np.array([1, 2, 3])
SECOND = 10**9


class Watched:
    """The peers h1 to h3 of h0, all heard, with all planes."""

    def __init__(self, steering: str = "usid") -> None:
        self.arrays = Arrays(4, 8)
        self.arrays.peers["heard_ns"], self.arrays.peers["ports"] = 1, 0b11
        self.now = 10**12
        self.log = EventLog()
        self.changed: list[int] = []
        self.plan = topology.plan(config.parse(TEXT.replace("[cluster]", f'[cluster]\nsteering = "{steering}"')), "h0")
        self.watch = self.another()

    def another(self) -> PeerWatch:
        return PeerWatch(self.plan, cast(tables.Tables, self.arrays), self.log, self.changed.append)

    def look(self, seconds: float = 0.1) -> list[int]:
        """Time passes; the rows to be judged anew."""
        self.changed.clear()
        self.now += int(seconds * SECOND)
        anew: list[int] = self.watch.look(ROWS, self.now).tolist()
        return anew

    def said(self) -> list[dict[str, Any]]:
        return asyncio.run(self.log.after(0, 0))


def test_what_a_peer_says_of_itself_is_told_once() -> None:
    w = Watched()
    assert (w.look(), w.changed) == ([1, 2, 3], [1, 2, 3])
    assert (w.look(), w.changed) == ([], [])
    w.arrays.peers["status"][2] = abi.STATUS_DETACHED
    assert (w.look(), w.changed) == ([2], [2])
    assert [(e["peer"], e["to"]) for e in w.said()] == [
        ("h1", "attached"),
        ("h2", "attached"),
        ("h3", "attached"),
        ("h2", "detached"),
    ]


def test_a_plane_that_a_peer_has_lost_is_told_and_nothing_judged_anew() -> None:
    w = Watched()
    w.look()
    w.arrays.peers["ports"][3] = 0b01
    assert (w.look(), w.changed) == ([], [3])
    assert (w.said()[-1]["peer"], w.said()[-1]["evidence"]) == ("h3", {"planes_up": [0]})


def test_nothing_is_told_anew_under_another_plan() -> None:
    w = Watched()
    w.look()
    w.watch.silent = {1}
    before, w.watch = w.watch, w.another()
    w.watch.follow(before)
    assert (w.look(), w.changed, w.watch.silent) == ([], [], {1})


def test_routes_follow_what_is_usable_but_not_every_moment() -> None:
    w = Watched()
    w.look()
    assert not w.watch.routed(2).any()
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
    assert w.watch.routed(2)[0] == 0b0111
    w.look()
    assert w.changed == []


def test_silence_is_told_with_its_end_but_not_in_the_first_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Watched()
    w.watch.note_silence({1, 2}, {3})
    assert (w.said(), w.watch.silent) == ([], set())
    monkeypatch.setattr(peerwatch, "_PATIENCE_S", -1.0)
    w.watch.note_silence({1}, {3})
    w.watch.note_silence({1}, {3})
    w.watch.note_silence(set(), {1, 3})
    assert [(e["peer"], e["to"]) for e in w.said()] == [("h1", "unreachable"), ("h1", "reachable")]
    assert w.watch.silent == set()


@pytest.mark.parametrize(
    ("steering", "sprayed"),
    [("usid", [False, True, False]), ("ecmp", [True, True, False])],  # h1 was never heard, h3 is detached
)
def test_traffic_is_sprayed_to_peers_that_are_attached_and_were_heard(steering: str, sprayed: list[bool]) -> None:
    w = Watched(steering)
    w.arrays.peers["heard_ns"][1], w.arrays.peers["status"][3] = 0, abi.STATUS_DETACHED
    assert w.watch.sprayed(ROWS).tolist() == sprayed == [bool(w.watch.sprayed(row)) for row in (1, 2, 3)]
    assert w.watch.judged(ROWS).tolist() == [True, True, False]
    w.arrays.node["status"] = abi.STATUS_DETACHED
    assert not w.watch.sprayed(ROWS).any() | w.watch.judged(ROWS).any()
