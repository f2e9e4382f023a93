# SPDX-License-Identifier: BSD-2-Clause
"""Renders the live views of `mrcctl watch` and `mrcctl top`. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mrcd.ctl.documents.parts import aged, plain_states, sentence, share, stale_lines
from mrcd.ctl.terminal.render import (
    Column,
    Document,
    count,
    cut,
    duration,
    fold,
    microseconds,
    paint,
    percent,
    table,
    text,
)

_ALL = 10_000
_LIVE = "widen the terminal"  # watch has no --wide


def peers(
    docs: Sequence[Document],
    moved: Mapping[str, Mapping[str, Any]],
    planes: Mapping[str, Mapping[int, tuple[int, int]]],
) -> list[dict[str, Any]]:
    """Return what a live view needs of GET /v1/peers, their rates by name, and rates.usable_by_plane."""
    rows = []
    for p in docs:
        mine = moved.get(p["peer"], {})
        rows.append(
            {
                **{k: p.get(k) for k in ("peer", "status", "reachable", "usable_evs", "evs", "loss_ratio", "rtt_ns")},
                **{k: mine.get(k) for k in ("tx_packets_per_s", "tx_bits_per_s", "lost_packets_per_s")},
                "recent_loss_ratio": mine.get("loss_ratio"),
                "planes": [
                    {"plane": plane, "usable_evs": usable, "evs": every}
                    for plane, (usable, every) in sorted(planes.get(p["peer"], {}).items())
                ],
            }
        )
    return rows


def lines(
    document: Document,
    recent: Sequence[Document],
    *,
    colour: bool,
    columns: int | None = None,
    height: int | None = None,
) -> list[str]:
    """Return one sample as lines. `columns` and `height` are the terminal's; None is no limit."""
    width, free, age_s = columns, (height or _ALL) - 5, document.get("tick_age_s")
    out = [line for parts in _head(document, colour) for line in _joined(parts, width)]
    out += stale_lines(age_s, width)[1:]
    out += ["q ends it"] if height else []
    shown = max(1, free // 3)
    rows = sorted(document["peers"], key=lambda p: (bool(p["reachable"]), -(p["tx_bits_per_s"] or 0)))
    out += ["", *_peers(rows[:shown], colour, width, _LIVE, age_s)]
    if len(rows) > shown:
        out.append(f"and {len(rows) - shown} more peers")
    left = (height or _ALL) - len(out) - 2
    wrong = document["worst"][: max(1, left // 2 - 2)] if height else document["worst"]
    what = "out of use" if document["partial"] else "out of use or losing packets"
    note = " (too many paths to list those that lose packets: --peer NAME)" if document["partial"] else ""
    out += ["", f"paths {what}: {document['bad_paths']}{note}"]
    if wrong:
        out += _paths(wrong, colour, width, _LIVE, age_s)
    left = (height or _ALL) - len(out) - 2
    told = [part for e in recent for part in fold(sentence(e), width)]
    if told and left > 0:
        out += ["", *told[-left:]]
    return [cut(line, columns) for line in out] if columns else out


def _head(document: Document, colour: bool) -> list[list[str]]:
    status = document["status"]
    daemon = status.get("daemon") or {}
    if document["error"]:
        running = "NO ANSWER; last sample below"
    elif document["source"] == "tables":
        running = (
            f"mrcd {'does not answer' if daemon.get('running') else 'is not running'}: read from the pinned tables"
        )
    else:
        running = f"mrcd {text(daemon.get('version'))} up {duration(daemon.get('uptime_s'))}"
    attached = paint("attached" if status.get("attached") else "detached", colour)
    evs = status.get("evs") or {}
    drops = sum((status.get("drops") or {}).values())
    host = f"{text(status.get('host'))} of {text(status.get('cluster'))}"
    return [
        [host, f"{text(document['time'])[:19]} UTC", attached, running],
        [
            f"EVs {text(status.get('usable_evs'))} of {sum(evs.values())} usable: {plain_states(evs)}",
            f"planes up {text(status.get('planes_up'))}",
            f"drops {count(drops)}",
        ],
        *([[document["error"]]] if document["error"] else []),
    ]


def _joined(parts: Sequence[str], width: int | None) -> list[str]:
    """Return parts in as few lines as the width allows; a part that is longer than a line is folded."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}  {part}" if lines[-1] else part
        if width is not None and lines[-1] and len(longer) > width:
            lines.append(part)
        else:
            lines[-1] = longer
    return [piece for line in lines for piece in fold(line, width)]


def _peers(
    rows: Sequence[Document], colour: bool, width: int | None, remedy: str = "see --wide", age_s: float | None = None
) -> list[str]:
    headings = (aged("EVS USABLE", age_s), "TX Mbit/s", "TX pkts/s", "LOST pkts/s", "LOSS % now", "RTT µs")
    columns = [
        Column("PEER"),
        Column("STATUS"),
        *(Column(h, True, rank=r) for h, r in zip(headings, (0, 1, 6, 4, 2, 3), strict=True)),
        Column("USABLE BY PLANE", rank=5),
    ]
    cells = [
        [
            text(p["peer"]),
            text(p["status"]) if p["reachable"] else "unreachable",
            f"{text(p['usable_evs'])}/{text(p['evs'])}",
            _megabits(p["tx_bits_per_s"]),
            _rate(p["tx_packets_per_s"]),
            _rate(p["lost_packets_per_s"]),
            percent(p["recent_loss_ratio"]),
            microseconds(p["rtt_ns"]),
            " ".join(f"{x['usable_evs']}/{x['evs']}" for x in p["planes"]),
        ]
        for p in rows
    ]
    return table(columns, cells, colour=colour, width=width, remedy=remedy)


def _paths(
    rows: Sequence[Document], colour: bool, width: int | None, remedy: str = "see --wide", age_s: float | None = None
) -> list[str]:
    columns = [
        Column("PEER"),
        Column("EV", True),
        Column("PLANE", True, rank=2),
        Column("T1", True, rank=3),
        Column(aged("STATE", age_s)),
        Column("USABLE", rank=4),
        Column("IN STATE", True, rank=5),
        Column("TX Mbit/s", True, rank=7),
        Column("TX pkts/s", True, rank=9),
        Column("LOST pkts/s", True, rank=8),
        Column("LOSS % now", True, rank=1),
        Column("RTT µs", True, rank=6),
        Column("REASON"),
    ]
    cells = [
        [
            text(r["peer"]),
            text(r["ev"]),
            text(r["plane"]),
            text(r["label"] if r["t1"] is None else r["t1"]),
            text(r["state"]),
            share(r["usable"], r["weight"]),
            duration(r["since_s"]),
            _megabits(r["tx_bits_per_s"]),
            _rate(r["tx_packets_per_s"]),
            _rate(r["lost_packets_per_s"]),
            percent(r["loss_ratio"]),
            microseconds(r["rtt_ns"]),
            text(r["reason"]),
        ]
        for r in rows
    ]
    return table(columns, cells, colour=colour, width=width, remedy=remedy)


def moved_paths(document: Document, *, colour: bool, width: int | None = None) -> list[str]:
    """Return the document of `mrcctl paths -i SECONDS` as lines."""
    return _moved("paths", _paths, document, colour, width)


def moved_peers(document: Document, *, colour: bool, width: int | None = None) -> list[str]:
    """Return the document of `mrcctl peers -i SECONDS` as lines."""
    return _moved("peers", _peers, document, colour, width)


def _moved(name: str, make: Callable[..., list[str]], document: Document, colour: bool, width: int | None) -> list[str]:
    age_s = document.get("tick_age_s")
    rows = make(document[name], colour, width, age_s=age_s) if document[name] else [f"no {name}"]
    return [f"over {duration(document['interval_s'])}", *rows, *stale_lines(age_s, width)]


def top(document: Document, *, colour: bool, width: int | None = None) -> list[str]:
    """Return the document of `mrcctl top` as lines."""
    age_s = document.get("tick_age_s")

    def rows(name: str, none: str) -> list[str]:
        return _paths(document[name], colour, width, age_s=age_s) if document[name] else [none]

    return [
        *fold(f"busiest of {document['paths']} paths, over {duration(document['interval_s'])}", width),
        *rows("busiest", "no path carries traffic"),
        "",
        "out of use, or losing packets",
        *rows("worst", "none"),
        *stale_lines(age_s, width),
    ]


def _megabits(bits: float | None) -> str:
    if bits is None:
        return text(None)
    megabits = bits / 1e6
    return f"{megabits:.0f}" if megabits >= 100 else f"{megabits:.3g}"


def _rate(value: float | None) -> str:
    return count(None if value is None else round(value) if value >= 10 else round(value, 1))
