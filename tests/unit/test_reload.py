"""Who is cancelled while programs are loaded lets the loading end: the object would be freed below it. Where going back
fails too, what is missing is looked after again."""

import asyncio
import threading
from types import SimpleNamespace
from typing import cast

import pytest

from mrcd import reload
from mrcd.daemon import Daemon
from mrcd.dataplane import Dataplane


class Slow:
    """A data plane that takes its time to load."""

    def __init__(self) -> None:
        self.began, self.go_on, self.loaded = threading.Event(), threading.Event(), False

    def load(self) -> None:
        """Until it is let."""
        self.began.set()
        assert self.go_on.wait(10)
        self.loaded = True


@pytest.mark.parametrize("times", [1, 3])
def test_a_stop_waits_for_programs_that_are_being_loaded(times: int) -> None:
    async def stopped() -> None:
        slow = Slow()
        task = asyncio.create_task(reload._load(cast(Dataplane, slow)))
        assert await asyncio.to_thread(slow.began.wait, 10)
        for other in asyncio.all_tasks() - {asyncio.current_task()}:  # as asyncio.run does at its end
            for _ in range(times):
                other.cancel()
                await asyncio.sleep(0)
        assert not task.done()
        slow.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slow.loaded

    asyncio.run(stopped())


@pytest.mark.parametrize("generation", [0, 7])
def test_nobody_stays_without_answers_where_going_back_failed_too(generation: int) -> None:
    asked: list[str] = []
    daemon = SimpleNamespace(
        _adopted=SimpleNamespace(set=lambda: asked.append("watch")),
        readers=SimpleNamespace(go_on=lambda: asked.append("read")),
        tables=SimpleNamespace(node={"generation": generation}),
        _attached_at=("p0",),
        _look_again=lambda: asked.append("attach"),
    )
    Daemon.resume(cast(Daemon, daemon))
    assert asked == ["watch", "read", *(["attach"] if not generation else [])]
    assert (daemon._attached_at is None) is (not generation)
