"""What happened and why: a bounded log that mrcctl can read and follow."""

import asyncio
import logging
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from mrcd.fabric.topology import EV
from mrcd.tables.abi import EvState, Reason

log = logging.getLogger("mrcd.health.events")

KEPT = 10_000
ICMP_ERRORS = {1: "destination unreachable", 2: "packet too big for a link of the path", 3: "hop limit exceeded"}
"""Types of ICMPv6 errors (RFC 4443 §3)."""


class EventLog:
    """The newest events, numbered from 1; older ones are forgotten."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._new = asyncio.Event()
        self._last_id = 0

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
        """Record an event and log it as one line. `monotonic_ns`: when it was, if not now."""
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
        level = logging.DEBUG if reason == Reason.PROBED.text else logging.INFO  # a million, where peers are many
        if log.isEnabledFor(level):
            log.log(level, "%s", sentence(event))
        self._new.set()
        self._new = asyncio.Event()

    @property
    def last(self) -> dict[str, Any] | None:
        """The newest event."""
        return self._events[-1] if self._events else None

    @property
    def last_id(self) -> int:
        """The number of the newest event; 0 if there was none."""
        return self._last_id

    async def after(self, last_id: int, wait_s: float) -> list[dict[str, Any]]:
        """Events newer than `last_id`, waiting for one if there is none. Numbers of another daemon's
        life are beyond ours: then everything is new."""
        if last_id > self._last_id:
            last_id = 0
        new = self._new
        if last_id == self._last_id and wait_s > 0:
            try:
                await asyncio.wait_for(new.wait(), wait_s)
            except TimeoutError:
                return []
        return [e for e in self._events if e["id"] > last_id]


def utc(monotonic_ns: int) -> str:
    """A moment of CLOCK_MONOTONIC as ISO 8601, in UTC."""
    ago = timedelta(microseconds=(time.monotonic_ns() - monotonic_ns) // 1000)
    return (datetime.now(UTC) - ago).isoformat(timespec="milliseconds")


def of_record(record: np.void, ev: EV) -> dict[str, Any]:
    """A struct mrc_event about `ev` as an event of the log, which has given it no number yet."""
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
    """What a struct mrc_event says for its reason, in the units that the names end with."""
    found: dict[str, int | float | str] = {}
    reason = Reason(int(record["reason"]))
    if reason is Reason.OVERDUE:
        found = {"silent_reports": int(record["lost_bursts"])}
    elif reason is Reason.LOSS:
        found = {"lost_packets": int(record["lost_packets"]), "sent_packets": int(record["sent_packets"])}
    elif reason is Reason.HEALED:
        found = {"good_probes": int(record["lost_bursts"])}
    elif reason is Reason.ICMP_ERROR:
        kind = int(record["icmp_type"])
        found = {"icmp": ICMP_ERRORS.get(kind, "unknown"), "icmp_type": kind, "icmp_code": int(record["icmp_code"])}
    if reason in (Reason.OVERDUE, Reason.ICMP_ERROR) and record["silent_ns"]:
        found["silent_ms"] = round(int(record["silent_ns"]) / 1e6, 3)
    return found


def sentence(event: dict[str, Any]) -> str:
    """One line of log: who, from what to what, why, by which evidence."""
    who = [f"plane {event['plane']}" if event["kind"] == "plane" else event["kind"]]
    if event["peer"] is not None:
        who.append(f"{event['peer']}" + (f"/{event['ev']}" if event["ev"] is not None else ""))
    if event["plane"] is not None and event["kind"] != "plane":
        who.append(f"plane {event['plane']}")
    if event["t1"] is not None:
        who.append(f"T1 {event['t1']}")
    change = " → ".join(x for x in (event["from"], event["to"]) if x)
    evidence = ", ".join(f"{k} {v}" for k, v in event["evidence"].items())
    return f"{' '.join(who)}: {change + ': ' if change else ''}{event['reason']}{f' ({evidence})' if evidence else ''}"
