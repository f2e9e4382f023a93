# SPDX-License-Identifier: BSD-2-Clause
"""Computes the hold-down of failed EVs, and defines array types of this package. Pure.

The programs serve every deadline: see bpf/ev_deadlines.h.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.config.cluster_file import Health

_MS = 1_000_000

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Records = NDArray[np.void]  # of abi.EV or abi.PATH_STATS


def hold_down_ns(settings: Health, flaps: NDArray[Any] | int) -> Ints:
    """Returns how long probes must arrive without loss before an EV returns: doubles with each flap after the first."""
    doubled = settings.hold_down_ms * 2.0 ** np.clip(np.asarray(flaps, np.int64) - 1, 0, 40)
    return np.asarray(np.minimum(doubled, settings.hold_down_max_ms) * _MS, np.int64)


def select_rows(records: Records, which: Bools) -> Records:
    """Returns copies of some rows of contiguous records. Copies words, because numpy copies records field by field."""
    if which.all():
        return records
    return records.view(np.uint64)[which].view(records.dtype)
