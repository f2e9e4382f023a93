"""The administrator's hand: denials in force, kept in a file, put into the tables, ended in their time.

The decisions are policy.py's. What is in force is said by the denials alone: the tables are made to agree with
them at the start, when paths change, and when a denial comes or goes.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mrcd.denials import policy
from mrcd.denials.in_force import Denials
from mrcd.denials.policy import Denial, Target
from mrcd.errors import MachineError, MrcdError, UsageError
from mrcd.fabric.topology import Plan
from mrcd.health.events import EventLog
from mrcd.health.monitor import Monitor
from mrcd.tables.abi import EvState
from mrcd.tables.columns import judged_and_lost
from mrcd.tables.pinned import Tables
from mrcd.versions import SCHEMA_VERSION
from mrcd.view.documents import in_flight

log = logging.getLogger("mrcd.denials.control")

_AGAIN_S = 1.0  # after what did not work
_SAVE_AGAIN_S = 10.0
_AT_ONCE = 256  # EVs; then the event loop serves others
_QUIET_NS = 5_000_000  # a CPU that had chosen an EV has sent its packet by then
_PEERS_NAMED = 10

Document = dict[str, Any]
Found = list[tuple[int, int]]  # (row, EV)


class DenialControl:
    """One host's denials, and what they mean. `follow` gives it the paths, at the start and whenever they are others;
    all else comes after that. `wall` and `clock` are those of denials.py."""

    def __init__(
        self,
        path: Path,
        events: EventLog,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.denials = Denials(path, events, wall, clock)
        self._events = events
        self._lost: dict[Target, int] = {}  # packets lost on its EVs, when it began
        self._means: dict[tuple[int, int], Target] = {}  # (row, EV) → one of the denials that it falls under
        self._pending = False  # the tables do not agree with them yet
        self._started = False
        self._known: dict[Target, Found] = {}  # what the denials mean
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()

    # ---- the paths ----

    async def follow(self, plan: Plan, tables: Tables, monitor: Monitor) -> None:
        """These are the paths now: they fall under the denials. The first time, take up what was in force before."""
        async with self._lock:
            self._plan, self._tables, self._monitor = plan, tables, monitor
            self._names = {p.host.id: p.host.name for p in plan.peers}
            self._known.clear()
            if not self._started:
                await self._take_up()
                self._started = True
            await self._apply()
        self._warn_below()

    async def _take_up(self) -> None:
        known = await self._load()
        stray = [at for at in self._denied() if at not in known]
        if stray:
            self._adopt(stray)
        for target in self.denials:
            self.denials.tell("restored", target)

    async def _selected(self, target: Target) -> Found:
        """Returns the EVs that a target means now. Made in a thread: it takes 5 s with thousands of peers."""
        found = self._known.get(target)
        if found is None:
            found = await asyncio.to_thread(_selected, self._plan, target)
            if target in self.denials:
                self._known[target] = found
        return found

    async def _load(self) -> set[tuple[int, int]]:
        """Read the file. Returns the EVs of which it knows, by denials that have ended meanwhile too."""
        known: set[tuple[int, int]] = set()
        for d in self.denials.read():
            known |= set(await self._selected(d.target))
            if d.left_s(self.denials.wall()):
                self.denials.enter(d)
            else:
                self._events.add("denial", reason="expired", evidence={"target": str(d.target)})
        return known

    def _adopt(self, stray: Found) -> None:
        """EVs that an earlier run has denied, of which no record is left: nobody has said that they may be used."""
        for target in policy.described(self._plan, _by_row(stray)):
            reason = "found denied at the start, without a record"
            self.denials.enter(Denial(target, self.denials.wall(), reason=reason))
        self.denials.save()

    def _end(self, target: Target, why: str, uid: int | None = None) -> None:
        self.denials.tell(why, target, uid)
        self.denials.remove(target)
        for kept in (self._lost, self._known):
            kept.pop(target, None)

    def _denied(self) -> Found:
        evs = self._tables.evs
        at = np.argwhere((evs["configured"] != 0) & (evs["state"] == EvState.DENIED))
        return [(row, ev) for row, ev in at.tolist()]

    async def _apply(self) -> tuple[Found, Found]:
        """Make the tables agree with the denials. Returns what is denied now, and what is not any more."""
        self._pending = True
        means: dict[tuple[int, int], Target] = {}
        for target in self.denials:
            for at in await self._selected(target):
                means.setdefault(at, target)
        self._means = means
        evs = self._tables.evs
        wanted = np.zeros(evs.shape, np.bool_)
        for at in means:
            wanted[at] = True
        wrong = np.argwhere((evs["configured"] != 0) & (wanted != (evs["state"] == EvState.DENIED))).tolist()
        changed: tuple[Found, Found] = ([], [])
        for n, (row, ev) in enumerate(wrong, 1):
            deny = (row, ev) in self._means
            evidence = self._evidence(self._means[row, ev]) if deny else {}
            if self._monitor.changes.set_denied(row, ev, deny, evidence):
                changed[not deny].append((row, ev))
            if n % _AT_ONCE == 0:
                self._monitor.log_events()
                await asyncio.sleep(0)
        self._monitor.log_events()
        self._pending = False
        return changed

    async def _apply_or_say(self, target: Target | None) -> tuple[Found, Found]:
        try:
            return await self._apply()
        except MrcdError as e:
            what = f"{target or 'everything'}: kept, but not done: {e.args[0]}; mrcd tries again each second"
            raise MachineError(what, hint="`mrcctl denials` and `mrcctl paths` show how far it is") from None

    def _evidence(self, target: Target) -> dict[str, str]:
        reason = self.denials[target].reason
        return {"target": str(target)} | ({"why": reason} if reason else {})

    def _standings(self, rows: Iterable[int]) -> dict[int, policy.Standing]:
        found = {}
        for row in rows:
            evs = self._tables.evs[row]
            state, there = evs["state"], evs["configured"] != 0
            well = there & ((state == EvState.GOOD) | (state == EvState.SKIP))
            masks = (there, there & (state == EvState.DENIED), well)
            sets = (frozenset(np.flatnonzero(m).tolist()) for m in masks)
            found[row] = policy.Standing(self._names[row], int(self._tables.peers[row]["floor"]), *sets)
        return found

    def _warn_below(self) -> None:
        """What was in force may leave too few of the paths that there are now: that is kept, and said."""
        standings = self._standings({row for row, _ in self._means}).values()
        low = [s for s in standings if len(s.evs - s.denied) < s.floor]
        if low:
            said = ", ".join(f"{s.peer} {len(s.evs - s.denied)} of {len(s.evs)} EVs" for s in low[:_PEERS_NAMED])
            more = f" and {len(low) - _PEERS_NAMED} more peers" if len(low) > _PEERS_NAMED else ""
            log.warning("denials leave %s%s, less than ev_min_active: see `mrcctl denials`", said, more)
            self._events.add("denial", reason="below_floor", evidence={"peers": len(low), "left": said + more})

    # ---- what administrators ask for ----

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
        """Put a denial into force, or give one that is there another end and reason. All or nothing: refused where a
        peer would fall below its floor. Raises UsageError for what cannot be."""
        async with self._lock:
            policy.check(self._plan, target)
            meant = await self._selected(target)
            rows = _by_row(meant)
            standings = self._standings(rows)
            short = [] if force else policy.short((standings[row], evs) for row, evs in rows.items())
            if short:
                return self._refused(target, short, len(meant))
            before = self.denials.get(target)
            if before is None and len(self.denials) >= policy.DENIALS_MAX:
                raise UsageError(f"{policy.DENIALS_MAX} denials are in force", hint="deny wider targets")
            now = self.denials.wall()
            until = None if for_s is None else now + for_s
            reason = reason or (before.reason if before else "")
            self._lost.setdefault(target, self._lost_on(meant))
            self.denials.enter(Denial(target, now, until, reason, uid, drain, force))
            self._known[target] = meant
            self._wake.set()
            self.denials.save()
            self.denials.tell("drain" if drain else "deny", target)
            done, _ = await self._apply_or_say(target)
            state = f"{target} {'is' if before is None else 'stays'} denied"
            state += f" for {_duration(for_s)}: " if for_s else ": "
            return self._answer(target, done, state + (_evs(len(meant), len(rows)) if meant else _NO_PATH))

    async def allow(self, target: Target | None, uid: int | None = None) -> Document:
        """End the denials of a target and of all that lies within it (None: all). Raises UsageError for what cannot
        be."""
        async with self._lock:
            ended = [t for t in self.denials if target is None or policy.covers(self._plan, target, t)]
            if target is not None and not ended:
                policy.check(self._plan, target)
            for t in ended:
                self._end(t, "allow", uid)
            if ended:
                self._wake.set()
                self.denials.save()
            _, done = await self._apply_or_say(target)
            asked = [] if target is None else await self._selected(target)
            others = list(dict.fromkeys(self._means[at] for at in asked if at in self._means))
            kept = sum(at in self._means for at in asked)
            if ended:
                message = f"not denied any more: {', '.join(map(str, ended))}"
            elif others:
                message = f"{target} is not denied by that name"
            else:
                message = "nothing is denied" if target is None else f"{target} is not denied: nothing to take back"
            if others:
                names = ", ".join(f"`mrcctl allow {t}`" for t in others[:_PEERS_NAMED])
                message += f"; {_evs(kept)} of {target} still denied by another word: {names}"
            return self._answer(target, done, message) | {
                "ended": [str(t) for t in ended],
                "refused": kept,
                "denied_by": [str(t) for t in others],
            }

    def _refused(self, target: Target, short: list[policy.Short], refused: int) -> Document:
        named = "; ".join(map(str, short[:_PEERS_NAMED]))
        more = f"; and {len(short) - _PEERS_NAMED} more" if len(short) > _PEERS_NAMED else ""
        message = f"{target} is not denied: too few usable EVs would be left, for {named}{more}"
        peers = [{"peer": s.peer, "left_evs": s.left, "evs": s.evs, "ev_min_active": s.floor} for s in short]
        return self._answer(target, [], message) | {"refused": refused, "peers_below": peers}

    def _answer(self, target: Target | None, changed: Found, message: str) -> Document:
        rows = _by_row(changed)
        found = ((p, ev, p.place(ev)) for p in self._plan.peers for ev in rows.get(p.host.id, ()))
        paths = [{"peer": p.host.name, "ev": ev, "plane": at[0], "t1": at[1]} for p, ev, at in found if at]
        return {
            "schema_version": SCHEMA_VERSION,
            "target": None if target is None else str(target),
            "changed": len(changed),
            "refused": 0,
            "message": message,
            "paths": paths,
        } | self.denials.saved()

    # ---- what is in force ----

    def document(self) -> Document:
        """GET /v1/denials."""
        return {
            "schema_version": SCHEMA_VERSION,
            "denials": [self._document(target) for target in self.denials],
            "pending": self._pending,  # the tables do not agree yet
            "file": str(self.denials.path),
        } | self.denials.saved()

    def _document(self, target: Target) -> Document:
        at = self._known.get(target, [])
        rows, evs = np.array(at, np.int64).reshape(-1, 2).T
        records, path_stats = self._tables.evs[rows, evs], self._tables.path_stats[rows, evs]
        flight, known = in_flight(records, path_stats)
        quiet = time.monotonic_ns() - records["last_tx_ns"].astype(np.int64) > _QUIET_NS
        denied = records["state"] == EvState.DENIED
        lost = self._lost.get(target)
        return self.denials.brief(target) | {
            "evs": len(at),
            "in_flight_packets": int(flight.sum()),
            "unknown_evs": int((~known).sum()),  # of which the peer has not told
            "empty": bool((denied & known & quiet & (flight == 0)).all()),
            "lost_packets": None if lost is None else max(0, int(judged_and_lost(path_stats)[1].sum()) - lost),
        }

    def brief(self) -> list[Document]:
        """The denials alone, for GET /v1/status."""
        return [self.denials.brief(target) for target in self.denials]

    def explain(self, paths: list[Document], denials: list[Document]) -> list[Document]:
        """Say of each document of GET /v1/paths by which of the denials, as of `brief`, the EV is denied."""
        rows = {name: row for row, name in self._names.items()}
        said = {d["target"]: d for d in denials}
        for path in paths:
            target = self._means.get((rows.get(path["peer"], -1), path["ev"]))
            path["denial"] = said.get(str(target))
        return paths

    def _lost_on(self, at: Found) -> int:
        rows, evs = np.array(at, np.int64).reshape(-1, 2).T
        return int(judged_and_lost(self._tables.path_stats[rows, evs])[1].sum())

    # ---- in time ----

    async def run(self) -> None:
        """End denials in their time; try again what did not work. Does not end by itself."""
        while True:
            again = _AGAIN_S if self._pending else _SAVE_AGAIN_S if self.denials.unsaved else math.inf
            wait = min(again, self.denials.next_end_s())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), None if math.isinf(wait) else max(wait, 0))
            self._wake.clear()
            try:
                await self.look()
            except MrcdError as e:
                log.error("%s; trying again", e)
                await asyncio.sleep(_AGAIN_S)

    async def look(self) -> None:
        """End what is over by now; put right what is not yet as it should be."""
        async with self._lock:
            over = self.denials.over()
            for t in over:
                self._end(t, "expired")
            if over or self.denials.unsaved:
                self.denials.save()
            if over or self._pending:
                await self._apply()


_NO_PATH = "none of this host's paths goes by it now; those that come will be denied"


def _selected(plan: Plan, target: Target) -> Found:
    return [(row, ev) for row, evs in policy.selected(plan, target).items() for ev in evs]


def _by_row(at: Found) -> policy.Rows:
    rows: policy.Rows = {}
    for row, ev in at:
        rows.setdefault(row, []).append(ev)
    return rows


def _evs(count: int, peers: int | None = None) -> str:
    text = f"{count} EV{'s' * (count != 1)}"
    return text if peers is None else f"{text} to {peers} peer{'s' * (peers != 1)}"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
