# SPDX-License-Identifier: BSD-2-Clause
"""Carries out deny and allow: checks a request, keeps it, applies it to the tables, ends it when it expires.

A denial passes these modules, in this order:

1. `api/incoming.py` reads the request; `targets.parse` makes a Target of its words.
2. `DenialControl.deny` here has targets.py check the target and the floor of each peer.
3. `table.py` enters the denial (record.py), saves it and adds an event.
4. `_write` sets the state of each covered EV to DENIED; the eBPF programs choose no such EV.
5. `answers.py` makes the document that the API returns.

The list of denials decides which EVs are denied. The tables are updated from it at the start, when paths change, and
when a denial begins or ends.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mrcd.denials import answers, targets
from mrcd.denials.record import Denial
from mrcd.denials.table import FLEET, LAST_PATHS_S, OWN, SCOPES, DenialTable
from mrcd.denials.targets import Evs, Short, Standing, Target, by_row
from mrcd.errors import MachineError, MrcdError, UsageError
from mrcd.fabric.topology import Plan
from mrcd.file_thread import Do, do_now
from mrcd.health.events import EventLog
from mrcd.health.monitor import Monitor
from mrcd.health.snapshot import judged_and_lost
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables
from mrcd.timed_wait import is_set_within
from mrcd.versions import SCHEMA_VERSION
from mrcd.view.paths import in_flight

log = logging.getLogger("mrcd.denials")

_RETRY_S = 1.0
_SAVE_RETRY_S = 10.0
_EVS_PER_STEP = 256  # EVs changed before the event loop serves other tasks
UNRECORDED_S = 3600.0
"""A denial that is found in the tables and that no file names ends after this time."""
_SEND_NS = 5_000_000  # a CPU that has chosen an EV sends its packet within this time

Document = dict[str, Any]


class DenialControl:
    """One host's denials: its own, and those of the whole fleet.

    `use_paths` sets the paths; call it before any other method. `wall`, `clock` and `do` are those of `DenialTable`.
    """

    def __init__(
        self,
        path: Path,
        events: EventLog,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        do: Do = do_now,
    ) -> None:
        self.table = DenialTable(path, events, wall, clock, do)
        self.is_pending = False  # the tables do not agree with the denials yet
        self._target_by_ev: dict[tuple[int, int], Target] = {}  # one of the denials that cover the EV
        self._events = events
        self._is_started = False
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()

    # ---- the paths ----

    async def use_paths(self, plan: Plan, tables: Tables, monitor: Monitor) -> None:
        """Apply the denials to these paths. The first call also reads the denials of the previous run."""
        async with self._lock:
            self._plan, self._tables, self._monitor = plan, tables, monitor
            self._peers = {p.host.id: p.host.name for p in plan.peers}
            self.table.forget_evs()
            if not self._is_started:
                await self._restore()
                self._is_started = True
            await self._write()
            low = self._below_floor()
            await self._give_ends(low)
        self._warn_below_floor(low)

    async def _restore(self) -> None:
        covered = await self._load()
        unrecorded = [at for at in self._denied_in_tables() if at not in covered]
        if unrecorded:
            await self._adopt(unrecorded)
        for _, d in self.table:
            self.table.add_event("restored", d)

    async def _load(self) -> set[tuple[int, int]]:
        """Read the files. Returns the EVs that their denials cover, including denials that have expired since."""
        covered: set[tuple[int, int]] = set()
        for scope in SCOPES:
            for d in self.table.read(scope):
                covered |= set(await self._evs(d.target))
                self.table.enter(scope, d)
        for scope, d in self.table.expired():
            self._end(scope, d, "expired")
        return covered

    async def _adopt(self, unrecorded: Evs) -> None:
        """Enter denials for EVs that an earlier run denied and no record names: nobody has allowed them.

        They end, because nobody may know of them: the disk was full, or the file was lost.
        """
        for target in targets.described(self._plan, by_row(unrecorded)):
            now, reason = self.table.wall(), "found denied at the start, without a record"
            self.table.enter(OWN, Denial(target, now, now + UNRECORDED_S, reason))
        await self.table.save(OWN)

    async def _give_ends(self, low: list[Standing]) -> None:
        for scope in self.table.use_last_path_ends(self._leave_none(low)):
            self._wake.set()
            await self.table.save(scope)

    def _leave_none(self, low: list[Standing]) -> set[tuple[bool, Target]]:
        """Return the denials for more than LAST_PATHS_S that leave a peer none of the present paths."""
        lasting = [(of, d) for of, d in self.table if d.last_path_until or self.table.left_s(d) > LAST_PATHS_S]
        covered = {(self._peers[row], ev) for _, d in lasting for row, ev in d.evs or ()}
        last = {s.peer: s.evs for s in low if s.evs and all((s.peer, ev) in covered for ev in s.evs)}
        return {
            (scope, d.target)
            for scope, d in lasting
            if any(ev in last.get(self._peers[row], ()) for row, ev in d.evs or ())
        }

    def _warn_below_floor(self, low: list[Standing]) -> None:
        """Warn where restored denials leave too few of the present paths. They stay in force."""
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
            plan, table = self._plan, self.table
            targets.check(plan, target)
            evs = await self._evs(target)
            before = table.get(OWN, target)
            now, left_s, own_end = table.wall(), math.inf if for_s is None else for_s, None
            if for_s is None and before is not None and table.left_s(before) > 0:
                left_s, own_end = before.end - table.clock(), before.last_path_until
            short = [] if own_end else self._short(target, evs, left_s, forced=force, again=before is not None)
            if short:
                refused = answers.refused(plan, target, short, len(evs), forced=force, again=before is not None)
                return refused | table.saved(OWN)
            if before is None and table.is_full(OWN):
                full = f"{self.table.MOST} denials are in force, and no more are kept"
                raise UsageError(full, hint="end some with `mrcctl allow`, or deny a wider target")
            until = None if math.isinf(left_s) else now + left_s
            reason = reason or (before.reason if before else "")
            entered = Denial(target, now, until, reason, uid, drain, force, last_path_until=own_end)
            left_s = self._enter(OWN, entered, evs, "drain" if drain else "deny")
            self._wake.set()
            await table.save(OWN)
            denied, _ = await self._apply(target)
            message = answers.deny_message(target, is_new=before is None, left_s=left_s, evs=evs)
            return answers.changed(plan, target, denied, message) | table.saved(OWN)

    def _enter(self, scope: bool, d: Denial, evs: Evs, event: str) -> float:
        """Put a denial into force. Returns the seconds until its end.

        If its target is denied already, its losses count from the earlier beginning.
        """
        lost = self.table.lost_before(d.target)
        lost = self._lost_on(evs) if lost is None else lost
        self.table.enter(scope, replace(d, evs=evs, lost_before=lost))
        entered = self.table.get(scope, d.target)
        assert entered is not None
        self.table.add_event(event, entered)
        return self.table.left_s(entered)

    def _short(self, target: Target, evs: Evs, left_s: float, *, forced: bool, again: bool) -> list[Short]:
        """Return the peers because of which a target may not be denied for so long; `again`: it is denied already.

        Those would fall below their floors; or, if forced or again, have no path for more than LAST_PATHS_S. What other
        denials cover counts as denied if they last as long.
        """
        lasting = set[tuple[int, int]]()
        for _, d in self.table:
            if d.target != target and self.table.left_s(d) >= left_s:
                lasting.update(d.evs or ())
        rows = by_row(evs)
        standings = (
            replace(s, denied=frozenset(ev for ev in s.evs if (row, ev) in lasting))
            for row, s in zip(rows, self._standings(rows), strict=True)
        )
        short = targets.below_floors(zip(standings, rows.values(), strict=True))
        if forced or again:
            return [s for s in short if not s.left and left_s > LAST_PATHS_S]
        return short

    async def allow(self, target: Target | None, uid: int | None = None) -> Document:
        """End the denials of a target and those within it; None ends all. Raises UsageError, MachineError."""
        async with self._lock:
            plan = self._plan
            own = self.table.of(OWN)
            ended = [t for t in own if target is None or targets.covers(plan, target, t)]
            if target is not None and not ended:
                targets.check(plan, target)
            for t in ended:
                self._end(OWN, own[t], "allow", uid)
            if ended:
                self._wake.set()
            _, allowed = await self._apply(target)
            if ended:
                await self.table.save(OWN)  # after the tables: a restart adopts EVs that are denied without a record
            evs = [] if target is None else await self._evs(target)
            covering = [by for at in evs if (by := self._target_by_ev.get(at)) is not None]
            others = [(t, self.table.get(OWN, t) is None) for t in dict.fromkeys(covering)]
            message = answers.allow_message(target, ended, others, len(covering))
            answer = answers.changed(plan, target, allowed, message) | self.table.saved(OWN)
            return answer | {
                "ended": [str(t) for t in ended],
                "refused": len(covering),
                "denied_by": [str(t) for t, _ in others],
            }

    async def _apply(self, target: Target | None) -> tuple[Evs, Evs]:
        try:
            return await self._write()
        except MrcdError as e:
            subject = target or "all denials"
            message = f"{subject}: kept, but not applied to the tables: {e.args[0]}; mrcd tries again each second"
            raise MachineError(message, hint="`mrcctl denials` and `mrcctl paths` show the progress") from None

    def _end(self, scope: bool, d: Denial, reason: str, uid: int | None = None) -> None:
        self.table.add_event(reason, d, uid)
        self.table.remove(scope, d.target)

    # ---- fleet-wide denials ----

    async def use_fleet_wide(self, wanted: Mapping[Target, Denial]) -> dict[Denial, str]:
        """Have exactly these fleet-wide denials in force. Returns those that this host refuses, with reasons.

        A host refuses a denial that `deny` would refuse here. Raises MrcdError if the tables refuse.
        """
        table, refused = self.table, dict[Denial, str]()
        async with self._lock:
            self._wake.set()  # `run` ends them in time, and tries again what the tables refuse
            ended = [d for t, d in table.of(FLEET).items() if t not in wanted]
            for d in ended:
                self._end(FLEET, d, "allow")
            if ended or self.is_pending:
                await self._write()  # before the floors are checked
            if ended:
                await table.save(FLEET)
            new = [d for d in wanted.values() if d != table.get(FLEET, d.target) and d.left_s(table.now(FLEET))]
            for d in sorted(new, key=lambda d: d.since):
                why = await self._refusal(d)
                if why is not None:
                    refused[d] = why
                    continue
                self._enter(FLEET, d, await self._evs(d.target), "drain" if d.drain else "deny")
                await table.save(FLEET)
                await self._write()  # the floors of the next denial are checked by the tables
        return refused

    async def refusal(self, denial: Denial) -> str | None:
        """Return why this host would refuse a fleet-wide denial; None if it would not."""
        async with self._lock:
            return await self._refusal(denial)

    async def _refusal(self, d: Denial) -> str | None:
        plan, before = self._plan, self.table.get(FLEET, d.target)
        if d.target.peer == plan.host.name:  # the paths of other hosts to this one
            return None
        try:
            targets.check(plan, d.target)
        except UsageError as e:
            return str(e.args[0])
        if before is None and self.table.is_full(FLEET):
            return f"{self.table.MOST} fleet-wide denials are in force"
        again, left_s = before is not None, d.left_s(self.table.now(FLEET))
        short = self._short(d.target, await self._evs(d.target), left_s, forced=d.forced, again=again)
        return answers.refusal(short, forced=d.forced or again) if short else None

    async def fleet_traffic(self) -> list[Document]:
        """Return what each fleet-wide denial has left in flight on this host, for its report.

        Waits while paths change: until the new ones are denied, nothing can be said about them.
        """
        async with self._lock:
            found = self.table.of(FLEET).items()
            return [{"target": str(t), "since": d.since} | self._traffic(t) for t, d in found]

    # ---- documents ----

    def document(self) -> Document:
        """Return the document of GET /v1/denials."""
        return {
            "schema_version": SCHEMA_VERSION,
            "denials": [self.table.brief(d) | self._traffic(d.target) for _, d in self.table],
            "pending": self.is_pending,
            "file": str(self.table.paths[OWN]),
        } | self.table.saved(*SCOPES)

    def brief(self) -> list[Document]:
        """Return the denials without their traffic, for GET /v1/status."""
        return [self.table.brief(d) for _, d in self.table]

    # ---- in time ----

    async def run(self) -> None:
        """End expired denials and retry failed writes, forever."""
        while True:
            is_pending = self.is_pending
            retry_s = _RETRY_S if is_pending else _SAVE_RETRY_S if self.table.unsaved else math.inf
            wait_s = min(retry_s, self.table.next_end_s(*SCOPES))
            await is_set_within(self._wake, max(wait_s, 0))
            self._wake.clear()
            try:
                await self.update()
            except MrcdError as e:
                log.error("%s; trying again", e)
                await asyncio.sleep(_RETRY_S)

    async def update(self) -> None:
        """End expired denials; save and apply what failed before. Raises MrcdError."""
        async with self._lock:
            has_changed = self.is_pending
            for scope, d in self.table.expired():
                self._end(scope, d, "expired")
                has_changed = True
            if has_changed:
                await self._write()
            for scope in SCOPES if has_changed else self.table.unsaved:
                await self.table.save(scope)

    # ---- targets and EVs ----

    async def _evs(self, target: Target) -> Evs:
        """Return the EVs that a target covers now. A worker thread selects them: thousands of peers take 5 s."""
        denial = self.table.any_of(target)
        if denial is not None and denial.evs is not None:
            return denial.evs
        evs = await asyncio.to_thread(_selected, self._plan, target)
        self.table.cover(target, evs)
        return evs

    def _lost_on(self, at: Evs) -> int:
        """Return the packets lost on these EVs so far."""
        rows, evs = np.array(at, np.int64).reshape(-1, 2).T
        return int(judged_and_lost(self._tables.path_stats[rows, evs])[1].sum())

    # ---- the tables ----

    def _denied_in_tables(self) -> Evs:
        """Return the configured EVs whose state in the tables is DENIED."""
        evs = self._tables.evs
        at = np.argwhere((evs["configured"] != 0) & (evs["state"] == EvState.DENIED))
        return [(row, ev) for row, ev in at.tolist()]

    async def _write(self) -> tuple[Evs, Evs]:
        """Make the tables agree with the denials. Returns the EVs denied now and the EVs allowed now."""
        self.is_pending = True
        target_by_ev: dict[tuple[int, int], Target] = {}
        for _, denial in self.table:
            for at in await self._evs(denial.target):
                target_by_ev.setdefault(at, denial.target)
        self._target_by_ev = target_by_ev
        evs = self._tables.evs
        wanted = np.zeros(evs.shape, np.bool_)
        for at in target_by_ev:
            wanted[at] = True
        wrong = np.argwhere((evs["configured"] != 0) & (wanted != (evs["state"] == EvState.DENIED))).tolist()
        changed: tuple[Evs, Evs] = ([], [])
        for n, (row, ev) in enumerate(wrong, 1):
            deny = (row, ev) in target_by_ev
            evidence = self._evidence(target_by_ev[row, ev]) if deny else {}
            if self._monitor.set_denied(row, ev, deny, evidence):
                changed[not deny].append((row, ev))
            if n % _EVS_PER_STEP == 0:
                self._monitor.read_events()
                await asyncio.sleep(0)
        self._monitor.log_events()
        self.is_pending = False
        if any(d.last_path_until for _, d in self.table):  # another denial may have ended
            await self._give_ends(self._below_floor())
        return changed

    def _evidence(self, target: Target) -> dict[str, str]:
        denial = self.table.any_of(target)
        return {"target": str(target)} | ({"denial_reason": denial.reason} if denial and denial.reason else {})

    # ---- what the tables tell ----

    def _standings(self, rows: Iterable[int]) -> Iterator[Standing]:
        """Yield the EVs of peers by state, and their floors."""
        for row in rows:
            evs = self._tables.evs[row]
            state, there = evs["state"], evs["configured"] != 0
            well = there & ((state == EvState.GOOD) | (state == EvState.SKIP))
            masks = (there, there & (state == EvState.DENIED), well)
            sets = (frozenset(np.flatnonzero(m).tolist()) for m in masks)
            yield Standing(self._peers[row], int(self._tables.peers[row]["floor"]), *sets)

    def _below_floor(self) -> list[Standing]:
        """Return the peers that the denials leave with fewer EVs than their floors."""
        standings = self._standings({row for row, _ in self._target_by_ev})
        return [s for s in standings if len(s.evs - s.denied) < s.floor]

    def _traffic(self, target: Target) -> Document:
        """Return what is still in flight on the EVs of a denial, and what was lost since it began."""
        denial = self.table.any_of(target)
        at = denial.evs if denial else None
        if denial is None or at is None:  # a reload selects them now
            return {
                "evs": 0, "in_flight_packets": 0, "unreported_evs": 0, "empty": False, "lost_packets": None
            }  # fmt: skip
        rows, evs = np.array(at, np.int64).reshape(-1, 2).T
        records, path_stats = self._tables.evs[rows, evs], self._tables.path_stats[rows, evs]
        flight, known = in_flight(records, path_stats)
        quiet = time.monotonic_ns() - records["last_tx_ns"].astype(np.int64) > _SEND_NS
        denied = records["state"] == EvState.DENIED
        before = self.table.lost_before(target)
        return {
            "evs": len(at),
            "in_flight_packets": int(flight.sum()),
            "unreported_evs": int((~known).sum()),  # the peer has sent no report about them
            "empty": bool((denied & known & quiet & (flight == 0)).all()),
            "lost_packets": None if before is None else max(0, self._lost_on(at) - before),
        }

    def explain(self, paths: list[Document], denials: list[Document]) -> list[Document]:
        """Add to each document of GET /v1/paths the denial that covers the EV, out of `denials`, or None."""
        rows = {name: row for row, name in self._peers.items()}
        by_target = {d["target"]: d for d in denials}
        for path in paths:
            target = self._target_by_ev.get((rows.get(path["peer"], -1), path["ev"]))
            path["denial"] = by_target.get(str(target))
        return paths


def _selected(plan: Plan, target: Target) -> Evs:
    return [(row, ev) for row, evs in targets.selected(plan, target).items() for ev in evs]
