"""Long work gives way to the loop, which has others to serve: to peers, to mrcctl, to the kernel's events.

A coroutine gives way by a `Breath`. What is made in a thread holds the interpreter's lock nearly as long as it likes,
and gets it back whenever the loop's own work lets go of it for a moment; so it calls `give_way` now and then, and
goes on only while the loop waits for something to happen.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

BREATH_S = 0.005
_PATIENCE_S = 0.01  # a loop that is never idle does not stop what is made for it: then that has a breath too
_MAIN = threading.main_thread().ident

T = TypeVar("T")

idle = threading.Event()
"""While the loop waits: TimedSelector sets and clears it. Where there is no loop, nothing has to give way."""
idle.set()


class _Granted(threading.local):
    until = 0.0  # time.perf_counter()


_granted = _Granted()


def give_way() -> None:
    """In a thread: wait until the loop is idle, but not for long. In the loop's own it is not to be waited for."""
    if idle.is_set() or threading.get_ident() == _MAIN or time.perf_counter() < _granted.until:
        return
    if not idle.wait(_PATIENCE_S):
        _granted.until = time.perf_counter() + BREATH_S


def by_and_by(items: Iterable[T]) -> Iterator[T]:
    """These; in a thread, the loop comes first."""
    for item in items:
        give_way()
        yield item


def text(document: object) -> str:
    """JSON; of a list item by item, for the encoder lets nobody else run."""
    if not isinstance(document, list):
        return json.dumps(document)
    return f"[{', '.join(json.dumps(item) for item in by_and_by(document))}]"


class Breath:
    """For a coroutine that may go on for long: `await breath()` is for others when BREATH_S have passed."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()

    async def __call__(self) -> None:
        """Let the loop see to others if it is time."""
        if time.perf_counter() - self._begun > BREATH_S:
            await asyncio.sleep(0)
            self._begun = time.perf_counter()
