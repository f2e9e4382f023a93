"""What the demo does, as data. Times are seconds since the recording began."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.cluster.patience import patience

SOURCE, TARGET = "h0", "h2"  # under different T0s, so that every plane and T1 lies between them
DURATION_S = patience(22.0)
# The spread over the EVs is taken while nothing is broken, and TCP has long started.
SPREAD_S = (patience(1.0), patience(3.9))


@dataclass(frozen=True)
class Fault:
    """Something that breaks, and is mended."""

    target: str  # as `scripts/lab fail` takes it
    down: bool  # the link's carrier goes away; else everything is dropped silently
    words: str
    begin_s: float
    heal_s: float

    def hits(self, host: str, path: Mapping[str, Any]) -> bool:
        """Does this path (of `mrcctl paths`) from `host` lead through the broken place?"""
        if match := re.fullmatch(r"t1:(\d+):(\d+)", self.target):
            return (path["plane"], path["t1"]) == (int(match[1]), int(match[2]))
        if match := re.fullmatch(r"nic:([^:]+):(\d+)", self.target):
            return path["plane"] == int(match[2]) and match[1] in (host, path["peer"])
        raise ValueError(f"{self.target}: not a kind of fault that the demo knows")


FAULTS = (
    Fault("t1:1:2", False, "T1 2 of plane 1 is a silent black hole", patience(4.0), patience(14.0)),
    Fault("nic:h0:3", True, "h0's link to plane 3 is cut", patience(9.0), patience(16.5)),
)
