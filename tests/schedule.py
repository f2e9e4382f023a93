# SPDX-License-Identifier: BSD-2-Clause
"""Divides a run of whole directories among workers (pytest-xdist), one per CPU.

A worker gets one file at a time. Labs and virtual machines need an idle machine, because their tests have bounds in
milliseconds: they come last, on one worker, when all other workers have ended.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from labkit.cluster.patience import EMULATED

TESTS = Path(__file__).parent
RINGS = ("fuzz", "packet", "unit", "kernels", "lab")  # in the order of a run: long files early, what runs alone last
ALONE = ("kernels", "lab")


def ring(path: Path) -> str:
    """Returns the directory below tests/ that a path is in; "" for tests/ itself."""
    return path.resolve().relative_to(TESTS).parts[0] if path.resolve() != TESTS else ""


def own_number() -> int:
    """Returns this worker's number; 0 if there are no workers."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def wanted(arguments: list[str]) -> int:
    """Returns the number of workers for pytest's arguments: 0 for single files, and where all tests run alone."""
    paths = [Path(argument) for argument in arguments]
    cpus = len(os.sched_getaffinity(0))
    divisible = cpus > 1 and not EMULATED and all(p.is_dir() and ring(p) not in ALONE for p in paths)
    return cpus if divisible else 0


@contextlib.contextmanager
def turn(path: Path) -> Iterator[None]:
    """A block for a test of this file: while no test of another worker runs, if it must run alone."""
    fd = os.open(TESTS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if ring(path) in ALONE else fcntl.LOCK_SH)
        yield
        fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough, if a child process has the descriptor too
    finally:
        os.close(fd)


class Scheduler(LoadScopeScheduling):
    """Gives out the files in their order; what runs alone is given out as a whole."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "alone" if ring(self.config.rootpath / file) in ALONE else file


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests by ring; the order within a ring stays."""
    return sorted(items, key=lambda item: RINGS.index(ring(item.path)))
