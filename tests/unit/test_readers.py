"""Who reads the tables in a thread, while a reload changes or closes them."""

import asyncio
import threading

import pytest

from mrcd.readers import Readers


class Slow:
    """What is read: the next call says what `now` was, when it is let."""

    def __init__(self, now: str = "old") -> None:
        self.now, self.calls = now, 0
        self.began, self.go_on = threading.Event(), threading.Event()

    def read(self) -> str:
        self.calls += 1
        found = self.now
        self.began.set()
        assert self.go_on.wait(10)
        return found


def open_readers() -> Readers:
    readers = Readers()
    readers.go_on()
    return readers


async def begun(slow: Slow) -> None:
    assert await asyncio.to_thread(slow.began.wait, 10)


def test_who_comes_while_it_is_changed_waits_for_the_end() -> None:
    async def ask() -> str:
        readers, slow = open_readers(), Slow("between")
        slow.go_on.set()
        readers.stop()
        asking = asyncio.create_task(readers.read(slow.read))
        await asyncio.sleep(0.01)
        assert slow.calls == 0
        slow.now = "new"
        readers.go_on()
        return await asking

    assert asyncio.run(ask()) == "new"


@pytest.mark.parametrize("still", [False, True])
def test_what_was_read_meanwhile_is_read_again(still: bool) -> None:
    """Whether the change is over by then or not."""

    async def ask() -> tuple[str, int]:
        readers, slow = open_readers(), Slow("neither")
        asking = asyncio.create_task(readers.read(slow.read))
        await begun(slow)
        readers.stop()
        if not still:
            readers.go_on()
        slow.now = "new"
        slow.go_on.set()
        if still:
            await asyncio.sleep(0.01)
            assert not asking.done()
            readers.go_on()
        return await asking, slow.calls

    assert asyncio.run(ask()) == ("new", 2)


def test_what_fails_because_of_the_change_is_read_again_and_what_fails_by_itself_does_not() -> None:
    async def ask() -> None:
        readers, calls = open_readers(), list[int]()

        def read() -> str:
            calls.append(len(calls))
            if len(calls) == 1:
                readers._stops += 1  # as `stop` in the loop, at that moment
                raise AttributeError("peers")
            if len(calls) == 2:
                return "new"
            raise KeyError("mine")

        assert await readers.read(read) == "new"
        with pytest.raises(KeyError, match="mine"):
            await readers.read(read)
        assert len(calls) == 3

    asyncio.run(ask())


@pytest.mark.parametrize("cancelled", [False, True])
def test_what_a_thread_still_reads_is_closed_when_it_does_not_any_more(cancelled: bool) -> None:
    """Who asked may have gone; the thread reads on."""

    async def ask() -> None:
        readers, first, second, closed = open_readers(), Slow(), Slow(), list[str]()
        over, really = asyncio.Queue[object](), readers._done

        def done(one: object) -> None:
            really(one)
            over.put_nowait(one)

        readers._done = done  # type: ignore[method-assign]
        asking = [asyncio.create_task(readers.read(s.read)) for s in (first, second)]
        await begun(first)
        await begun(second)
        readers.close_later(lambda: closed.append("tables"))
        if cancelled:
            asking[0].cancel()
            await asyncio.wait(asking[:1])
        later = Slow()
        asking.append(asyncio.create_task(readers.read(later.read)))  # does not know them any more
        await begun(later)
        first.go_on.set()
        await over.get()
        assert closed == []
        second.go_on.set()
        await asking[1]
        await over.get()
        assert closed == ["tables"]
        later.go_on.set()
        await asking[2]
        assert closed == ["tables"]

    asyncio.run(asyncio.wait_for(ask(), 30))


def test_what_nobody_reads_is_closed_at_once() -> None:
    async def close() -> list[int]:
        closed: list[int] = []
        open_readers().close_later(lambda: closed.append(1))
        return closed

    assert asyncio.run(close()) == [1]
