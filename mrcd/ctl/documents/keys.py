# SPDX-License-Identifier: BSD-2-Clause
"""Renders GET /v1/keys."""

from collections.abc import Sequence

from mrcd.ctl.terminal.render import Column, Document, count, table, text


def behind(document: Document, newest: int) -> list[str]:
    """Return the peers to which this host does not send with the secret `newest`."""
    return [str(p["peer"]) for p in document["peers"] if p["sent_with"] != newest]


def key_lines(document: Document, *, colour: bool = False, width: int | None = None) -> list[str]:
    """Return a verdict, and a line per peer."""
    peers = document["peers"]
    columns = [
        Column("PEER"),
        Column("SENT WITH", True),
        Column("PEER ACCEPTS"),
        Column("UNTAGGED pkts", True),
        Column("CLOCK"),
    ]
    rows = [
        [
            text(p["peer"]),
            text(p["sent_with"]),
            ",".join(map(str, p["accepted_by_peer"])) or "-",
            count(p["untagged_packets"]),
            "known" if p["clock_known"] else "unknown",
        ]
        for p in peers
    ]
    accepted = _ids(document["accepted"]) if document["accepted"] else "none"
    head = [
        f"mode        {document['mode']}",
        f"secrets     {accepted}",
        f"in use      {_in_use(document, peers)}",
    ]
    return [*head, "", *table(columns, rows, colour=colour, width=width)] if rows else head


def _in_use(document: Document, peers: Sequence[Document]) -> str:
    if document["mode"] == "off":
        return "none: packets are not authenticated"
    used = sorted({p["sent_with"] for p in peers if p["sent_with"]})
    if len(used) == 1:
        return f"secret {used[0]} to all of {len(peers)} peers"
    parts = [f"secret {i} to {sum(p['sent_with'] == i for p in peers)}" for i in used]
    return f"{', '.join(parts)} of {len(peers)} peers" if parts else "none yet"


def _ids(found: Sequence[int]) -> str:
    return " and ".join(map(str, found))
