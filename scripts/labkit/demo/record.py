# SPDX-License-Identifier: BSD-2-Clause
"""Runs the scenario and records what happens."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.demo import live
from labkit.demo.scenario import Fault
from labkit.demo.screen import Moment, Screen, kind
from labkit.measure import evspread
from labkit.measure.goodput import BIN_NS
from labkit.traffic.flow import Ends, Flow, Sample

_S = 1_000_000_000


@dataclass(frozen=True)
class Happened:
    """A fault that was made: CLOCK_MONOTONIC ns when it began and when it was healed."""

    fault: Fault
    begin_ns: int
    heal_ns: int


@dataclass(frozen=True)
class Recording:
    """All recorded data. Times are CLOCK_MONOTONIC ns."""

    begin_ns: int
    end_ns: int
    ends: Ends
    bins: dict[int, int]
    samples: tuple[Sample, ...]
    congestion_control: str
    mss_bytes: int
    faults: tuple[Happened, ...]
    paths: dict[str, list[Document]]  # by host, at the beginning
    events: dict[str, list[Document]]  # by host, since the beginning
    spread: tuple[
        Document, Document
    ]  # {"monotonic_ns", "paths"} of the source, at both ends of an interval without faults


def record(
    lab: Lab, ends: Ends, faults: Sequence[Fault], seconds: float, spread_s: tuple[float, float], screen: Screen
) -> Recording:
    """Runs a flow for `seconds`, with the faults at their times. Returns the recording."""
    hosts = lab.fabric.hosts
    paths = {h: observe.paths(lab, h) for h in hosts}
    with Flow(lab, ends) as flow:
        begin_ns = time.monotonic_ns()
        begin_ns -= begin_ns % BIN_NS
        stage = _Stage(lab, ends, flow, begin_ns, seconds, screen)
        for fault in faults:
            stage.at(fault.begin_s, lambda f=fault: stage.fail(f))  # type: ignore[misc]
            stage.at(fault.heal_s, lambda f=fault: stage.heal(f))  # type: ignore[misc]
        for moment in spread_s:
            stage.at(moment, stage.count)
        end_ns = stage.play()
        flow.finish()
    events = {h: [e for e in observe.events(lab, h) if e["monotonic_ns"] >= begin_ns] for h in hosts}
    return Recording(
        begin_ns=begin_ns,
        end_ns=end_ns,
        ends=ends,
        bins=flow.bins,
        samples=tuple(flow.samples),
        congestion_control=flow.congestion_control,
        mss_bytes=flow.mss_bytes,
        faults=tuple(Happened(f, stage.began[f.target], stage.healed[f.target]) for f in faults),
        paths=paths,
        events=events,
        spread=(stage.counts[0], stage.counts[1]),
    )


class _Stage:
    """The timeline: runs steps when they are due, and updates the screen in between."""

    def __init__(self, lab: Lab, ends: Ends, flow: Flow, begin_ns: int, seconds: float, screen: Screen) -> None:
        self._lab, self._ends, self._flow, self._screen = lab, ends, flow, screen
        self._begin_ns, self._seconds = begin_ns, seconds
        self._steps: list[tuple[float, Callable[[], None]]] = []
        self._last_event = max((e["id"] for e in observe.events(lab, ends.source)), default=0)
        self._broken: dict[str, Fault] = {}
        self.began: dict[str, int] = {}
        self.healed: dict[str, int] = {}
        self.counts: list[Document] = []

    def at(self, seconds: float, step: Callable[[], None]) -> None:
        """Schedules `step` at that time."""
        self._steps.append((seconds, step))

    def play(self) -> int:
        """Runs the timeline. Returns CLOCK_MONOTONIC ns of its end."""
        pace = live.Pace(self._flow.poll, self._look, self._screen.interval_s)
        for seconds, step in sorted(self._steps, key=lambda s: s[0]):
            pace.until(self._begin_ns / _S + seconds)
            step()
        pace.until(self._begin_ns / _S + self._seconds)
        end_ns = time.monotonic_ns()
        self._look()
        return end_ns

    def fail(self, fault: Fault) -> None:
        """Makes a fault."""
        self.began[fault.target] = self._lab.fail(fault.target, down=fault.down)["monotonic_ns"]
        self._broken[fault.target] = fault
        self._screen.note(self._seconds_of(self.began[fault.target]), f"fault: {fault.words}", "fault")

    def heal(self, fault: Fault) -> None:
        """Heals a fault."""
        self.healed[fault.target] = self._lab.heal(fault.target)[0]["monotonic_ns"]
        del self._broken[fault.target]
        self._screen.note(self._seconds_of(self.healed[fault.target]), f"healed: {fault.target}", "heal")

    def count(self) -> None:
        """Records the EVs' counters."""
        self.counts.append(evspread.count(self._lab, self._ends.source, self._ends.target))

    def _look(self) -> None:
        new = observe.events(self._lab, self._ends.source, self._last_event)
        self._last_event = max((e["id"] for e in new), default=self._last_event)
        told = (e for e in new if e["peer"] in (self._ends.target, None))
        for _, same in itertools.groupby(told, kind):
            events = list(same)
            self._screen.events(self._seconds_of(events[0]["monotonic_ns"]), events)
        self._screen.show(
            Moment(
                now_s=self._now(),
                seconds=self._seconds,
                begin_ns=self._begin_ns,
                bins=self._flow.bins,
                paths=observe.paths(self._lab, self._ends.source, self._ends.target),
                broken=tuple(self._broken.values()),
                retransmitted_segments=self._flow.retransmitted_segments,
            )
        )

    def _now(self) -> float:
        return self._seconds_of(time.monotonic_ns())

    def _seconds_of(self, monotonic_ns: Any) -> float:
        return float(monotonic_ns - self._begin_ns) / _S
