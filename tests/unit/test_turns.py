"""Whose turn it is, over rounds and times alone."""

from typing import cast

import numpy as np
import pytest

from mrcd.tables import Tables
from mrcd.turns import BUSY_NS, Turns, from_
from tests.unit.arrays import Arrays
from tests.unit.played import MS

ROWS = np.array([1, 2, 4])


class Told:
    """The turns of peers 1, 2 and 4 of six rows: few, if there is no flock."""

    def __init__(self, turn_ms: int = 90, flock_ms: int = 0) -> None:
        self.arrays = Arrays(6, 1)
        self.turns = Turns(cast(Tables, self.arrays), ROWS, turn_ms * MS, flock_ms * MS)
        self.now = 10**12

    def due(self, ms: int = 20) -> tuple[list[int], list[int]]:
        self.now += ms * MS
        urgent, others = self.turns.due(self.now)
        return urgent.tolist(), others.tolist()

    def put_off(self, ms: int, *rows: int) -> None:
        self.turns.due_ns[list(rows)] = self.now + ms * MS


@pytest.mark.parametrize("flock_ms", [0, 90])
def test_only_peers_are_due_and_those_put_off_when_it_is_time(flock_ms: int) -> None:
    t = Told(90, flock_ms)
    assert t.due() == ([], [1, 2, 4])
    t.put_off(150, 2)
    assert t.due(100) == ([], [1, 4])
    assert t.due(100) == ([], [1, 2, 4])


@pytest.mark.parametrize("flock_ms", [0, 90])
def test_traffic_makes_urgent_until_two_seconds_after_the_last(flock_ms: int) -> None:
    t = Told(90, flock_ms)
    t.put_off(10_000, 1, 2, 4)
    assert t.due() == ([], [])
    t.arrays.rounds["round"][[2, 3]] += 1  # 3 is no peer
    assert t.due(100) == ([2], [])
    t.turns.note_busy(np.array([2]), t.now)
    t.turns.note_asked([2])
    assert t.due(20) == ([], [])  # put off
    t.put_off(0, 2)
    assert t.due(20) == ([2], [])  # between turns too
    t.now += BUSY_NS
    assert t.due(20) == ([], [2])


def test_quiet_peers_are_looked_for_in_turns_only_where_they_are_many() -> None:
    t = Told(90, 90)
    assert t.due() == ([], [1, 2, 4])
    t.arrays.rounds["round"][1] += 1
    assert [t.due() for _ in range(5)] == [([], []), ([], []), ([], []), ([], []), ([1], [2, 4])]
    t.turns.again()
    assert t.due() == ([1], [2, 4])


def test_the_quiet_wait_for_each_other_but_traffic_is_seen_in_each_turn() -> None:
    t = Told(90, 250)
    assert t.due() == ([], [1, 2, 4])
    assert [t.due(100), t.due(100)] == [([], []), ([], [])]
    t.arrays.rounds["round"][1] += 1
    assert t.due(100) == ([1], [2, 4])
    assert t.due(100) == ([1], [])  # nobody has looked at it yet
    t.turns.again()
    assert t.due() == ([1], [2, 4])


def test_the_daemon_rests_until_the_next_turn_or_until_one_that_has_traffic_is_due() -> None:
    t = Told(90, 90)
    assert t.turns.rest_ns(t.now) == 0  # nobody has looked yet
    t.due()
    assert t.turns.rest_ns(t.now) == 90 * MS
    assert t.turns.rest_ns(t.now + 80 * MS) == 10 * MS
    t.turns.note_busy(np.array([4]), t.now)
    assert t.turns.rest_ns(t.now) == 0  # who has traffic is found in the next look
    assert t.due() == ([4], [])
    t.put_off(30, 4)
    assert t.turns.rest_ns(t.now) == 30 * MS
    t.now += BUSY_NS
    t.due(100)
    assert t.turns.rest_ns(t.now) == 90 * MS


def test_where_nobody_is_due_the_daemon_rests_until_the_next_turn() -> None:
    t = Told(100, 90)
    t.due()
    t.put_off(10_000, 1, 2, 4)
    for _ in range(3):
        assert t.due(100) == ([], [])
        assert t.turns.rest_ns(t.now) == 100 * MS
    t.put_off(30, 2)
    assert t.turns.rest_ns(t.now) == 30 * MS
    assert t.due(30) == ([], [2])


def test_where_peers_are_few_the_daemon_rests_until_one_is_due_or_may_have_traffic() -> None:
    t = Told()
    t.due()
    assert t.turns.rest_ns(t.now) == 0
    t.put_off(200, 1, 2, 4)
    assert t.turns.rest_ns(t.now) == 90 * MS
    t.put_off(50, 2)
    assert t.turns.rest_ns(t.now) == 50 * MS
    t.arrays.rounds["round"][1] += 1
    assert t.due(50) == ([1], [2])


@pytest.mark.parametrize(
    ("rows", "first", "found"),
    [([], 3, []), ([1, 4, 6], 0, [1, 4, 6]), ([1, 4, 6], 4, [4, 6, 1]), ([1, 4, 6], 5, [6, 1, 4]), ([1, 4], 9, [1, 4])],
)
def test_rows_from_one_on_round_after_the_last(rows: list[int], first: int, found: list[int]) -> None:
    assert from_(np.array(rows, np.int64), first).tolist() == found


def test_among_few_nobody_is_due_but_for_those_whose_time_has_come_or_who_have_traffic() -> None:
    """However it is told, and however soon the next look comes, where each is for traffic too."""
    chance, t = np.random.default_rng(7), Told(0)
    for _ in range(2000):
        if chance.random() < 0.05:
            t.arrays.rounds["round"][chance.integers(6)] += 1
        if chance.random() < 0.02:
            t.turns.note_busy([int(chance.choice(ROWS))], t.now)
        ms = int(chance.integers(1, 60))
        now = t.now + ms * MS
        lively = {r for r in ROWS.tolist() if now - t.turns.busy_ns[r] < BUSY_NS}
        past = {r for r in ROWS.tolist() if t.turns.due_ns[r] <= now}
        awake = {r for r in ROWS.tolist() if t.turns.asked[r] != t.arrays.rounds["round"][r]} - lively
        urgent, others = t.due(ms)
        assert (set(urgent), set(others)) == (lively & past | awake, past - lively - awake)
        t.put_off(int(chance.integers(1, 300)), *urgent, *others)
        t.turns.note_asked(urgent)
