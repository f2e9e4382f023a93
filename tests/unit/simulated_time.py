# SPDX-License-Identifier: BSD-2-Clause
"""Runs coroutines by a simulated clock: a wait of an hour takes no time, and a busy machine changes nothing."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """A selector that advances `now` instead of waiting for the next timer. Without timers it waits for files."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout and 0)
        if not found and timeout:
            self.now += timeout
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = _Selector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine as asyncio.run does, in simulated time."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)
