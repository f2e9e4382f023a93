# SPDX-License-Identifier: BSD-2-Clause
"""Maps the pinned tables of a lab's hosts: reading the programs' state costs a memory read.

They exist with and without a daemon. Their times are CLOCK_MONOTONIC ns, taken by the programs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.cluster import observe
from labkit.cluster.api import Lab
from mrcd.config.cluster_file import Host
from mrcd.fabric import topology
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables

Bools = NDArray[np.bool_]
_WELL = (EvState.GOOD, EvState.SKIP)
Crossing = Callable[[Host, Host, int, int | None], bool]  # source, peer, plane, T1


class Cluster:
    """Every host's tables. Pairs are (source, peer) by name; EVs are numbers."""

    def __init__(self, lab: Lab) -> None:
        fabric = lab.fabric
        self._config = fabric.config
        self._plans = {h: topology.plan(fabric.config, h) for h in fabric.hosts}
        self._tables: dict[str, Tables] = {}
        try:
            for host in fabric.hosts:
                self._tables[host] = Tables(observe.pins(lab, host), writable=False)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps the tables."""
        for t in self._tables.values():
            t.close()
        self._tables.clear()

    def crossing(self, crosses: Crossing) -> dict[str, Bools]:
        """Returns host → the mask of its EV table's entries for which `crosses` is true."""
        found = {}
        for name, plan in self._plans.items():
            hit = np.zeros(self._tables[name].evs.shape, bool)
            for peer in plan.peers:
                for e in peer.evs:
                    hit[e.peer_id, e.ev] = crosses(plan.host, peer.host, e.plane, e.t1)
            found[name] = hit
        return found

    def of_pair(self, hit: dict[str, Bools], pair: tuple[str, str]) -> list[int]:
        """Returns the EVs of a pair among the entries that `crossing` found."""
        source, peer = pair
        return [int(e) for e in np.flatnonzero(hit[source][self._row(peer)])]

    def bad(self) -> dict[str, Bools]:
        """Returns host → the mask of its EV table's entries that are ASSUMED_BAD."""
        return {h: t.evs["state"] == EvState.ASSUMED_BAD for h, t in self._tables.items()}

    def all_in(self, state: EvState, pair: tuple[str, str], evs: Sequence[int]) -> bool:
        """Returns whether these EVs are in that state."""
        return bool((self._field(pair, "state")[list(evs)] == state).all())

    def all_good(self, *pairs: tuple[str, str]) -> bool:
        """Returns whether all EVs of these pairs are GOOD or SKIP."""
        return all(
            bool(np.isin(self._field(p, "state")[self._field(p, "configured") != 0], _WELL).all()) for p in pairs
        )

    def of_evs(self, pair: tuple[str, str], evs: Sequence[int], name: str) -> NDArray[Any]:
        """Returns a copy of a field of these EVs."""
        found: NDArray[Any] = self._field(pair, name)[list(evs)]
        return found

    def of_path_stats(self, pair: tuple[str, str], evs: Sequence[int], name: str) -> NDArray[Any]:
        """Returns a copy of a field of these EVs' path statistics."""
        source, peer = pair
        found: NDArray[Any] = self._tables[source].path_stats[self._row(peer)][name][list(evs)]
        return found

    def configured(self, pair: tuple[str, str]) -> list[int]:
        """Returns the EVs that a pair has."""
        return [int(e) for e in np.flatnonzero(self._field(pair, "configured"))]

    def ticks(self, host: str) -> tuple[int, int]:
        """Returns how often the daemon and the timer packet have run a host's tick."""
        clock = self._tables[host].clock
        return int(clock["by_daemon"]), int(clock["by_packet"])

    def newest(self, pair: tuple[str, str], evs: Sequence[int], name: str) -> int:
        """Returns the greatest value of a field (`last_tx_ns`, `state_since_ns`) over these EVs."""
        return int(self._field(pair, name)[list(evs)].max())

    def sent(self, pair: tuple[str, str], evs: Sequence[int] | None = None) -> NDArray[np.uint64]:
        """Returns the data packets sent on each of these EVs (None: all) so far, as on the wire."""
        found = self._field(pair, "tx_packets")
        return found.copy() if evs is None else found[list(evs)]

    def received(self, pair: tuple[str, str], evs: Sequence[int] | None = None) -> NDArray[np.uint64]:
        """Returns the same, as counted by the receiver."""
        source, peer = pair
        found: NDArray[np.uint64] = self._tables[peer].rxs[self._row(source)]["packets"]
        return found.copy() if evs is None else found[list(evs)]

    def missing(self, pair: tuple[str, str], evs: Sequence[int] | None = None) -> int:
        """Returns packets sent and not received since the counters began; exact while nothing is in flight."""
        return int(self.sent(pair, evs).sum()) - int(self.received(pair, evs).sum())

    def _field(self, pair: tuple[str, str], name: str) -> NDArray[Any]:
        source, peer = pair
        found: NDArray[Any] = self._tables[source].evs[self._row(peer)][name]
        return found

    def _row(self, host: str) -> int:
        return self._config.host(host).id
