"""Long work beside a loop: it waits while the loop is busy, and goes on all the same."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator

import pytest

from mrcd import giveway
from mrcd.giveway import Breath, by_and_by, give_way
from mrcd.selfwatch import TimedSelector


@pytest.fixture
def busy() -> Iterator[None]:
    giveway.idle.clear()
    yield
    giveway.idle.set()


def in_a_thread(done: list[int]) -> threading.Thread:
    def work() -> None:
        done.extend(by_and_by(range(3)))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_thread_waits_for_a_busy_loop(busy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giveway, "_PATIENCE_S", 60.0)
    done: list[int] = []
    thread = in_a_thread(done)
    thread.join(0.05)
    assert (thread.is_alive(), done) == (True, [])
    giveway.idle.set()
    thread.join(10.0)
    assert done == [0, 1, 2]


def test_a_loop_that_is_never_idle_stops_nobody(busy: None) -> None:
    done: list[int] = []
    in_a_thread(done).join(10.0)
    assert done == [0, 1, 2]


def test_what_has_waited_long_enough_goes_on_for_a_while(busy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giveway, "BREATH_S", 60.0)
    thread = threading.Thread(target=lambda: list(by_and_by(range(100_000))))  # which would be 1,000 s of patience
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()


def test_the_loop_itself_waits_for_nobody(busy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giveway, "_PATIENCE_S", 60.0)
    begun = time.monotonic()
    give_way()
    assert time.monotonic() - begun < 30.0


def test_a_loop_is_idle_while_it_waits_and_only_then() -> None:
    seen = []

    async def look() -> None:
        seen.append(giveway.idle.is_set())
        seen.append(await asyncio.to_thread(giveway.idle.wait, 10.0))
        seen.append(giveway.idle.is_set())

    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(TimedSelector())) as runner:
            runner.run(look())
    finally:
        giveway.idle.set()
    assert seen == [False, True, False]


@pytest.mark.parametrize("document", [[], [{"a": 1}, "ü", None], {"a": [1, 2]}, 7])
def test_documents_are_json_whether_in_parts_or_not(document: object) -> None:
    assert giveway.text(document) == json.dumps(document)


def test_a_coroutine_takes_a_breath_when_it_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("mrcd.giveway.time.perf_counter", lambda: now)
    said = []

    async def other() -> None:
        said.append("other")

    async def work() -> None:
        nonlocal now
        breath, task = Breath(), asyncio.create_task(other())
        await breath()
        said.append("first")
        now += 1.1 * giveway.BREATH_S
        await breath()
        said.append("second")
        await task

    asyncio.run(work())
    assert said == ["first", "other", "second"]
