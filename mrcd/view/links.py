# SPDX-License-Identifier: BSD-2-Clause
"""Makes the documents of GET /v1/links: one per link of this host, with what link probes tell of it."""

import time
from typing import Any

import numpy as np

from mrcd.fabric import links
from mrcd.fabric.topology import Plan
from mrcd.health.links.verdicts import Counts, State, direction, grid, own_ratio, read
from mrcd.health.links.watch import WINDOW_S, Verdicts, target
from mrcd.kernel.columns import Columns
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables

_NS = 1_000_000_000
_ONSET_NS = 1_000_000_000  # a link loses packets for so long, or longer, when its state changes
_PROBED = (EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD)

Document = dict[str, Any]


def documents(tables: Tables, plan: Plan, verdicts: Verdicts | None) -> list[Document]:
    """Return a document per link, those to the T0s first; none where carriers do not name the switches.

    Without `verdicts`, which only a daemon has, all states are unknown.
    """
    watched = list(links.links(plan))
    if not watched:
        return []
    now, mask = time.monotonic_ns(), int(tables.node["plane_mask"])
    records = grid(tables.links, plan).copy()
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
                "direction": _direction(tables, plan, link, float(recent[at]), since, now) if is_bad else None,
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


def _direction(tables: Tables, plan: Plan, link: links.Link, loss: float, since_ns: int, now: int) -> str | None:
    """Return in which direction a link that loses this part of the probes does, by the EVs across it to all peers."""
    begun = max(now - WINDOW_S * _NS, since_ns - _ONSET_NS)
    width = plan.paths.shape[1]
    rows = np.array([p.host.id for p in plan.peers], np.int64)
    used = slice(link.plane * width, (link.plane + 1) * width)
    evs, stats = (Columns(table, rows, used) for table in (tables.evs, tables.path_stats))
    is_known = (evs["configured"] != 0) & np.isin(evs["state"], _PROBED)
    is_known &= (tables.watches["silent"][rows] == 0)[:, None]
    if link.t1 is not None:
        is_known &= plan.paths.t1s[:, used] == link.t1
    has_lost = stats["loss_ns"].astype(np.int64) > begun  # an EV that has failed, and works again, has lost nothing
    idle_us, some = int(tables.node["idle_us"]), int(tables.node["idle_evs"])
    share = some / plan.config.cluster.evs_per_peer if some else 1.0
    probes_per_ev = (now - begun) / 1000 / idle_us * share if idle_us else 0.0
    return direction(loss, probes_per_ev, has_lost, is_known)
