"""The programs played over plain arrays, and a monitor of them: mrc_sweep, mrc_steer, the ring buffer."""

import asyncio
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mrcd import abi, config, install, tables, topology
from mrcd.abi import EvState, Reason
from mrcd.dataplane import Dataplane
from mrcd.events import EventLog
from mrcd.monitor import Monitor
from tests.unit.arrays import TEXT, Arrays

MS = 1_000_000
_LATE_NS = 300_000  # a timer's


class Programs:
    """mrc_sweep and mrc_steer, and the ring buffer, over the arrays."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.swept: list[int] = []
        self.ring: list[NDArray[np.void]] = []
        self.now = 10**12
        self.full = False  # the ring buffer

    def sweep(self, host_id: int, first: int = 0, count: int = 0) -> int:
        assert count in (0, self.arrays.evs.shape[1])  # all of them, wherever it begins
        self.swept.append(host_id)
        evs = self.arrays.evs[host_id]
        evs["probe_seq"] += evs["configured"]
        self.arrays.ledgers["probe_ns"][host_id] = self.now
        return int(evs["configured"].sum())

    def steer(self, host_id: int, ev: int, state: EvState, reason: Reason, leave: tuple[EvState, ...]) -> bool:
        before = EvState(int(self.arrays.evs["state"][host_id, ev]))
        if before not in leave:
            return False
        self.change(host_id, ev, state, reason)
        return True

    def change(self, host_id: int, ev: int, state: EvState, reason: Reason, **evidence: int) -> None:
        """A transition, by whichever program."""
        evs = self.arrays.evs
        record = np.zeros(1, abi.EVENT)
        record["ns"], record["host_id"], record["ev"], record["reason"] = self.now, host_id, ev, reason
        record["before"], record["after"] = evs["state"][host_id, ev], state
        for name, value in evidence.items():
            record[name] = value
        evs["state"][host_id, ev], evs["reason"][host_id, ev] = state, reason
        evs["state_since_ns"][host_id, ev] = self.now
        self.arrays.peers["wanted"][host_id] += 1
        if not self.full:
            self.ring.append(record)

    def events(self) -> NDArray[np.void]:
        found, self.ring = self.ring, []
        return np.concatenate(found) if found else np.zeros(0, abi.EVENT)


class Bench:
    """A monitor of h0, with all its EVs good."""

    def __init__(self, state: EvState = EvState.GOOD, settings: str = "") -> None:
        self.arrays = Arrays(4, 8)
        self.plan = topology.plan(config.parse(TEXT + settings), "h0")
        shown = cast(tables.Tables, self.arrays)
        install.write_peers(shown, self.plan, lambda row: None)
        self.arrays.evs["state"][self.arrays.evs["configured"] != 0] = state
        self.arrays.node["ports"] = 0b11
        self.arrays.peers["heard_ns"] = 1
        self.programs = Programs(self.arrays)
        self.changed: list[int] = []
        self.log = EventLog()
        dataplane = cast(Dataplane, self.programs)
        self.monitor = Monitor(self.plan, shown, dataplane, self.log, self.changed.append)
        self.tick(100)
        self.changed.clear()
        self.programs.swept.clear()

    def tick(self, ms: int = 20, *, answered: bool = True) -> None:
        """Time passes, the replies come, the monitor looks."""
        if answered:
            new = self.arrays.ledgers["reply_seq"] != self.arrays.evs["probe_seq"]
            self.arrays.ledgers["reply_seq"] = self.arrays.evs["probe_seq"]
            self.arrays.ledgers["replies"] += new
            self.arrays.ledgers["good"] += new
        self.programs.now += ms * MS
        self.monitor._tick(self.programs.now)

    def live(self, ms: int, *, answered: bool = True) -> list[int]:
        """Time passes, the monitor looks when it wants to. When it did, in ns."""
        ticks, at, until = [], self.programs.now, self.programs.now + ms * MS
        while at < until:
            self.programs.now = at + _LATE_NS
            self.monitor._hurry = False
            self.tick(0, answered=answered)
            ticks.append(self.programs.now)
            at = self.monitor._after(at, self.programs.now)
        return ticks

    def said(self, kind: str = "ev") -> list[dict[str, Any]]:
        return [e for e in asyncio.run(self.log.after(0, 0)) if e["kind"] == kind]
