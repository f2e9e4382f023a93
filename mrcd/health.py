"""When an EV comes back, and what else the programs leave to the daemon. Pure decisions over snapshots.

The programs leave an EV by themselves (bpf/judge.h). Here: return after a hold-down, the weight it
returns with, how often it is probed until then, links, and peers that answer nothing. Everything is
vectorised over (peers, EVs); only changes of state, which are rare, are handled one by one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd import lazy
from mrcd.abi import MAX_PLANES, WEIGHT_FULL, EvState, Reason
from mrcd.config import Health

_MS = 1_000_000
_RAMP_STEPS = WEIGHT_FULL.bit_length() - 1  # 1, 2, 4, then full

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Records = NDArray[np.void]  # of abi.EV or abi.LEDGER

IN_USE = (EvState.GOOD, EvState.SKIP)


@dataclass(frozen=True)
class Steer:
    """One EV is to change its state, if it is still in one of `leave`. `row` and `ev` index the tables."""

    row: int
    ev: int
    leave: tuple[EvState, ...]
    after: EvState
    reason: Reason
    evidence: Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What one round of judging found. `silent` are rows that answer nothing, `heard` those that answered.

    weight, probe_after_ns   (rows, evs_per_peer): what the tables should say
    """

    steers: list[Steer]
    weight: NDArray[np.uint8]
    probe_after_ns: NDArray[np.uint64]
    silent: list[int]
    heard: list[int]


def hold_down_ns(settings: Health, relapses: NDArray[Any] | int) -> Ints:
    """How long an EV must have been without loss to return: doubles with each relapse up to the cap."""
    doubled = settings.hold_down_ms * 2.0 ** np.clip(np.asarray(relapses, np.int64) - 1, 0, 40)
    return np.asarray(np.minimum(doubled, settings.hold_down_max_ms) * _MS, np.int64)


def plane_bits(ports: NDArray[Any], planes: NDArray[np.uint8]) -> Bools:
    """Which EVs are on a plane whose bit is set: bitmaps (rows,), planes (rows, EVs)."""
    bits = (ports[:, None].astype(np.int64) >> np.arange(MAX_PLANES) & 1).astype(bool)
    return np.asarray(np.take_along_axis(bits, planes.astype(np.intp), axis=1))


def some(records: Records, which: Bools) -> Records:
    """Copies of some rows of contiguous records: word by word, for numpy copies records field by field."""
    if which.all():
        return records
    return records.view(np.uint64)[which].view(records.dtype)


def first_weight(settings: Health) -> int:
    """The weight with which an EV returns."""
    return 1 if settings.ramp_ms else WEIGHT_FULL


class Judge:
    """Remembers what the tables do not say; arrays are (peers,) or (peers, evs_per_peer).

    `bad_ns` is when an EV was last not known to be well: hold-downs begin there.
    """

    def __init__(self, settings: Health, peers: int, evs: int) -> None:
        shape = (peers, evs)
        self._s = settings
        self._replies = lazy.zeros(shape, np.uint32)
        self._good = lazy.zeros(shape, np.uint32)
        self._probes = lazy.zeros(shape, np.uint32)
        self._wait_ns = lazy.zeros(shape, np.int64)  # between probes of an EV by which nothing arrives
        self.bad_ns = lazy.zeros(shape, np.int64)
        self._answer_ns = np.zeros(peers, np.int64)
        self._unanswered = np.zeros(peers, np.int64)  # sweeps in a row
        self._known = np.zeros(peers, bool)

    def forget(self, rows: NDArray[Any]) -> None:
        """Begin anew with these rows: what was missed while nobody listened says nothing."""
        self._known[rows] = False

    def knows(self, rows: Ints) -> Bools:
        """Which of these it has judged since they were forgotten."""
        return np.asarray(self._known[rows])

    def note_well(self, rows: Ints, evs: Records, ledgers: Records, now: int) -> None:
        """These need no verdict: all EVs are GOOD, and all probes answered. `evs` and `ledgers` are the tables."""
        self._replies[rows], self._good[rows] = ledgers["replies"][rows], ledgers["good"][rows]
        self._probes[rows], self._answer_ns[rows], self._unanswered[rows] = evs["probe_seq"][rows], now, 0

    def judge(
        self, rows: Ints, evs: Records, ledgers: Records, ports: NDArray[Any], local_ports: int, now: int
    ) -> Verdict:
        """Judge the peers `rows`; `evs` and `ledgers` are copies of their records, (len(rows), evs_per_peer).

        `ports` are the peers' port bitmaps, `local_ports` this host's, `now` CLOCK_MONOTONIC in ns.
        """
        new = ~self._known[rows]
        if new.any():
            self._begin(rows[new], evs[new], ledgers[new], now)
        state = evs["state"].copy()
        configured = evs["configured"] != 0
        linked = plane_bits(ports & local_ports, evs["plane"])
        replied = ledgers["replies"] != self._replies[rows]
        arrived = replied | ((ledgers["good"] != self._good[rows]) & (ledgers["good"] > 0))
        sent = evs["probe_seq"] != self._probes[rows]
        self._replies[rows], self._good[rows] = ledgers["replies"], ledgers["good"]
        self._probes[rows] = evs["probe_seq"]

        in_use = configured & ((state == EvState.GOOD) | (state == EvState.SKIP))
        fallen = configured & (state == EvState.ASSUMED_BAD)
        cut = in_use & ~linked
        probed = configured & (state == EvState.UNKNOWN) & linked & arrived
        well = linked & (ledgers["lag_ns"] == 0) & (ledgers["good"] > 0)
        known = np.maximum(evs["state_since_ns"], ledgers["loss_ns"]).astype(np.int64)
        self.bad_ns[rows] = bad = np.where(well, np.maximum(self.bad_ns[rows], known), now)
        healed = fallen & (ledgers["good"] >= self._s.good_probes)
        if healed.any():
            healed &= now - bad >= hold_down_ns(self._s, evs["relapses"])

        steers = []
        for i, e in zip(*np.nonzero(cut | probed | healed), strict=True):
            evidence: dict[str, int | float] = {}
            leave: tuple[EvState, ...] = (EvState(int(state[i, e])),)
            after = EvState.GOOD
            if cut[i, e]:
                leave, after = IN_USE, EvState.ASSUMED_BAD
                here = local_ports >> int(evs[i, e]["plane"]) & 1
                reason = Reason.PEER_LINK_DOWN if here else Reason.LINK_DOWN
            elif probed[i, e]:
                reason = Reason.PROBED
            else:
                reason = Reason.HEALED
                held = int(hold_down_ns(self._s, int(evs[i, e]["relapses"])))
                evidence = {"good_probes": int(ledgers[i, e]["good"]), "hold_down_ms": held // _MS}
            steers.append(Steer(int(rows[i]), int(e), leave, after, reason, evidence))

        silent, heard = self._silence(rows, (sent & configured & linked).any(axis=1), replied.any(axis=1), now)
        return Verdict(
            steers,
            self._weight(evs, in_use, now),
            self._probe_after(rows, evs, ledgers, sent, arrived),
            rows[silent].tolist(),
            rows[heard].tolist(),
        )

    def _begin(self, rows: Ints, evs: Records, ledgers: Records, now: int) -> None:
        self._known[rows] = True
        self._replies[rows], self._good[rows] = ledgers["replies"], ledgers["good"]
        self._probes[rows] = evs["probe_seq"]
        self._wait_ns[rows], self.bad_ns[rows] = 0, now
        self._unanswered[rows], self._answer_ns[rows] = 0, now

    def _silence(self, rows: Ints, asked: Bools, replied: Bools, now: int) -> tuple[Bools, Bools]:
        """Which peers answer nothing, and which answered now."""
        missed = self._unanswered[rows] + asked
        self._unanswered[rows] = missed = np.where(replied, 0, missed)
        self._answer_ns[rows] = np.where(replied, now, self._answer_ns[rows])
        # Sweeps follow each other fast once a reply is missing: some time must have passed as well.
        aged = now - self._answer_ns[rows] >= 2 * self._s.probe_interval_ms * _MS
        return (missed >= self._s.unanswered) & aged, replied

    def _probe_after(
        self, rows: Ints, evs: Records, ledgers: Records, sent: Bools, arrived: Bools
    ) -> NDArray[np.uint64]:
        """When sweeps are to probe each EV again; 0 = in every sweep.

        Where nothing arrives, probes become rarer, from the probe interval to the cap; and never end.
        """
        state, cap = evs["state"], self._s.probe_backoff_ms * _MS
        least = self._s.probe_interval_ms * _MS
        tried, denied = (state == EvState.ASSUMED_BAD) | (state == EvState.UNKNOWN), state == EvState.DENIED
        wait = self._wait_ns[rows]
        if not (tried.any() or denied.any() or wait.any()):
            return np.zeros(state.shape, np.uint64)
        wait = np.where(sent, np.minimum(np.maximum(2 * wait, least), cap), wait)
        self._wait_ns[rows] = wait = np.where(tried & ~arrived, wait, 0)
        wait[denied] = cap
        at = ledgers["probe_ns"].astype(np.int64) + wait - least // 2  # a sweep may come a little early
        return np.where(wait > 0, at, 0).astype(np.uint64)

    def _weight(self, evs: Records, in_use: Bools, now: int) -> NDArray[np.uint8]:
        """The ramp of an EV that returned: 1, 2, 4 of WEIGHT_FULL turns, then all."""
        if not (in_use & (evs["weight"] < WEIGHT_FULL)).any():
            return np.asarray(evs["weight"])
        if self._s.ramp_ms == 0:
            step = np.full(evs.shape, _RAMP_STEPS)
        else:
            elapsed = np.maximum(now - evs["state_since_ns"].astype(np.int64), 0)
            step = np.minimum(elapsed * _RAMP_STEPS // (self._s.ramp_ms * _MS), _RAMP_STEPS)
        wanted = np.left_shift(1, step)
        return np.asarray(np.where(in_use, np.maximum(evs["weight"], wanted), evs["weight"]), np.uint8)
