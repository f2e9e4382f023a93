# SPDX-License-Identifier: BSD-2-Clause
"""Sums what a scrape needs of all EVs, per peer.

The tables of 4,096 peers are larger than a CPU's caches, and most fields of a record share a cache line with others. So
all of some peers is summed before the next peers are read.
"""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.health.snapshot import Snapshot, medians
from mrcd.kernel.enums import EvState

FLAPPING = 3  # flaps
NO_PROBE = 2**64 - 1  # oldest_probe_ns of a peer of which no plane is up
_AT_ONCE = 64  # peers
EvSums = dict[str, NDArray[Any]]
"""Arrays by name: (peers,), (peers, planes) or (peers, states)."""


def ev_sums(s: Snapshot) -> EvSums:
    """Return the sums of all peers of a snapshot, which also gets the state of each EV."""
    parts = [_sum(s.part(slice(first, first + _AT_ONCE))) for first in range(0, max(1, len(s.rows)), _AT_ONCE)]
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    s.configured, s.state = found.pop("configured"), found.pop("state")
    return found


def _sum(s: Snapshot) -> EvSums:
    (judged, lost), tx_packets = s.judged_and_lost, s.evs["tx_packets"]  # in this order: judged ≤ sent
    rxs = s.tables.rxs
    found = {
        "configured": s.configured, "state": s.state, "states": s.states,
        "judged": s.per_plane(judged), "arrived": s.per_plane(judged - lost), "tx_packets": s.per_plane(tx_packets),
        "usable": s.per_plane(s.usable), "rtt_s": medians(s.rtt_ns) / 1e9,
        "flapping": _flapping(s), "oldest_probe_ns": _oldest_probe_ns(s),
    }  # fmt: skip
    for name, values in (
        ("tx_bytes", s.evs["tx_bytes"]),
        ("probe_seq", s.evs["probe_seq"]),
        ("rx_packets", rxs["packets"][s.rows, s.used]),
        ("rx_bytes", rxs["bytes"][s.rows, s.used]),
        ("rx_ce", s.path_stats["rx_ce"]),
        ("replies", s.path_stats["replies"]),
        ("skips", s.path_stats["skips"]),
    ):
        found[name] = values.sum(axis=1, dtype=np.uint64)
    return found


def _flapping(s: Snapshot) -> NDArray[np.int64]:
    """Return the EVs of each peer that flap. Each period in good health forgets one flap.

    The table is updated only at the next flap.
    """
    flaps = s.evs["flaps"].astype(np.int64)
    some = np.nonzero(s.configured & (flaps >= FLAPPING))
    idle = time.monotonic_ns() - s.evs["state_since_ns"][some].astype(np.int64)
    forgotten = idle // (s.plan.config.health.hold_down_max_ms * 1_000_000)
    recent = flaps[some] - np.where(s.state[some] == EvState.ASSUMED_BAD, 0, forgotten)
    return np.bincount(some[0][recent >= FLAPPING], minlength=len(s.rows))


def _oldest_probe_ns(s: Snapshot) -> NDArray[np.uint64]:
    """Return when the EV of each peer that has waited longest was sent a probe; NO_PROBE if no plane has a link."""
    has_link = (int(s.tables.node["plane_mask"]) >> s.evs["plane"].astype(np.int64)) & 1 != 0
    probed_ns = np.where(s.configured & has_link, s.path_stats["probe_ns"], np.uint64(NO_PROBE))
    return np.asarray(probed_ns.min(axis=1, initial=NO_PROBE), np.uint64)
