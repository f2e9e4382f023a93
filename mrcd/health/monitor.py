"""Runs the tick, logs what the programs tell, and judges grey loss.

The programs have every deadline (bpf/tick.h), and change every state themselves. This may stand still for a second:
while it does, the timer packet runs the tick (bpf/timer_packet.h).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import numpy as np

from mrcd.errors import MrcdError
from mrcd.fabric.topology import Plan
from mrcd.health import grey_loss
from mrcd.health.event_reader import Listener
from mrcd.health.events import EventLog
from mrcd.health.peers import PeerWatch
from mrcd.health.state_changes import StateChanges
from mrcd.loader.dataplane import Dataplane
from mrcd.tables.histograms import Durations
from mrcd.tables.pinned import Tables

log = logging.getLogger("mrcd.health.monitor")

_LOOK_NS = 50_000_000  # between two slices of the grey-loss test
_PEERS_NS = 100_000_000  # between two looks at what peers say of themselves: their routes follow it
_LOST_NS = 1_000_000_000  # between two looks for lost events
_LEAST_S = 0.001
_URGENT_S = 0.005  # a tick that is to come sooner does not wait for the looks, for so long:
_PATIENCE_NS = 500_000_000
_EVENTS_AT_ONCE = 8  # less than a millisecond


class Monitor:
    """Watches this host's EVs. `changed` is called with a row whose routes may be others now."""

    def __init__(
        self, plan: Plan, tables: Tables, dataplane: Dataplane, events: EventLog, changed: Callable[[int], None]
    ) -> None:
        self._tables, self._dataplane = tables, dataplane
        peers = {p.host.id: p for p in plan.peers}
        self._rows = np.array(sorted(peers), np.int64)
        self._listener = Listener(plan.config.health, peers, tables, dataplane, events)
        self.peerwatch = PeerWatch(plan, tables, events, changed)
        self.changes = StateChanges(tables, dataplane, self._listener, self.peerwatch.names, changed)
        self._grey = grey_loss.Watch(plan.config.health, tables, self._rows)
        self._looked_ns = self._peers_ns = self._lost_ns = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: asyncio.TimerHandle | None = None
        self.ticks = Durations()
        self._hears_again = False
        self._is_hurried = False  # the next tick is the event loop's next call
        self._said = ""  # the error of the last tick

    async def run(self) -> None:
        """Work until cancelled, or until something unforeseen is raised."""
        self._loop = loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._dataplane.events_fd(), self._hear)
        self._next = loop.call_soon(self._work)  # type: ignore[assignment]
        try:
            await self._failed
        finally:
            self._loop = None
            loop.remove_reader(self._dataplane.events_fd())
            if self._next:
                self._next.cancel()

    def _work(self) -> None:
        """Run the tick, look at what is to be looked at, and come back when the programs want the next tick."""
        assert self._loop
        self._is_hurried = False
        wait_s, begun, said = _LOOK_NS / 1e9, time.perf_counter(), ""
        try:
            try:
                wait_s = self._dataplane.tick()
            except MrcdError as e:
                said = str(e)
            try:
                now = time.monotonic_ns()
                if wait_s >= _URGENT_S or now - self._looked_ns >= _PATIENCE_NS:
                    self.look(now)
            except MrcdError as e:
                said = str(e)
        except Exception as e:
            self._failed.set_exception(e)
            return
        if said and said != self._said:  # what fails may fail in each tick
            log.error("%s; watching goes on", said)
        self._said = said
        self.ticks.add(time.perf_counter() - begun)
        self._next = self._loop.call_later(max(wait_s, _LEAST_S), self._work)

    def _work_now(self) -> None:
        if self._loop and self._next and not self._is_hurried:  # else each event would put it behind the next event
            self._is_hurried = True
            self._next.cancel()
            self._next = self._loop.call_later(0, self._work)

    def listen(self) -> None:
        """Log all that the programs tell; where the tick has work, run it at once."""
        if self._listener.drain():
            self._work_now()

    def _hear(self) -> None:
        """The same, some events at a time: thousands of paths may fail at once, and the tick must not wait for that."""
        if self._listener.drain(_EVENTS_AT_ONCE):
            self._work_now()
        if self._loop and self._listener.is_behind and not self._hears_again:
            self._hears_again = True
            self._loop.call_soon(self._hear_again)

    def _hear_again(self) -> None:
        self._hears_again = False
        self._hear()

    def look(self, now: int) -> None:
        """Look at what is due of losses, peers and lost events; `now` is CLOCK_MONOTONIC in ns. Raises KernelError."""
        if now - self._looked_ns >= _LOOK_NS:
            self._looked_ns = now
            for alarm in self._grey.look(now):
                self.changes.accuse(alarm)
        if now - self._peers_ns >= _PEERS_NS:
            self._peers_ns = now
            self.peerwatch.look(self._rows, now)
        if now - self._lost_ns >= _LOST_NS:
            self._lost_ns = now
            self._listener.find_lost()

    def announce(self) -> None:
        """Have all peers probed soon: probes carry this host's port status."""
        self._tables.watches["announce"][self._rows] = 1
        self._tables.watches["due_ns"][self._rows] = 0
        self._work_now()

    def follow(self, before: "Monitor", replaced_hosts: AbstractSet[int]) -> None:
        """Know of the peers what an earlier plan's monitor knew, but for hosts that are new."""
        self.peerwatch.follow(before.peerwatch, replaced_hosts)
