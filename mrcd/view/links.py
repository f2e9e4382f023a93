# SPDX-License-Identifier: BSD-2-Clause
"""Makes the documents of GET /v1/links: one per link of this host, with what link probes tell of it."""

import time
from typing import Any

import numpy as np

from mrcd.fabric import links
from mrcd.health.links.verdicts import Counts, State, direction, grid, own_ratio, read
from mrcd.health.links.watch import WINDOW_S, Verdicts, target
from mrcd.health.snapshot import Columns, Snapshot
from mrcd.kernel.enums import EvState

_NS = 1_000_000_000
_ONSET_NS = 1_000_000_000  # a link loses packets for so long, or longer, when its state changes
_PROBED = (EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD)

Document = dict[str, Any]


def documents(s: Snapshot, verdicts: Verdicts | None) -> list[Document]:
    """Return a document per link, those to the T0s first; none where carriers do not name the switches.

    Without `verdicts`, which only a daemon has, all states are unknown.
    """
    plan, watched = s.plan, list(links.links(s.plan))
    if not watched:
        return []
    now, mask = time.monotonic_ns(), int(s.tables.node["plane_mask"])
    records = grid(s.tables.links, plan).copy()
    ever = read(records, mask, now)
    shape = records.shape
    if verdicts is None or verdicts.states.shape != shape:
        zeros = np.zeros(shape, np.int64)
        verdicts = Verdicts(np.full(shape, State.UNKNOWN, np.int8), zeros, Counts(zeros, zeros))
    recent = np.where(verdicts.states == State.DEAD, 1.0, own_ratio(verdicts.recent))
    always = own_ratio(ever.counts)
    found = []
    for link in watched:
        row, plane = (0 if link.t1 is None else 1 + link.t1), link.plane
        at = row, plane
        state, since = State(int(verdicts.states[at])), int(verdicts.since_ns[at])
        judged, heard = int(verdicts.recent.judged[at]), int(ever.rx_ns[at])
        is_up = bool(mask >> plane & 1)
        is_bad = state >= State.LOSSY and is_up
        found.append(
            {
                "link": target(plan, plane, link.t1),
                "plane": plane,
                "t0": plan.host.t0,
                "t1": link.t1,
                "state": state.text,
                "since_s": (now - since) / _NS if since else None,
                "direction": _direction(s, link, float(recent[at]), since, now) if is_bad else None,
                "has_carrier": is_up,
                "recent_probes": judged,
                "recent_lost_probes": int(verdicts.recent.lost[at]),
                "recent_loss_ratio": float(recent[at]) if judged or is_bad else None,
                "probes": int(ever.counts.judged[at]),
                "lost_probes": int(ever.counts.lost[at]),
                "loss_ratio": float(always[at]),
                "last_rx_s": (now - heard) / _NS if heard else None,
                "rtt_ns": int(records["rtt_ns"][at]) if heard else None,
                "carrier": str(link.carrier),
            }
        )
    return found


def _direction(s: Snapshot, link: links.Link, loss: float, since_ns: int, now: int) -> str | None:
    """Return in which direction a link that loses this part of the probes does, by the EVs across it to all peers."""
    begun = max(now - WINDOW_S * _NS, since_ns - _ONSET_NS)
    used = s.columns(link.plane)
    is_known = s.configured[:, used] & np.isin(s.state[:, used], _PROBED) & ~s.is_silent[:, None]
    if link.t1 is not None:
        is_known &= s.plan.paths.t1s[:, used] == link.t1
    lost_ns = Columns(s.tables.path_stats, s.rows, used)["loss_ns"].astype(np.int64)
    idle_us, some = int(s.tables.node["idle_us"]), int(s.tables.node["idle_evs"])
    share = some / s.plan.config.cluster.evs_per_peer if some else 1.0
    probes_per_ev = (now - begun) / 1000 / idle_us * share if idle_us else 0.0
    # An EV that has failed, and works again, has lost nothing.
    return direction(loss, probes_per_ev, lost_ns > begun, is_known)
