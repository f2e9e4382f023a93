# SPDX-License-Identifier: BSD-2-Clause
"""Counts the packets that this host has dropped lately because hosts disagree: keys, cluster files, cables. Pure."""

from collections import deque
from collections.abc import Mapping
from typing import Generic, TypeVar

from mrcd.kernel.enums import Drop

WRONG_KEY = (Drop.UNTAGGED, Drop.UNKNOWN_KEY, Drop.BAD_TAG)
WRONG_CABLE = (Drop.WRONG_RECEIVER, Drop.WRONG_PLANE)
CONFIG_DIFFERS = (Drop.BAD_VERSION, Drop.UNKNOWN_SENDER, Drop.BAD_EV, Drop.WRONG_SOURCE, Drop.WRONG_RECEIVER)
REASONS = frozenset((*WRONG_KEY, *WRONG_CABLE, *CONFIG_DIFFERS))
WINDOW_NS = 10_000_000_000
LEAST = 3  # packets in a window; fewer are left over from a restart or a reload

K = TypeVar("K")


class Growth(Generic[K]):
    """The newest values of some counters, by which what was counted in the last window is told from all before."""

    def __init__(self) -> None:
        self._counts: deque[tuple[int, dict[K, int]]] = deque()

    def update(self, now_ns: int, counts: Mapping[K, int]) -> dict[K, int]:
        """Returns what was counted in the last window, only where it is LEAST or more. The first call returns nothing.

        A counter that is new, or smaller than before, begins anew.
        """
        self._counts.append((now_ns, dict(counts)))
        while now_ns - self._counts[0][0] > WINDOW_NS and len(self._counts) > 2:
            self._counts.popleft()
        before = self._counts[0][1]
        if any(n < before.get(key, n) for key, n in counts.items()):
            self._counts.clear()
            self._counts.append((now_ns, dict(counts)))
            return {}
        grown = {key: n - before.get(key, n) for key, n in counts.items()}
        return {key: n for key, n in grown.items() if n >= LEAST}


def by_reason(drops: Mapping[str, int]) -> dict[Drop, int]:
    """Returns the drops because hosts disagree, from those of Tables.drops."""
    return {reason: drops.get(reason.text, 0) for reason in REASONS}


def named(refused: Mapping[Drop, int], reasons: tuple[Drop, ...]) -> str:
    """Returns what was dropped for some of these reasons: "12 bad_tag, 3 unknown_key"; nothing if nothing was."""
    found = [(refused[reason], reason.text) for reason in reasons if refused.get(reason)]
    return ", ".join(f"{n} {text}" for n, text in sorted(found, reverse=True))
