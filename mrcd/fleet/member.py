# SPDX-License-Identifier: BSD-2-Clause
"""Makes a host a member of its fleet: follows etcd, applies what it wants, and reports.

A change passes these modules, in this order:

1. `mrcctl fleet` asks its daemon (`api/fleet.py`); `requests.py` writes a key.
2. Every host's watch here sees it, and keys.py reads it.
3. A cluster file goes to `daemon/reload.py` by source.py; denials go to `denials/deny_and_allow.py`. Both are
   kept on disk.
4. report.py makes the host's report, which is written with a lease. Where the host or its etcd is away, it vanishes.

While etcd is away nothing changes, but that a trial ends.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from mrcd.config.sections import Fleet
from mrcd.denials.deny_and_allow import DenialControl
from mrcd.denials.record import Denial
from mrcd.denials.table import FLEET
from mrcd.errors import MrcdError, TakesRestart, UsageError
from mrcd.fleet import report
from mrcd.fleet.etcd import Etcd, EtcdAway, Value
from mrcd.fleet.keys import FleetFile, Keys, Wanted, report_value
from mrcd.fleet.source import FileSource
from mrcd.health.events import EventLog
from mrcd.timed_wait import is_set_within

log = logging.getLogger("mrcd.fleet.member")

LEASE_S = 15
NOTICED_S = 22.0  # so long after a host has died its report is gone: the lease, a renewal before it, a look at reports
_KEEP_S = 4.0  # between two renewals of the lease, and thus two checks that the endpoint works
_REPORT_S = (0.2, 3.0)  # between two looks at what is in flight, while a denial is not empty; doubled up to the second
RETRY_S = 30.0  # between two looks at what was refused (peers may have more usable EVs now), and not kept
_APPLY_RETRY_S = 1.0
_BACKOFF_S = (0.5, 5.0)  # after a failure; doubled up to the second
_SPREAD_S = 0.5
_UNKNOWN = "not connected yet"


class FleetMember:
    """One host's part in the fleet. `run` follows etcd, if [fleet] names any."""

    def __init__(
        self,
        host: Callable[[], str],
        source: FileSource,
        adopt: Callable[[], Awaitable[Any]],
        denials: DenialControl,
        events: EventLog,
        reached: Callable[[], Mapping[str, bool]],
    ) -> None:
        """`adopt` loads the newest file of `source`, and raises MrcdError if this host refuses it.

        `reached` tells for each peer of the running configuration whether this host reaches it.
        """
        self.source = source
        self.away: str | None = _UNKNOWN  # why; None while etcd answers
        self._host, self._adopt, self._denials, self._events = host, adopt, denials, events
        self._reached = reached
        self._reached_before: tuple[FleetFile | None, Mapping[str, bool]] = None, {}  # before a file was adopted: which
        self._etcd: Etcd | None = None
        self._wanted: Wanted | None = None  # None: unknown
        self._refused: dict[Denial, str] = {}
        self._revision = source.wanted.generation if source.wanted else 0  # etcd's newest that this host has seen
        self._changed = asyncio.Event()  # what etcd wants
        self._applied = asyncio.Event()

    async def run(self) -> None:
        """Follow etcd and apply what it wants, forever. A lost connection interrupts no change on its way."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._apply_changes())
            group.create_task(self._use_fleet_wide())

    def brief(self) -> dict[str, Any]:
        """Return the member's part of GET /v1/status."""
        source = self.source
        return {
            "etcd": list(source.fleet.etcd),
            "connected": self._etcd.endpoint if self._etcd and self.away is None else None,
            "away": self.away if source.fleet.etcd else None,
        } | report.file_part(source)

    def connected(self) -> tuple[Etcd, Keys]:
        """Return the client and the keys, for requests. Raises UsageError without [fleet] etcd, else EtcdAway."""
        fleet = self.source.fleet
        if not fleet.etcd:
            raise UsageError("this host is in no fleet", hint="name etcd's endpoints in [fleet] etcd, and reload")
        if self._etcd is None or self.away not in (None, _UNKNOWN):  # also while it tries to connect again
            raise EtcdAway(f"etcd is away: {self.away}", hint="nothing changes until it is back; see mrcd's log")
        return self._etcd, Keys(fleet.prefix)

    # ---- etcd ----

    async def _use_fleet_wide(self) -> None:
        """Follow etcd by [fleet] of the running configuration, and by another one as soon as that runs."""
        while True:
            fleet = self.source.fleet
            work = self._keep_connected(Keys(fleet.prefix)) if fleet.etcd else self._leave()
            await _first(work, self._until_other(fleet))

    async def _until_other(self, fleet: Fleet) -> None:
        while self.source.fleet == fleet:
            self.source.changed.clear()
            await self.source.changed.wait()
            self._applied.set()  # `mrcctl reload` may have changed what the report says

    async def _leave(self) -> None:
        """Want nothing of a host that is in no fleet."""
        self.away, self._wanted, self._revision = None, Wanted(), 0
        self._changed.set()
        await asyncio.Event().wait()

    async def _keep_connected(self, keys: Keys) -> None:
        self.away, wait_s = _UNKNOWN, _BACKOFF_S[0]
        while True:
            try:
                async with Etcd(self.source.fleet) as self._etcd:
                    self._etcd.ahead_s = self._denials.table.ahead_s
                    while True:
                        await self._serve_endpoint(self._etcd, keys)
                        wait_s = _BACKOFF_S[0]  # it has worked
            except MrcdError as e:
                self._note_away(str(e.args[0]))
            except Exception as e:  # an answer that is not etcd's; an error here must not end the watch of paths
                log.exception("etcd")
                self._note_away(f"unexpected {type(e).__name__}: {e}")
            finally:
                self._etcd = None
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, _BACKOFF_S[1])

    async def _serve_endpoint(self, etcd: Etcd, keys: Keys) -> None:
        """Watch and report at one endpoint until it fails. Raises MrcdError if no other one answers."""
        snapshot = await etcd.read(keys.want)
        values, endpoint = dict(snapshot.values), etcd.endpoint
        self.take(snapshot.cluster, snapshot.revision, keys.wanted(values))
        self._note_connected(endpoint)
        lease = _Lease(etcd, keys.host(self._host()))
        try:
            await _first(
                self._watch(etcd, keys, snapshot.cluster, values, snapshot.revision + 1),
                self._report(lease),
                lease.renew(endpoint),
            )
        except EtcdAway as e:
            log.info("%s; asking the next endpoint", e.args[0])
            await asyncio.sleep(random.uniform(0, _SPREAD_S))  # all hosts lose a member at the same time

    async def _watch(self, etcd: Etcd, keys: Keys, cluster: str, values: dict[str, Value], revision: int) -> None:
        async for changes in etcd.watch(keys.want, revision):
            for change in changes:
                if change.value is None:
                    values.pop(change.key, None)
                else:
                    values[change.key] = change.value
                    revision = max(revision, change.value.revision)
            if changes:
                self.take(cluster, revision, keys.wanted(values))

    def take(self, cluster: str, revision: int, wanted: Wanted) -> None:
        """Have `wanted` applied, unless this is an etcd that knows nothing of this fleet."""
        known = self._wanted.unreadable if self._wanted else {}
        for key, why in wanted.unreadable.items():
            if key not in known:
                log.error("etcd: %s: %s; it is ignored", key, why)
        is_other = self.source.cluster not in ("", cluster)
        # An etcd that was made anew with the same names has the same id, and counts its revisions from 1.
        if (is_other or revision < self._revision) and not (wanted.file or wanted.trial or wanted.denials):
            log.error(
                "etcd: an empty cluster (%s, revision %d) after %s, revision %d: nothing changes",
                *(cluster, revision, self.source.cluster or "none", self._revision),
            )
            self._end_trial()
            return
        self._wanted, self._revision = wanted, revision
        self.source.note(cluster, wanted.file, wanted.trial_on(self._host()))
        self._changed.set()

    def _note_away(self, why: str) -> None:
        if self.away != why:
            log.error("etcd is away: %s; nothing changes until it is back", why)
        if self.away in (None, _UNKNOWN):
            self._events.add("fleet", reason="etcd_away", evidence={"error": why})
        self.away = why
        self._end_trial()  # it may be why etcd is away, whose word that it is over would not arrive

    def _end_trial(self) -> None:
        if self.source.trial is not None:
            self.source.trial = None
            self._changed.set()

    def _note_connected(self, endpoint: str) -> None:
        if self.away is not None:
            self._events.add("fleet", reason="etcd_connected", evidence={"endpoint": endpoint})
        self.away = None

    # ---- what etcd wants ----

    async def _apply_changes(self) -> None:
        wait_s = math.inf
        while True:
            await is_set_within(self._changed, wait_s)
            self._changed.clear()
            try:
                wait_s = await self.apply()
            except Exception:
                log.exception("what etcd wants")
                wait_s = RETRY_S
            self._applied.set()

    async def apply(self) -> float:
        """Apply what etcd wants. Return the seconds until that must be tried again."""
        if self._wanted is None:
            return math.inf
        if self.source.has_news:
            file = self.source.newest  # a newer one may come meanwhile, which is not refused
            goes_back, before = self.source.goes_back, self._reached()
            try:
                await self._adopt()
                self._reached_before = file, before
            except MrcdError as e:
                log.error("%s; the running configuration stays", e.args[0])
                if goes_back:  # that file did run: it must again
                    return RETRY_S
                self.source.refused(file, str(e.args[0]), takes_restart=isinstance(e, TakesRestart))
                if self.source.has_news:
                    self._changed.set()
            except Exception as e:
                self.source.refused(file, f"unexpected {type(e).__name__}: {e}")
                raise
        if self._etcd is not None:
            self._denials.table.ahead_s = self._etcd.ahead_s
        try:
            self._refused = await self._denials.use_fleet_wide(self._wanted.denials)
        except MrcdError as e:
            log.error("fleet-wide denials: %s; trying again", e.args[0])
            return _APPLY_RETRY_S
        self.source.keep()
        return RETRY_S  # for what was refused, and a file that could not be kept

    # ---- the report ----

    async def _report(self, lease: "_Lease") -> None:
        wait_s = _REPORT_S[0]
        while True:
            self._applied.clear()
            denials = await self._denials.fleet_traffic()
            is_pending = self._denials.is_pending
            lost = self.lost_peers()
            await lease.write(
                report.document(self._host(), self.source, denials, self._refused, lost, is_pending=is_pending)
            )
            looks_again = is_pending or self.source.trial or not all(d["empty"] for d in denials)
            next_s = min(wait_s if looks_again else math.inf, self._denials.table.next_end_s(FLEET))
            is_new = await is_set_within(self._applied, max(next_s, _REPORT_S[0]))
            wait_s = _REPORT_S[0] if is_new else min(2 * wait_s, _REPORT_S[1])

    def lost_peers(self) -> list[str]:
        """Return the peers that this host reached before it adopted the file on trial, and does not reach now."""
        file, before = self._reached_before
        running = self.source.running.file if self.source.running else None
        if file is None or not file == running == self.source.trial:
            return []
        now = self._reached()
        return [name for name, was_reached in before.items() if was_reached and now.get(name) is False]


class _Lease:
    """A host's report with its lease."""

    def __init__(self, etcd: Etcd, key: str) -> None:
        self._etcd, self._key = etcd, key
        self._id = 0
        self._written: dict[str, Any] = {}

    async def write(self, document: dict[str, Any]) -> None:
        """Write the report if it differs from the last."""
        if not self._id:
            self._id = await self._etcd.grant(LEASE_S)
        if document != self._written:
            await self._etcd.put(self._key, report_value(document), lease=self._id)
            self._written = document

    async def renew(self, endpoint: str) -> None:
        """Renew the lease, forever. Raises EtcdAway if it has expired, or if only another endpoint answers."""
        while True:
            await asyncio.sleep(_KEEP_S)
            if self._id and not await self._etcd.keep(self._id):
                raise EtcdAway("the lease has expired")
            if self._etcd.endpoint != endpoint:
                raise EtcdAway(f"{endpoint} does not answer")


async def _first(*work: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends; raise what it raised. The others are cancelled."""
    tasks = [asyncio.ensure_future(w) for w in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
