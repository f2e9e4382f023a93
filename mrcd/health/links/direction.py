# SPDX-License-Identifier: BSD-2-Clause
"""Tells in which direction a link loses packets. Pure, over arrays.

A link probe passes each link of its way in both directions, so its loss tells none. Peers count what arrives from this
host, which passed the link upwards only: if the EVs across a lossy link lose nothing, the link loses packets on their
way down, to this host. If they lose as much, it loses packets on their way up; then nothing tells whether it also loses
packets on their way down.
"""

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]

UP, DOWN = "up", "down"
_LEAST_EXPECTED = 0.5  # of the EVs should have lost a probe; with fewer, EVs without a loss prove nothing


def direction(loss: float, probes_per_ev: float, has_lost: Bools, is_known: Bools) -> str | None:
    """Returns UP or DOWN; None if it cannot be told.

    `loss`: the part of the link probes that was lost. Of the EVs across the link, `is_known` says which were probed, by
    `probes_per_ev` probes in the same time, and `has_lost` which of them have lost something.
    """
    evs = int(is_known.sum())
    expected = 1 - (1 - loss) ** probes_per_ev
    if not evs or expected < _LEAST_EXPECTED:
        return None
    found = int((has_lost & is_known).sum()) / evs
    if found >= expected / 2:
        return UP
    return DOWN if found <= expected / 10 else None
