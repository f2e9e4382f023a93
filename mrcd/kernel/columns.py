# SPDX-License-Identifier: BSD-2-Clause
"""Reads single fields of all EVs of many peers from the tables, as arrays. Pure."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.kernel.abi import EV_WORDS
from mrcd.kernel.enums import EvState


class Columns:
    """Some rows of a table. A field is copied when it is read: a copy of all fields would be as large as the table."""

    def __init__(self, records: NDArray[np.void], rows: NDArray[np.int64], used: slice) -> None:
        self._records, self._rows, self._used = records, rows, used

    def __getitem__(self, field: str) -> NDArray[Any]:
        return np.asarray(self._records[field][self._rows, self._used])

    def record(self, row: int, ev: int) -> np.void:
        """Returns a record by its index among these rows."""
        found: np.void = self._records[self._rows[row], ev]
        return found


def ev_bits(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Returns one 0 or 1 per EV: mrc_peer.usable of shape (peers, words) as (peers, 64 × words)."""
    octets = words.astype("<u8").view(np.uint8).reshape(len(words), 8 * EV_WORDS)
    return np.unpackbits(octets, axis=1, bitorder="little")


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


def medians(values: NDArray[Any], which: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Returns the median of the chosen values of each row, (rows,); NaN for a row without any."""
    found = np.full(len(values), np.nan)
    some = np.where(which, values, np.inf)  # infinities sort to the end
    some.sort(axis=1)
    count = which.sum(axis=1)
    rows = np.flatnonzero(count)
    low, high = (some[rows, middle[rows]] for middle in ((count - 1) // 2, count // 2))
    found[rows] = (low + high) / 2
    return found
