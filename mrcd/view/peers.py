# SPDX-License-Identifier: BSD-2-Clause
"""Makes the documents of peers, of their secrets, and of their EVs by plane and T1, from arrays over all peers."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.fabric.paths import NO_T1
from mrcd.health.snapshot import Snapshot, medians
from mrcd.kernel import abi, enums
from mrcd.kernel.enums import EvState

MAP_STATES = (EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD, EvState.DENIED, EvState.UNKNOWN)

Document = dict[str, Any]


def documents(s: Snapshot, most: int | None = None) -> list[Document]:
    """Return a document per peer, in the plan's order; with `most`, only of so many, the worst first."""
    now, planes = time.monotonic_ns(), range(s.planes)

    def total(values: NDArray[Any]) -> list[int]:
        found: list[int] = np.where(s.configured, values, 0).sum(axis=1, dtype=np.uint64).tolist()
        return found

    rtt_ns, (judged, lost_packets) = medians(s.rtt_ns), s.judged_and_lost
    columns = {
        "usable_evs": total(s.usable),
        "tx_packets": total(s.evs["tx_packets"]),
        "tx_bytes": total(s.evs["tx_bytes"]),
        "sent": total(judged),
        "lost": total(lost_packets),
        "states": s.states.tolist(),
        "rtt_ns": rtt_ns.tolist(),
        "reachable": s.is_reachable.tolist(),
        "detached": s.is_detached.tolist(),
        "heard_ns": s.heard_ns.tolist(),
        **{name: s.copies[name].tolist() for name in ("sent_once", "delivered", "unchecked", "eliminated")},
        "copied": s.copies["sent"].tolist(),
        **{name: s.peers[name].tolist() for name in ("plane_mask", "refused")},
    }
    found = []
    for i in range(len(s.rows)) if most is None else _worst(s)[:most]:
        peer, c = s.plan.peers[i], {name: column[i] for name, column in columns.items()}
        heard, sent, lost = c["heard_ns"], c["sent"], c["lost"]
        found.append(
            {
                "peer": peer.host.name,
                "host_id": peer.host.id,
                "reachable": c["reachable"],
                "status": "unknown" if not heard else "detached" if c["detached"] else "attached",
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
                "critical": {
                    "sent_twice": c["copied"],
                    "sent_once": c["sent_once"],
                    "delivered": c["delivered"],
                    "unchecked": c["unchecked"],
                    "eliminated": c["eliminated"],
                },
                "refused_packets": c["refused"],
                "heard_s": (now - heard) / 1e9 if heard else None,
                "prefixes": [str(p) for p in peer.host.prefixes],
            }
        )
    return found


def _worst(s: Snapshot) -> list[int]:
    """Return the indexes of the peers: unreachable ones, then those with most EVs out of use, then the plan's order."""
    count = np.maximum(s.configured.sum(axis=1), 1)
    usable, good = (s.usable & s.configured).sum(axis=1) / count, s.states[:, EvState.GOOD] / count
    order: list[int] = np.lexsort((usable, good, s.is_reachable)).tolist()
    return order


def by_plane(s: Snapshot) -> list[Document]:
    """Return the number of usable EVs and of all EVs of each plane."""
    counts = (s.per_plane(which).sum(axis=0).tolist() for which in (s.usable & s.configured, s.configured))
    return [{"usable_evs": n, "evs": every} for n, every in zip(*counts, strict=True)]


def path_map(s: Snapshot) -> Document:
    """Return per plane and T1 the number of EVs in each state, in the order of `states`; None where there is no EV.

    `without_t1` counts EVs to hosts under the same T0, and those whose T1 this host does not know: paths that the
    cluster file lists, and all with encapsulation ecmp.
    """
    t1s, evs = s.plan.config.cluster.t1s, s.state.shape[1]
    counts = np.zeros((s.planes, t1s + 1, len(EvState)), np.int64)
    if len(s.rows):
        planes = np.arange(s.planes, dtype=np.int64).repeat(evs // s.planes)
        states = np.minimum(s.state, len(EvState) - 1)
        cells = (planes * (t1s + 1) + s.plan.paths.t1s - NO_T1) * len(EvState) + states
        counts = np.bincount(cells[s.configured], minlength=counts.size).reshape(counts.shape)
    ordered = counts[..., list(MAP_STATES)].tolist()
    return {
        "states": [s.name for s in MAP_STATES],
        "t1s": t1s,
        "planes": [
            {"plane": plane, "t1s": [_cell(cell) for cell in cells[1:]], "without_t1": _cell(cells[0])}
            for plane, cells in enumerate(ordered)
        ],
    }


def _cell(counts: list[int]) -> list[int] | None:
    return counts if any(counts) else None


def keys(s: Snapshot) -> Document:
    """Return GET /v1/keys without the order of the secrets, which the tables do not tell. It has no key."""
    auths, found = {name: s.auths[name] for name in ("mode", "tx_id", "tx_slot", "rx_id", "untagged", "clock_ns")}, []
    known_there = s.peers["key_ids"]
    for i, (peer, is_reachable) in enumerate(zip(s.plan.peers, s.is_reachable.tolist(), strict=True)):
        found.append(
            {
                "peer": peer.host.name,
                "reachable": is_reachable,
                "sent_with": int(auths["tx_id"][i, auths["tx_slot"][i] % abi.KEY_IDS]) or None,
                "accepted_by_peer": _ids(known_there[i]),
                "accepted_from_peer": _ids(auths["rx_id"][i]),
                "untagged_packets": int(auths["untagged"][i]),
                "clock_known": bool(auths["clock_ns"][i]),
            }
        )
    return {
        "mode": enums.AuthMode(int(auths["mode"][0])).name.lower() if found else s.plan.config.auth.mode,
        "accepted": sorted({i for p in found for i in p["accepted_from_peer"]}),
        "newest": None,
        "peers": found,
    }


def _ids(of_slots: NDArray[np.uint8]) -> list[int]:
    return [int(i) for i in of_slots[: abi.KEY_IDS] if i]
