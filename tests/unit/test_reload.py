"""Who is cancelled while programs are loaded lets the loading end: the object would be freed below it."""

import asyncio
import threading
from typing import cast

import pytest

from mrcd import reload
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
