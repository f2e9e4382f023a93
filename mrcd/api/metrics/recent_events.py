# SPDX-License-Identifier: BSD-2-Clause
"""Makes lines of events for the web page: EVs that change together share one line. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from mrcd.kernel.enums import Reason

MOST_LINES = 30
MOST_READ = 1_000
"""Events that are looked at: thousands of EVs may change together."""

_TOGETHER_S = 2.0
_STARTED = Reason.PROBED.text
_MOST_NAMED = 4
_LEVELS = {"ASSUMED_BAD": "bad", "SKIP": "warning", "DENIED": "warning", "GOOD": "good", "down": "bad", "up": "good"}
_LEVELS |= {"present": "bad", "gone": "good"}  # of faults
_LEVELS |= {"dead": "bad", "lossy": "warning", "ok": "good"}  # of links

Event = Mapping[str, Any]


def event_lines(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return a document per line, the newest first: time, level, count and text. `events`: the newest first.

    EVs of a plane that change to one state for one reason, each within two seconds of the next, share a line. So do all
    EVs that a start has probed.
    """
    groups: list[list[Event]] = []
    open_groups: dict[tuple[Any, ...], list[Event]] = {}
    for event in events:
        plane = None if event.get("reason") == _STARTED else event.get("plane")
        key = plane, event.get("to"), event.get("reason")
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
        "count": _evs(group),
        "text": _text(group),
    }


def _text(group: Sequence[Event]) -> str:
    """Return what changed and why: `h2 EV 5 (plane 1, T1 1): GOOD → ASSUMED_BAD, overdue`."""
    event = group[0]
    before = event.get("from") if len({e.get("from") for e in group}) == 1 else None
    after = event.get("to")
    change = f"{before} → {after}, " if before and after else f"→ {after}, " if len(group) > 1 else ""
    if not change and (before or after):
        change = f"{before or after}, "
    evidence: Mapping[str, Any] = event.get("evidence") or {}
    details = ", ".join(f"{k} {v}" for k, v in evidence.items()) if len(group) == 1 else ""
    why = f"{event.get('reason')} ({details})" if details else str(event.get("reason"))
    return f"{_subject(group)}: {change}{why}"


def _subject(group: Sequence[Event]) -> str:
    event = group[0]
    peers = max(len({e.get("peer") for e in group}), *(_summed(e, "peers") for e in group))
    who = f"{peers} peers" if peers > 1 else event.get("peer")
    places = (("plane", {e.get("plane") for e in group}), ("T1", {e.get("t1") for e in group}))
    named = [_numbered(name, numbers - {None}) for name, numbers in places]
    place = ", ".join(words for words in named if words)
    if event.get("kind") != "ev":
        kind = "" if event.get("kind") == "plane" or peers > 1 else str(event.get("kind"))
        parts = [kind, str(who or ""), place]
    elif _evs(group) > 1:
        parts = [f"{_evs(group)} EVs to {who or '1 peer'}", f"({place})" if place else ""]
    else:
        parts = [f"{who} EV {event.get('ev')}", f"({place})" if place else ""]
    return " ".join(part for part in parts if part)


def _evs(group: Sequence[Event]) -> int:
    """Return how many changes a group has: an event can be the sum of many (health/event_reader.py)."""
    return sum(_summed(e, "evs") for e in group)


def _summed(event: Event, what: str) -> int:
    """Return how many EVs or peers an event is about. Only events of EVs and peers are sums."""
    return int((event.get("evidence") or {}).get(what, 1)) if event.get("kind") in ("ev", "peer") else 1


def _numbered(name: str, numbers: set[Any]) -> str:
    """Return a place in words: `T1 2`, `T1s 2, 5`, `8 T1s`."""
    if len(numbers) > _MOST_NAMED:
        return f"{len(numbers)} {name}s"
    return f"{name}{'s' * (len(numbers) > 1)} {', '.join(map(str, sorted(numbers)))}" if numbers else ""
