# SPDX-License-Identifier: BSD-2-Clause
"""Allocates large arrays of zeros that use memory only for pages that are written."""

import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray


def zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Returns an array of zeros in 4 KB pages.

    numpy asks for huge pages (madvise(2)), so that the first write to a row takes 2 MB. The counts of the grey-loss
    test (health/grey_loss.py) have 100 MB for a million EVs, and only the rows of lossy peers are written.
    """
    kind, count = np.dtype(dtype), math.prod(shape)
    if not count:
        return np.zeros(shape, kind)
    area = mmap.mmap(-1, count * kind.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(area, kind, count).reshape(shape)
