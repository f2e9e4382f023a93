"""What happened and why: a bounded log that mrcctl can read and follow."""

import asyncio
import logging
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any

log = logging.getLogger("mrcd.events")

KEPT = 10_000


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
    ) -> None:
        """Record an event and log it as one line."""
        self._last_id += 1
        event = {
            "id": self._last_id,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "monotonic_ns": time.monotonic_ns(),
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
        log.info("%s", sentence(event))
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
