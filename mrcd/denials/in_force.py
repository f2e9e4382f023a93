# SPDX-License-Identifier: BSD-2-Clause
"""Holds the denials in force: saves them, adds their events, and knows when they expire."""

import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mrcd.denials import file, policy
from mrcd.denials.policy import Denial, Target
from mrcd.errors import MrcdError
from mrcd.health.events import EventLog

log = logging.getLogger("mrcd.denials.in_force")


class Denials:
    """One host's denials by target.

    `wall` and `clock` are time.time and time.monotonic. Ends are kept in `clock`, so that a denial lasts its time
    even if the wall clock is set meanwhile.
    """

    def __init__(self, path: Path, events: EventLog, wall: Callable[[], float], clock: Callable[[], float]) -> None:
        self.path, self._events = path, events
        self.wall, self._clock = wall, clock
        self._all: dict[Target, Denial] = {}
        self._ends: dict[Target, float] = {}  # seconds of `clock`
        self.unsaved: str | None = None  # error of the last write; None: the file is up to date

    def __iter__(self) -> Iterator[Target]:
        return iter(list(self._all))  # a copy, because loops over it may remove denials

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, target: Target) -> bool:
        return target in self._all

    def __getitem__(self, target: Target) -> Denial:
        return self._all[target]

    def get(self, target: Target) -> Denial | None:
        """Return the denial of a target, or None."""
        return self._all.get(target)

    def enter(self, d: Denial) -> None:
        """Put a denial into force. It replaces an earlier one of the same target."""
        self._all[d.target] = d
        self._ends[d.target] = self._clock() + d.left_s(self.wall())

    def remove(self, target: Target) -> None:
        """End the denial of a target."""
        del self._all[target], self._ends[target]

    def left_s(self, target: Target) -> float:
        """Return the seconds until the denial ends; inf if it has no end."""
        return self._ends[target] - self._clock()

    def next_end_s(self) -> float:
        """Return the seconds until the next denial ends; inf if none ends."""
        return min(map(self.left_s, self._all), default=math.inf)

    def expired(self) -> list[Target]:
        """Return the targets of expired denials."""
        return [t for t in self._all if self.left_s(t) <= 0]

    def brief(self, target: Target) -> dict[str, Any]:
        """Return a denial as a document, without its EVs."""
        return policy.brief(self._all[target], self.left_s(target))

    # ---- the file ----

    def read(self) -> list[Denial]:
        """Return the denials in the file; none is in force yet. An unreadable file is renamed and kept."""
        try:
            return file.read(self.path) or []
        except file.Unreadable as e:
            try:
                kept = f"kept as {file.set_aside(self.path)}"
            except MrcdError as why:
                kept = str(why.args[0])
            log.error("%s; %s; EVs that are denied in the tables stay denied", e.args[0], kept)
            self._events.add("denial", reason="file_unreadable", evidence={"error": str(e.args[0]), "file": kept})
            return []

    def save(self) -> None:
        """Write the file. A denial that cannot be saved stays in force: the administrator needs it now."""
        try:
            file.write(self.path, list(self._all.values()))
        except MrcdError as e:
            if self.unsaved is None:
                log.error("denials are in force, but a restart would lose them: %s", e)
            self.unsaved = str(e.args[0])
        else:
            if self.unsaved is not None:
                log.info("denials are saved in %s again", self.path)
            self.unsaved = None

    def saved(self) -> dict[str, object]:
        """Return the part of a document that says whether the file is up to date, and the error if not."""
        return {
            "saved": self.unsaved is None,
            "warning": self.unsaved and f"a restart would lose the denials: {self.unsaved}",
        }

    # ---- events ----

    def add_event(self, reason: str, target: Target, uid: int | None = None) -> None:
        """Add an event about a denial in force. `uid` is the user who ends it."""
        d, left = self._all[target], self.left_s(target)
        evidence: dict[str, Any] = {"target": str(target)}
        evidence |= {} if math.isinf(left) or reason == "allow" else {"remaining_s": round(left)}
        evidence |= {"denial_reason": d.reason} if d.reason else {}
        by = uid if reason == "allow" else d.uid
        evidence |= {} if by is None else {"uid": by}
        evidence |= {"host": d.host} if d.host else {}
        self._events.add("denial", reason=reason, evidence=evidence)
