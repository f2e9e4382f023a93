# SPDX-License-Identifier: BSD-2-Clause
"""Runs a training job: a gloo rank in each host of the lab, which sum an array again and again.

with Job(lab, version=4) as job:
    job.begin(100)
    while len(job.steps) < 100:
        job.poll(0.1)               # reads what the ranks print, for that long
job.steps                           # when each step began and ended, by the first rank
"""

import contextlib
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from labkit.cluster import bringup
from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from labkit.places import end_program
from labkit.traffic.child import Child
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


class Job:
    """The ranks, from their first contact to the end of the block.

    Raises JobEndedError if one ends, and MachineError if one does not answer.
    """

    def __init__(self, lab: Lab, version: int) -> None:
        self._lab, self._version = lab, version
        self._ranks: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._exit = contextlib.ExitStack()
        self._ready: set[str] = set()
        self._done: dict[str, int] = {}  # steps of each rank
        self.steps: list[Step] = []

    def __enter__(self) -> "Job":
        try:
            store = Path(self._exit.enter_context(tempfile.TemporaryDirectory(prefix="mrcd-job-"))) / "store"
            for rank, host in enumerate(self._lab.fabric.hosts):
                self._start(rank, host, store)
            self._wait(START_S, lambda host: host in self._ready)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for child in self._ranks:
            child.close()
        self._selector.close()
        self._exit.close()

    def begin(self, number: int) -> None:
        """Lets all ranks run `number` steps."""
        for child in self._ranks:
            try:
                child.write(str(number))
            except BrokenPipeError:
                raise self._ended(child) from None

    def run(self, number: int) -> list[Step]:
        """Runs `number` steps in all ranks, and returns them."""
        first, until = len(self.steps), {host: done + number for host, done in self._done.items()}
        self.begin(number)
        self._wait(TURN_S, lambda host: self._done[host] >= until[host])
        return self.steps[first:]

    def poll(self, seconds: float) -> None:
        """Reads all ranks for that long, at least once."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            for key, _ in self._selector.select(max(0.0, left)):
                self._hear(key.data)
            if left <= 0:
                return

    def _start(self, rank: int, host: str, store: Path) -> None:
        address = next(
            str(p.network_address)
            for p in self._lab.fabric.config.host(host).prefixes
            if p.version == self._version and p.prefixlen == p.max_prefixlen
        )
        argv = [PYTHON, "-I", str(PROGRAM), *map(str, (rank, RANKS, store, address, BYTES))]
        env = bringup.environment(self._lab.state, host) | {"OMP_NUM_THREADS": "1"}
        child = Child(self._lab, host, argv, env=env)
        self._ranks.append(child)
        self._done[host] = 0
        self._selector.register(child.fd, selectors.EVENT_READ, child)

    def _hear(self, child: Child) -> None:
        for said in child.read():
            if "ready" in said:
                self._ready.add(child.node)
                continue
            self._done[child.node] += 1
            if child is self._ranks[0]:
                self.steps.append(Step(said["begin_ns"], said["end_ns"]))
        if child.closed:
            raise self._ended(child)

    def _wait(self, seconds: float, is_done: Callable[[str], bool]) -> None:
        until = time.monotonic() + seconds
        while late := [c.node for c in self._ranks if not is_done(c.node)]:
            left = until - time.monotonic()
            if left <= 0:
                raise MachineError(
                    f"the job's rank in {late[0]} does not answer", hint="see mrcctl events in the hosts"
                )
            for key, _ in self._selector.select(left):
                self._hear(key.data)

    def _ended(self, child: Child) -> JobEndedError:
        return JobEndedError(f"the job's rank in {child.node} ended by itself: {child.last_words}")
