# SPDX-License-Identifier: BSD-2-Clause
"""Keeps events in a file with one JSON object per line, so that they survive restarts, upgrades and reboots.

The file takes four megabytes; then it becomes FILE.1, and the FILE.1 before it is deleted. A line that a crash or a
full disk has cut, or that another version has written, is skipped. Lines are written, not synchronised: a crash of the
host may lose the last seconds.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

log = logging.getLogger("mrcd.health.event_file")

FILE = "events.jsonl"
MOST = 10_000  # events that a daemon keeps
MOST_BYTES = 4 << 20
_RETRY_S = 10.0
_KINDS: dict[str, tuple[type, ...]] = {
    "id": (int,), "time": (str,), "monotonic_ns": (int,), "kind": (str,), "peer": (str, type(None)),
    "ev": (int, type(None)), "plane": (int, type(None)), "t1": (int, type(None)), "from": (str, type(None)),
    "to": (str, type(None)), "reason": (str,), "evidence": (dict,),
}  # fmt: skip

Event = dict[str, Any]


class EventFile:
    """The file of one daemon. An event that cannot be written is only missing in the file."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._boot_id = _boot_id()
        self._descriptor = -1
        self._retry_s = 0.0  # seconds of `clock`
        self._has_failed = False

    def append(self, event: Event) -> None:
        """Write an event. After a failure the next try is in ten seconds; the log says that events are not kept."""
        if self._clock() < self._retry_s:
            return
        line = json.dumps(event | {"boot_id": self._boot_id}, ensure_ascii=False) + "\n"
        try:
            self._write(line.encode())
        except OSError as e:
            self.close()
            self._retry_s = self._clock() + _RETRY_S
            if not self._has_failed:
                log.error("%s: %s: a restart of mrcd will lose the events from here on", self.path, e.strerror)
            self._has_failed = True
        else:
            if self._has_failed:
                log.info("%s: events are kept again", self.path)
            self._has_failed = False

    def close(self) -> None:
        """Close the file; the next event opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, line: bytes) -> None:
        if self._descriptor >= 0:
            status = os.fstat(self._descriptor)
            if status.st_size + len(line) > MOST_BYTES:
                self.path.rename(_older(self.path))
            if status.st_size + len(line) > MOST_BYTES or not status.st_nlink:  # someone has deleted it
                self.close()
        if self._descriptor < 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o640)
            size = os.fstat(self._descriptor).st_size
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":  # the last line has been cut
                line = b"\n" + line
        if os.write(self._descriptor, line) < len(line):
            raise OSError(0, "no space for a whole line")


def read(path: Path, most: int) -> list[Event]:
    """Return the newest `most` events, oldest first, with rising ids. Raises OSError unless there is no file.

    `monotonic_ns` is 0 for an event before the last boot: the clock began anew.
    """
    boot_id, found = _boot_id(), list[Event]()
    for line in _lines_backwards(path):
        event = _parsed(line, boot_id)
        if event is None:
            continue
        if found:  # ids begin anew if an earlier daemon could not read the file
            event["id"] = min(event["id"], found[-1]["id"] - 1)
        if event["id"] < 1 or len(found) == most:
            break
        found.append(event)
    return found[::-1]


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield the lines of the file and of the older one, the last first. Opens no link and no pipe."""
    for part in (path, _older(path)):
        try:
            descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        with os.fdopen(descriptor, "rb") as file:
            yield from reversed(file.read(2 * MOST_BYTES).splitlines())


def _parsed(line: bytes, boot_id: str) -> Event | None:
    """Return the event of a line, with today's keys; None if it has none."""
    try:
        document = json.loads(line)
        if not isinstance(document, dict):
            return None
        event = {key: document.get(key) for key in _KINDS}
        if any(type(event[key]) not in kinds for key, kinds in _KINDS.items()):
            return None
        datetime.fromisoformat(str(event["time"]))
    except (ValueError, RecursionError):
        return None
    if document.get("boot_id") != boot_id:
        event["monotonic_ns"] = 0
    return event


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
