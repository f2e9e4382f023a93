# SPDX-License-Identifier: BSD-2-Clause
"""Diagnoses again and again, and logs each cause when it appears and when it has ended."""

import time
from typing import Any

import numpy as np

from mrcd.fabric.topology import Plan
from mrcd.health.diagnosis.causes import Cause, Kind
from mrcd.health.diagnosis.facts import Facts, Verdict
from mrcd.health.diagnosis.memory import Memory
from mrcd.health.diagnosis.rules import UNANSWERED, diagnose
from mrcd.health.events import EventLog
from mrcd.health.snapshot import Snapshot
from mrcd.kernel.pinned import Tables
from mrcd.net.link_state import received_packets, unroutable_packets

INTERVAL_S = 1.0
_CONFIRMED = 2  # diagnoses in a row: EVs fail, and return, one after the other
_AFTER = 10  # intervals, after which it diagnoses again though nothing seems to have changed

_PLANE_AT = {"nic": -1, "t0": 0, "t1": 0, "link": 0, "plane": 0}  # the word of a target that is its plane

Key = tuple[str, str]  # kind, target


class CauseWatch:
    """Keeps the causes that two diagnoses in a row have found.

    `diagnose` may run in a thread; `note` adds events, and runs in the event loop.
    """

    def __init__(self, events: EventLog) -> None:
        self.causes: list[Cause] = []
        """The most urgent first."""
        self.memory = Memory()
        self._events = events
        # Diagnoses in a row that found a cause; below 0: that did not find it any more.
        self._rounds: dict[Key, int] = {}
        self._seen: tuple[Any, ...] = ()
        self._found: list[Cause] = []
        self._unread = 0  # calls since the EVs, or a sample of their delays, were read
        self._is_well = False  # all EVs were good when they were read, and no cause was found

    def diagnose(self, tables: Tables, plan: Plan) -> list[Cause]:
        """Returns the causes of this moment.

        Reads EVs when a state has changed, and in every tenth call: then only delays of a sample, if all EVs were good.
        """
        arrivals = {plane: unroutable_packets(name) for plane, name in enumerate(plan.interfaces)}
        received = received_packets(plan.config.overlay.interface)
        self.memory.note_counters(time.monotonic_ns(), tables.drops(), arrivals, received)
        known = self.memory.sizes, *self.memory.refused, *self.memory.unroutable, *self.memory.ways.items()
        seen = (known, *_marks(Snapshot(tables, plan)))  # before the facts: what changes in between is read again
        self._unread += 1
        if seen == self._seen and self._unread < _AFTER:
            return self._found
        self._unread = 0
        facts = Facts(tables, plan, self.memory)
        if seen == self._seen and self._is_well:
            good = np.broadcast_to(np.uint8(Verdict.GOOD), (len(facts.rows), facts.used.stop))
            if not facts.has_slow(good):
                return self._found
        self._seen, self._found = seen, diagnose(facts)
        if facts.is_awaiting:
            self._unread = _AFTER
        self._is_well = not (self._found or facts.has_new or (facts.verdicts > Verdict.GOOD).any())
        return self._found

    def note(self, found: list[Cause]) -> None:
        """Takes a diagnosis, and logs the causes that it confirms and those that have ended."""
        by_key = {(c.kind.value, c.target): c for c in found}
        known = {(c.kind.value, c.target): c for c in self.causes}
        rounds = {key: max(0, self._rounds.get(key, 0)) + 1 for key in by_key}
        rounds |= {key: min(0, self._rounds.get(key, 0)) - 1 for key in known.keys() - by_key.keys()}
        self._rounds = rounds
        is_kept = {key: n >= (1 if key in known else _CONFIRMED) or -_CONFIRMED < n < 0 for key, n in rounds.items()}
        for key in by_key.keys() - known.keys():
            if is_kept[key]:
                self._log(by_key[key], "present")
        for key in known.keys() - by_key.keys():
            if not is_kept[key]:
                self._log(known[key], "gone")
        current = {**by_key, **{key: c for key, c in known.items() if key not in by_key}}
        self.causes = [c for key, c in current.items() if is_kept[key]]

    def _log(self, cause: Cause, after: str) -> None:
        share = cause.share
        evidence = {
            "target": cause.target,
            "evs": f"{share.evs}/{share.of_evs}",
            "peers": f"{share.peers}/{share.of_peers}",
        }
        if cause.or_targets:
            evidence["or"] = " or ".join(cause.or_targets)
        peer, plane = _place(cause)
        self._events.add("fault", reason=cause.kind.value, after=after, peer=peer, plane=plane, evidence=evidence)


def _place(cause: Cause) -> tuple[str | None, int | None]:
    """Returns the peer and the plane that a cause names."""
    peer, plane = None, None
    for target in cause.target.split():
        kind, *words = target.split(":")
        if kind == "peer" or cause.kind is Kind.PEER_NIC:
            peer = words[0]
        if kind in _PLANE_AT:
            plane = int(words[_PLANE_AT[kind]])
    return peer, plane


def _marks(s: Snapshot) -> tuple[Any, ...]:
    """Returns what changes with every fact of a diagnosis, except for delays, the age of new EVs, and EVs left as
    slow.

    The epoch changes with each plan that is put in force.
    """
    tables = s.tables
    peers = (s.peers[name].tobytes() for name in ("plane_mask", "status", "fingerprint", "slow_planes"))
    node = (int(tables.node[name]) for name in ("epoch", "plane_mask", "status"))
    links = (tables.links["unanswered"] >= UNANSWERED).tobytes()
    return int(tables.transitions()["count"].sum()), *node, *peers, tables.watches["silent"][s.rows].tobytes(), links
