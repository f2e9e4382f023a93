# SPDX-License-Identifier: BSD-2-Clause
"""Tests that the programs load on Debian's kernels, in virtual machines. `make test-kernels` tests more."""

from collections.abc import Callable

import pytest

from labkit.kernels import matrix, packages
from labkit.kernels.matrix import Row
from labkit.kernels.packages import Kernel


@pytest.fixture(scope="module")
def rows(kernels: dict[str, Kernel], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """A row per series: the kernels run at the same time."""
    found = matrix.run(list(kernels.values()), ("programs",), tmp_path_factory.mktemp("kernels"), running=None)
    return dict(zip(kernels, found, strict=True))


@pytest.mark.parametrize("series", packages.SERIES)
def test_programs_load(rows: dict[str, Row], series: str, record_property: Callable[[str, object], None]) -> None:
    row = rows[series]
    record_property("measured", matrix.lines([row]))
    assert row.ok, "\n".join(matrix.failures([row]))
    assert {c["part"] for c in row.checks} == {"programs"}
