# SPDX-License-Identifier: BSD-2-Clause
"""Renders the events of GET /v1/events as a table."""

from collections.abc import Mapping, Sequence

from mrcd.ctl.documents.parts import moment
from mrcd.ctl.terminal.render import NOTHING, Column, Document, table, text


def event_lines(docs: Sequence[Document], *, colour: bool, heading: bool = True, width: int | None = None) -> list[str]:
    """Return one line per event. Fixed least widths align the batches of `events --follow`."""
    narrow, tiny = width is not None and width < 120, width is not None and width < 60
    columns = [
        Column("TIME (UTC)", width=14 if tiny else 23),
        Column("KIND", width=6, rank=3 * narrow),
        Column("PEER", width=0 if tiny else 8),
        Column("EV", True, 0 if tiny else 4),
        Column("PLANE", True, 4, rank=5 * tiny),
        Column("T1", True, 4, rank=2 * narrow),
        Column("FROM", width=11, rank=4 * narrow),
        Column("TO", width=11, rank=1 * tiny),
        Column("REASON", width=12 if narrow else 24),
        Column("EVIDENCE", rank=6 if tiny else 1 * narrow),
    ]
    rows = [
        [
            moment(e.get("time"))[5:19].replace("T", " ") if tiny else moment(e.get("time")),
            *(text(e.get(k)) for k in ("kind", "peer", "ev", "plane", "t1", "from", "to", "reason")),
            _evidence(e.get("evidence")),
        ]
        for e in docs
    ]
    return table(columns, rows, colour=colour, heading=heading, width=width)


def _evidence(evidence: object) -> str:
    if not isinstance(evidence, Mapping):
        return text(evidence)
    return " ".join(f"{k}={text(v)}" for k, v in evidence.items()) or NOTHING
