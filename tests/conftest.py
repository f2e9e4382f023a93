# SPDX-License-Identifier: BSD-2-Clause
"""Adds options and marks for all tests."""

import signal

import pytest

from labkit.cluster.patience import EMULATED

# A shell starts background jobs with SIGINT ignored, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

_NOT_EMULATED = {  # marker → reason to skip it on an emulated CPU
    "clock": "judged by the clock in microseconds: an emulated CPU pauses for longer",
    "long": "takes an emulated CPU a minute, and shows little about its kernel",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option for machines whose CPU is emulated, and the number of packets for tests/packet/test_model.py."""
    parser.addoption("--one-of-each", action="store_true", help="run each test with its first parameters only")
    parser.addoption("--model-packets", type=int, default=0, help="packets to compare with the model, at random")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Applies --one-of-each, and skips tests that an emulated CPU is too slow for."""
    if EMULATED:
        for item in items:
            for name, reason in _NOT_EMULATED.items():
                if item.get_closest_marker(name):
                    item.add_marker(pytest.mark.skip(reason=reason))
    if config.getoption("one_of_each"):
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        config.hook.pytest_deselected(items=[item for item in items if item not in first.values()])
        items[:] = [item for item in items if item in first.values()]
