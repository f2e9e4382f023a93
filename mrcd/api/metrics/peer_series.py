# SPDX-License-Identifier: BSD-2-Clause
"""Makes families of values per peer: a series per peer, per T0 of the peers, or one of all, by [metrics] peers."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.api.metrics.rows import Rows, heads
from mrcd.fabric.topology import Plan
from mrcd.health.snapshot import medians
from mrcd.kernel.enums import EvState

PEER_STATES = ("ok", "below_floor", "unreachable")
Values = NDArray[Any]


class PeerSeries:
    """The series of a plan. Values are (peers,), or (peers, N) if `by` names another label with N values.

    Sums of counters begin at 0 with the first scrape of a plan, so that Prometheus sees a reset of all of them. Without
    that a sum would fall by the packets of a peer that leaves, and Prometheus would count all others once more.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.mode = plan, plan.config.metrics.peers
        t0s = np.array([p.host.t0 for p in plan.peers], np.int64)
        self._order = np.argsort(t0s, kind="stable")
        found, self._starts = np.unique(t0s[self._order], return_index=True)
        labels: tuple[str, ...] = ()
        own: list[tuple[str, ...]] = [()]
        if self.mode == "all":
            labels, own = ("peer",), [(p.host.name,) for p in plan.peers]
        elif self.mode == "groups":
            labels, own = ("peer_t0",), [(str(t0),) for t0 in found.tolist()]
        others = {
            "plane": [str(plane) for plane in range(plan.paths.shape[0])],
            "state": [state.name for state in EvState],
            "peer_state": PEER_STATES,
        }
        self._heads = {"": heads(labels, own)}
        for name, values in others.items():
            names = (*labels, name.removeprefix("peer_"))
            self._heads[name] = heads(names, ((*each, value) for each in own for value in values))
        self._lock = threading.Lock()  # scrapes run in worker threads
        self._first: dict[str, Values] = {}
        self._newest: dict[str, Values] = {}

    @property
    def is_by_peer(self) -> bool:
        """True if peers have series of their own."""
        return self.mode == "all"

    def counter(self, name: str, text: str, values: Values, by: str = "") -> Rows:
        """Return a counter."""
        if not self.is_by_peer:
            values = self._since_first(name, self._sums(values.astype(np.uint64, copy=False)))
        return Rows("counter", name, text, self._heads[by], values)

    def gauge(self, name: str, text: str, values: Values, by: str = "") -> Rows:
        """Return a gauge; sums if peers have no series of their own."""
        return Rows("gauge", name, text, self._heads[by], values if self.is_by_peer else self._sums(values))

    def median(self, name: str, text: str, values: Values) -> Rows:
        """Return a gauge of values (peers,), NaN if there is none; the median of the peers that share a series."""
        return Rows("gauge", name, text, self._heads[""], values if self.is_by_peer else self._medians(values))

    def peers(self, name: str, text: str, states: NDArray[np.bool_]) -> Rows:
        """Return a gauge that counts the peers in each of PEER_STATES, (peers, states): by T0 only if all are."""
        if self.is_by_peer:
            names = heads(["state"], ([state] for state in PEER_STATES))
            return Rows("gauge", name, text, names, states.sum(axis=0))
        return self.gauge(name, text, states.astype(np.int64), "peer_state")

    def _sums(self, values: Values) -> Values:
        if self.mode == "off":
            return np.asarray(values.sum(axis=0, keepdims=True, dtype=_wide(values)))
        return np.add.reduceat(values[self._order], self._starts, axis=0, dtype=_wide(values))

    def _medians(self, values: Values) -> Values:
        if self.mode == "off":
            return medians(values[None, :])
        return np.array([medians(some[None, :])[0] for some in self._parts(values)])

    def _parts(self, values: Values) -> Iterator[Values]:
        """Yield the values of the peers under each T0."""
        return iter(np.split(values[self._order], self._starts[1:])) if len(values) else iter(())

    def _since_first(self, name: str, sums: Values) -> Values:
        with self._lock:
            first = self._first.setdefault(name, sums)
            # The programs write meanwhile: a packet can be judged before it is known to be lost. No count may fall.
            self._newest[name] = newest = np.maximum(sums, self._newest.get(name, sums))
            return newest - first


def _wide(values: Values) -> type[np.generic]:
    return np.uint64 if values.dtype.kind == "u" else np.int64
