# SPDX-License-Identifier: BSD-2-Clause
"""Makes lines of events for the web page: the EVs that change together share one line. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

MOST_LINES = 40
MOST_READ = 1_000
"""Events that are looked at: thousands of EVs may change together."""

_TOGETHER_S = 2.0
_LEVELS = {"ASSUMED_BAD": "bad", "SKIP": "warning", "DENIED": "warning", "GOOD": "good", "down": "bad", "up": "good"}
_LEVELS |= {"present": "bad", "gone": "good"}  # of faults

Event = Mapping[str, Any]


def event_lines(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return a document per line, the newest first: time, level, count and text. `events`: the newest first.

    EVs of a plane and T1 that change from one state to another for one reason within two seconds share a line.
    """
    groups: list[list[Event]] = []
    open_groups: dict[tuple[Any, ...], list[Event]] = {}
    for event in events:
        key = tuple(event.get(name) for name in ("kind", "plane", "t1", "from", "to", "reason"))
        group = open_groups.get(key) if event.get("kind") == "ev" else None
        if group is not None and _seconds(group[-1]) - _seconds(event) <= _TOGETHER_S:
            group.append(event)
            continue
        if len(groups) == MOST_LINES:
            break
        open_groups[key] = group = [event]
        groups.append(group)
    return [_line(group) for group in groups]


def _seconds(event: Event) -> float:
    try:
        return datetime.fromisoformat(str(event.get("time"))).timestamp()
    except ValueError:
        return 0.0


def _line(group: Sequence[Event]) -> dict[str, Any]:
    newest = group[0]
    return {
        "time": newest.get("time"),
        "level": _LEVELS.get(str(newest.get("to")), "plain"),
        "count": len(group),
        "text": _text(group),
    }


def _text(group: Sequence[Event]) -> str:
    """Return what changed and why: `h2 EV 5 (plane 1, T1 1): GOOD → ASSUMED_BAD, overdue`."""
    event = group[0]
    change = " → ".join(str(event[k]) for k in ("from", "to") if event.get(k))
    evidence: Mapping[str, Any] = event.get("evidence") or {}
    details = ", ".join(f"{k} {v}" for k, v in evidence.items()) if len(group) == 1 else ""
    why = f"{event.get('reason')} ({details})" if details else str(event.get("reason"))
    return f"{_subject(group)}: {f'{change}, ' if change else ''}{why}"


def _subject(group: Sequence[Event]) -> str:
    event = group[0]
    peers = {e.get("peer") for e in group}
    who = f"{len(peers)} peers" if len(peers) > 1 else event.get("peer")
    place = ", ".join(
        f"{word} {event[k]}" for k, word in (("plane", "plane"), ("t1", "T1")) if event.get(k) is not None
    )
    if event.get("kind") != "ev":
        words = [str(event.get("kind")) if event.get("kind") != "plane" else "", str(who or ""), place]
    elif len(group) > 1:
        words = [f"{len(group)} EVs to {who}", f"({place})" if place else ""]
    else:
        words = [f"{who} EV {event.get('ev')}", f"({place})" if place else ""]
    return " ".join(word for word in words if word)
