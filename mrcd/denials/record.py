# SPDX-License-Identifier: BSD-2-Clause
"""Defines the record of a denial, and its forms: in the file over restarts, in etcd, and in the API's documents."""

import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mrcd import state_dir
from mrcd.denials.targets import Evs, Target, checked_reason, parse
from mrcd.errors import MachineError, UsageError

_FORMAT = 1  # version of the file; the documents of the API have SCHEMA_VERSION
_LAST = 1e11  # Unix time, s: the year 5138, which datetime can still format
_MOST_BYTES = 4 << 20


class Unreadable(MachineError):
    """The file exists, but its content is not what `write` makes."""


@dataclass(frozen=True)
class Denial:
    """A target that is denied. Times are Unix times in seconds; `until` is None for a denial without an end."""

    target: Target
    since: float
    until: float | None = None
    reason: str = ""
    uid: int | None = None  # the user who asked for it; None: unknown
    drain: bool = False  # made by `mrcctl drain`
    forced: bool = False
    host: str = ""  # on which a fleet-wide denial was asked for
    # This host's own end, by its own clock: while the denial leaves a peer no path. Saved, not compared:
    last_path_until: float | None = field(default=None, compare=False)
    # State of this host while the denial is in force; neither saved nor compared:
    end: float = field(default=math.inf, compare=False)  # seconds of the monotonic clock
    last_path_end: float = field(default=math.inf, compare=False)  # the same
    evs: Evs | None = field(default=None, compare=False)  # that the target covers now; None: not selected yet
    lost_before: int | None = field(default=None, compare=False)  # packets lost on these EVs when the denial began

    def left_s(self, now: float) -> float:
        """Return the seconds until the end; inf without one.

        If `now` is before `since`, the whole time is left: a machine's clock may be wrong shortly after a boot.
        """
        if self.until is None:
            return math.inf
        return max(0.0, min(self.until - now, self.until - self.since))


# ---- the file ----


def read(path: Path) -> list[Denial] | None:
    """Return the denials; None if there is no file. Raises Unreadable."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES} bytes")
        document = json.loads(content)
        if not isinstance(document, dict) or document.get("schema_version") != _FORMAT:
            raise ValueError(f"not a document of version {_FORMAT}")
        if not isinstance(document.get("denials"), list):
            raise ValueError("it has no list of denials")
        return [from_json(d) for d in document["denials"]]
    except FileNotFoundError:
        return None
    except OSError as e:
        raise Unreadable(f"{path}: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        raise Unreadable(f"{path}: {e}") from None


def write(path: Path, denials: list[Denial]) -> None:
    """Replace the file. Raises KernelError and then leaves the old file unchanged."""
    document = {"schema_version": _FORMAT, "denials": [as_json(d) for d in denials]}
    state_dir.replace(path, json.dumps(document, indent=1) + "\n")


# ---- as JSON ----


def as_json(d: Denial) -> dict[str, Any]:
    """Return a denial as the file keeps it."""
    plain = {"since": d.since, "until": d.until, "reason": d.reason, "uid": d.uid}
    some = {"host": d.host or None, "last_path_until": d.last_path_until}
    made = {"target": d.target.words, "drain": d.drain, "forced": d.forced} | plain
    return made | {name: value for name, value in some.items() if value is not None}


def from_json(document: Any) -> Denial:
    """Return the denial of a document made by `as_json`. Raises ValueError for any other document."""
    if not isinstance(document, dict):
        raise ValueError("a denial is not an object")
    try:
        words, since, until = document["target"], document["since"], document["until"]
        uid, reason, host = document["uid"], document["reason"], document.get("host", "")
        own_end = document.get("last_path_until")
        kinds: list[tuple[object, tuple[type, ...]]] = [
            (since, (int, float)), (until, (int, float, type(None))), (uid, (int, type(None))), (reason, (str,)),
            (document["drain"], (bool,)), (document["forced"], (bool,)), (words, (list,)), (host, (str,)),
            (own_end, (int, float, type(None))),
        ]  # fmt: skip
        if not all(type(value) in types for value, types in kinds) or not all(type(w) is str for w in words):
            raise ValueError("a denial has a field of the wrong type")
        if not all(0 <= t < _LAST for t in (since, until or 0, own_end or 0)):
            raise ValueError("a denial has a time out of range")
        target = parse(words)
        drain, forced = document["drain"], document["forced"]
        return Denial(target, since, until, checked_reason(reason), uid, drain, forced, checked_reason(host), own_end)
    except KeyError as e:
        raise ValueError(f"a denial lacks the field {e}") from None
    except UsageError as e:
        raise ValueError(e.args[0]) from None


def brief(d: Denial, left_s: float) -> dict[str, Any]:
    """Return a denial as the API shows it. Times are UTC."""
    until = min((t for t in (d.until, d.last_path_until) if t is not None), default=None)
    return {
        "target": str(d.target),
        "action": "drain" if d.drain else "deny",
        "reason": d.reason,
        "uid": d.uid,
        "since": _iso(d.since),
        "until": None if until is None else _iso(until),
        "remaining_s": None if math.isinf(left_s) else round(max(0.0, left_s), 3),
        "forced": d.forced,
        "host": d.host or None,
    }


def _iso(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds")
