# SPDX-License-Identifier: BSD-2-Clause
"""Writes the denials in force into the EV tables, so that the eBPF programs stop or resume using EVs."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from mrcd.denials import targets
from mrcd.denials.table import DenialTable
from mrcd.denials.targets import Evs, Standing, Target
from mrcd.fabric.topology import Plan
from mrcd.health.monitor import Monitor
from mrcd.kernel.columns import judged_and_lost
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables
from mrcd.view.paths import in_flight

_EVS_PER_STEP = 256  # EVs changed before the event loop serves other tasks
_SEND_NS = 5_000_000  # a CPU that has chosen an EV sends its packet within this time

Document = dict[str, Any]


class Enforcement:
    """Keeps the EV states in the tables equal to the denials in force.

    `use_paths` sets the paths; call it before any other method.
    """

    def __init__(self, denials: DenialTable) -> None:
        self._denials = denials
        self.is_pending = False  # the tables do not agree with the denials yet
        self._target_by_ev: dict[tuple[int, int], Target] = {}  # one of the denials that cover the EV

    def use_paths(self, plan: Plan, tables: Tables, monitor: Monitor) -> None:
        """Use these paths and tables from now on."""
        self.plan, self._tables, self._monitor = plan, tables, monitor
        self._names = {p.host.id: p.host.name for p in plan.peers}
        self._denials.forget_evs()

    # ---- targets and EVs ----

    async def evs(self, target: Target) -> Evs:
        """Return the EVs that a target covers now. A worker thread selects them: thousands of peers take 5 s."""
        denial = self._denials.any_of(target)
        if denial is not None and denial.evs is not None:
            return denial.evs
        evs = await asyncio.to_thread(_selected, self.plan, target)
        self._denials.cover(target, evs)
        return evs

    def lost_on(self, at: Evs) -> int:
        """Return the packets lost on these EVs so far."""
        rows, evs = np.array(at, np.int64).reshape(-1, 2).T
        return int(judged_and_lost(self._tables.path_stats[rows, evs])[1].sum())

    def target_of(self, row: int, ev: int) -> Target | None:
        """Return a denial that covers the EV, or None."""
        return self._target_by_ev.get((row, ev))

    # ---- the tables ----

    def denied_in_tables(self) -> Evs:
        """Return the configured EVs whose state in the tables is DENIED."""
        evs = self._tables.evs
        at = np.argwhere((evs["configured"] != 0) & (evs["state"] == EvState.DENIED))
        return [(row, ev) for row, ev in at.tolist()]

    async def apply(self) -> tuple[Evs, Evs]:
        """Make the tables agree with the denials. Returns the EVs denied now and the EVs allowed now."""
        self.is_pending = True
        target_by_ev: dict[tuple[int, int], Target] = {}
        for _, denial in self._denials:
            for at in await self.evs(denial.target):
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
            if self._monitor.changes.set_denied(row, ev, deny, evidence):
                changed[not deny].append((row, ev))
            if n % _EVS_PER_STEP == 0:
                self._monitor.log_events()
                await asyncio.sleep(0)
        self._monitor.log_events()
        self.is_pending = False
        return changed

    def _evidence(self, target: Target) -> dict[str, str]:
        denial = self._denials.any_of(target)
        return {"target": str(target)} | ({"denial_reason": denial.reason} if denial and denial.reason else {})

    # ---- what the tables tell ----

    def standings(self, rows: Iterable[int]) -> dict[int, Standing]:
        """Return the EVs of peers by state, and their floors, by row."""
        found = {}
        for row in rows:
            evs = self._tables.evs[row]
            state, there = evs["state"], evs["configured"] != 0
            well = there & ((state == EvState.GOOD) | (state == EvState.SKIP))
            masks = (there, there & (state == EvState.DENIED), well)
            sets = (frozenset(np.flatnonzero(m).tolist()) for m in masks)
            found[row] = Standing(self._names[row], int(self._tables.peers[row]["floor"]), *sets)
        return found

    def below_floor(self) -> list[Standing]:
        """Return the peers that the denials leave with fewer EVs than their floors."""
        standings = self.standings({row for row, _ in self._target_by_ev}).values()
        return [s for s in standings if len(s.evs - s.denied) < s.floor]

    def traffic(self, target: Target) -> Document:
        """Return what is still in flight on the EVs of a denial, and what was lost since it began."""
        denial = self._denials.any_of(target)
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
        before = self._denials.lost_before(target)
        return {
            "evs": len(at),
            "in_flight_packets": int(flight.sum()),
            "unreported_evs": int((~known).sum()),  # the peer has sent no report about them
            "empty": bool((denied & known & quiet & (flight == 0)).all()),
            "lost_packets": None if before is None else max(0, self.lost_on(at) - before),
        }

    def explain(self, paths: list[Document], denials: list[Document]) -> list[Document]:
        """Add to each document of GET /v1/paths the denial that covers the EV, out of `denials`, or None."""
        rows = {name: row for row, name in self._names.items()}
        by_target = {d["target"]: d for d in denials}
        for path in paths:
            target = self._target_by_ev.get((rows.get(path["peer"], -1), path["ev"]))
            path["denial"] = by_target.get(str(target))
        return paths


def _selected(plan: Plan, target: Target) -> Evs:
    return [(row, ev) for row, evs in targets.selected(plan, target).items() for ev in evs]
