"""Histograms of durations, and how long an event loop is away, by a clock that is played."""

import selectors
from types import SimpleNamespace

import pytest

from mrcd import selfwatch
from mrcd.selfwatch import Durations, TimedSelector


class Clock:
    """Stands still but for what is added to it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(selfwatch, "time", SimpleNamespace(perf_counter=found.perf_counter))
    return found


def back_after(clock: Clock, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's wait takes so long."""

    def select(*_: object) -> list[object]:
        clock.now_s += seconds
        return []

    monkeypatch.setattr(selectors.DefaultSelector, "select", select)


@pytest.mark.parametrize(
    ("timeout", "took_s", "away_s"),
    [
        (0.01, 0.06, 0.049),  # less the millisecond that the kernel rounds up
        (0.01, 0.0105, 0.0),
        (0.01, 0.004, 0.0),  # something has happened
        (0, 0.03, 0.029),
        (-1, 0.03, 0.029),
        (None, 0.06, 0.0),  # who waits for ever is never late
    ],
)
def test_to_come_back_late_is_to_be_away(
    timeout: float | None, took_s: float, away_s: float, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a thread holds the interpreter's lock."""
    with TimedSelector() as selector:
        selector.begin()
        back_after(clock, took_s, monkeypatch)
        selector.select(timeout)
        selector.select(None)
        assert selector.away.longest_s == pytest.approx(away_s, abs=1e-9)


def test_to_work_is_to_be_away(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with TimedSelector() as selector:
        selector.begin()
        clock.now_s += 0.02
        back_after(clock, 5.0, monkeypatch)
        selector.select(None)
        assert selector.away.longest_s == pytest.approx(0.02)


def test_durations_count_what_is_no_longer_than_each_bound() -> None:
    d = Durations()
    for seconds in (0.0001, 0.003, 0.02, 5.0):
        d.add(seconds)
    found = dict(d.cumulative())
    assert (found[0.0001], found[0.002], found[0.005], found[0.02], found[1.0], found["+Inf"]) == (1, 1, 2, 3, 3, 4)
    assert d.longest_s == 5.0
    assert d.sum_s == pytest.approx(5.0231)
    d.forget()
    assert (d.longest_s, d.cumulative()[-1]) == (0.0, ("+Inf", 0))
