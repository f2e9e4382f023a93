# SPDX-License-Identifier: BSD-2-Clause
"""Keeps what the tables do not: which packets were refused lately, and which EVs were left for a grey loss lately."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mrcd.fabric.topology import Plan
from mrcd.health.diagnosis.refusals import Growth, by_reason
from mrcd.kernel.enums import Drop

GREY_NS = 60_000_000_000
"""An EV with a loss of 1 % soon looks well to a few probes, returns, and is left again after some seconds."""


class Memory:
    """Keeps facts of the last minute that the tables do not have. Threads may read while it is written."""

    def __init__(self) -> None:
        self.refused: Mapping[Drop, int] = {}
        """Facts.refused."""
        self.unroutable: Mapping[int, int] = {}
        """Plane → OwnPlane.unroutable."""
        self._refusals, self._arrivals = Growth[Drop](), Growth[int]()
        self._plan: Plan | None = None
        self._grey_ns: NDArray[np.int64] | None = None  # when an EV was last out of use for a grey loss; 0: never

    def note_counters(self, now_ns: int, drops: Mapping[str, int], unroutable: Mapping[int, int]) -> None:
        """Takes the counters of Tables.drops, and of net.unroutable by plane, once a second."""
        self.refused = self._refusals.update(now_ns, by_reason(drops))
        self.unroutable = self._arrivals.update(now_ns, unroutable)

    def lately_grey(self, now_ns: int, plan: Plan, is_grey: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Takes which EVs (peers, EVs) are out of use for a grey loss, and returns which were lately; None: none."""
        times = self._grey_ns if self._plan is plan else None
        if times is None:
            if not is_grey.any():
                return None
            times = np.zeros(is_grey.shape, np.int64)
        times[is_grey] = now_ns
        is_lately = (times > 0) & (now_ns - times < GREY_NS)
        self._plan, self._grey_ns = plan, times if is_lately.any() else None
        return is_lately
