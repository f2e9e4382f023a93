# SPDX-License-Identifier: BSD-2-Clause
"""Makes the documents of GET /v1/paths: one per EV."""

import functools
import time
from collections.abc import Iterator, Mapping
from ipaddress import IPv6Address
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.errors import UsageError, no_peer
from mrcd.fabric.srv6 import hops
from mrcd.fabric.topology import EV, Peer, Plan
from mrcd.health.probe_pace import hold_down_ns
from mrcd.health.snapshot import has_round_trip
from mrcd.kernel.abi import WEIGHT_FULL
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.pinned import Tables

MOST_PATHS = 65_536  # in one answer: some 40 MB

Document = dict[str, Any]


def documents(
    tables: Tables, plan: Plan, peer: str | None, plane: int | None, state: str | None, decode: bool
) -> list[Document]:
    """Return a document per EV, filtered; with the hops of its carrier if `decode`.

    Raises UsageError if there is no such peer or plane, or there are more than MOST_PATHS.
    """
    names = [p.host.name for p in plan.peers]
    if peer is not None and peer not in names:
        raise no_peer(peer, names)
    planes = plan.config.cluster.planes
    if plane is not None and plane >= planes:
        raise UsageError(f"there is no plane {plane}", hint=f"planes: 0 to {planes - 1}")
    chosen = list(_chosen(tables, plan, peer, plane, state))
    count = sum(len(numbers) for _, numbers in chosen)
    if count > MOST_PATHS:
        raise UsageError(f"that would be {count:,} paths", hint="name a peer, or a plane and a state")
    now, block = time.monotonic_ns(), plan.config.cluster.block
    found = []
    for p, numbers in chosen:
        usable = usable_evs(p, tables.peers[p.host.id]["usable"])
        for e in p.some_evs(numbers):
            document = _path(tables, plan, e, usable[e.ev], now)
            if decode:
                document["hops"] = [h.document() for h in hops(e.segments, block)]
            found.append(document)
    return found


def _chosen(
    tables: Tables, plan: Plan, peer: str | None, plane: int | None, state: str | None
) -> Iterator[tuple[Peer, list[int]]]:
    """Yield the chosen peers, each with the numbers of its chosen EVs."""
    wanted = None if state is None else EvState.__members__.get(state.upper(), -1)
    for p in plan.peers:
        if peer is not None and p.host.name != peer:
            continue
        numbers = p.numbers if plane is None else p.numbers[p.places[0] == plane]
        if wanted is not None:
            numbers = numbers[tables.evs["state"][p.host.id, numbers] == wanted]
        if len(numbers):
            yield p, numbers.tolist()


def _path(tables: Tables, plan: Plan, e: EV, usable: bool, now: int) -> Document:
    row = _values(tables.evs[e.peer_id, e.ev])
    stats = _values(tables.path_stats[e.peer_id, e.ev])
    state = EvState(row["state"])
    sent = stats["judged"]
    lost = min(stats["lost_before"] + stats["deficit"], sent)
    # GOOD to SKIP and back is no event: only of a lagging one it is known since when.
    since = stats["lag_ns"] if state is EvState.SKIP else row["state_since_ns"]
    sent_at = row["last_tx_ns"]
    segments = _texts(e.segments)
    return {
        "peer": e.peer,
        "ev": e.ev,
        "plane": e.plane,
        "slot": e.slot,
        "t1": e.t1,
        "carrier": segments[0],
        "segments": list(segments),
        "label": e.label,
        "state": state.name,
        "reason": Reason(row["skip_reason" if state is EvState.SKIP else "reason"]).text,
        "since_s": (now - since) / 1e9 if since else None,
        "usable": usable,
        "weight": row["weight"] / WEIGHT_FULL,
        "tx_packets": row["tx_packets"],
        "tx_bytes": row["tx_bytes"],
        "last_tx_s": max(0, now - sent_at) / 1e9 if sent_at else None,
        "rx_packets": sent - lost,
        "lost_packets": lost,
        "loss_ratio": lost / sent if sent else 0.0,
        "rtt_ns": stats["rtt_ns"] if has_round_trip(state, stats["replies"]) else None,
        "ce_packets": stats["rx_ce"],
        "skips": stats["skips"],
        "flaps": row["flaps"],
        "next_probe_s": max(0, stats["probe_after_ns"] - now) / 1e9 if state in _PROBED else None,
        "hold_down_s": _hold_down_s(plan, row, stats, now) if state is EvState.ASSUMED_BAD else None,
    }


def _hold_down_s(plan: Plan, ev: Mapping[str, int], stats: Mapping[str, int], now: int) -> float:
    """Return the remaining time without loss after which an EV returns."""
    held = int(hold_down_ns(plan.config.health, ev["flaps"]))
    well = stats["good"] or stats["lag_ns"]  # what is missing may be late
    begun = max(ev["state_since_ns"], stats["loss_ns"]) if well else now
    return max(0, begun + held - now) / 1e9


_PROBED = (EvState.UNKNOWN, EvState.ASSUMED_BAD, EvState.DENIED)


def _values(record: np.void) -> dict[str, Any]:
    """Return a record's fields as Python numbers: reading each through numpy is ten times as slow."""
    return dict(zip(record.dtype.names or (), record.item(), strict=True))


@functools.lru_cache(4096)
def _texts(segments: tuple[IPv6Address, ...]) -> tuple[str, ...]:
    return tuple(str(s) for s in segments)


def usable_evs(peer: Peer, words: NDArray[np.uint64]) -> dict[int, bool]:
    """Return whether each EV of a peer carries traffic, from mrc_peer.usable: (words,), a bit per EV."""
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
    return dict(zip(peer.numbers.tolist(), bits[peer.numbers].astype(bool).tolist(), strict=True))


def in_flight(evs: NDArray[np.void], path_stats: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the packets in flight per EV, and whether their number is known; from abi.EV and abi.PATH_STATS.

    Known losses are not in flight.
    """
    tx = evs["tx_packets"] & np.uint64(0xFFFFFFFF)
    told = path_stats["offset"].astype(np.uint64) + path_stats["rx"] + path_stats["deficit"]
    out = ((tx - told) & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32).astype(np.int64)
    known = (path_stats["generation"] != 0) | (evs["tx_packets"] == 0)
    return np.where(known, np.maximum(out, 0), tx.astype(np.int64)), np.asarray(known)
