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
from collections.abc import Callable, Mapping
from pathlib import Path

from mrcd.denials import answers, file, policy
from mrcd.denials.enforcement import Document, Enforcement, Evs, by_row
from mrcd.denials.in_force import Denials
from mrcd.denials.policy import Denial, Target
from mrcd.errors import MachineError, MrcdError, UsageError
from mrcd.fabric.topology import Plan
from mrcd.health.events import EventLog
from mrcd.health.monitor import Monitor
from mrcd.kernel.pinned import Tables
from mrcd.versions import SCHEMA_VERSION

log = logging.getLogger("mrcd.denials.control")

_RETRY_S = 1.0
_SAVE_RETRY_S = 10.0


class DenialControl:
    """One host's denials: its own, and those of the whole fleet.

    `follow` sets the paths; call it before any other method. `wall` and `clock` are the clocks of `Denials`.
    """

    def __init__(
        self,
        path: Path,
        events: EventLog,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.denials = Denials(path, events, wall, clock)
        self.fleet_wide = Denials(path.with_name(file.FLEET_FILE), events, wall, clock)
        self._lists = self.denials, self.fleet_wide
        self._enforcement = Enforcement(*self._lists)
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
        for denials in self._lists:
            for target in denials:
                denials.add_event("restored", target)

    async def _load(self) -> set[tuple[int, int]]:
        """Read the files. Returns the EVs that their denials cover, including denials that have expired since."""
        covered: set[tuple[int, int]] = set()
        for denials in self._lists:
            for d in denials.read():
                covered |= set(await self._enforcement.evs(d.target))
                if d.left_s(denials.wall()):
                    denials.enter(d)
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
            short = [] if force else self._short(evs)
            if short:
                return answers.refused(plan, target, short, len(evs)) | self.denials.saved()
            before = self.denials.get(target)
            if before is None and len(self.denials) >= policy.DENIALS_MAX:
                full = f"{policy.DENIALS_MAX} denials are in force, and no more are kept"
                raise UsageError(full, hint="end some with `mrcctl allow`, or deny a wider target")
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

    def _short(self, evs: Evs) -> list[policy.Short]:
        """Return the peers that would fall below their floors without these EVs."""
        rows = by_row(evs)
        standings = self._enforcement.standings(rows)
        return policy.short((standings[row], numbers) for row, numbers in rows.items())

    async def allow(self, target: Target | None, uid: int | None = None) -> Document:
        """End the denials of a target and those within it; None ends all. Raises UsageError, MachineError."""
        async with self._lock:
            plan = self._enforcement.plan
            ended = [t for t in self.denials if target is None or policy.covers(plan, target, t)]
            if target is not None and not ended:
                policy.check(plan, target)
            for t in ended:
                self._end(self.denials, t, "allow", uid)
            if ended:
                self._wake.set()
            _, allowed = await self._apply(target)
            if ended:
                self.denials.save()  # after the tables: a restart adopts EVs that are denied without a record
            evs = [] if target is None else await self._enforcement.evs(target)
            covering = [by for row, ev in evs if (by := self._enforcement.target_of(row, ev)) is not None]
            others = [(t, t not in self.denials) for t in dict.fromkeys(covering)]
            message = answers.allow_message(target, ended, others, len(covering))
            answer = answers.changed(plan, target, allowed, message) | self.denials.saved()
            return answer | {
                "ended": [str(t) for t in ended],
                "refused": len(covering),
                "denied_by": [str(t) for t, _ in others],
            }

    async def _apply(self, target: Target | None) -> tuple[Evs, Evs]:
        try:
            return await self._enforcement.apply()
        except MrcdError as e:
            subject = target or "all denials"
            message = f"{subject}: kept, but not applied to the tables: {e.args[0]}; mrcd tries again each second"
            raise MachineError(message, hint="`mrcctl denials` and `mrcctl paths` show the progress") from None

    def _end(self, denials: Denials, target: Target, reason: str, uid: int | None = None) -> None:
        denials.add_event(reason, target, uid)
        denials.remove(target)
        self._enforcement.forget(target)

    # ---- fleet-wide denials ----

    async def follow_fleet(self, wanted: Mapping[Target, Denial]) -> dict[Denial, str]:
        """Have exactly these fleet-wide denials in force. Returns those that this host refuses, with reasons.

        A host refuses a denial that `deny` would refuse here. Raises MrcdError if the tables refuse.
        """
        fleet_wide, refused = self.fleet_wide, dict[Denial, str]()
        async with self._lock:
            self._wake.set()  # `run` ends them in time, and tries again what the tables refuse
            ended = [t for t in fleet_wide if t not in wanted]
            for t in ended:
                self._end(fleet_wide, t, "allow")
            if ended or self._enforcement.is_pending:
                await self._enforcement.apply()  # before the floors are checked
            if ended:
                fleet_wide.save()
            new = [d for d in wanted.values() if d != fleet_wide.get(d.target) and d.left_s(fleet_wide.wall())]
            for d in sorted(new, key=lambda d: d.since):
                why = await self._refusal(d)
                if why is not None:
                    refused[d] = why
                    continue
                evs = await self._enforcement.evs(d.target)
                self._enforcement.keep_losses(d.target, evs)
                fleet_wide.enter(d)
                self._enforcement.keep_evs(d.target, evs)
                fleet_wide.add_event("drain" if d.drain else "deny", d.target)
                fleet_wide.save()
                await self._enforcement.apply()  # the floors of the next denial are checked by the tables
        return refused

    async def refusal(self, denial: Denial) -> str | None:
        """Return why this host would refuse a fleet-wide denial; None if it would not."""
        async with self._lock:
            return await self._refusal(denial)

    async def _refusal(self, d: Denial) -> str | None:
        plan, before = self._enforcement.plan, self.fleet_wide.get(d.target)
        if d.target.peer == plan.host.name:  # the paths of other hosts to this one
            return None
        try:
            policy.check(plan, d.target)
        except UsageError as e:
            return str(e.args[0])
        if before is None and len(self.fleet_wide) >= policy.DENIALS_MAX:
            return f"{policy.DENIALS_MAX} fleet-wide denials are in force"
        short = [] if d.forced or before else self._short(await self._enforcement.evs(d.target))
        return answers.refusal(short) if short else None

    @property
    def is_pending(self) -> bool:
        """Whether the tables refuse what is in force."""
        return self._enforcement.is_pending

    async def fleet_traffic(self) -> list[Document]:
        """Return what each fleet-wide denial has left in flight on this host, for its report.

        Waits while paths change: until the new ones are denied, nothing can be said about them.
        """
        async with self._lock:
            fleet_wide = self.fleet_wide
            return [{"target": str(t), "since": fleet_wide[t].since} | self._enforcement.traffic(t) for t in fleet_wide]

    # ---- documents ----

    def document(self) -> Document:
        """Return the document of GET /v1/denials."""
        return {
            "schema_version": SCHEMA_VERSION,
            "denials": [d.brief(t) | self._enforcement.traffic(t) for d in self._lists for t in d],
            "pending": self._enforcement.is_pending,
            "file": str(self.denials.path),
        } | self._saved()

    def _saved(self) -> Document:
        return next((d.saved() for d in self._lists if d.unsaved), self.denials.saved())

    def brief(self) -> list[Document]:
        """Return the denials without their traffic, for GET /v1/status."""
        return [denials.brief(target) for denials in self._lists for target in denials]

    def explain(self, paths: list[Document], denials: list[Document]) -> list[Document]:
        """Add to each document of GET /v1/paths the denial that covers the EV, out of `denials`, or None."""
        return self._enforcement.explain(paths, denials)

    # ---- in time ----

    async def run(self) -> None:
        """End expired denials and retry failed writes, forever."""
        while True:
            is_pending = self._enforcement.is_pending
            is_unsaved = any(d.unsaved for d in self._lists)
            retry_s = _RETRY_S if is_pending else _SAVE_RETRY_S if is_unsaved else math.inf
            wait_s = min(retry_s, *(d.next_end_s() for d in self._lists))
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
            has_changed = self._enforcement.is_pending
            for denials in self._lists:
                for t in denials.expired():
                    self._end(denials, t, "expired")
                    has_changed = True
            if has_changed:
                await self._enforcement.apply()
            for denials in self._lists:
                if has_changed or denials.unsaved:
                    denials.save()
