"""Fields of all EVs of many peers at once: of a million, columns are read quicker than records."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.abi import EV_WORDS
from mrcd.giveway import give_way

_AT_ONCE = 256  # peers


class Columns:
    """Some rows of a table, of which a field is copied when it is asked for: all would be as much as the table. The
    loop comes first: a million EVs take their time."""

    def __init__(self, records: NDArray[np.void], rows: NDArray[np.int64], used: slice) -> None:
        self._records, self._rows, self._used = records, rows, used

    def __getitem__(self, field: str) -> NDArray[Any]:
        found = np.empty((len(self._rows), self._used.stop), self._records[field].dtype)
        for start in range(0, len(self._rows), _AT_ONCE):
            give_way()
            found[start : start + _AT_ONCE] = self._records[field][self._rows[start : start + _AT_ONCE], self._used]
        return found

    def record(self, row: int, ev: int) -> np.void:
        """One record, by its place among these rows."""
        found: np.void = self._records[self._rows[row], ev]
        return found


def ev_bits(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Of mrc_peer.usable, (peers, words): a 0 or 1 per EV, (peers, 64 × words)."""
    # As one row of bits: by an axis numpy lets go of the interpreter's lock for each, and wakes who waits for it.
    bits = np.unpackbits(words.astype("<u8").view(np.uint8).ravel(), bitorder="little")
    return bits.reshape(len(words), 64 * EV_WORDS)


def settled(ledgers: Any) -> tuple[Any, Any]:
    """Data packets judged on EVs, and lost of these, over all generations of the peer's tables, from abi.LEDGER. The
    programs write meanwhile: what is judged is read once, and no more than that can be lost."""
    lost, judged = ledgers["lost_before"] + ledgers["deficit"], ledgers["judged"]
    return judged, np.minimum(lost, judged)


def medians(values: NDArray[Any], which: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Of those of each row that count, (rows,); NaN where none does. By the rows of a block at once: of each on its own
    numpy would let go of the interpreter's lock for it, and wake who waits for it."""
    found = np.full(len(values), np.nan)
    for start in range(0, len(values), _AT_ONCE):
        give_way()
        some, counted = values[start : start + _AT_ONCE].astype(np.float64), which[start : start + _AT_ONCE]
        some[~counted] = np.inf  # behind the others
        some.sort(axis=1)
        count = counted.sum(axis=1)
        rows = np.flatnonzero(count)
        low, high = (some[rows, middle[rows]] for middle in ((count - 1) // 2, count // 2))
        found[start + rows] = (low + high) / 2
    return found
