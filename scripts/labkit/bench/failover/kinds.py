# SPDX-License-Identifier: BSD-2-Clause
"""Lists the kinds of faults as data, with the EVs that each hits and its requirements. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from labkit.bench.part import SOURCE, TARGET
from labkit.faults.targets import Direction
from mrcd.config.cluster_file import Host

US, MS = 1_000, 1_000_000
HARD_CAP_S = 3.0  # a path that drops everything and is still used after this counts as not detected
LOSSY_CAP_S = 30.0

Bounds = tuple[tuple[str, float], ...]
BLACKHOLE: Bounds = (("p50", 500 * US), ("p99", 3 * MS))
HEAVY_LOSS: Bounds = (("p99", 20 * MS),)


@dataclass(frozen=True)
class Place:
    """The place of a fault: a T1 of a plane; for a NIC only the plane counts."""

    plane: int
    t1: int


@dataclass(frozen=True)
class Kind:
    """A way to break a path from h0 to h2. `target` is filled in with the place."""

    name: str
    words: str
    target: str
    drop: float = 1.0
    down: bool = False  # the link loses its carrier; no packets are dropped by the fault program
    direction: Direction = "both"
    killed: bool = False  # no mrcd runs on the two hosts
    cap_s: float = HARD_CAP_S
    timed: tuple[str, str] = (SOURCE, TARGET)  # (source, peer) of the timed EVs
    bounds: Bounds = ()
    overlay: dict[str, float] = field(default_factory=dict)  # non-default settings of the lab

    def at(self, place: Place) -> str:
        """Returns the TARGET of `scripts/lab fail`."""
        return self.target.format(plane=place.plane, t1=place.t1)

    def hits(self, place: Place, source: Host, peer: Host, plane: int, t1: int | None) -> bool:
        """Returns whether a path from one host to another, through `t1` of `plane`, crosses the broken place.

        Links are those of T0 0.
        """
        up, down = self.direction != "down", self.direction != "up"
        if plane != place.plane:
            return False
        if self.target.startswith("nic:"):
            owner = self.target.split(":")[1]
            return (up and source.name == owner) or (down and peer.name == owner)
        if t1 != place.t1:
            return False
        return self.target.startswith("t1:") or (up and source.t0 == 0) or (down and peer.t0 == 0)


_T1, _LINK, _NIC = "t1:{plane}:{t1}", "link:{plane}:0:{t1}", f"nic:{SOURCE}:{{plane}}"

KINDS = (
    Kind("t1-blackhole", "a T1 forwards nothing, its links stay up", _T1, bounds=BLACKHOLE),
    Kind("t1-blackhole-killed", "the same while mrcd is dead on both hosts", _T1, killed=True, bounds=BLACKHOLE),
    Kind("nic-link-killed", "mrcd dead on both hosts: the sender's NIC–T0 link drops everything", _NIC, killed=True),
    Kind("drop-20-killed", "mrcd dead on both hosts: a T1 drops 20 %", _T1, drop=0.2, cap_s=LOSSY_CAP_S, killed=True),
    Kind("t0-t1-link", "a T0–T1 link of the sender drops everything", _LINK),
    Kind("nic-link", "the sender's NIC–T0 link drops everything (a whole plane)", _NIC),
    Kind("nic-down", "the sender's NIC–T0 link loses its carrier; timed from the command", _NIC, down=True),
    Kind("one-way-forward", "a T0–T1 link drops the forward direction", _LINK, direction="up"),
    Kind(
        "one-way-reverse",
        "a T0–T1 link drops the reverse direction (timed: the receiver's EV)",
        _LINK,
        direction="down",
        timed=(TARGET, SOURCE),
    ),
    Kind("drop-20", "a T1 drops 20 %", _T1, drop=0.2, cap_s=LOSSY_CAP_S, bounds=HEAVY_LOSS),
    Kind("drop-1", "a T1 drops 1 %", _T1, drop=0.01, cap_s=LOSSY_CAP_S),
    Kind("drop-0.5", "a T1 drops 0.5 %", _T1, drop=0.005, cap_s=LOSSY_CAP_S),
    Kind(
        "drop-20-no-dup-acks",
        "a T1 drops 20 %, without ACK copies",
        _T1,
        drop=0.2,
        cap_s=LOSSY_CAP_S,
        overlay={"dup_ack_us": 0},
    ),
)
BY_NAME = {k.name: k for k in KINDS}


def places(planes: int, t1s: int) -> Iterator[Place]:
    """Yields all T1s repeatedly, each in another plane than the one before."""
    while True:
        for t1 in range(t1s):
            for plane in range(planes):
                yield Place(plane, t1)
