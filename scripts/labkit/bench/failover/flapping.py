# SPDX-License-Identifier: BSD-2-Clause
"""Runs a T1 that fails and returns as often as the worst link of the paper: 13 times a minute."""

import time
from dataclasses import replace

from labkit.bench.failover import events
from labkit.bench.failover.events import Event, Stage
from labkit.bench.failover.kinds import Kind, Place
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from mrcd.kernel.enums import EvState

KIND = Kind("flapping", "a T1 fails and returns, 13 times a minute", "t1:{plane}:{t1}")
PERIOD_S = 60 / 13
_PLACE = Place(1, 1)


def measure(lab: Lab, faults: int) -> Document:
    """Breaks the T1 for half of each period, whatever has been detected by then."""
    return events.record(lab, KIND, faults, lambda stage: [_flap(stage, n, faults) for n in range(faults)])


def _flap(stage: Stage, number: int, flaps: int) -> Event:
    if number % 4 == 0:
        progress(f"  {KIND.name}: {number} of {flaps}, {(flaps - number) * PERIOD_S:.0f} s to go")
    began = time.monotonic()
    evs = stage.evs(KIND, _PLACE)
    left_before = stage.cluster.all_in(EvState.ASSUMED_BAD, KIND.timed, evs)
    broken = stage.break_(KIND, _PLACE)
    stage.until(lambda: False, began + PERIOD_S / 2 - time.monotonic())
    event = stage.mend(broken, stage.cluster.all_in(EvState.ASSUMED_BAD, KIND.timed, evs))
    stage.until(lambda: False, began + PERIOD_S - time.monotonic())
    return replace(event, in_use=not left_before)
