# SPDX-License-Identifier: BSD-2-Clause
"""Reads the tables for one scrape or request: arrays over the peers of a plan and their EVs."""

import time
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.fabric.topology import Plan
from mrcd.health.probe_pace import unreachable_ns
from mrcd.kernel.abi import EV_WORDS, STATUS_DETACHED
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables, wire_of

Bools = NDArray[np.bool_]


class Columns:
    """Some records of a table. A field is copied when it is read: all fields would be as large as the table."""

    def __init__(self, records: NDArray[np.void], rows: NDArray[np.int64], used: slice | None = None) -> None:
        self._records, self._rows = records, rows
        self._at = rows if used is None else (rows, used)

    def __getitem__(self, field: str) -> NDArray[Any]:
        return np.asarray(self._records[field][self._at])

    def record(self, row: int, ev: int) -> np.void:
        """Returns a record by its index among these rows."""
        found: np.void = self._records[self._rows[row], ev]
        return found


class Snapshot:
    """The peers of a plan, in its order, and their EVs: arrays (peers,) and (peers, EVs).

    What several documents and metrics need is read when the first asks, and then kept.
    """

    def __init__(self, tables: Tables, plan: Plan, rows: NDArray[np.int64] | None = None) -> None:
        """`rows` are those of some of the peers; all if not given."""
        self.tables, self.plan = tables, plan
        self.rows = plan.rows if rows is None else rows
        self.planes, self.width = plan.paths.shape
        self.used = slice(0, self.planes * self.width)
        self.peers, self.auths = Columns(tables.peers, self.rows), Columns(tables.auths, self.rows)
        self.copies = Columns(tables.copies, self.rows)
        self.evs = Columns(tables.evs, self.rows, self.used)
        self.path_stats = Columns(tables.path_stats, self.rows, self.used)

    def part(self, some: slice) -> "Snapshot":
        """Returns a snapshot of some of the peers."""
        return Snapshot(self.tables, self.plan, self.rows[some])

    def columns(self, plane: int) -> slice:
        """Returns the EV numbers of a plane."""
        return slice(plane * self.width, (plane + 1) * self.width)

    def per_plane(self, values: NDArray[Any]) -> NDArray[np.uint64]:
        """Returns the sums of values (peers, EVs) as (peers, planes)."""
        split = values.reshape(len(self.rows), self.planes, self.width)
        return np.asarray(split.sum(axis=2, dtype=np.uint64))

    @cached_property
    def heard_ns(self) -> NDArray[np.uint64]:
        """The time of the last packet of each peer, CLOCK_MONOTONIC; 0: never heard."""
        return self.peers["heard_ns"]

    @cached_property
    def is_reachable(self) -> Bools:
        """True for each peer that was heard lately."""
        age_ns = time.monotonic_ns() - self.heard_ns.astype(np.int64)
        return np.asarray((self.heard_ns > 0) & (age_ns < unreachable_ns(self.plan)))

    @cached_property
    def is_detached(self) -> Bools:
        """True for each peer that said that it is detached when it was heard last."""
        return np.asarray((self.heard_ns > 0) & (self.peers["status"] & STATUS_DETACHED != 0))

    @cached_property
    def speaks_other(self) -> Bools:
        """True for each peer that speaks another wire version than this host: traffic to it takes plain SRv6."""
        return np.asarray((self.heard_ns > 0) & (wire_of(self.peers["status"]) != wire_of(self.tables.node["status"])))

    @cached_property
    def is_silent(self) -> Bools:
        """True for each peer that answers nothing: its EVs are no evidence of paths.

        The programs never call a detached peer silent: it is, if it was not heard lately.
        """
        silent = self.tables.watches["silent"][self.rows] != 0
        return np.asarray(silent | (self.is_detached & ~self.is_reachable))

    @cached_property
    def usable(self) -> Bools:
        """True for each EV that carries traffic."""
        octets = self.peers["usable"].astype("<u8").view(np.uint8).reshape(len(self.rows), 8 * EV_WORDS)
        return np.unpackbits(octets, axis=1, bitorder="little")[:, self.used].astype(bool)

    @cached_property
    def configured(self) -> Bools:
        """True for each EV that exists."""
        return np.asarray(self.evs["configured"] != 0)

    @cached_property
    def state(self) -> NDArray[np.uint8]:
        """The EvState of each EV."""
        return self.evs["state"]

    @property
    def critical(self) -> dict[str, int]:
        """Counts of critical packets, by name: sums over all rows of the table, so that none ever falls."""
        fields = ("sent", "sent_once", "delivered", "unchecked", "eliminated")
        sums = {name: int(self.tables.copies[name].sum(dtype=np.uint64)) for name in fields}
        return {"sent_twice": sums.pop("sent"), **sums}

    @cached_property
    def is_suspected(self) -> Bools:
        """True for each failed EV on which packets have arrived since it failed."""
        found = np.asarray(self.state == EvState.ASSUMED_BAD)
        peers, evs = np.nonzero(found)
        rows = self.rows[peers]
        since_ns, arrived_ns = self.tables.evs["state_since_ns"], self.tables.path_stats["arrived_ns"]
        found[peers, evs] = arrived_ns[rows, evs] > since_ns[rows, evs]
        return found

    @cached_property
    def states(self) -> NDArray[np.int64]:
        """The number of EVs of each peer in each EvState, (peers, states)."""
        return np.stack([(self.configured & (self.state == s)).sum(axis=1) for s in EvState], axis=1)

    @cached_property
    def judged_and_lost(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The judged data packets of each EV, and the lost ones among them."""
        return judged_and_lost(self.path_stats)

    @cached_property
    def rtt_ns(self) -> NDArray[np.float64]:
        """The present round-trip time of each EV; NaN if it has none."""
        replies = self.path_stats["replies"]  # before the times: one that answers meanwhile has had none yet
        is_known = self.configured & has_round_trip(self.state, replies)
        return np.where(is_known, self.path_stats["rtt_ns"], np.nan)


def judged_and_lost(path_stats: Any) -> tuple[Any, Any]:
    """Returns the judged data packets of EVs and the lost ones among them, over all generations of the peer's tables.

    `path_stats` are abi.PATH_STATS. The programs write meanwhile: `judged` is read once and is the upper limit of
    `lost`.
    """
    lost, judged = path_stats["lost_before"] + path_stats["deficit"], path_stats["judged"]
    return judged, np.minimum(lost, judged)


def has_round_trip(states: Any, replies: Any) -> Any:
    """Returns which EVs have a present round trip: probes were answered, and the EV has not failed since."""
    return (replies > 0) & (states != EvState.UNKNOWN) & (states != EvState.ASSUMED_BAD)


def medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the median of each row (rows,) without its NaNs; NaN for a row without any value."""
    found = np.full(len(values), np.nan)
    ordered, count = np.sort(values, axis=1), (~np.isnan(values)).sum(axis=1)  # NaNs are sorted to the end
    rows = np.flatnonzero(count)
    low, high = (ordered[rows, middle[rows]] for middle in ((count - 1) // 2, count // 2))
    found[rows] = (low + high) / 2
    return found
