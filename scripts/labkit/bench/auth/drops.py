# SPDX-License-Identifier: BSD-2-Clause
"""Reads a host's counters of dropped packets."""

import contextlib

from labkit.cluster import observe
from labkit.cluster.api import Lab
from mrcd.kernel.pinned import Tables


def read(lab: Lab, host: str) -> dict[str, int]:
    """Returns reason → packets dropped since the data plane was attached."""
    with contextlib.closing(Tables(observe.pins(lab, host), writable=False)) as tables:
        return tables.drops()


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Returns reason → packets dropped between two readings, without zeros."""
    return {reason: n - before.get(reason, 0) for reason, n in after.items() if n > before.get(reason, 0)}
