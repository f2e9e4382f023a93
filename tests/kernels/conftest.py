# SPDX-License-Identifier: BSD-2-Clause
"""Provides Debian's kernels."""

import os
import shutil

import pytest

from labkit.kernels import packages
from labkit.kernels.packages import Kernel
from mrcd.errors import MachineError


@pytest.fixture(scope="session")
def kernels() -> dict[str, Kernel]:
    """Returns the newest kernel of each series; fetches what is missing."""
    cannot = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    if not shutil.which("qemu-system-x86_64"):
        cannot("qemu-system-x86_64 is not installed here")
    try:
        return {series: packages.kernel(series) for series in packages.SERIES}
    except MachineError as e:
        cannot(f"Debian's kernels cannot be fetched here: {e.args[0]}")
