# SPDX-License-Identifier: BSD-2-Clause
"""Adds options, marks, workers, and a summary of what was measured, for all tests."""

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from labkit.cluster import netns
from labkit.cluster.patience import EMULATED

# A shell starts background jobs with SIGINT ignored, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Otherwise every daemon and every mrcctl that tests start compiles all of mrcd.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

TESTS = Path(__file__).parent
LONG_FIRST = ("kernels/test_kernels.py", "lab/", "fuzz/", "packet/", "unit/")
"""Beginnings of test files' paths, in the order in which workers take the files: no long one is left to the end."""
_NOT_EMULATED = {  # marker → reason to skip it on an emulated CPU
    "clock": "judged by the clock in microseconds: an emulated CPU pauses for longer",
    "long": "takes an emulated CPU a minute, and shows little about its kernel",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option for machines whose CPU is emulated, and the number of packets for tests/packet/test_model.py."""
    parser.addoption("--one-of-each", action="store_true", help="run each test with its first parameters only")
    parser.addoption("--all-faults", action="store_true", help="make all faults of fault_table.py (25 minutes)")
    parser.addoption("--model-packets", type=int, default=0, help="packets to compare with the model, at random")


def pytest_configure(config: pytest.Config) -> None:
    """Keeps labs from crowding out the packets of tests beside them. The first process does it for its workers."""
    if os.geteuid() == 0 and "PYTEST_XDIST_WORKER" not in os.environ:
        machine = contextlib.ExitStack()
        with contextlib.suppress(OSError):  # a container may read it only
            machine.enter_context(netns.room_for_packets())
        config.add_cleanup(machine.close)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders the files, applies --one-of-each, and skips tests that an emulated CPU is too slow for."""
    items.sort(key=_position)
    if EMULATED:
        for item in items:
            for name, reason in _NOT_EMULATED.items():
                if item.get_closest_marker(name):
                    item.add_marker(pytest.mark.skip(reason=reason))
    if config.getoption("one_of_each"):
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        config.hook.pytest_deselected(items=[item for item in items if item not in first.values()])
        items[:] = [item for item in items if item in first.values()]


def _position(item: pytest.Item) -> int:
    inside = str(item.path.relative_to(TESTS))
    return next((n for n, beginning in enumerate(LONG_FIRST) if inside.startswith(beginning)), len(LONG_FIRST))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Decides `-n auto` of setup.cfg: a worker per CPU, and this process alone for single files."""
    directories = any(Path(argument).is_dir() for argument in config.args)
    return len(os.sched_getaffinity(0)) if directories and not EMULATED else 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests have recorded (record_property): "measured" lines, and a "compared" count by outcome."""
    compared, measured = Counter[str](), list[str]()
    for report in (r for found in terminalreporter.stats.values() for r in found):
        if isinstance(report, pytest.TestReport) and report.when == "teardown":
            properties: dict[str, Any] = dict(report.user_properties)
            compared.update(properties.get("compared", {}))
            measured += properties.get("measured", [])
    if measured:
        terminalreporter.section("measured")
        terminalreporter.write("\n".join([*measured, ""]))
    if compared:
        terminalreporter.section("runs compared with the model")
        for outcome, count in sorted(compared.items()):
            terminalreporter.write_line(f"{count:9,} {outcome}")
        terminalreporter.write_line(f"{compared.total():9,} in all")
