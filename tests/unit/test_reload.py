# SPDX-License-Identifier: BSD-2-Clause
"""Tests cancellation during a reload, and a failed rollback.

A cancelled load of programs runs to its end, because the object must not be freed below it. If the rollback fails
too, what is missing is restored later.
"""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrcd.daemon import reload
from mrcd.errors import MachineError
from mrcd.loader.dataplane import Dataplane


class Slow:
    """A data plane that loads slowly."""

    def __init__(self) -> None:
        self.began, self.go_on, self.loaded = threading.Event(), threading.Event(), False

    def load(self) -> None:
        """Waits until it is released."""
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


@pytest.mark.parametrize("fails", [1, 2], ids=["once", "going back too"])
def test_a_failed_rollback_reattaches_the_programs(fails: int) -> None:
    asked: list[str] = []

    async def adopt(plan: str, *_: object) -> None:
        asked.append(plan)
        if len(asked) <= fails:
            raise MachineError(f"not {plan}")

    tables = SimpleNamespace()
    dataplane = SimpleNamespace(pins=Path("pins"), tables=Path("pins"))
    daemon: Any = SimpleNamespace(
        plan="before",
        dataplane=dataplane,
        tables=tables,
        netlink_lock=asyncio.Lock(),
        adopt=adopt,
        attach_anew=lambda: asked.append("attach"),
        resume=lambda: asked.append("resume"),
        keyring=SimpleNamespace(wanted=()),
        use_secrets=lambda plan, secrets: None,
    )
    difference: Any = SimpleNamespace(programs=False)
    with pytest.raises(MachineError, match="not after" if fails == 1 else "not before"):
        asyncio.run(reload.Reloader(daemon, Path())._apply(cast(Any, "after"), difference, ()))
    assert asked == ["after", "before", *(["attach"] if fails == 2 else []), "resume"]
