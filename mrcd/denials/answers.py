# SPDX-License-Identifier: BSD-2-Clause
"""Makes the documents that answer POST /v1/deny and POST /v1/allow. Pure."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from mrcd.denials.targets import Evs, Short, Target, by_row
from mrcd.fabric.topology import Plan
from mrcd.versions import SCHEMA_VERSION

PEERS_NAMED = 10

Document = dict[str, Any]


def changed(plan: Plan, target: Target | None, evs: Evs, message: str) -> Document:
    """Return the document of a deny or an allow that changed these EVs."""
    rows = by_row(evs)
    places = ((p, ev, p.place(ev)) for p in plan.peers for ev in rows.get(p.host.id, ()))
    paths = [{"peer": p.host.name, "ev": ev, "plane": at[0], "t1": at[1]} for p, ev, at in places if at]
    return {
        "schema_version": SCHEMA_VERSION,
        "target": None if target is None else str(target),
        "changed": len(evs),
        "refused": 0,
        "message": message,
        "paths": paths,
    }


def refused(
    plan: Plan, target: Target, short: Sequence[Short], ev_count: int, *, forced: bool, again: bool
) -> Document:
    """Return the document of a deny that would leave peers below their floors."""
    state = "stays denied as it is" if again else "is not denied"
    message = f"{target} {state}: {refusal(short, forced=forced or again)}"
    peers = [{"peer": s.peer, "left_evs": s.left, "evs": s.evs, "ev_min_active": s.floor} for s in short]
    return changed(plan, target, [], message) | {"refused": ev_count, "peers_below": peers}


def refusal(short: Sequence[Short], *, forced: bool) -> str:
    """Return why a denial is refused that would leave these peers below their floors; if forced, without any path."""
    named = "; ".join(map(str, short[:PEERS_NAMED]))
    more = f"; and {len(short) - PEERS_NAMED} more" if len(short) > PEERS_NAMED else ""
    if forced:
        return f"no usable EV would be left, for {named}{more}: give it an end of 24 h at most (--for)"
    return f"too few usable EVs would be left, for {named}{more}"


def deny_message(target: Target, *, is_new: bool, left_s: float, evs: Evs) -> str:
    """Return the message of a deny that was accepted. `left_s` is the time until its end; inf without one."""
    state = f"{target} {'is' if is_new else 'stays'} denied"
    end = "" if is_new else " without an end"
    state += f"{end}: " if math.isinf(left_s) else f" for {'' if is_new else 'another '}{_duration(left_s)}: "
    if not evs:
        return state + "no path of this host uses it now; later ones will be denied"
    return state + _evs(len(evs), len(by_row(evs)))


def allow_message(
    target: Target | None, ended: Sequence[Target], others: Sequence[tuple[Target, bool]], still_denied: int
) -> str:
    """Return the message of an allow.

    `others` are denials that still cover `still_denied` EVs of the target, and whether they are fleet-wide.
    """
    if ended:
        message = f"no longer denied: {', '.join(map(str, ended))}"
    elif others:
        message = f"no denial of this host has the target {target}"
    else:
        message = "nothing is denied" if target is None else f"{target} is not denied: nothing to allow"
    if others:
        commands = (f"`mrcctl {'fleet ' * is_fleet_wide}allow {t}`" for t, is_fleet_wide in others)
        names = ", ".join(itertools.islice(commands, PEERS_NAMED))
        message += f"; other denials still cover {_evs(still_denied)} of {target}: {names}"
    return message


def _evs(count: int, peers: int | None = None) -> str:
    text = f"{count} EV{'s' * (count != 1)}"
    return text if peers is None else f"{text} to {peers} peer{'s' * (peers != 1)}"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 3 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
