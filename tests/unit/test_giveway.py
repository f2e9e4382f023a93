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


def test_a_loop_that_is_idle_for_a_moment_lets_one_go_on_for_a_while(
    busy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giveway, "_PATIENCE_S", 60.0)
    monkeypatch.setattr(giveway, "_LEAST_S", 60.0)
    thread = threading.Thread(target=lambda: list(by_and_by(range(100_000))), daemon=True)
    thread.start()
    for _ in range(500):  # the first may come before it waits; of one step for each there would be 500
        giveway.idle.set()
        giveway.idle.clear()
        thread.join(0.01)
        if not thread.is_alive():
            break
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
        now += 1.1 * giveway._SHORT_S
        await breath()
        said.append("second")
        await task

    asyncio.run(work())
    assert said == ["first", "other", "second"]


def test_who_comes_later_in_a_round_of_the_loop_has_less_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("mrcd.giveway.time.perf_counter", lambda: now)
    monkeypatch.setattr(giveway.Round, "began_s", None)
    assert giveway.until(giveway.BREATH_S) == pytest.approx(now + giveway.BREATH_S)
    monkeypatch.setattr(giveway.Round, "began_s", now)
    now += 0.7 * giveway.BREATH_S  # of others that were called before
    assert giveway.until(giveway.BREATH_S) - now == pytest.approx(0.3 * giveway.BREATH_S)
    assert giveway.until(giveway._SHORT_S) - now == pytest.approx(giveway._LEAST_S)
    now += giveway.BREATH_S  # of which nothing is left: but who never has a turn gets nowhere
    assert giveway.until(giveway.BREATH_S) - now == pytest.approx(giveway._LEAST_S)


def test_a_round_begins_when_the_loop_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giveway.Round, "began_s", None)
    with TimedSelector() as selector:
        before = time.perf_counter()
        selector.select(0)
        assert before <= (giveway.Round.began_s or 0.0) <= time.perf_counter()
    assert giveway.Round.began_s is None  # that loop is no more
    assert giveway.idle.is_set()


def test_steps_are_all_taken_and_others_come_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("mrcd.giveway.time.perf_counter", lambda: now)
    monkeypatch.setattr(giveway.Round, "began_s", None)
    said: list[object] = []

    def steps() -> Iterator[int]:
        nonlocal now
        for n in range(6):
            now += 0.6 * giveway._SHORT_S
            said.append(n)
            yield n

    async def work() -> None:
        task = asyncio.create_task(other())
        await giveway.in_steps(steps())
        await task

    async def other() -> None:
        for _ in range(2):
            said.append("other")
            await asyncio.sleep(0)

    asyncio.run(work())
    assert said == [0, 1, "other", 2, 3, "other", 4, 5]


def test_a_thread_sleeps_a_moment_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who waits for the lock may never ask for it."""
    slept: list[float] = []
    begun = time.perf_counter()
    clock = iter(begun + 0.3 * giveway._AT_A_STRETCH_S * n for n in range(100))
    monkeypatch.setattr("mrcd.giveway.time.sleep", slept.append)
    monkeypatch.setattr("mrcd.giveway.time.perf_counter", lambda: next(clock))
    thread = threading.Thread(target=lambda: list(by_and_by(range(20))))
    thread.start()
    thread.join(10.0)
    assert slept == [giveway._MOMENT_S] * 5  # at the first item, and at each fourth after it


def test_the_loop_itself_never_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("mrcd.giveway.time.sleep", slept.append)
    assert list(by_and_by(range(1000))) == list(range(1000))
    assert slept == []
