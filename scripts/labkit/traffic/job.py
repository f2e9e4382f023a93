# SPDX-License-Identifier: BSD-2-Clause
"""Runs a training job: a gloo rank in each host of the lab, which sum an array again and again.

with Job(lab, version=4) as job:
    job.begin(100)
    while len(job.steps) < 100:
        job.poll(0.1)               # reads what the ranks print, for that long
job.steps                           # when each step began and ended, by the first rank
"""

import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from labkit.cluster import bringup
from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from labkit.places import end_program
from labkit.traffic.child import Child, Children
from mrcd.errors import MachineError

BYTES = 16_000_000  # bytes that a step sums
RANKS = 4
PROGRAM = end_program("jobend")
PYTHON = "/usr/bin/python3"  # PyTorch from apt needs Debian's own Python
START_S, TURN_S = patience(60.0), patience(120.0)


class Step(NamedTuple):
    """A step of the first rank, CLOCK_MONOTONIC ns."""

    begin_ns: int
    end_ns: int

    @property
    def ns(self) -> int:
        """Returns how long it took."""
        return self.end_ns - self.begin_ns


def has_torch() -> bool:
    """Returns whether Debian's Python finds PyTorch."""
    found = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([PYTHON, "-I", "-c", found], check=False).returncode == 0


def require_torch() -> None:
    """Raises MachineError unless Debian's Python finds PyTorch."""
    if not has_torch():
        raise MachineError(
            f"{PYTHON} has no PyTorch, which runs the gloo ranks of the job", hint="scripts/set-up --training"
        )


class JobEndedError(MachineError):
    """A rank has ended by itself."""


class Job(Children):
    """The ranks, from their first contact to the end of the block.

    Raises JobEndedError if one ends, and MachineError if one does not answer.
    """

    def __init__(self, lab: Lab, version: int) -> None:
        super().__init__(lab)
        self._version = version
        self._directory = tempfile.TemporaryDirectory(prefix="mrcd-job-")
        self._done: dict[str, int] = {}  # steps of each rank that is ready
        self.steps: list[Step] = []

    def _begin(self) -> None:
        store = Path(self._directory.name) / "store"
        for rank, host in enumerate(self._lab.fabric.hosts):
            address = self._lab.fabric.address(host, self._version)
            argv = [PYTHON, "-I", str(PROGRAM), *map(str, (rank, RANKS, store, address, BYTES))]
            self._start(host, argv, env=bringup.environment(self._lab.state, host) | {"OMP_NUM_THREADS": "1"})
        self._wait_for(START_S, 0)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        super().__exit__(kind, error, tb)
        self._directory.cleanup()

    def begin(self, number: int) -> None:
        """Lets all ranks run `number` steps."""
        for child in self._children:
            try:
                child.write(str(number))
            except BrokenPipeError:
                raise self._ended(child) from None

    def run(self, number: int) -> list[Step]:
        """Runs `number` steps in all ranks, and returns them. All steps begun before are over."""
        first = len(self.steps)
        self.begin(number)
        self._wait_for(TURN_S, first + number)
        return self.steps[first:]

    def _take(self, child: Child, said: dict[str, Any]) -> None:
        if "ready" in said:
            self._done[child.node] = 0
            return
        self._done[child.node] += 1
        if child is self._children[0]:
            self.steps.append(Step(said["begin_ns"], said["end_ns"]))

    def _wait_for(self, seconds: float, steps: int) -> None:
        def late() -> list[str]:
            return [c.node for c in self._children if self._done.get(c.node, -1) < steps]

        hint = "see mrcctl events in the hosts"
        self._wait(seconds, lambda: not late(), lambda: f"the job's rank in {late()[0]} does not answer", hint=hint)

    def _ended(self, child: Child) -> JobEndedError:
        return JobEndedError(f"the job's rank in {child.node} ended by itself: {child.last_words}")
