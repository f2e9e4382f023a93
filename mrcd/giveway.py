"""Long work gives way to the loop, which has others to serve: to peers, to mrcctl, to the kernel's events.

A coroutine gives way by a `Breath`. What is made in a thread holds the interpreter's lock nearly as long as it likes,
and gets it back whenever the loop's own work lets go of it for a moment; so it calls `give_way` now and then, and
goes on only while the loop waits for something to happen; for a short while, too, when it has waited for that.

Who waits for the lock asks for it after a tenth of a millisecond (main.py) in which it was not let go. numpy lets go of
it oftener, and has it back before the other has woken: that one never asks, and has waited for 25 ms. So a thread
sleeps a moment now and then, too.
"""

import asyncio
import gc
import json
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

BREATH_S = 0.005
_SHORT_S = 0.003  # for what may wait: it leaves time in a round for others
_LEAST_S = 0.001  # who comes last in a round goes on, too, and a thread for which the loop was idle only for a moment
_PATIENCE_S = 0.01  # a loop that is never idle does not stop what is made for it: then that has a breath too
YOUNG = 5  # collections of the youngest objects to one of those that have outlived these
_AT_A_STRETCH_S = 0.002  # a thread works, and then sleeps:
_MOMENT_S = 0.0002  # for who waits for the lock to wake up
_MAIN = threading.main_thread().ident

T = TypeVar("T")

idle = threading.Event()
"""While the loop waits: TimedSelector sets and clears it. Where there is no loop, nothing has to give way."""
idle.set()


class Round:
    """Of the loop, from when it comes back from its selector: all that it calls then shares one breath."""

    began_s: float | None = None  # time.perf_counter(), as TimedSelector says; None: nobody does


class _Mine(threading.local):
    granted_s = slept_s = 0.0  # time.perf_counter(): until when it goes on in spite of a busy loop; when it slept


_mine = _Mine()


def until(breath_s: float) -> float:
    """time.perf_counter() at which what runs in the loop is to let others come."""
    now = time.perf_counter()
    return now + breath_s if Round.began_s is None else max(Round.began_s + breath_s, now + _LEAST_S)


def give_way() -> None:
    """In a thread: wait until the loop is idle, but not for long. In the loop's own it is not to be waited for."""
    if threading.get_ident() == _MAIN:
        return
    now = time.perf_counter()
    if not idle.is_set() and now >= _mine.granted_s:
        # A loop that only looks whether there is more to do is idle for a moment: a step for each would take for ever.
        stretch_s = _LEAST_S if idle.wait(_PATIENCE_S) else BREATH_S
        _mine.slept_s = time.perf_counter()
        _mine.granted_s = _mine.slept_s + stretch_s
    elif now - _mine.slept_s > _AT_A_STRETCH_S:
        time.sleep(_MOMENT_S)
        _mine.slept_s = time.perf_counter()


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
    """For a coroutine that may go on for long: `await breath()` is for others when _SHORT_S have passed, its own and
    those of whom the loop has called before it in this round."""

    def __init__(self) -> None:
        self._until = until(_SHORT_S)

    async def __call__(self) -> None:
        """Let the loop see to others if it is time."""
        if time.perf_counter() > self._until:
            # What takes the place of older objects is not counted: it would be much at once, later. Nor is the older
            # generation looked at for this, which would wait for whoever makes the next object too many.
            gc.collect(int(gc.get_count()[1] >= YOUNG))
            await asyncio.sleep(0)
            self._until = until(_SHORT_S)


async def in_steps(steps: Iterable[object]) -> None:
    """Go through these, and let the loop see to others in between."""
    breath = Breath()
    for _ in steps:
        await breath()
