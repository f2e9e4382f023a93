# SPDX-License-Identifier: BSD-2-Clause
"""Keeps a bounded log of events with their reasons, which mrcctl can read and follow."""

import asyncio
import itertools
import logging
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np

from mrcd.fabric.topology import EV
from mrcd.file_thread import Put, put_now
from mrcd.health import event_file
from mrcd.health.event_file import EventFile
from mrcd.kernel.enums import EvState, Reason
from mrcd.timed_wait import is_set_within

log = logging.getLogger("mrcd.health.events")

KEPT = event_file.MOST
ICMP_ERRORS = {1: "destination unreachable", 2: "packet too big for a link of the path", 3: "hop limit exceeded"}
"""Texts of the ICMPv6 error types (RFC 4443 §3)."""


class EventLog:
    """The newest events, numbered from 1; older ones are dropped.

    With a `file` the events of earlier daemons come first, and their numbers go on. Events of EVs that a start has
    probed are not in the file: there may be a million, and they tell nothing. `put` has a line written.
    """

    def __init__(self, file: EventFile | None = None, put: Put = put_now) -> None:
        self._file, self._put = file, put
        self._unwritten = 0
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._new = asyncio.Event()
        if file is not None:
            try:
                self._events.extend(event_file.read(file.path, KEPT))
            except OSError as e:
                log.error("%s: %s: earlier events are not shown", file.path, e.strerror)
        self._last_id: int = self._events[-1]["id"] if self._events else 0

    def add(
        self,
        kind: str,
        *,
        reason: str,
        before: str | None = None,
        after: str | None = None,
        peer: str | None = None,
        ev: int | None = None,
        plane: int | None = None,
        t1: int | None = None,
        evidence: dict[str, Any] | None = None,
        monotonic_ns: int | None = None,
    ) -> None:
        """Records an event, and logs it as one line. `monotonic_ns`: its time, if it is not now."""
        self._last_id += 1
        now_ns = time.monotonic_ns()
        event = {
            "id": self._last_id,
            "time": utc(now_ns if monotonic_ns is None else monotonic_ns),
            "monotonic_ns": now_ns if monotonic_ns is None else monotonic_ns,
            "kind": kind,
            "peer": peer,
            "ev": ev,
            "plane": plane,
            "t1": t1,
            "from": before,
            "to": after,
            "reason": reason,
            "evidence": evidence or {},
        }
        self._events.append(event)
        is_start = reason == Reason.PROBED.text
        if self._file is not None and not is_start:
            self._write(event)
        level = logging.DEBUG if is_start else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "%s", log_line(event))
        self._new.set()
        self._new = asyncio.Event()

    def _write(self, event: dict[str, Any]) -> None:
        assert self._file is not None
        if not self._put(partial(self._file.append, event)):
            self._unwritten += 1
        elif self._unwritten:
            log.error("%s: the disk did not answer: %d events are missing there", self._file.path, self._unwritten)
            self._unwritten = 0

    @property
    def last(self) -> dict[str, Any] | None:
        """Returns the newest event."""
        return self._events[-1] if self._events else None

    @property
    def last_id(self) -> int:
        """Returns the number of the newest event; 0 if there was none."""
        return self._last_id

    def newest(self, most: int) -> list[dict[str, Any]]:
        """Returns the newest `most` events, the newest first."""
        return list(itertools.islice(reversed(self._events), most))

    async def after(self, last_id: int, wait_s: float) -> list[dict[str, Any]]:
        """Returns the events newer than `last_id`; waits up to `wait_s` seconds for one if there is none.

        A number above `last_id` of this log comes from an earlier daemon: then all events are new.
        """
        if last_id > self._last_id:
            last_id = 0
        new = self._new
        if last_id == self._last_id and wait_s > 0 and not await is_set_within(new, wait_s):
            return []
        return [e for e in self._events if e["id"] > last_id]


class Budget:
    """The events of one source that are added one by one: so many at once, and then one in each interval.

    A switch that thousands of peers share is one cause: what is above is summed by its source.
    """

    AT_ONCE, EACH_NS = 256, 10_000_000

    def __init__(self) -> None:
        self._left, self._filled_ns = float(self.AT_ONCE), 0

    def take(self, now_ns: int) -> bool:
        """Returns whether an event of this time may be added; if so, charges it."""
        self._left = min(self.AT_ONCE, self._left + max(0, now_ns - self._filled_ns) / self.EACH_NS)
        self._filled_ns = max(now_ns, self._filled_ns)
        if self._left < 1:
            return False
        self._left -= 1
        return True


def utc(monotonic_ns: int) -> str:
    """Returns a time of CLOCK_MONOTONIC as ISO 8601 in UTC."""
    ago = timedelta(microseconds=(time.monotonic_ns() - monotonic_ns) // 1000)
    return (datetime.now(UTC) - ago).isoformat(timespec="milliseconds")


def of_record(record: np.void, ev: EV) -> dict[str, Any]:
    """Returns a struct mrc_event about `ev` as an event that has no number yet."""
    return {
        "id": None,
        "time": utc(int(record["ns"])),
        "monotonic_ns": int(record["ns"]),
        "kind": "ev",
        "peer": ev.peer,
        "ev": ev.ev,
        "plane": ev.plane,
        "t1": ev.t1,
        "from": EvState(int(record["before"])).name,
        "to": EvState(int(record["after"])).name,
        "reason": Reason(int(record["reason"])).text,
        "evidence": evidence(record),
    }


def evidence(record: np.void) -> dict[str, int | float | str]:
    """Returns the evidence for the reason of a struct mrc_event. The names end with their units."""
    found: dict[str, int | float | str] = {}
    reason = Reason(int(record["reason"]))
    if reason is Reason.OVERDUE:
        found = {"silent_reports": int(record["reports"])}
    elif reason is Reason.LOSS:
        found = {"lost_packets": int(record["lost_packets"]), "sent_packets": int(record["sent_packets"])}
    elif reason is Reason.HEALED:
        found = {"good_probes": int(record["reports"])}
    elif reason is Reason.ICMP_ERROR:
        kind = int(record["icmp_type"])
        found = {"icmp": ICMP_ERRORS.get(kind, "unknown"), "icmp_type": kind, "icmp_code": int(record["icmp_code"])}
    if reason in (Reason.OVERDUE, Reason.ICMP_ERROR) and record["silent_ns"]:
        found["silent_ms"] = round(int(record["silent_ns"]) / 1e6, 3)
    return found


def log_line(event: dict[str, Any]) -> str:
    """Returns an event as one line: object, state change, reason, evidence."""
    subject = [f"plane {event['plane']}" if event["kind"] == "plane" else event["kind"]]
    if event["peer"] is not None:
        subject.append(f"{event['peer']}" + (f"/{event['ev']}" if event["ev"] is not None else ""))
    if event["plane"] is not None and event["kind"] != "plane":
        subject.append(f"plane {event['plane']}")
    if event["t1"] is not None:
        subject.append(f"T1 {event['t1']}")
    change = " → ".join(x for x in (event["from"], event["to"]) if x)
    evidence = ", ".join(f"{k} {v}" for k, v in event["evidence"].items())
    reason = f"{event['reason']} ({evidence})" if evidence else event["reason"]
    return f"{' '.join(subject)}: {change + ': ' if change else ''}{reason}"
