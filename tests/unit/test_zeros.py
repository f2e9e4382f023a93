# SPDX-License-Identifier: BSD-2-Clause
"""Tests arrays of zeros that take memory only when they are written."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from mrcd.health.grey_loss import zeros


@pytest.mark.parametrize(("shape", "dtype"), [((3, 5), np.int64), ((2, 3, 4), np.uint32), ((0, 7), np.int16)])
def test_lazy_arrays_are_zeros_that_can_be_written(shape: tuple[int, ...], dtype: type) -> None:
    found = zeros(shape, dtype)
    assert found.shape == shape
    assert found.dtype == dtype
    assert not found.any()
    found[...] = 7
    assert (found == 7).all()


def test_lazy_arrays_take_memory_where_they_are_written_only() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    found = zeros((1 << 25,), np.int64)  # 256 MB
    found[:: 1 << 20] = 1
    assert resident() - before < 8 << 20
