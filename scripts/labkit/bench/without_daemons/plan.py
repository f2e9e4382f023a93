# SPDX-License-Identifier: BSD-2-Clause
"""Plans the faults: rounds of seven, each round at other places. Pure."""

from dataclasses import dataclass

from labkit.bench.failover.kinds import BLACKHOLE, HEAVY_LOSS, MS, Kind, Place
from labkit.bench.part import SOURCE, TARGET

ROUND_S = 50.0
WHOLE_PLANE = (("p99", 3 * MS),)  # timed from before the fault to the last of several paths
FIRST, AGAIN, THIRD, LOSS, NIC = "t1-dies", "t1-dies-again", "t1-dies-third", "link-20", "nic-down"
DEATHS = (FIRST, AGAIN, THIRD)
NAMES = (*DEATHS, LOSS, NIC)
_WORDS = {
    FIRST: "a T1 forwards nothing for 1.5 to 2.5 s, its links stay up",
    AGAIN: "the same T1, as soon as its paths are in full use again",
    THIRD: "the same T1, once more",
    LOSS: "a T0–T1 link drops 20 % for so long",
    NIC: "the NIC–T0 link of h0, or of h2, loses its carrier for so long",
}


@dataclass(frozen=True)
class Step:
    """One fault of a round."""

    kind: Kind
    place: Place

    @property
    def target(self) -> str:
        """Returns the TARGET of `scripts/lab fail`."""
        return self.kind.at(self.place)


def steps(number: int, planes: int, t1s: int) -> list[Step]:
    """Returns the faults of a round.

    A flap is forgotten for each minute in which a path is in use. By order and places most are forgotten when the
    next fault hits the same path: no hold-down is longer than four times the first, and where a T1 dies three
    times, its paths' hold-downs are once, twice and four times the first.
    """
    t1, plane = number // planes, number % planes
    nic = f"nic:{(SOURCE, TARGET)[number % 2]}:{{plane}}"
    return [
        Step(Kind(NIC, _WORDS[NIC], nic, down=True, bounds=WHOLE_PLANE), Place((plane + 2) % planes, 0)),
        *(_death(name, plane, t1 % t1s) for name in DEATHS),
        *(_death(FIRST, plane, (t1 + n) % t1s) for n in (3, 2)),
        Step(
            Kind(LOSS, _WORDS[LOSS], "link:{plane}:0:{t1}", drop=0.2, bounds=HEAVY_LOSS), Place(plane, (t1 + 2) % t1s)
        ),
    ]


def _death(name: str, plane: int, t1: int) -> Step:
    return Step(Kind(name, _WORDS[name], "t1:{plane}:{t1}", bounds=BLACKHOLE), Place(plane, t1))


def words(name: str) -> str:
    """Returns the description of a fault of that name."""
    return _WORDS[name]
