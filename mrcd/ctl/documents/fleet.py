# SPDX-License-Identifier: BSD-2-Clause
"""Renders GET /v1/fleet, and judges by it how far the hosts have followed a command."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mrcd.ctl.terminal.render import Column, Document, duration, facts, table, text

_MOST_NAMES = 5


_STATES = {"behind": "behind", "refuses": "refusing it", "away": "away"}


@dataclass(frozen=True)
class Progress:
    """The progress of all hosts towards a change. `why` says which hosts have not, and why."""

    text: str
    done: bool
    why: Sequence[str] = ()


def some(names: Iterable[str]) -> str:
    """Return names as text, the first of many only."""
    found = list(names)
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return ", ".join(found[:_MOST_NAMES]) + more


def _away(names: Sequence[str]) -> list[str]:
    return [f"away, down or without etcd: {some(names)}"] if names else []


def _of_denial(document: Document, target: str) -> Document | None:
    return next((d for d in document["denials"] if d["target"] == target), None)


def _gone(target: str) -> Progress:
    return Progress(f"{target} is no longer in etcd: it was allowed, or has expired", False)


def _reasons(d: Document) -> list[str]:
    found = _refusals(f"to deny {d['target']}", [(r["host"], r["why"]) for r in d["refused"]])
    found += [f"not denied yet: {some(d['waiting_hosts'])}"] if d["waiting_hosts"] else []
    return found + _away(d["away_hosts"])


def _refusals(what: str, refused: Sequence[tuple[str, str]]) -> list[str]:
    """Return a text per reason, with the hosts that have it; the first reasons only."""
    by_reason: dict[str, list[str]] = {}
    for host, why in refused:
        by_reason.setdefault(why, []).append(host)
    found = [
        f"{some(hosts)} {'refuses' if len(hosts) == 1 else 'refuse'} {what}: {why}" for why, hosts in by_reason.items()
    ]
    more = [f"{len(found) - _MOST_NAMES} other reasons to refuse {what}"] if len(found) > _MOST_NAMES else []
    return found[:_MOST_NAMES] + more


def denied(document: Document, target: str) -> Progress:
    """Return on how many hosts a target is denied."""
    d = _of_denial(document, target)
    if d is None:
        return _gone(target)
    return Progress(f"{d['denied_hosts']} of {d['hosts']} hosts deny it", d["denied_hosts"] == d["hosts"], _reasons(d))


def drained(document: Document, target: str) -> Progress:
    """Return on how many hosts nothing is in flight to a target."""
    d = _of_denial(document, target)
    if d is None:
        return _gone(target)
    why = _reasons(d)
    if d["not_empty_hosts"]:
        unreported = f", {d['unreported_evs']} EVs without a report" if d["unreported_evs"] else ""
        why.append(f"packets may be in flight from {some(d['not_empty_hosts'])}{unreported}")
    lost = "losses unknown" if d["lost_packets"] is None else f"{d['lost_packets']} lost"
    left = f"{d['in_flight_packets']} packets left, {lost}"
    said = f"{d['drained_hosts']} of {d['hosts']} hosts drained, {left}"
    return Progress(said, d["drained_hosts"] == d["hosts"], why)


def allowed(document: Document, targets: Sequence[str]) -> Progress:
    """Return on how many hosts none of these targets is denied."""
    hosts = document["hosts"]
    away = [h["host"] for h in hosts if h["state"] == "away"]
    late = [h["host"] for h in hosts if h["pending"] or set(h["denials"]) & set(targets)]
    free = len(hosts) - len(late) - len(away)
    why = ([f"still denied on {some(late)}"] if late else []) + _away(away)
    return Progress(f"{free} of {len(hosts)} hosts allow it", free == len(hosts), why)


def adopted(document: Document, generation: int) -> Progress:
    """Return how many hosts run a generation of the cluster file."""
    hosts = document["hosts"]
    newest = (document["file"] or {}).get("generation", 0)
    if newest > generation:
        return Progress(f"generation {newest} was put meanwhile", False)
    if newest < generation:
        return Progress(f"generation {generation} is no longer in etcd", False)
    current = sum(h["state"] == "current" for h in hosts)
    return Progress(f"{current} of {len(hosts)} hosts run generation {generation}", current == len(hosts), _late(hosts))


def _late(hosts: Sequence[Document]) -> list[str]:
    found = _refusals("the cluster file", [(h["host"], h["refused"]["why"]) for h in hosts if h["state"] == "refuses"])
    behind = [h["host"] for h in hosts if h["state"] == "behind"]
    found += [f"behind: {some(behind)}"] if behind else []
    return found + _away([h["host"] for h in hosts if h["state"] == "away"])


def wrong(document: Document) -> str:
    """Return which hosts do not do what etcd wants; "" if all do."""
    found = _late(document["hosts"])
    for d in document["denials"]:
        found += _refusals(f"to deny {d['target']}", [(r["host"], r["why"]) for r in d["refused"]])
    return "; ".join(found + [f"{u['key']} is not readable: {u['why']}" for u in document["unreadable"]])


def fleet_lines(document: Document, *, all_: bool, colour: bool, width: int | None = None) -> list[str]:
    """Return the file in etcd, how many hosts run it, those that do not, and the fleet-wide denials."""
    file, hosts = document["file"], document["hosts"]
    counts = {state: sum(h["state"] == state for h in hosts) for state in ("current", "behind", "refuses", "away")}
    if file:
        said = f"generation {file['generation']} (SHA-256 {file['sha256']})"
        states = f"{counts['current']} of {len(hosts)} run it"
    else:
        said, states = "none in etcd: each host runs its own", f"{len(hosts) - counts['away']} of {len(hosts)} report"
    states += "".join(f", {n} {_STATES[state]}" for state, n in counts.items() if n and state != "current")
    lines = facts([("etcd", text(document["connected"])), ("file", said), ("hosts", states)], width)
    digests = {h["sha256"] for h in hosts if h["sha256"]}
    shown = [h for h in hosts if all_ or h["state"] != "current" or (not file and len(digests) > 1)]
    if shown:
        columns = [Column("HOST"), Column("STATE"), Column("GENERATION", True), Column("SHA-256", rank=1)]
        columns += [Column("MRCD", rank=2), Column("WHY")]
        rows = [
            [text(h[key]) for key in ("host", "state", "generation", "sha256", "version")]
            + [text(h["refused"] and h["refused"]["why"])]
            for h in shown
        ]
        lines += ["", *table(columns, rows, colour=colour, width=width)]
    if document["denials"]:
        lines += ["", *_denials(document["denials"], colour, width)]
    return lines


def _denials(denials: Sequence[Document], colour: bool, width: int | None) -> list[str]:
    columns = [
        Column("DENIED"),
        Column("ACTION", rank=2),
        Column("HOSTS", True),
        Column("DRAINED", True),
        Column("IN FLIGHT pkts", True, rank=3),
        Column("LOST pkts", True, rank=4),
        Column("ENDS IN"),
        Column("ASKED ON", rank=5),
        Column("REASON", rank=1),
    ]
    rows = [
        [
            d["target"],
            d["action"],
            f"{d['denied_hosts']}/{d['hosts']}",
            f"{d['drained_hosts']}/{d['hosts']}",
            text(d["in_flight_packets"]),
            text(d["lost_packets"]),
            duration(d["remaining_s"]),
            text(d["host"]),
            text(d["reason"]),
        ]
        for d in denials
    ]
    return table(columns, rows, colour=colour, width=width)
