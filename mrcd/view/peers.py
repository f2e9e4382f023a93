# SPDX-License-Identifier: BSD-2-Clause
"""Makes the documents of GET /v1/peers, from arrays over all peers."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.fabric.topology import Plan
from mrcd.kernel.columns import Columns, ev_bits, has_round_trip, judged_and_lost, medians
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables, is_detached

Document = dict[str, Any]


def documents(
    tables: Tables,
    plan: Plan,
    reachable: Callable[[NDArray[np.uint64]], NDArray[np.bool_]],
    most: int | None = None,
) -> list[Document]:
    """Return a document per peer, in the plan's order; with `most`, only of so many, the worst first.

    `reachable` computes a bool from mrc_peer.heard_ns, (peers,).
    """
    now, planes = time.monotonic_ns(), range(len(plan.interfaces))
    rows = np.array([p.host.id for p in plan.peers], np.int64)
    used = slice(0, len(planes) * plan.config.cluster.evs_per_plane)
    evs, path_stats = Columns(tables.evs, rows, used), Columns(tables.path_stats, rows, used)
    records, configured = tables.peers[rows], evs["configured"] != 0

    def total(values: NDArray[Any]) -> list[int]:
        found: list[int] = np.where(configured, values, 0).sum(axis=1, dtype=np.uint64).tolist()
        return found

    replies = path_stats["replies"]  # before the times: one that answers meanwhile has had none yet
    state = evs["state"]
    rtts = medians(path_stats["rtt_ns"], configured & has_round_trip(state, replies))
    judged, lost_packets = judged_and_lost(path_stats)
    states = np.stack([(configured & (state == s)).sum(axis=1) for s in EvState], axis=1)
    columns = {
        "usable_evs": total(ev_bits(records["usable"])[:, used]),
        "tx_packets": total(evs["tx_packets"]),
        "tx_bytes": total(evs["tx_bytes"]),
        "sent": total(judged),
        "lost": total(lost_packets),
        "states": states.tolist(),
        "rtt_ns": rtts.tolist(),
        "reachable": reachable(records["heard_ns"]).tolist(),
        "heard_ns": records["heard_ns"].tolist(),
        "plane_mask": records["plane_mask"].tolist(),
        "dup_acks": records["dup_acks"].tolist(),
        "refused": records["refused"].tolist(),
    }
    found = []
    chosen = range(len(rows)) if most is None else _worst(columns, configured.sum(axis=1))[:most]
    for i in chosen:
        peer, c = plan.peers[i], {name: column[i] for name, column in columns.items()}
        heard, sent, lost = c["heard_ns"], c["sent"], c["lost"]
        found.append(
            {
                "peer": peer.host.name,
                "host_id": peer.host.id,
                "reachable": c["reachable"],
                "status": "unknown" if not heard else "detached" if is_detached(records[i]) else "attached",
                "evs": peer.ev_count,
                "usable_evs": c["usable_evs"],
                "states": {s.name: n for s, n in zip(EvState, c["states"], strict=True) if n},
                "linked_planes": [p for p in planes if c["plane_mask"] >> p & 1],
                "tx_packets": c["tx_packets"],
                "tx_bytes": c["tx_bytes"],
                "rx_packets": sent - lost,
                "lost_packets": lost,
                "loss_ratio": lost / sent if sent else 0.0,
                "rtt_ns": None if np.isnan(c["rtt_ns"]) else int(c["rtt_ns"]),
                "dup_acks": c["dup_acks"],
                "refused_packets": c["refused"],
                "heard_s": (now - heard) / 1e9 if heard else None,
                "prefixes": [str(p) for p in peer.host.prefixes],
            }
        )
    return found


def _worst(columns: Mapping[str, list[Any]], counts: NDArray[np.int64]) -> list[int]:
    """Return the indexes of the peers: unreachable ones, then those with most EVs out of use, then the plan's order."""
    usable = np.array(columns["usable_evs"], np.float64) / np.maximum(counts, 1)
    good = np.array([states[EvState.GOOD] for states in columns["states"]], np.float64) / np.maximum(counts, 1)
    order: list[int] = np.lexsort((usable, good, np.array(columns["reachable"], bool))).tolist()
    return order
