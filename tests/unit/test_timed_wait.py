# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrcd.timed_wait: an event, a limit and a cancellation, in any order."""

import asyncio
import math

import pytest

from mrcd.timed_wait import is_set_within


@pytest.mark.parametrize("limit_s", [60.0, math.inf])
@pytest.mark.parametrize("turns", range(6))
def test_a_loop_that_waits_ends_when_it_is_cancelled_after_the_event(turns: int, limit_s: float) -> None:
    async def wait_again(event: asyncio.Event) -> None:
        while True:
            await is_set_within(event, limit_s)
            event.clear()

    async def cancelled_after() -> bool:
        event = asyncio.Event()
        task = asyncio.create_task(wait_again(event))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        if has_ended := task.done():
            assert task.cancelled()
        task.cancel()
        return has_ended

    assert asyncio.run(cancelled_after())


def test_the_event_and_the_limit_are_told_apart() -> None:
    async def answers() -> list[bool]:
        event = asyncio.Event()
        early = await is_set_within(event, 0)
        event.set()
        return [early, await is_set_within(event, 0), await is_set_within(event, math.inf)]

    assert asyncio.run(answers()) == [False, True, True]
