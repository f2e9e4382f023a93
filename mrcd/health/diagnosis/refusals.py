# SPDX-License-Identifier: BSD-2-Clause
"""Counts the packets that this host has dropped lately because hosts disagree: keys, cluster files, cables. Pure."""

from collections import deque
from collections.abc import Mapping

from mrcd.tables.enums import Drop

WRONG_KEY = (Drop.UNTAGGED, Drop.UNKNOWN_KEY, Drop.BAD_TAG)
WRONG_CABLE = (Drop.WRONG_RECEIVER, Drop.WRONG_PLANE)
CONFIG_DIFFERS = (Drop.BAD_VERSION, Drop.UNKNOWN_SENDER, Drop.BAD_EV, Drop.WRONG_SOURCE, Drop.WRONG_RECEIVER)
REASONS = frozenset((*WRONG_KEY, *WRONG_CABLE, *CONFIG_DIFFERS))
WINDOW_NS = 10_000_000_000
LEAST = 3  # packets in a window; fewer are left over from a restart or a reload


class Refusals:
    """The newest counts of drops, by which those of the last window are told from all before."""

    def __init__(self) -> None:
        self._counts: deque[tuple[int, dict[Drop, int]]] = deque()

    def update(self, now_ns: int, drops: Mapping[str, int]) -> dict[Drop, int]:
        """Returns the drops of the last window by reason, only those of LEAST packets or more.

        `drops`: all drops by the text of their reason, as Tables.drops returns them. The first call returns nothing.
        """
        counts = {reason: drops.get(reason.text, 0) for reason in REASONS}
        self._counts.append((now_ns, counts))
        while now_ns - self._counts[0][0] > WINDOW_NS and len(self._counts) > 2:
            self._counts.popleft()
        before = self._counts[0][1]
        grown = {reason: n - before[reason] for reason, n in counts.items()}
        if any(n < 0 for n in grown.values()):  # other tables
            self._counts.clear()
            self._counts.append((now_ns, counts))
            return {}
        return {reason: n for reason, n in grown.items() if n >= LEAST}


def named(refused: Mapping[Drop, int], reasons: tuple[Drop, ...]) -> str:
    """Returns what was dropped for some of these reasons: "12 bad_tag, 3 unknown_key"; nothing if nothing was."""
    found = [(refused[reason], reason.text) for reason in reasons if refused.get(reason)]
    return ", ".join(f"{n} {text}" for n, text in sorted(found, reverse=True))
