"""How long an event loop is away: what its selector measures."""

import selectors
import time

import pytest

from mrcd.selfwatch import TimedSelector


def slow(*_: object) -> list[object]:
    time.sleep(0.06)
    return []


@pytest.mark.parametrize(("timeout", "late"), [(0.01, True), (None, False)])
def test_to_come_back_late_is_to_be_away(timeout: float | None, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a thread holds the interpreter's lock; but who waits for ever is never late."""
    with TimedSelector() as selector:
        selector.begin()
        monkeypatch.setattr(selectors.DefaultSelector, "select", slow)
        selector.select(timeout)
        monkeypatch.undo()
        selector.away.forget()
        selector.select(0)
        assert (selector.away.longest_s > 0.04) is late


def test_to_work_is_to_be_away() -> None:
    with TimedSelector() as selector:
        selector.begin()
        time.sleep(0.02)
        selector.select(0)
        assert 0.02 <= selector.away.longest_s < 1
