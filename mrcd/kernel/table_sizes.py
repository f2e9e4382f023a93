# SPDX-License-Identifier: BSD-2-Clause
"""Computes the entries of each table from a plan. Pure."""

from mrcd.fabric import links
from mrcd.fabric.topology import Plan
from mrcd.kernel import abi, enums
from mrcd.kernel.enums import EvState, Reason

PREFIXES_MAX = 65536
_MIN_ROWS, _ROWS_STEP = 64, 8  # of the peers' tables
_EVENTS_BYTES = 256 * 1024  # 5,000 events


def rows_for(needed: int, existing: int) -> int:
    """Returns the rows of the peers' tables. `existing` are those of the present tables, 0 if there are none.

    New tables start with all counters at zero, so the present rows are kept if they suffice and are not far too many.
    A table that grows gets an eighth more than needed. Every row costs memory for all its EVs, so new tables are hardly
    larger than needed.
    """
    if needed <= existing <= 2 * max(needed, _MIN_ROWS):
        return existing
    wanted = needed + needed // 8 if 0 < existing < needed else needed
    return max(_MIN_ROWS, -(-wanted // _ROWS_STEP) * _ROWS_STEP)


def table_sizes(plan: Plan, existing_rows: int = 0) -> dict[str, int]:
    """Returns the entries of every table for a plan. `existing_rows` as in rows_for()."""
    peers = rows_for(plan.config.max_peers, existing_rows)
    evs = plan.config.cluster.evs_per_peer
    return {
        "mrc_evs": peers * evs,
        "mrc_path_stats": peers * evs,
        "mrc_rxs": peers * evs,
        "mrc_srhs": peers * evs if plan.needs_srh else 1,
        "mrc_peers": peers,
        "mrc_auths": peers,
        "mrc_replays": peers,
        "mrc_reports": peers,
        "mrc_watches": peers,
        "mrc_clock": 1,
        "mrc_probes_sent": len(enums.ProbeKind),
        "mrc_unsent_packets": abi.MAX_PLANES,
        "mrc_idle_timers": peers,
        "mrc_clone_jobs": 1,  # pinned: old and new programs share it while they are replaced one by one
        "mrc_links": links.table_size(plan.config.cluster.t1s),
        "mrc_planes": abi.MAX_PLANES,
        "mrc_node": 1,
        "mrc_rotations": peers,
        "mrc_drops": len(enums.Drop),
        "mrc_histograms": enums.HISTOGRAMS * abi.BUCKETS,
        "mrc_transitions": len(EvState) * len(Reason),
        "mrc_events": _EVENTS_BYTES,
        "mrc_prefixes": PREFIXES_MAX,
    }
