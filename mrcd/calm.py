"""Which peers there is nothing to decide about, told without reading their EVs: of a million, few change.

The programs count changes of state per peer (mrc_peer.wanted). Where all EVs were GOOD and in full use, and nothing
was counted since, they are. (EVs that became congested meanwhile are not counted: nothing is decided of these.)
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd import abi
from mrcd.abi import EvState
from mrcd.health import Bools, Ints
from mrcd.peerwatch import PeerWatch
from mrcd.tables import Tables

_UNKNOWN = -1
_GOOD = np.uint64(EvState.GOOD << 8 | abi.WEIGHT_FULL)  # of the head, from its weight on


class Calm:
    """Over a host's tables; `planes` are bits. Rows index peers."""

    def __init__(self, tables: Tables, peerwatch: PeerWatch, planes: int) -> None:
        self._tables, self._peerwatch, self._planes = tables, peerwatch, planes
        # Of each EV the word with configured, plane, srh_len, weight and state.
        self._heads = tables.evs.view(np.uint64)[:, 2 :: abi.EV.itemsize // 8]
        self._asked, self._told = _words(tables.evs, "probe_seq"), _words(tables.ledgers, "reply_seq")
        self._lags = _words(tables.ledgers, "lag_ns", np.uint64)
        self._wanted = np.full(len(tables.peers), _UNKNOWN, np.int64)  # when all were found GOOD

    def well(self, rows: Ints) -> Bools:
        """Which are sprayed to by all planes, answer, and have all their EVs GOOD and in full use."""
        linked = self._tables.peers["ports"][rows] & self._tables.node["ports"] & self._planes == self._planes
        well: Bools = linked & self._peerwatch.judged(rows) & self.all_good(rows)
        if self._peerwatch.silent:
            well &= ~np.isin(rows, list(self._peerwatch.silent))
        return well

    def answered(self, rows: Ints, since_ns: Ints) -> Bools:
        """Which have been heard since then."""
        answered: Bools = self._tables.peers["heard_ns"][rows].astype(np.int64) > since_ns
        return answered

    def all_answered(self, rows: Ints) -> Bools:
        """Of whose EVs none waits for a reply, and none lags."""
        answered: Bools = (self._asked[rows] == self._told[rows]).all(axis=1) & ~self._lags[rows].any(axis=1)
        return answered

    def all_good(self, rows: Ints) -> Bools:
        """Where every EV is GOOD and takes all its turns."""
        wanted = self._tables.peers["wanted"][rows].astype(np.int64)  # before the EVs: what changes then is seen next
        good: Bools = wanted == self._wanted[rows]
        if not good.all():
            other = ~good
            heads = self._heads[rows[other]]
            good[other] = ((heads >> np.uint64(24) == _GOOD) | (heads & np.uint64(0xFF) == 0)).all(axis=1)
            self._wanted[rows] = np.where(good, wanted, _UNKNOWN)
        return good


class Losses:
    """What is judged and lost on each EV, read from the ledgers without copying these."""

    def __init__(self, tables: Tables) -> None:
        names = ("lost_before", "judged", "deficit")
        self._before, self._judged, self._deficit = (_words(tables.ledgers, name) for name in names)

    def counts(self, rows: Ints) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Low bits of the packets judged, and of those of them that are lost: (rows, evs_per_peer) each."""
        return self._judged[rows], self._before[rows] + self._deficit[rows]


def _words(
    table: NDArray[np.void], field: str, kind: type[np.unsignedinteger[Any]] = np.uint32
) -> NDArray[np.unsignedinteger[Any]]:
    """A field of all EVs, or its low bits, (peers, evs_per_peer): numpy copies rows of these quicker than records."""
    assert table.dtype.fields is not None
    size = np.dtype(kind).itemsize
    return table.view(kind)[:, table.dtype.fields[field][1] // size :: table.dtype.itemsize // size]
