# SPDX-License-Identifier: BSD-2-Clause
"""Tests that documents are made in threads, and not during a reload."""

import asyncio
import threading

import pytest

from mrcd.view.workers import Readers


class Slow:
    """A document that waits until `go_on` is set."""

    def __init__(self) -> None:
        self.calls = 0
        self.began, self.go_on = threading.Event(), threading.Event()

    def read(self) -> str:
        self.calls += 1
        self.began.set()
        assert self.go_on.wait(10)
        return "made"


def open_readers() -> Readers:
    readers = Readers()
    readers.go_on()
    return readers


async def begun(slow: Slow) -> None:
    assert await asyncio.to_thread(slow.began.wait, 10)


def test_a_request_during_a_reload_waits_for_its_end() -> None:
    async def ask() -> str:
        readers, slow = open_readers(), Slow()
        slow.go_on.set()
        await readers.stop()
        asking = asyncio.create_task(readers.read(slow.read))
        await asyncio.sleep(0.01)
        assert slow.calls == 0
        readers.go_on()
        return await asking

    assert asyncio.run(ask()) == "made"


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_reload_waits_for_the_threads_that_read(cancelled: bool) -> None:
    """A request may be cancelled; its thread continues to read."""

    async def ask() -> None:
        readers, slow = open_readers(), Slow()
        asking = asyncio.create_task(readers.read(slow.read))
        await begun(slow)
        if cancelled:
            asking.cancel()
            await asyncio.wait([asking])
        stopping = asyncio.create_task(readers.stop())
        await asyncio.sleep(0.01)
        assert not stopping.done()
        slow.go_on.set()
        await asyncio.wait_for(stopping, 10)
        assert cancelled or await asking == "made"

    asyncio.run(ask())


def test_an_error_is_raised_to_the_request() -> None:
    async def ask() -> None:
        readers = open_readers()
        with pytest.raises(ValueError, match="mine"):
            await readers.read(lambda: int("mine"))
        await readers.stop()  # no thread reads any more

    asyncio.run(ask())
