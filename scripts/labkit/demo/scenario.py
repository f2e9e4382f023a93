# SPDX-License-Identifier: BSD-2-Clause
"""Lists the demo's faults as data. Times are seconds since the recording began."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.cluster.patience import patience

SOURCE, TARGET = "h0", "h2"  # under different T0s, so that their paths use every plane and T1
DURATION_S = patience(22.0)
# The spread over the EVs is measured without a fault, after TCP's start.
SPREAD_S = (patience(1.0), patience(3.9))


@dataclass(frozen=True)
class Fault:
    """Something that breaks and heals."""

    target: str  # the TARGET of `scripts/lab fail`
    down: bool  # the link loses its carrier; otherwise everything is dropped silently
    words: str
    begin_s: float
    heal_s: float

    def hits(self, host: str, path: Mapping[str, Any]) -> bool:
        """Returns whether this path (of `mrcctl paths`) from `host` crosses the broken place."""
        if match := re.fullmatch(r"t1:(\d+):(\d+)", self.target):
            return (path["plane"], path["t1"]) == (int(match[1]), int(match[2]))
        if match := re.fullmatch(r"nic:([^:]+):(\d+)", self.target):
            return path["plane"] == int(match[2]) and match[1] in (host, path["peer"])
        raise ValueError(f"{self.target}: the demo has no fault of this kind")


FAULTS = (
    Fault("t1:1:2", False, "T1 2 of plane 1 is a silent black hole", patience(4.0), patience(14.0)),
    Fault("nic:h0:3", True, "h0's link to plane 3 is cut", patience(9.0), patience(16.5)),
)
