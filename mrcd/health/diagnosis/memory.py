# SPDX-License-Identifier: BSD-2-Clause
"""Keeps what the tables do not: packets dropped lately for some reasons, EVs left for a grey loss lately, and which EVs
full-size packets pass.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mrcd.fabric.topology import Plan
from mrcd.health.snapshot import Bools, Snapshot
from mrcd.kernel.enums import Drop
from mrcd.net.way import Way

WRONG_KEY = (Drop.UNTAGGED, Drop.UNKNOWN_KEY, Drop.BAD_TAG)
WRONG_CABLE = (Drop.WRONG_RECEIVER, Drop.WRONG_PLANE)
CONFIG_DIFFERS = (Drop.BAD_VERSION, Drop.UNKNOWN_SENDER, Drop.BAD_EV, Drop.WRONG_SOURCE, Drop.WRONG_RECEIVER)
UNDELIVERED = (Drop.FIREWALL, Drop.REVERSE_PATH, Drop.OTHER_PROGRAM)
REASONS = frozenset((*WRONG_KEY, *WRONG_CABLE, *CONFIG_DIFFERS, *UNDELIVERED))
WINDOW_NS = 10_000_000_000
ONE_OF = 100  # a firewall that drops less than one of so many packets is doing what it is there for
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
    """Returns the drops for REASONS, from those of Tables.drops."""
    return {reason: drops.get(reason.text, 0) for reason in REASONS}


def named(refused: Mapping[Drop, int], reasons: tuple[Drop, ...]) -> str:
    """Returns what was dropped for some of these reasons: "12 bad_tag, 3 unknown_key"; nothing if nothing was."""
    found = [(refused[reason], reason.text) for reason in reasons if refused.get(reason)]
    return ", ".join(f"{n} {text}" for n, text in sorted(found, reverse=True))


GREY_NS = 60_000_000_000
"""An EV with a loss of 1 % soon looks well to a few probes, returns, and is left again after some seconds."""


HELD_NS = 4_000_000_000
"""A suspected EV that failed less long ago is not blamed for a loss before its probes are over (sizes.py)."""

Place = tuple[int, int]  # the index of a peer in the plan, and the number of an EV


@dataclass(frozen=True)
class Answers:
    """The result of a round of small and full-size probes on an EV."""

    at_ns: int  # CLOCK_MONOTONIC, when the round began
    passes: bool | None  # True: full-size packets arrive; False: only small ones do; None: the probes do not tell
    is_mended: bool = False  # full-size packets arrive now, but did not at first since the EV failed


@dataclass(frozen=True, eq=False)
class Sizes:
    """The answers on some EVs of a plan."""

    plan: Plan | None = None
    answers: Mapping[Place, Answers] = field(default_factory=dict)

    def of(self, plan: Plan) -> Mapping[Place, Answers]:
        """Returns the answers; none if they are those of another plan."""
        return self.answers if plan is self.plan else {}

    def mended(self, plan: Plan) -> list[Place]:
        """Returns the EVs whose small MTU is mended, and which return soon."""
        return [place for place, answer in self.of(plan).items() if answer.is_mended]

    def awaited(self, s: Snapshot, now_ns: int) -> Bools:
        """Returns which suspected EVs have failed within HELD_NS, and were not probed since, (peers, EVs)."""
        found, answers = s.is_suspected.copy(), self.of(s.plan)
        peers, evs = np.nonzero(found)
        times = s.tables.evs["state_since_ns"][s.rows[peers], evs].astype(np.int64)
        found[peers, evs] = now_ns - times < HELD_NS
        for place in answers.keys() & zip(peers.tolist(), evs.tolist(), strict=True):
            found[place] &= answers[place].at_ns < int(s.tables.evs["state_since_ns"][s.rows[place[0]], place[1]])
        return found


class Memory:
    """Keeps facts of the last minute that the tables do not have. Threads may read while it is written."""

    def __init__(self) -> None:
        self.refused: Mapping[Drop, int] = {}
        """Facts.refused."""
        self.unroutable: Mapping[int, int] = {}
        """Plane → OwnPlane.unroutable."""
        self.ways: Mapping[str, Way] = {}
        """Peer's name → the route that the kernel takes to it, where it is not mrcd's."""
        self.sizes = Sizes()
        self._refusals, self._arrivals, self._received = Growth[Drop](), Growth[int](), Growth[str]()
        self._plan: Plan | None = None
        self._grey_ns: NDArray[np.int64] | None = None  # when an EV was last out of use for a grey loss; 0: never

    def note_counters(
        self, now_ns: int, drops: Mapping[str, int], unroutable: Mapping[int, int], received: int = 0
    ) -> None:
        """Takes the counters of Tables.drops, of net.link_state by plane, and of what mrc0 received, once a second."""
        found = self._refusals.update(now_ns, by_reason(drops))
        most = self._received.update(now_ns, {"mrc0": received}).get("mrc0", 0)
        few = [reason for reason in UNDELIVERED if found.get(reason, 0) * ONE_OF < most]
        self.refused = {reason: n for reason, n in found.items() if reason not in few}
        self.unroutable = self._arrivals.update(now_ns, unroutable)

    def lately_grey(self, now_ns: int, plan: Plan, is_grey: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Takes which EVs (peers, EVs) are out of use for a grey loss, and returns which were lately; None: none."""
        times = self._grey_ns if self._plan is plan else None
        if times is None:
            if not is_grey.any():
                return None
            times = np.zeros(is_grey.shape, np.int64)
        times[is_grey] = now_ns
        for place, answer in self.sizes.of(plan).items():
            if answer.passes is False or answer.is_mended:
                times[place] = 0
        is_lately = (times > 0) & (now_ns - times < GREY_NS)
        self._plan, self._grey_ns = plan, times if is_lately.any() else None
        return is_lately
