# SPDX-License-Identifier: BSD-2-Clause
"""Counts the EVs of all peers by plane, T1 and state."""

from typing import Any

import numpy as np

from mrcd.fabric.paths import NO_T1
from mrcd.fabric.topology import Plan
from mrcd.kernel.columns import Columns
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables

STATES = (EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD, EvState.DENIED, EvState.UNKNOWN)

Document = dict[str, Any]


def document(tables: Tables, plan: Plan) -> Document:
    """Return per plane and T1 the number of EVs in each state, in the order of `states`; None where there is no EV.

    `without_t1` counts EVs to hosts under the same T0, and those whose T1 this host does not know: paths that the
    cluster file lists, and all with encapsulation ecmp.
    """
    c = plan.config.cluster
    rows = np.array([p.host.id for p in plan.peers], np.int64)
    evs = Columns(tables.evs, rows, slice(0, c.planes * c.evs_per_plane))
    states = np.minimum(evs["state"], len(EvState) - 1)
    counts = np.zeros((c.planes, c.t1s + 1, len(EvState)), np.int64)
    if len(rows):
        planes = np.arange(c.planes, dtype=np.int64).repeat(c.evs_per_plane)
        cells = (planes * (c.t1s + 1) + plan.paths.t1s - NO_T1) * len(EvState) + states
        found = np.bincount(cells[evs["configured"] != 0], minlength=counts.size)
        counts = found.reshape(counts.shape)
    ordered = counts[..., list(STATES)].tolist()
    return {
        "states": [s.name for s in STATES],
        "t1s": c.t1s,
        "planes": [
            {"plane": plane, "t1s": [_cell(cell) for cell in cells[1:]], "without_t1": _cell(cells[0])}
            for plane, cells in enumerate(ordered)
        ],
    }


def _cell(counts: list[int]) -> list[int] | None:
    return counts if any(counts) else None
