# SPDX-License-Identifier: BSD-2-Clause
"""Divides a run of whole directories among workers (pytest-xdist), one per CPU.

A worker gets one file at a time. At most one worker has labs. Most labs and the virtual machines need an idle machine,
because their tests have bounds in milliseconds: they come last, on one worker, when all other workers have ended.
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
# Labs whose tests judge what arrives, not when. They mostly wait, so another worker keeps the CPUs busy.
_UNTIMED = (
    *("back_to_back", "damage", "docs_commands", "fleet_check", "fleet_links", "install", "mrcctl_offline"),
    *("prometheus", "source_check", "traffic", "training_job", "wire"),
)
# File → part, in directories whose other tests run alone.
BESIDE = {f"lab/test_{name}.py": "untimed labs" for name in _UNTIMED} | {"kernels/test_packages.py": "kernel packages"}
# Long files first; what runs alone last.
ORDER = ("untimed labs", "kernel packages", "fuzz", "packet", "unit", "kernels", "lab")
ALONE = ("kernels", "lab")


def part(path: Path) -> str:
    """Returns the part of a run, of ORDER, that a test file belongs to; "" for tests/ itself."""
    inside = path.resolve().relative_to(TESTS)
    return BESIDE.get(str(inside)) or (inside.parts[0] if inside.parts else "")


def own_number() -> int:
    """Returns this worker's number; 0 if there are no workers."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def wanted(arguments: list[str]) -> int:
    """Returns the number of workers for pytest's arguments: 0 for single files, and where all tests run alone."""
    paths = [Path(argument) for argument in arguments]
    cpus = len(os.sched_getaffinity(0))
    divisible = cpus > 1 and not EMULATED and all(p.is_dir() and part(p) not in ALONE for p in paths)
    return cpus if divisible else 0


@contextlib.contextmanager
def locked_for(path: Path) -> Iterator[None]:
    """A block for a test of this file: while no test of another worker runs, if it must run alone."""
    fd = os.open(TESTS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if part(path) in ALONE else fcntl.LOCK_SH)
        yield
        fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough, if a child process has the descriptor too
    finally:
        os.close(fd)


class Scheduler(LoadScopeScheduling):
    """Gives out the files in their order; the untimed labs as a whole, and so what runs alone."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        found = part(self.config.rootpath / file)
        return "alone" if found in ALONE else found if found == "untimed labs" else file


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests by the part of the run; the order within a part stays."""
    return sorted(items, key=lambda item: ORDER.index(part(item.path)))
