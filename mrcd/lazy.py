"""Large arrays of zeros, of which mostly a small part is ever used."""

import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray


def zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """As numpy's, but page by page when they are first written.

    numpy asks the kernel for huge pages for its own (madvise(2)): the first write to each clears 2 MB, for which
    the kernel may first have to move memory together. That has taken a second here, while the loop waited.
    """
    kind, count = np.dtype(dtype), math.prod(shape)
    if not count:
        return np.zeros(shape, kind)
    area = mmap.mmap(-1, count * kind.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(area, kind, count).reshape(shape)
