# SPDX-License-Identifier: BSD-2-Clause
"""Emulates the programs over plain arrays, with a monitor of them: mrc_tick, mrc_set_states, the ring buffer."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mrcd.config import cluster_file
from mrcd.daemon import write_tables
from mrcd.fabric import topology
from mrcd.health.events import EventLog
from mrcd.health.monitor import Monitor
from mrcd.kernel import abi, pinned
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.enums import EvState, Reason
from tests.unit.arrays import TEXT, Arrays

MS = 1_000_000


class Programs:
    """mrc_tick, mrc_set_states and the ring buffer, over the arrays."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.ticks = 0
        self.tick_wait_s = 0.02  # what mrc_tick returns
        self.ring: list[NDArray[np.void]] = []
        self.now = 10**12
        self.full = False  # the ring buffer
        self._events_fd = -1

    def tick(self) -> float:
        self.ticks += 1
        return self.tick_wait_s

    def set_state(self, host_id: int, ev: int, state: EvState, reason: Reason, leave: tuple[EvState, ...]) -> bool:
        before = EvState(int(self.arrays.evs["state"][host_id, ev]))
        if before not in leave:
            return False
        self.change(host_id, ev, state, reason)
        return True

    def change(self, host_id: int, ev: int, state: EvState, reason: Reason, **evidence: int) -> None:
        """Makes a transition, as any program does."""
        evs, changes = self.arrays.evs, self.arrays.changes
        record = np.zeros(1, abi.EVENT)
        record["ns"], record["host_id"], record["ev"], record["reason"] = self.now, host_id, ev, reason
        record["before"], record["after"] = evs["state"][host_id, ev], state
        for name, value in evidence.items():
            record[name] = value
        evs["state"][host_id, ev], evs["reason"][host_id, ev] = state, reason
        evs["state_since_ns"][host_id, ev] = self.now
        changes["count"][state, reason] += 1
        if self.full:
            changes["lost_events"][state, reason] += 1
        else:
            self._tell(record)

    def add_idle_timeout(self, host_id: int) -> None:
        """Reports an idle timeout of a flow to a peer."""
        record = np.zeros(1, abi.EVENT)
        record["host_id"], record["ev"] = host_id, abi.EVENT_IDLE_TIMEOUT
        self._tell(record)

    def _tell(self, record: NDArray[np.void]) -> None:
        self.ring.append(record)
        if self._events_fd >= 0:
            os.eventfd_write(self._events_fd, 1)

    def events(self) -> NDArray[np.void]:
        if self._events_fd >= 0:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._events_fd)
        found, self.ring = self.ring, []
        return np.concatenate(found) if found else np.zeros(0, abi.EVENT)

    def events_fd(self) -> int:
        return self._events_fd

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """A block in which events wake the event loop."""
        self._events_fd = os.eventfd(0, os.EFD_NONBLOCK)
        try:
            yield
        finally:
            os.close(self._events_fd)
            self._events_fd = -1


class Bench:
    """A monitor of h0, with all its EVs GOOD."""

    def __init__(self) -> None:
        self.arrays = Arrays(4, 8)
        self.plan = topology.plan(cluster_file.parse(TEXT), "h0")
        shown = cast(pinned.Tables, self.arrays)
        write_tables.write_peers(shown, self.plan, lambda row: None)
        self.arrays.evs["state"][self.arrays.evs["configured"] != 0] = EvState.GOOD
        self.arrays.node["plane_mask"] = 0b11
        self.arrays.peers["heard_ns"] = 1
        self.programs = Programs(self.arrays)
        self.changed: list[int] = []
        self.log = EventLog()
        self.monitor = self.another()
        self.look()
        self.changed.clear()

    def another(self) -> Monitor:
        """Returns another monitor over the same tables and programs."""
        shown, dataplane = cast(pinned.Tables, self.arrays), cast(Dataplane, self.programs)
        return Monitor(self.plan, shown, dataplane, self.log, self.changed.append)

    def look(self, ms: int = 100) -> None:
        """Advances the time, then runs the monitor once."""
        self.programs.now += ms * MS
        self.monitor.check(self.programs.now)

    def said(self, kind: str = "ev") -> list[dict[str, Any]]:
        return [e for e in asyncio.run(self.log.after(0, 0)) if e["kind"] == kind]
