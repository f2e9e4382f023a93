# SPDX-License-Identifier: BSD-2-Clause
"""Tests that what another program has removed is noticed once, and restored."""

import asyncio
from typing import Any, cast

import pytest

from mrcd.daemon import pin_keeper
from mrcd.errors import KernelError
from mrcd.health.events import EventLog
from mrcd.kernel.dataplane import Dataplane
from tests.unit.test_monitor import until


class Kernel:
    """A data plane whose filters and pins disappear. What is attached anew stays away for two more looks."""

    def __init__(self) -> None:
        self.filters, self.pins = list[str](), list[str]()
        self.is_refused = False
        self.looks = self.attached = self.saved = 0

    def missing_filter(self) -> str:
        self.looks += 1
        return self.filters.pop(0) if self.filters else ""

    def missing_pin(self) -> str:
        return self.pins[0] if self.pins else ""

    def restore_pins(self) -> None:
        if self.is_refused:
            raise KernelError("pin", 1)
        self.pins.clear()

    def attach_anew(self) -> None:
        self.attached += 1

    def save(self) -> None:
        self.saved += 1


def keep(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, looks: int = 5) -> list[dict[str, Any]]:
    """Lets the keeper look some times. Returns the events."""
    log = EventLog()
    monkeypatch.setattr(pin_keeper, "INTERVAL_S", 0)

    async def run() -> None:
        dataplane = cast(Dataplane, kernel)
        keeper = pin_keeper.keep_pins(asyncio.Lock(), lambda: dataplane, log, kernel.save, kernel.attach_anew)
        task = asyncio.create_task(keeper)
        end = kernel.looks + looks
        await until(lambda: kernel.looks >= end)
        task.cancel()

    asyncio.run(run())
    return asyncio.run(log.after(0, 0))


def test_nothing_is_done_while_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    assert keep(kernel, monkeypatch) == []
    assert (kernel.attached, kernel.saved) == (0, 0)


def test_a_removed_filter_is_attached_until_it_is_there_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    kernel.filters = ["pop-0", "pop-0", "push-egress"]
    (event,) = keep(kernel, monkeypatch)
    assert (event["reason"], event["evidence"]) == ("filters_removed", {"lost": "pop-0"})
    assert kernel.attached == 3
    kernel.filters = ["pop-0", "", "pop-0"]
    assert len(keep(kernel, monkeypatch)) == 2


def test_removed_pins_are_restored_and_a_refusal_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    kernel.pins = ["mrc_evs does not exist"]
    (event,) = keep(kernel, monkeypatch)
    assert (event["reason"], kernel.saved) == ("pins_restored", 1)
    kernel.pins, kernel.is_refused = ["mrc_evs does not exist"], True
    (event,) = keep(kernel, monkeypatch)
    assert event["reason"] == "pins_lost"
    assert kernel.saved == 1
