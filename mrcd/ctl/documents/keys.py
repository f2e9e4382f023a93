# SPDX-License-Identifier: BSD-2-Clause
"""Renders GET /v1/keys."""

from collections.abc import Sequence

from mrcd.ctl.terminal.render import Column, Document, count, table, text

_MOST_NAMES = 5


def late(document: Document) -> list[str]:
    """Return the reachable peers that do not accept the newest secret, or to which this host does not send with it."""
    newest = document["newest"]
    return [
        str(p["peer"])
        for p in document["peers"]
        if p["reachable"] and (p["sent_with"] != newest or newest not in p["accepted_by_peer"])
    ]


def some(names: Sequence[str]) -> str:
    """Return names as text, the first of many only."""
    return ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")


def verdict(document: Document) -> str:
    """Return in one line whether all peers use the newest secret, and which peers do not."""
    peers = document["peers"]
    if document["mode"] == "off":
        return "packets are not authenticated: [auth] mode is off"
    if not peers:
        return "this host has no peers"
    parts = [_use(document)]
    gone = [str(p["peer"]) for p in peers if not p["reachable"]]
    if gone:
        parts.append(f"unreachable: {some(gone)}")
    untagged = [str(p["peer"]) for p in peers if p["untagged_packets"]]
    if untagged and document["mode"] == "permissive":
        parts.append(f"packets without a tag were accepted from {some(untagged)}")
    return "; ".join(parts)


def _use(document: Document) -> str:
    peers, newest = [p for p in document["peers"] if p["reachable"]], document["newest"]
    if not peers:
        return "no peer is reachable"
    if newest is None:  # only mrcd knows which secret is the newest
        return _by_secret(peers)
    waiting = late(document)
    if waiting:
        return f"{len(waiting)} of {len(peers)} reachable peers without secret {newest}: {some(waiting)}"
    if len(peers) == 1:
        return f"{peers[0]['peer']} uses secret {newest}"
    which = "reachable peers" if len(peers) < len(document["peers"]) else "peers"
    return f"all {len(peers)} {which} use secret {newest}"


def _by_secret(peers: Sequence[Document]) -> str:
    used = sorted({p["sent_with"] or 0 for p in peers})
    parts = []
    for key_id in used:
        found = sum((p["sent_with"] or 0) == key_id for p in peers)
        parts.append(f"{found} of {len(peers)} peers " + (f"use secret {key_id}" if key_id else "use no secret"))
    return ", ".join(parts)


def key_lines(document: Document, *, colour: bool = False, width: int | None = None) -> list[str]:
    """Return a verdict, the mode and this host's secrets, and a line per peer."""
    columns = [
        Column("PEER"),
        Column("STATUS"),
        Column("SENT WITH", True),
        Column("PEER ACCEPTS", rank=1),
        Column("UNTAGGED pkts", True, rank=2),
        Column("CLOCK", rank=3),
    ]
    rows = [
        [
            text(p["peer"]),
            "reachable" if p["reachable"] else "unreachable",
            text(p["sent_with"]),
            text(p["accepted_by_peer"]),
            count(p["untagged_packets"]),
            "known" if p["clock_known"] else "unknown",
        ]
        for p in document["peers"]
    ]
    accepted, newest = document["accepted"], document["newest"]
    secrets = " and ".join(map(str, accepted)) or "none"
    if len(accepted) > 1 and newest is not None:
        secrets += f"; {newest} is the newest"
    head = [verdict(document), "", f"mode        {document['mode']}", f"secrets     {secrets}"]
    return [*head, "", *table(columns, rows, colour=colour, width=width)] if rows else head
