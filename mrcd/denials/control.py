# SPDX-License-Identifier: BSD-2-Clause
"""Carries out deny and allow: checks a request, keeps it, applies it to the tables, ends it when it expires.

A denial passes these modules, in this order:

1. `api/denials.py` reads the request; `policy.parse` makes a Target of its words.
2. `DenialControl.deny` here has policy.py check the target and the floor of each peer.
3. `in_force.py` enters the denial, saves it (file.py) and adds an event.
4. `enforcement.py` sets the state of each covered EV to DENIED; the eBPF programs choose no such EV.
5. `answers.py` makes the document that the API returns.

The list of denials decides which EVs are denied. The tables are updated from it at the start, when paths change, and
when a denial begins or ends.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

from mrcd.denials import answers, policy
from mrcd.denials.enforcement import Document, Enforcement, Evs, by_row
from mrcd.denials.in_force import Denials
from mrcd.denials.policy import Denial, Target
from mrcd.errors import MachineError, MrcdError, UsageError
from mrcd.fabric.topology import Plan
from mrcd.health.events import EventLog
from mrcd.health.monitor import Monitor
from mrcd.tables.pinned import Tables
from mrcd.versions import SCHEMA_VERSION

log = logging.getLogger("mrcd.denials.control")

_RETRY_S = 1.0
_SAVE_RETRY_S = 10.0


class DenialControl:
    """One host's denials. `follow` sets the paths; call it before any other method.

    `wall` and `clock` are the clocks of `Denials`.
    """

    def __init__(
        self,
        path: Path,
        events: EventLog,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.denials = Denials(path, events, wall, clock)
        self._enforcement = Enforcement(self.denials)
        self._events = events
        self._is_started = False
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()

    # ---- the paths ----

    async def follow(self, plan: Plan, tables: Tables, monitor: Monitor) -> None:
        """Apply the denials to these paths. The first call also reads the denials of the previous run."""
        async with self._lock:
            self._enforcement.follow(plan, tables, monitor)
            if not self._is_started:
                await self._restore()
                self._is_started = True
            await self._enforcement.apply()
        self._warn_below_floor()

    async def _restore(self) -> None:
        covered = await self._load()
        unrecorded = [at for at in self._enforcement.denied_in_tables() if at not in covered]
        if unrecorded:
            self._adopt(unrecorded)
        for target in self.denials:
            self.denials.add_event("restored", target)

    async def _load(self) -> set[tuple[int, int]]:
        """Read the file. Returns the EVs that its denials cover, including denials that have expired since."""
        covered: set[tuple[int, int]] = set()
        for d in self.denials.read():
            covered |= set(await self._enforcement.evs(d.target))
            if d.left_s(self.denials.wall()):
                self.denials.enter(d)
            else:
                self._events.add("denial", reason="expired", evidence={"target": str(d.target)})
        return covered

    def _adopt(self, unrecorded: Evs) -> None:
        """Enter denials for EVs that an earlier run denied and no record names: nobody has allowed them."""
        for target in policy.described(self._enforcement.plan, by_row(unrecorded)):
            reason = "found denied at the start, without a record"
            self.denials.enter(Denial(target, self.denials.wall(), reason=reason))
        self.denials.save()

    def _warn_below_floor(self) -> None:
        """Warn where restored denials leave too few of the present paths. They stay in force."""
        low = self._enforcement.below_floor()
        if low:
            named = low[: answers.PEERS_NAMED]
            text = ", ".join(f"{s.peer} {len(s.evs - s.denied)} of {len(s.evs)} EVs" for s in named)
            more = f" and {len(low) - len(named)} more peers" if len(low) > len(named) else ""
            log.warning("denials leave %s%s, less than ev_min_active: see `mrcctl denials`", text, more)
            self._events.add("denial", reason="below_floor", evidence={"peers": len(low), "remaining_evs": text + more})

    # ---- requests ----

    async def deny(
        self,
        target: Target,
        *,
        for_s: float | None = None,
        reason: str = "",
        uid: int | None = None,
        drain: bool = False,
        force: bool = False,
    ) -> Document:
        """Put a denial into force, or change the reason and the end of the target's present one.

        `for_s` is the time until the end, math.inf for none; None keeps the end of a present denial. Without `force`
        the whole denial is refused if a peer would fall below its floor. Raises UsageError if the target cannot exist,
        MachineError if the tables refuse.
        """
        async with self._lock:
            plan = self._enforcement.plan
            policy.check(plan, target)
            evs = await self._enforcement.evs(target)
            rows = by_row(evs)
            standings = self._enforcement.standings(rows)
            short = [] if force else policy.short((standings[row], numbers) for row, numbers in rows.items())
            if short:
                return answers.refused(plan, target, short, len(evs)) | self.denials.saved()
            before = self.denials.get(target)
            if before is None and len(self.denials) >= policy.DENIALS_MAX:
                raise UsageError(f"{policy.DENIALS_MAX} denials are in force", hint="deny wider targets")
            now, left_s = self.denials.wall(), math.inf
            if for_s is not None:
                left_s = for_s
            elif before is not None and self.denials.left_s(target) > 0:
                left_s = self.denials.left_s(target)
            until = None if math.isinf(left_s) else now + left_s
            reason = reason or (before.reason if before else "")
            self._enforcement.keep_losses(target, evs)
            self.denials.enter(Denial(target, now, until, reason, uid, drain, force))
            self._enforcement.keep_evs(target, evs)
            self._wake.set()
            self.denials.save()
            self.denials.add_event("drain" if drain else "deny", target)
            denied, _ = await self._apply(target)
            message = answers.deny_message(target, is_new=before is None, left_s=left_s, evs=evs)
            return answers.changed(plan, target, denied, message) | self.denials.saved()

    async def allow(self, target: Target | None, uid: int | None = None) -> Document:
        """End the denials of a target and those within it; None ends all. Raises UsageError, MachineError."""
        async with self._lock:
            plan = self._enforcement.plan
            ended = [t for t in self.denials if target is None or policy.covers(plan, target, t)]
            if target is not None and not ended:
                policy.check(plan, target)
            for t in ended:
                self._end(t, "allow", uid)
            if ended:
                self._wake.set()
                self.denials.save()
            _, allowed = await self._apply(target)
            evs = [] if target is None else await self._enforcement.evs(target)
            covering = [by for row, ev in evs if (by := self._enforcement.target_of(row, ev)) is not None]
            others = list(dict.fromkeys(covering))
            message = answers.allow_message(target, ended, others, len(covering))
            answer = answers.changed(plan, target, allowed, message) | self.denials.saved()
            return answer | {
                "ended": [str(t) for t in ended],
                "refused": len(covering),
                "denied_by": [str(t) for t in others],
            }

    async def _apply(self, target: Target | None) -> tuple[Evs, Evs]:
        try:
            return await self._enforcement.apply()
        except MrcdError as e:
            subject = target or "all denials"
            message = f"{subject}: kept, but not applied to the tables: {e.args[0]}; mrcd tries again each second"
            raise MachineError(message, hint="`mrcctl denials` and `mrcctl paths` show the progress") from None

    def _end(self, target: Target, reason: str, uid: int | None = None) -> None:
        self.denials.add_event(reason, target, uid)
        self.denials.remove(target)
        self._enforcement.forget(target)

    # ---- documents ----

    def document(self) -> Document:
        """Return the document of GET /v1/denials."""
        return {
            "schema_version": SCHEMA_VERSION,
            "denials": [self.denials.brief(t) | self._enforcement.traffic(t) for t in self.denials],
            "pending": self._enforcement.is_pending,
            "file": str(self.denials.path),
        } | self.denials.saved()

    def brief(self) -> list[Document]:
        """Return the denials without their traffic, for GET /v1/status."""
        return [self.denials.brief(target) for target in self.denials]

    def explain(self, paths: list[Document], denials: list[Document]) -> list[Document]:
        """Add to each document of GET /v1/paths the denial that covers the EV, out of `denials`, or None."""
        return self._enforcement.explain(paths, denials)

    # ---- in time ----

    async def run(self) -> None:
        """End expired denials and retry failed writes, forever."""
        while True:
            is_pending = self._enforcement.is_pending
            retry_s = _RETRY_S if is_pending else _SAVE_RETRY_S if self.denials.unsaved else math.inf
            wait_s = min(retry_s, self.denials.next_end_s())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), None if math.isinf(wait_s) else max(wait_s, 0))
            self._wake.clear()
            try:
                await self.update()
            except MrcdError as e:
                log.error("%s; trying again", e)
                await asyncio.sleep(_RETRY_S)

    async def update(self) -> None:
        """End expired denials; save and apply what failed before. Raises MrcdError."""
        async with self._lock:
            expired = self.denials.expired()
            for t in expired:
                self._end(t, "expired")
            if expired or self.denials.unsaved:
                self.denials.save()
            if expired or self._enforcement.is_pending:
                await self._enforcement.apply()
