# SPDX-License-Identifier: BSD-2-Clause
"""Renders the phrases that several commands share: places, states, denials, moments, events in one line."""

from collections.abc import Iterable, Mapping
from typing import Any

from mrcd.ctl.terminal.render import NOTHING, Document, duration, fold, text

_FRESH_S = 1.0
_WITH_TARGET = ("denial", "fault", "link")  # kinds of events
STATES = ("GOOD", "SKIP", "ASSUMED_BAD", "DENIED", "UNKNOWN")


def location(doc: Document) -> str:
    """Return the place of an event or a path: h2 EV 5 (plane 1, T1 1)."""
    parts = [str(doc["peer"])] if doc.get("peer") is not None else []
    if doc.get("ev") is not None:
        parts.append(f"EV {doc['ev']}")
    place = ", ".join(f"{name} {doc[k]}" for k, name in (("plane", "plane"), ("t1", "T1")) if doc.get(k) is not None)
    if place:
        parts.append(f"({place})" if parts else place)
    return " ".join(parts)


def plain_states(counts: Document) -> str:
    """Return EV counts by state without colour: 15 GOOD, 1 ASSUMED_BAD."""
    return ", ".join(f"{counts[s]} {s}" for s in STATES if counts.get(s)) or NOTHING


def share(usable: object, weight: float | None) -> str:
    """Return whether an EV carries traffic: yes, no, or 1/4 while a returning EV ramps up."""
    return f"1/{1 / weight:.0f}" if usable and weight and weight < 1 else text(usable)


def denial(doc: Document) -> str:
    """Return a denial in one line: deny t1:1:2 for another 28 min (maintenance)."""
    left = f" for another {duration(doc['remaining_s'])}" if doc.get("remaining_s") is not None else ""
    reason = f" ({doc['reason']})" if doc.get("reason") else ""
    return f"{doc['action']} {doc['target']}{left}{reason}"


def stale(age_s: float | None) -> str:
    """Return a warning if states and figures are older than a second; else nothing."""
    if age_s is None or age_s < _FRESH_S:
        return ""
    return f"STATES ARE {duration(age_s)} OLD: without mrcd, EVs are probed only while there is traffic"


def aged(heading: str, age_s: float | None) -> str:
    """Return the heading of a column of states; with their age if nothing has refreshed them: STATE 40 s AGO."""
    return f"{heading} {duration(age_s)} AGO" if stale(age_s) else heading


def stale_lines(age_s: float | None, width: int | None) -> list[str]:
    """Return the warning as lines, with an empty line before it."""
    return ["", *fold(stale(age_s), width)] if stale(age_s) else []


def some(things: Iterable[object], most: int = 5) -> str:
    """Return a list as text, at most `most` items of it: h1, h2 and 3 more."""
    words = [str(t) for t in things]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def number_of(count: object, thing: str) -> str:
    """Return how many there are as text: 1 peer, 2 peers."""
    return f"{text(count)} {thing}" + "s" * (count != 1)


def moment(iso: object) -> str:
    """Return an ISO 8601 time without its UTC suffix, because the heading names UTC."""
    return text(iso).removesuffix("Z").removesuffix("+00:00")


def sentence(event: Mapping[str, Any]) -> str:
    """Return an event in one line: 2030-01-02T12:00:01.500 UTC h2 EV 5 (plane 1, T1 1): GOOD → ASSUMED_BAD, overdue."""
    change = f"{text(event.get('from'))} → {text(event.get('to'))}, " if event.get("from") or event.get("to") else ""
    named, evidence = _named_target(event), event.get("evidence") or {}
    subject = f"{event['kind']} {named}" if named else location(event) or text(event.get("kind"))
    if is_sum(event):
        peers = number_of(evidence["peers"], "peer")
        subject = f"{number_of(evidence.get('evs'), 'EV')} to {peers}, {subject}" if event["kind"] == "ev" else peers
    error = evidence.get("error")
    why = f"{text(event.get('reason'))}: {error}" if error else text(event.get("reason"))
    return f"{moment(event.get('time'))} UTC {subject}: {change}{why}"


def is_sum(event: Mapping[str, Any]) -> bool:
    """Return whether an event is the sum of changes of many EVs or peers (health/event_reader.py, peers.py)."""
    return event.get("kind") in ("ev", "peer") and "peers" in (event.get("evidence") or {})


def _named_target(event: Document) -> object:
    return (event.get("evidence") or {}).get("target") if event.get("kind") in _WITH_TARGET else None
