# SPDX-License-Identifier: BSD-2-Clause
"""Runs the tick, logs the programs' events, and tests for grey loss.

The programs serve every deadline (bpf/tick.h), and change every state themselves. This process may stop for a second:
meanwhile the timer packet runs the tick (bpf/timer_packet.h).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

import numpy as np

from mrcd.errors import MachineError, MrcdError
from mrcd.fabric.topology import Plan
from mrcd.health import grey_loss
from mrcd.health.event_reader import Listener
from mrcd.health.events import EventLog
from mrcd.health.peers import PeerWatch
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.histograms import Durations
from mrcd.kernel.pinned import Tables

log = logging.getLogger("mrcd.health.monitor")

_SLICE_NS = 50_000_000  # between two slices of the grey-loss test
_PEERS_NS = 100_000_000  # between two checks of the peers, on which their routes depend
_LOST_NS = 1_000_000_000  # between two checks for lost events, and two sums of events
MIN_WAIT_S = 0.001
_URGENT_S = 0.005  # a tick that is due sooner takes precedence over the checks,
_CALM_S = 0.02  # a tick that is due later: no traffic flows, and no EV is out of use (bpf/tick.h),
_CALM_NS = 500_000_000  # and checks of losses and peers are so far apart: what changes ends the calm
_MAX_DELAY_NS = 500_000_000  # but not for longer than this
_EVENTS_AT_ONCE = 8  # less than a millisecond
_TRIES = 16
_IN_USE = (EvState.GOOD, EvState.SKIP)
_ALLOWED = (EvState.UNKNOWN, *_IN_USE, EvState.ASSUMED_BAD)


class Monitor:
    """Watches this host's EVs, and changes their states for administrators and grey losses, through the programs.

    `changed` is called with a peer's row when its routes may have to change, and `use_keys` with each check: other
    keys may be accepted.
    """

    def __init__(
        self,
        plan: Plan,
        tables: Tables,
        dataplane: Dataplane,
        events: EventLog,
        changed: Callable[[int], None],
        use_keys: Callable[[], None] = lambda: None,
    ) -> None:
        self._tables, self._dataplane = tables, dataplane
        peers = {p.host.id: p for p in plan.peers}
        self._rows = np.array(sorted(peers), np.int64)
        self._listener = Listener(plan.config.health, peers, tables, dataplane, events)
        self.peerwatch = PeerWatch(plan, tables, events, changed)
        self._changed, self._use_keys = changed, use_keys
        self._grey = grey_loss.Watch(plan.config.health, tables, self._rows)
        self._checked_ns = dict.fromkeys((_SLICE_NS, _PEERS_NS, _LOST_NS), 0)  # interval → time of the last check
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: asyncio.TimerHandle | None = None
        self.ticks = Durations()
        self._has_next_read = False  # another call of _read_events is scheduled
        self._is_hurried = False  # the next tick is the event loop's next call
        self.is_calm = False
        """The next tick comes late, because nothing happens."""
        self._last_error = ""  # of the last tick

    async def run(self) -> None:
        """Runs until it is cancelled. Raises any exception other than MrcdError."""
        self._loop = loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._dataplane.events_fd(), self._read_events)
        self._next = loop.call_soon(self._work)  # type: ignore[assignment]
        try:
            await self._failed
        finally:
            self._loop = None
            loop.remove_reader(self._dataplane.events_fd())
            if self._next:
                self._next.cancel()

    def _work(self) -> None:
        """Runs the tick and the checks that are due, and schedules itself for the next tick."""
        assert self._loop
        self._is_hurried = False
        wait_s, begun, error = _SLICE_NS / 1e9, time.perf_counter(), ""
        try:
            try:
                wait_s = self._dataplane.tick()
            except MrcdError as e:
                error = str(e)
            try:
                now = time.monotonic_ns()
                if wait_s >= _URGENT_S or now - self._checked_ns[_SLICE_NS] >= _MAX_DELAY_NS:
                    self.check(now)
            except MrcdError as e:
                error = str(e)
        except Exception as e:
            self._failed.set_exception(e)
            return
        if error and error != self._last_error:  # the same error may occur in each tick
            log.error("%s; mrcd continues to watch paths", error)
        self._last_error = error
        self.ticks.add(time.perf_counter() - begun)
        self.is_calm = wait_s > _CALM_S or (self.is_calm and wait_s < _URGENT_S)  # a tick goes on where one has ended
        if not self._is_hurried:  # a check has asked for a tick at once
            self._next = self._loop.call_later(max(wait_s, MIN_WAIT_S), self._work)

    def _work_now(self) -> None:
        # A second call would put the tick behind the next event.
        if self._loop and self._next and not self._is_hurried:
            self._is_hurried = True
            self._next.cancel()
            self._next = self._loop.call_later(0, self._work)

    def read_events(self) -> None:
        """Reads all events of the programs, and logs those of few EVs. Runs the tick at once if it has work."""
        self._end_calm(self._listener.drain())

    def _end_calm(self, has_work: bool) -> None:
        if has_work or self.is_calm:
            self._work_now()
        self.is_calm = False

    def log_events(self) -> None:
        """The same, and logs the sums of the others."""
        self.read_events()
        self._log_sums()

    def _log_sums(self) -> None:
        self._listener.log_sums()
        self.peerwatch.log_sums()

    def _read_events(self) -> None:
        """Logs some events at a time: thousands of paths may fail at once, and the tick must not wait for them."""
        self._end_calm(self._listener.drain(_EVENTS_AT_ONCE))
        if self._loop and self._listener.is_behind and not self._has_next_read:
            self._has_next_read = True
            self._loop.call_soon(self._read_next_events)

    def _read_next_events(self) -> None:
        self._has_next_read = False
        self._read_events()

    def check(self, now: int) -> None:
        """Checks keys, and what is due of losses, peers and lost events. Raises KernelError.

        `now` is CLOCK_MONOTONIC in ns.
        """
        self._use_keys()  # in calm weather too: a secret takes the place of another that is retired
        if self._begin_if_due(_SLICE_NS, now):
            for a in self._grey.find_alarms(now):
                self._set_state(a.row, a.ev, _IN_USE, EvState.ASSUMED_BAD, Reason.GREY_LOSS, a.evidence)
        if self._begin_if_due(_PEERS_NS, now):
            self.peerwatch.check(self._rows, now)
        if self._begin_if_due(_LOST_NS, now):
            self._log_sums()
            self._listener.find_lost()

    def set_denied(self, row: int, ev: int, deny: bool, evidence: Mapping[str, object]) -> bool:
        """Denies an EV, or allows it: then it is probed before it carries traffic again. Raises MachineError.

        Returns False if the EV was in that state already. log_events() logs the event.
        """
        leave, after = (_ALLOWED, EvState.DENIED) if deny else ((EvState.DENIED,), EvState.UNKNOWN)
        for _ in range(_TRIES):  # a program may change the state at the same time
            if self._set_state(row, ev, leave, after, Reason.ADMIN, evidence):
                self._changed(row)
                return True
            if (self._tables.evs["state"][row, ev] == EvState.DENIED) == deny:
                return False
        name = self.peerwatch.names.get(row, f"host {row}")
        raise MachineError(f"{name} EV {ev}: the programs did not set the state {after.name}", hint="see mrcd's log")

    def _set_state(
        self,
        row: int,
        ev: int,
        leave: tuple[EvState, ...],
        after: EvState,
        reason: Reason,
        evidence: Mapping[str, object],
    ) -> bool:
        """Changes an EV's state if it is one of `leave`. Returns False if it is not: that state is newer."""
        if not self._dataplane.set_state(row, ev, after, reason, leave):
            return False
        self._listener.added_evidence[row, ev] = reason, evidence
        return True

    def _begin_if_due(self, interval_ns: int, now: int) -> bool:
        """Returns whether the check of an interval is due; if it is, records its time."""
        apart_ns = max(interval_ns, _CALM_NS) if self.is_calm else interval_ns
        is_due = now - self._checked_ns[interval_ns] >= apart_ns
        if is_due:
            self._checked_ns[interval_ns] = now
        return is_due

    def announce(self) -> None:
        """Makes the programs probe all peers soon, because probes carry this host's port status."""
        self._tables.watches["announce"][self._rows] = 1
        self._tables.watches["due_ns"][self._rows] = 0
        self._work_now()

    def take_over(self, before: "Monitor", replaced_hosts: AbstractSet[int]) -> None:
        """Takes over what the monitor of an earlier plan knew of the peers, except of `replaced_hosts`."""
        self.peerwatch.take_over(before.peerwatch, replaced_hosts)
