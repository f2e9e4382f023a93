"""The denials in force: kept in a file, told in the event log, and over in their time."""

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
    """One host's, by their targets.

    `wall` and `clock` are time.time and time.monotonic: a denial ends after its time, whatever is done to the
    wall clock meanwhile.
    """

    def __init__(self, path: Path, events: EventLog, wall: Callable[[], float], clock: Callable[[], float]) -> None:
        self.path, self._events = path, events
        self.wall, self._clock = wall, clock
        self._all: dict[Target, Denial] = {}
        self._ends: dict[Target, float] = {}  # by `clock`
        self.unsaved: str | None = None  # why the file is not up to date

    def __iter__(self) -> Iterator[Target]:
        return iter(list(self._all))  # what goes over them may end some

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, target: Target) -> bool:
        return target in self._all

    def __getitem__(self, target: Target) -> Denial:
        return self._all[target]

    def get(self, target: Target) -> Denial | None:
        """That of a target, if there is one."""
        return self._all.get(target)

    def enter(self, d: Denial) -> None:
        """Put it into force, in the place of the target's former one."""
        self._all[d.target] = d
        self._ends[d.target] = self._clock() + d.left_s(self.wall())

    def remove(self, target: Target) -> None:
        """Take it out of force."""
        del self._all[target], self._ends[target]

    def left_s(self, target: Target) -> float:
        """Until its end; inf: it has none."""
        return self._ends[target] - self._clock()

    def next_end_s(self) -> float:
        """Until the first of them ends; inf: none does."""
        return min(map(self.left_s, self._all), default=math.inf)

    def over(self) -> list[Target]:
        """Those whose time is over."""
        return [t for t in self._all if self.left_s(t) <= 0]

    def brief(self, target: Target) -> dict[str, Any]:
        """It alone, without its EVs, as a document."""
        return policy.brief(self._all[target], self.left_s(target))

    # ---- the file ----

    def read(self) -> list[Denial]:
        """All that the file knows; none of it is in force yet. What cannot be read is kept under another name."""
        try:
            return file.read(self.path) or []
        except file.Unreadable as e:
            try:
                kept = f"kept as {file.set_aside(self.path)}"
            except MrcdError as why:
                kept = str(why.args[0])
            log.error("%s; %s; EVs that are denied now stay so", e.args[0], kept)
            self._events.add("denial", reason="file_unreadable", evidence={"error": str(e.args[0]), "file": kept})
            return []

    def save(self) -> None:
        """What cannot be kept is in force all the same: who denies a path at night needs it now."""
        try:
            file.write(self.path, list(self._all.values()))
        except MrcdError as e:
            if self.unsaved is None:
                log.error("denials are in force, but not kept over a restart: %s", e)
            self.unsaved = str(e.args[0])
        else:
            if self.unsaved is not None:
                log.info("denials are kept in %s again", self.path)
            self.unsaved = None

    def saved(self) -> dict[str, object]:
        """Of a document: whether the file says what is in force, and why not."""
        return {
            "saved": self.unsaved is None,
            "warning": self.unsaved and f"not kept over a restart: {self.unsaved}",
        }

    # ---- the log ----

    def tell(self, what: str, target: Target, uid: int | None = None) -> None:
        """An event about a denial in force. `uid`: who ends it."""
        d, left = self._all[target], self.left_s(target)
        evidence: dict[str, Any] = {"target": str(target)}
        evidence |= {} if math.isinf(left) or what == "allow" else {"for_s": round(left)}
        evidence |= {"why": d.reason} if d.reason else {}
        by = uid if what == "allow" else d.uid
        evidence |= {} if by is None else {"uid": by}
        self._events.add("denial", reason=what, evidence=evidence)
