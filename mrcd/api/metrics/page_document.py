# SPDX-License-Identifier: BSD-2-Clause
"""Makes the document of GET /status.json, which the web page shows, from documents that mrcctl gets too. Pure."""

from collections.abc import Sequence
from typing import Any

from mrcd.versions import SCHEMA_VERSION

MOST_CAUSES = 20
MOST_PEERS = 24
MOST_DENIALS = 8
STALE_S = 1.0
"""The tick refreshes states every 50 ms or faster; after this time without one they are old."""

_ORDER = {"ok": 0, "warning": 1, "critical": 2}

Document = dict[str, Any]


def document(
    status: Document, peers: Sequence[Document], path_map: Document, rates: Document, events: Sequence[Document]
) -> Document:
    """Return the page's document. `peers` are the worst MOST_PEERS, `status` is that of GET /v1/status.

    Its size is bounded: causes, peers, denials and events beyond a limit are counted (`…_left_out`).
    """
    causes = list(status.get("diagnosis") or [])
    denials = list(status.get("denials") or [])
    level, headline = verdict(status, causes)
    return {
        "schema_version": SCHEMA_VERSION,
        "level": level,
        "headline": headline,
        **{key: status.get(key) for key in ("host", "cluster", "attached", "encapsulation", "granularity")},
        "version": (status.get("daemon") or {}).get("version"),
        "uptime_s": (status.get("daemon") or {}).get("uptime_s"),
        "tick_age_s": (status.get("probing") or {}).get("tick_age_s"),
        "causes": causes[:MOST_CAUSES],
        "causes_left_out": max(0, len(causes) - MOST_CAUSES),
        "notes": notes(status),
        "denials": [_denial(d) for d in denials[:MOST_DENIALS]],
        "denials_left_out": max(0, len(denials) - MOST_DENIALS),
        "evs": status.get("evs"),
        "usable_evs": status.get("usable_evs"),
        "planes": [
            {key: plane.get(key) for key in ("plane", "interface", "up", "hook", "fallback")}
            for plane in status.get("planes") or ()
        ],
        "path_map": path_map,
        "peers": {
            **(status.get("peers") or {}),
            "shown": [_peer(p) for p in peers],
            "left_out": max(0, ((status.get("peers") or {}).get("total") or 0) - len(peers)),
        },
        "rates": rates,
        "events": list(events),
    }


def verdict(status: Document, causes: Sequence[Document]) -> tuple[str, str]:
    """Return the level (ok, warning, critical or unknown), and the headline."""
    age_s = (status.get("probing") or {}).get("tick_age_s")
    if age_s is None:
        return "unknown", "Not known yet: mrcd has just started"
    if age_s > STALE_S:
        return "unknown", f"Not known: the states below are {age_s:.0f} s old, because nothing probes paths"
    wrong = [c for c in causes if c.get("severity") != "ok"]
    if not wrong:
        return "ok", "All well"
    level = max((str(c.get("severity")) for c in wrong), key=lambda severity: _ORDER.get(severity, 2))
    return level, "Wrong now" if len(wrong) == 1 else f"Wrong now: {len(wrong)} causes"


def notes(status: Document) -> list[str]:
    """Return what an operator should know of this host beside its paths."""
    found = []
    if lost := (status.get("pins") or {}).get("lost"):
        found.append(f"{lost}: `mrcctl doctor` says what to do")
    for p in status.get("planes") or ():
        if p.get("fallback"):
            found.append(
                f"Plane {p['plane']}: native XDP was refused, {p['hook']} receives packets: {p['hook_reason']}"
            )
    before = [p for p in status.get("other_programs") or () if p.get("position") == "before"]
    for p in before:
        name = p.get("program") or f"program {p.get('program_id')}"
        found.append(f"{name} runs before mrcd's programs at {p.get('point')} of {p.get('interface')}")
    return found[:MOST_CAUSES]


def _denial(denial: Document) -> Document:
    return {key: denial.get(key) for key in ("action", "target", "remaining_s", "reason")}


_OF_PEER = (
    *("peer", "reachable", "status", "heard_s", "evs", "usable_evs", "states", "linked_planes", "rtt_ns"),
    *("tx_packets", "tx_bytes", "rx_packets", "lost_packets"),
)


def _peer(peer: Document) -> Document:
    return {key: peer.get(key) for key in _OF_PEER}
