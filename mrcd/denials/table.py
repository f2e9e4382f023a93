# SPDX-License-Identifier: BSD-2-Clause
"""Holds the denials in force, this host's own and fleet-wide ones: saves them, adds their events, knows their ends."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mrcd import state_dir
from mrcd.denials import record
from mrcd.denials.record import Denial
from mrcd.denials.targets import Evs, Target
from mrcd.errors import MrcdError
from mrcd.file_thread import Do
from mrcd.health.events import EventLog

log = logging.getLogger("mrcd.denials.table")

OWN, FLEET = False, True
"""The scopes of denials: of this host alone, and of the whole fleet. Each has its own file."""
SCOPES = (OWN, FLEET)
LAST_PATHS_S = 86_400.0
"""A denial that leaves a peer without any usable path ends after this time: its undo may need that path."""


class DenialTable:
    """The denials in force by scope and target.

    `wall` and `clock` are time.time and time.monotonic. Ends are kept in `clock`, so that a denial lasts its time
    even if the wall clock is set meanwhile.
    """

    MOST = 1000  # of each scope

    def __init__(
        self, path: Path, events: EventLog, wall: Callable[[], float], clock: Callable[[], float], do: Do
    ) -> None:
        """`do` writes a file."""
        self._do = do
        self.paths = {OWN: path, FLEET: path.with_name(state_dir.FLEET_DENIALS)}
        self.wall, self.clock = wall, clock
        self.ahead_s = 0.0
        """How far the clock of the times in fleet-wide denials is ahead of `wall`."""
        self._events = events
        self._denials: dict[tuple[bool, Target], Denial] = {}
        self._unsaved: dict[bool, str] = {}  # errors of the last writes

    def now(self, scope: bool) -> float:
        """Return the time by which the denials of a scope have their beginnings and ends."""
        return self.wall() + (self.ahead_s if scope == FLEET else 0.0)

    # ---- the denials ----

    def __iter__(self) -> Iterator[tuple[bool, Denial]]:
        """Yield the scope and the record of each denial, this host's own first. Loops may change the table."""
        found = list(self._denials.items())
        return ((of, d) for scope in SCOPES for (of, _), d in found if of == scope)

    def of(self, scope: bool) -> dict[Target, Denial]:
        """Return the denials of a scope."""
        return {d.target: d for of, d in self if of == scope}

    def get(self, scope: bool, target: Target) -> Denial | None:
        """Return the denial of a target, or None."""
        return self._denials.get((scope, target))

    def any_of(self, target: Target) -> Denial | None:
        """Return the denial of a target of either scope, or None."""
        return self.get(OWN, target) or self.get(FLEET, target)

    def lost_before(self, target: Target) -> int | None:
        """Return the packets lost when the first denial of a target began; None if that is not known."""
        found = [d.lost_before for scope in SCOPES if (d := self.get(scope, target))]
        return next((lost for lost in found if lost is not None), None)

    def is_full(self, scope: bool) -> bool:
        """Return whether no further denial of this scope is kept."""
        return sum(of == scope for of, _ in self._denials) >= self.MOST

    def enter(self, scope: bool, d: Denial) -> None:
        """Put a denial into force. It replaces an earlier one of the same target and scope."""
        own_left_s = math.inf
        if d.last_path_until is not None:  # a wrong clock at a boot makes it no longer than it ever is
            own_left_s = min(max(0.0, d.last_path_until - self.wall()), LAST_PATHS_S)
        now, left_s = self.clock(), d.left_s(self.now(scope))
        self._denials[scope, d.target] = replace(d, end=now + left_s, last_path_end=now + own_left_s)

    def cover(self, target: Target, evs: Evs) -> None:
        """Note the EVs that the denials of a target cover now."""
        for scope in SCOPES:
            if d := self.get(scope, target):
                self._denials[scope, target] = replace(d, evs=evs)

    def use_last_path_ends(self, leave_none: set[tuple[bool, Target]]) -> set[bool]:
        """Have these denials, which leave a peer none of the present paths, end in LAST_PATHS_S, if not sooner.

        Others have their own ends again. Returns the scopes in which anything has changed.
        """
        changed = set()
        for scope, d in self:
            is_last = (scope, d.target) in leave_none
            if is_last == (d.last_path_until is not None):
                continue
            changed.add(scope)
            until, end = (self.wall() + LAST_PATHS_S, self.clock() + LAST_PATHS_S) if is_last else (None, math.inf)
            self._denials[scope, d.target] = after = replace(d, last_path_until=until, last_path_end=end)
            self.add_event("last_path" if is_last else "not_last_path", after)
        return changed

    def forget_evs(self) -> None:
        """Drop the EVs of all denials: the paths have changed."""
        self._denials = {at: replace(d, evs=None) for at, d in self._denials.items()}

    def remove(self, scope: bool, target: Target) -> None:
        """End the denial of a target."""
        del self._denials[scope, target]

    def left_s(self, d: Denial) -> float:
        """Return the seconds until a denial in force ends; inf if it has no end."""
        return min(d.end, d.last_path_end) - self.clock()

    def next_end_s(self, *scopes: bool) -> float:
        """Return the seconds until the next denial of these scopes ends; inf if none ends."""
        return min((self.left_s(d) for of, d in self if of in scopes), default=math.inf)

    def expired(self) -> list[tuple[bool, Denial]]:
        """Return expired denials with their scopes."""
        return [(scope, d) for scope, d in self if self.left_s(d) <= 0]

    def brief(self, d: Denial) -> dict[str, Any]:
        """Return a denial in force as a document, without its EVs."""
        return record.brief(d, self.left_s(d))

    # ---- the files ----

    def read(self, scope: bool) -> list[Denial]:
        """Return the denials in a file; none is in force yet. An unreadable file is renamed and kept."""
        path = self.paths[scope]
        try:
            return record.read(path) or []
        except record.Unreadable as e:
            try:
                kept = f"kept as {state_dir.set_aside(path)}"
            except MrcdError as why:
                kept = str(why.args[0])
            log.error("%s; %s; EVs that are denied in the tables stay denied", e.args[0], kept)
            self._events.add("denial", reason="file_unreadable", evidence={"error": str(e.args[0]), "file": kept})
            return []

    async def save(self, scope: bool) -> None:
        """Write a file. A denial that cannot be saved stays in force: the administrator needs it now."""
        kept = [self._by_own_clock(d) if scope == FLEET else d for d in self.of(scope).values()]
        try:
            await self._do(partial(record.write, self.paths[scope], kept))
        except MrcdError as e:
            if scope not in self._unsaved:
                log.error("denials are in force, but a restart would lose them: %s", e)
            self._unsaved[scope] = str(e.args[0])
        else:
            if self._unsaved.pop(scope, None) is not None:
                log.info("denials are saved in %s again", self.paths[scope])

    def _by_own_clock(self, d: Denial) -> Denial:
        """Return a denial with the times of `wall`: a start does not know how far the other clock is ahead."""
        until = None if d.until is None else d.until - self.ahead_s
        return replace(d, since=d.since - self.ahead_s, until=until)

    @property
    def unsaved(self) -> list[bool]:
        """The scopes whose last write has failed."""
        return list(self._unsaved)

    def saved(self, *scopes: bool) -> dict[str, object]:
        """Return the part of a document that says whether these files are up to date, and the error if not."""
        error = next((self._unsaved[scope] for scope in scopes if scope in self._unsaved), None)
        return {"saved": error is None, "warning": error and f"a restart would lose the denials: {error}"}

    # ---- events ----

    def add_event(self, reason: str, d: Denial, uid: int | None = None) -> None:
        """Add an event about a denial in force. `uid` is the user who ends it."""
        left = self.left_s(d)
        evidence: dict[str, Any] = {"target": str(d.target)}
        evidence |= {} if math.isinf(left) or reason == "allow" else {"remaining_s": round(left)}
        evidence |= {"denial_reason": d.reason} if d.reason else {}
        by = uid if reason == "allow" else d.uid
        evidence |= {} if by is None else {"uid": by}
        evidence |= {"host": d.host} if d.host else {}
        self._events.add("denial", reason=reason, evidence=evidence)
