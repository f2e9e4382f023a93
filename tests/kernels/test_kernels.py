# SPDX-License-Identifier: BSD-2-Clause
"""Tests the programs and the smallest lab on Debian's kernels, in virtual machines. `make test-kernels` tests more."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.kernels import matrix, packages
from labkit.kernels.matrix import Row
from mrcd.errors import MachineError


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """A row per series: the kernels run at the same time."""
    cannot = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    if not shutil.which("qemu-system-x86_64"):
        cannot("qemu-system-x86_64 is not installed here")
    try:
        kernels = [packages.kernel(series) for series in packages.SERIES]
    except MachineError as e:
        cannot(f"Debian's kernels cannot be fetched here: {e.args[0]}")
    results: Path = tmp_path_factory.mktemp("kernels")
    found = matrix.run(kernels, ("programs", "smoke"), results, running=None)
    return dict(zip(packages.SERIES, found, strict=True))


@pytest.mark.parametrize("series", packages.SERIES)
def test_programs_load_and_a_lab_works(
    rows: dict[str, Row], series: str, record_property: Callable[[str, object], None]
) -> None:
    row = rows[series]
    record_property("measured", matrix.lines([row]))
    assert row.ok, "\n".join(matrix.failures([row]))
    assert {c["part"] for c in row.checks} == {"programs", "smoke"}
