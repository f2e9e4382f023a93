"""Peers of which nothing is to be decided: how that is known, and that nothing is missed for it."""

from typing import Any, cast

import numpy as np
import pytest

from mrcd import abi, tables
from mrcd.abi import EvState, Reason
from mrcd.calm import Calm, Losses
from mrcd.peerwatch import PeerWatch
from tests.unit.arrays import Arrays
from tests.unit.played import Bench

ROWS = np.array([1, 2, 3])


def arrays() -> Arrays:
    found = Arrays(4, 8)
    found.evs["configured"][:, :6] = 1
    found.evs["state"][:, :6], found.evs["weight"][:, :6] = EvState.GOOD, abi.WEIGHT_FULL
    return found


def calm_of(a: Arrays) -> Calm:
    return Calm(cast(tables.Tables, a), cast(PeerWatch, None), 0b11)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("state", s) for s in EvState if s is not EvState.GOOD),
        ("weight", 1),
    ],
)
def test_a_peer_is_calm_while_all_its_evs_are_good_and_in_full_use(field: str, value: int) -> None:
    a = arrays()
    calm = calm_of(a)
    assert calm.all_good(ROWS).tolist() == [True] * 3
    before = int(a.evs[field][2, 5])
    a.evs[field][2, 5] = value
    a.peers["wanted"][2] += 1
    assert calm.all_good(ROWS).tolist() == [True, False, True]
    a.evs[field][2, 5] = before  # as a weight is: the programs do not count that
    assert calm.all_good(ROWS).tolist() == [True] * 3


def test_evs_are_read_only_where_something_was_counted() -> None:
    a = arrays()
    calm = calm_of(a)
    a.evs["state"][1, 0] = EvState.UNKNOWN
    assert calm.all_good(ROWS).tolist() == [False, True, True]
    a.evs["state"][2, 0] = EvState.UNKNOWN  # nobody has counted it
    assert calm.all_good(ROWS).tolist() == [False, True, True]
    a.peers["wanted"] -= 1  # it wraps
    assert calm.all_good(ROWS).tolist() == [False, False, True]


def test_losses_are_those_of_the_ledgers() -> None:
    a = arrays()
    rng = np.random.default_rng(0)
    for name, most in (("lost_before", 2**40), ("judged", 2**40), ("deficit", 2**32)):
        a.ledgers[name] = rng.integers(0, most, a.ledgers.shape)
    judged, lost = Losses(cast(tables.Tables, a)).counts(ROWS)
    assert (judged == a.ledgers["judged"][ROWS].astype(np.uint32)).all()
    assert (lost == (a.ledgers["lost_before"] + a.ledgers["deficit"])[ROWS].astype(np.uint32)).all()


# ---- the monitor ----


class Busy(Bench):
    """Peer 1 has traffic, which brings reports; counts how often it is judged."""

    def __init__(self) -> None:
        super().__init__()
        self.judged = 0
        self.reports = True
        judge = self.monitor._judge.judge

        def counting(rows: Any, *args: Any) -> Any:
            self.judged += 1 in rows
            return judge(rows, *args)

        self.monitor._judge.judge = counting  # type: ignore[method-assign, assignment]

    def flow(self, ms: int, lost: int = 0) -> None:
        for _ in range(ms // 20):
            a = self.arrays
            a.evs["tx_packets"][1] += 100
            a.ledgers["judged"][1] += 100
            a.ledgers["deficit"][1, 2] += lost
            a.rounds["round"][1] += 1
            a.rounds["settled"][1] += self.reports
            self.tick()


def test_a_busy_peer_that_is_well_is_judged_once_a_second() -> None:
    b = Busy()
    b.flow(10_000)
    assert b.judged == pytest.approx(10, abs=2)


def test_what_changes_is_judged_at_once_and_until_it_is_over() -> None:
    b = Busy()
    b.flow(2000)
    b.judged = 0
    b.programs.change(1, 5, EvState.ASSUMED_BAD, Reason.OVERDUE)
    b.arrays.evs["relapses"][1, 5] = 1
    b.flow(60)
    assert b.judged
    seen = set()
    for _ in range(200):
        b.flow(20)
        seen.add((EvState(int(b.arrays.evs["state"][1, 5])), int(b.arrays.evs["weight"][1, 5])))
    assert {(EvState.GOOD, weight) for weight in (1, 2, 4, 8)} <= seen


def test_a_busy_peer_without_reports_is_judged_as_ever() -> None:
    b = Busy()
    b.flow(2000)
    b.reports, b.judged = False, 0
    b.flow(1000)
    assert b.judged >= 15


def test_reports_that_the_daemon_asks_for_are_no_traffic() -> None:
    b = Busy()
    b.flow(2000)
    sweep, rounds = b.programs.sweep, b.arrays.rounds

    def reported(host_id: int, first: int = 0, count: int = 0) -> int:
        rounds["round"][host_id] += 1
        rounds["settled"][host_id] += 1
        return sweep(host_id)

    b.programs.sweep = reported  # type: ignore[method-assign]
    b.monitor._idle_ns = b.monitor._interval_ns  # asks with every look
    b.flow(1500)
    b.judged = 0
    for _ in range(15):  # it has stopped, and may have stalled
        b.tick()
    assert b.judged >= 10


@pytest.mark.parametrize("what", ["ports", "status"])
def test_what_a_busy_peer_says_of_itself_is_heard_at_once(what: str) -> None:
    b = Busy()
    b.flow(2000)
    b.changed.clear()
    b.arrays.peers[what][1] = {"ports": 0b01, "status": abi.STATUS_DETACHED}[what]
    b.flow(80)
    assert b.changed == [1]


def test_a_grey_failure_of_a_peer_that_is_well_is_found_as_soon() -> None:
    b = Busy()
    b.flow(2000)
    begun = b.programs.now
    while not b.said() and b.programs.now - begun < 10 * 10**9:
        b.flow(20, lost=1)
    (event,) = b.said()
    assert (event["ev"], event["to"], event["reason"]) == (2, "ASSUMED_BAD", "grey_loss")
    assert b.programs.now - begun < 3 * 10**9
