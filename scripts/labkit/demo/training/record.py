# SPDX-License-Identifier: BSD-2-Clause
"""Runs a training job through the faults, one after the other, and records its steps."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from labkit.cluster import observe, processes
from labkit.cluster.api import Lab
from labkit.cluster.attachment import ATTACHED, DETACHED, switch
from labkit.cluster.observe import Document
from labkit.demo import live
from labkit.demo.training import kernel_path, scenario
from labkit.demo.training.kernel_path import KernelPath
from labkit.demo.training.scenario import Fault, Times
from labkit.demo.training.screen import Moment, Screen
from labkit.traffic import candidates
from labkit.traffic.candidates import KERNEL, MRCD
from labkit.traffic.job import Job, JobEndedError, Step

VERSION = 4  # of IP
WARM_UP_STEPS = 10
_ENDLESS = 10**9  # steps: the job is killed before
_GOOD_S = 30.0  # with mrcd the next fault waits for this long at most until all EVs are GOOD again
_S = 1_000_000_000

View = Callable[[str], AbstractContextManager[Screen]]  # of a way


@dataclass(frozen=True)
class Episode:
    """A fault, and the steps around it. Times are CLOCK_MONOTONIC ns."""

    fault: Fault
    begin_ns: int
    fail_ns: int
    heal_ns: int
    end_ns: int
    steps: tuple[Step, ...]  # that ended in the episode
    running_since_ns: int  # the beginning of the step that ran at the end
    dropped_skbs: int  # by the fault: a burst is one; 0 if the link was down
    ended: str | None = None  # why the job ended by itself

    @property
    def is_stuck(self) -> bool:
        """Returns whether the job has ended by itself, or no step has ended since the healing."""
        return self.ended is not None or self.running_since_ns < self.heal_ns


def run(
    lab: Lab, times: Times, view: View, faults_on: Callable[[KernelPath], Sequence[Fault]] = scenario.faults
) -> dict[str, list[Episode]]:
    """Runs the job over the kernel's SRv6, then with mrcd. Returns way → its episodes.

    The faults are on the path that the kernel takes, so that they hit both. All EVs are GOOD before.
    """
    episodes = {}
    switch(lab, DETACHED)
    faults = faults_on(kernel_path.find(lab, scenario.SENDER, scenario.RECEIVER))
    with _without_daemons(lab), view(DETACHED) as screen:
        episodes[DETACHED] = _run(lab, DETACHED, faults, times, screen)
    switch(lab, ATTACHED)
    with view(ATTACHED) as screen:
        episodes[ATTACHED] = _run(lab, ATTACHED, faults, times, screen)
    return episodes


@contextlib.contextmanager
def _without_daemons(lab: Lab) -> Iterator[None]:
    """A block in which no mrcd runs: also while detached, it would take failed paths out of the kernel's routes."""
    processes.end(p for p in (lab.state.daemon(h) for h in lab.fabric.hosts) if p is not None)
    try:
        yield
    finally:
        lab.up(**lab.fabric.parameters.as_json())  # starts them again


def _run(lab: Lab, way: str, faults: Sequence[Fault], times: Times, screen: Screen) -> list[Episode]:
    """Runs the job through all faults. A stuck job is killed, and a new one started for the next fault."""
    episodes: list[Episode] = []
    begin_ns = time.monotonic_ns()
    with candidates.receiving(lab, MRCD if way == ATTACHED else KERNEL, lab.fabric.hosts):
        while len(episodes) < len(faults):
            with Job(lab, VERSION) as job:
                job.run(WARM_UP_STEPS)
                job.begin(_ENDLESS)
                stage = _Stage(lab, way, job, begin_ns, times, screen)
                for fault in faults[len(episodes) :]:
                    before_s = times.before_s if episodes else times.lead_s
                    episodes.append(stage.play(fault, before_s, is_last=fault is faults[-1]))
                    if episodes[-1].is_stuck:
                        break
    return episodes


class _Stage:
    """Makes and heals faults under one job, and updates the screen."""

    def __init__(self, lab: Lab, way: str, job: Job, begin_ns: int, times: Times, screen: Screen) -> None:
        self._lab, self._way, self._job, self._times, self._screen = lab, way, job, times, screen
        self._begin_ns = begin_ns
        self._pace = live.Pace(job.poll, self._look, screen.interval_s)
        self._broken: Fault | None = None
        self._healed: Document = {}  # the record of the last healed fault
        self._end_ns = job.steps[-1].end_ns  # of the last episode

    def play(self, fault: Fault, before_s: float, *, is_last: bool) -> Episode:
        """Runs one episode: the time before the fault, the fault, and the time after healing."""
        begin_ns, first, ended = self._end_ns, len(self._job.steps), None
        fail_ns = heal_ns = 0
        try:
            self._watch(before_s)
            with self._fault(fault) as fail_ns:
                self._watch(self._times.fault_s)
            heal_ns = self._healed["monotonic_ns"]
            self._watch(self._times.after_s)
            if not is_last:
                self._wait_until_good()
        except JobEndedError as e:
            ended, now_ns = str(e), time.monotonic_ns()
            fail_ns, heal_ns = fail_ns or now_ns, heal_ns or now_ns
        self._end_ns = time.monotonic_ns()
        episode = Episode(
            fault=fault,
            begin_ns=begin_ns,
            fail_ns=fail_ns,
            heal_ns=heal_ns,
            end_ns=self._end_ns,
            steps=tuple(self._job.steps[first:]),
            running_since_ns=self._job.steps[-1].end_ns,
            dropped_skbs=self._healed.get("dropped_skbs", 0),
            ended=ended,
        )
        if episode.is_stuck:
            self._screen.note(self._now_s(), f"the job is stuck: {ended or 'no step ends'}", "fault")
        return episode

    @contextlib.contextmanager
    def _fault(self, fault: Fault) -> Iterator[int]:
        """A block with the fault; gives CLOCK_MONOTONIC ns of its beginning."""
        fail_ns = self._lab.fail(fault.target, drop=fault.drop, down=fault.down)["monotonic_ns"]
        self._broken = fault
        self._screen.note(self._now_s(), f"fault: {fault.words} ({fault.target})", "fault")
        try:
            yield fail_ns
        finally:
            self._healed = self._lab.heal(fault.target)[0]
            self._broken = None
            self._screen.note(self._now_s(), f"healed: {fault.target}", "heal")

    def _wait_until_good(self) -> None:
        """Lets the job run with mrcd until every EV is GOOD again, so that the next fault hits EVs in use."""
        until = time.monotonic() + _GOOD_S
        while self._way == ATTACHED and time.monotonic() < until:
            if all(p["state"] == "GOOD" for host in self._lab.fabric.hosts for p in observe.paths(self._lab, host)):
                return
            self._watch(0.5)

    def _watch(self, seconds: float) -> None:
        self._pace.until(time.monotonic() + seconds)

    def _look(self) -> None:
        self._screen.show(
            Moment(self._begin_ns, time.monotonic_ns(), self._job.steps, self._broken.words if self._broken else None)
        )

    def _now_s(self) -> float:
        return (time.monotonic_ns() - self._begin_ns) / _S
