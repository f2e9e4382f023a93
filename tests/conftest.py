# SPDX-License-Identifier: BSD-2-Clause
"""Adds options, marks, workers, and a summary of what was measured, for all tests."""

import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from labkit.cluster.patience import EMULATED
from tests import schedule

# A shell starts background jobs with SIGINT ignored, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

_NOT_EMULATED = {  # marker → reason to skip it on an emulated CPU
    "clock": "judged by the clock in microseconds: an emulated CPU pauses for longer",
    "long": "takes an emulated CPU a minute, and shows little about its kernel",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option for machines whose CPU is emulated, and the number of packets for tests/packet/test_model.py."""
    parser.addoption("--one-of-each", action="store_true", help="run each test with its first parameters only")
    parser.addoption("--all-faults", action="store_true", help="make all faults of fault_table.py (25 minutes)")
    parser.addoption("--model-packets", type=int, default=0, help="packets to compare with the model, at random")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders the rings, applies --one-of-each, and skips tests that an emulated CPU is too slow for."""
    items[:] = schedule.in_order(items)
    if EMULATED:
        for item in items:
            for name, reason in _NOT_EMULATED.items():
                if item.get_closest_marker(name):
                    item.add_marker(pytest.mark.skip(reason=reason))
    if config.getoption("one_of_each"):
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        config.hook.pytest_deselected(items=[item for item in items if item not in first.values()])
        items[:] = [item for item in items if item in first.values()]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Decides `-n auto` of setup.cfg."""
    return schedule.wanted(config.args)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> schedule.Scheduler:
    """Divides the tests among the workers."""
    config.option.loadscopereorder = False
    return schedule.Scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Makes tests of a worker wait while another one's test runs alone."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with schedule.locked_for(item.path):
        return (yield)


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
