# SPDX-License-Identifier: BSD-2-Clause
"""Judges links by the counts of link probes: ok, lossy, dead or unknown, and in which direction. Pure, over arrays.

All arrays are (1 + T1s, planes): row 0 are the links between NICs and T0s, row 1 + n those between T0s and T1 n. A
probe of a row below crosses the link of row 0 too, in both directions, and what that loses is subtracted.

A link probe passes each link of its way in both directions, so its loss tells none. Peers count what arrives from this
host, which passed the link upwards only: if the EVs across a lossy link lose nothing, the link loses packets on their
way down, to this host. If they lose as much, it loses packets on their way up; then nothing tells whether it also loses
packets on their way down.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.fabric.topology import Plan
from mrcd.kernel.abi import MAX_PLANES

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
States = NDArray[np.int8]  # of State

DEAD_NS = 1_000_000_000
"""A link is dead if no probe came back for so long,"""
DEAD_PROBES = 4
"""and so many in a row are lost: one in 600 times by chance where a fifth is lost."""
KNOWN_PROBES = 3
"""Fewer probes tell nothing."""
LOST_PROBES = 4
"""A link is lossy if so many are lost in the window, and more than its NIC's link explains."""
_SIGMAS = 5  # with one more loss, because the loss of the NIC's link is an estimate of few
_CHANCE = 1e-5  # that a lossy link loses none of the probes after which it counts as ok again
_LEAST_LOSS = 0.02  # of a lossy link, for that


class State(IntEnum):
    """The state of a link, by link probes."""

    UNKNOWN = 0
    OK = 1
    LOSSY = 2
    DEAD = 3

    @property
    def text(self) -> str:
        """Returns the name that mrcctl, events and metrics show."""
        return self.name.lower()


@dataclass(frozen=True)
class Counts:
    """The counts of all links at a moment; `lost` are some of the `judged`, and the newest probe is in neither."""

    judged: Ints
    lost: Ints


@dataclass(frozen=True)
class Moment:
    """The counts of all links at `now_ns` (CLOCK_MONOTONIC). `is_linked`: (planes,) NICs with a link."""

    now_ns: int
    counts: Counts
    unanswered: Ints
    received: Ints
    tx_ns: Ints
    rx_ns: Ints
    is_linked: Bools


@dataclass(frozen=True)
class History:
    """The past of each link, before the moment.

    window, longer  the counts of the last seconds, and of the last minute
    streak          probes in a row since the last loss
    loss            what it lost, as a part, when it last lost some
    states          State at the moment before
    """

    window: Counts
    longer: Counts
    streak: Ints
    loss: Floats
    states: States


def grid(records: NDArray[np.void], plan: Plan) -> NDArray[np.void]:
    """Returns the records of mrc_links, of abi.LINK, by row and plane."""
    c = plan.config.cluster
    return records.reshape(-1, MAX_PLANES)[: 1 + c.t1s, : c.planes]


def read(records: NDArray[np.void], plane_mask: int, now_ns: int) -> Moment:
    """Returns what a copy of the table says, from `grid`."""
    fields: dict[str, Any] = {n: records[n].astype(np.int64) for n in ("sent", "lost", "received", "tx_ns", "rx_ns")}
    judged = np.maximum(fields["sent"] - 1, 0)
    counts = Counts(judged, np.minimum(fields["lost"], judged))
    is_linked = (plane_mask >> np.arange(records.shape[1]) & 1) != 0
    unanswered = records["unanswered"].astype(np.int64)
    return Moment(now_ns, counts, unanswered, fields["received"], fields["tx_ns"], fields["rx_ns"], is_linked)


def ratio(counts: Counts) -> Floats:
    """Returns the part of the probes that was lost; 0 where none was judged."""
    return np.asarray(counts.lost / np.maximum(counts.judged, 1))


def own_ratio(counts: Counts) -> Floats:
    """Returns the part that the link itself lost, both directions together."""
    lost = ratio(counts)
    passed = np.maximum(1 - lost[0], 1e-9)  # the NIC's link
    own = 1 - (1 - lost) / passed
    own[0] = lost[0]
    return np.asarray(np.clip(own, 0, 1))


def judge(m: Moment, h: History, stale_ns: int) -> States:
    """Returns the State of each link. A link that was not probed for `stale_ns` is unknown."""
    states = np.where(h.window.judged >= KNOWN_PROBES, np.int8(State.OK), np.int8(State.UNKNOWN))
    # It would hardly lose none of the last probes, if it still lost as many as before.
    has_recovered = h.streak * np.log(1 - np.clip(h.loss, _LEAST_LOSS, 0.9)) < np.log(_CHANCE)
    states[(_is_lossy(h.window, h.longer) | (h.states == State.LOSSY)) & ~has_recovered] = State.LOSSY
    # Some probes in a row are missing: lost by chance, or the link dies. Soon one comes back, or it is dead.
    is_silent = m.unanswered > KNOWN_PROBES
    states[is_silent] = h.states[is_silent]
    states[(m.unanswered > DEAD_PROBES) & (m.now_ns - m.rx_ns >= DEAD_NS)] = State.DEAD
    if not m.received.any():
        states[:] = State.UNKNOWN  # the switches may not send packets back to the port where they came from
    states[m.now_ns - m.tx_ns >= stale_ns] = State.UNKNOWN
    states[0, ~m.is_linked] = State.DEAD
    states[1:, states[0] == State.DEAD] = State.UNKNOWN  # no probe gets there
    return states


def _is_lossy(window: Counts, longer: Counts) -> Bools:
    by_nic = window.judged * _loss_of_nic(window, longer)
    by_nic[0] = 0
    by_chance = np.where(by_nic > 0, by_nic + _SIGMAS * np.sqrt(by_nic + 1), 0)
    return np.asarray((window.lost >= LOST_PROBES) & (window.lost > by_chance))


def _loss_of_nic(window: Counts, longer: Counts) -> Floats:
    """Returns the part that all probes of a plane lose on the way to the T0 and back, (planes,).

    Its own probes are few in a short time; those of all rows lose the same there, so their median tells it better. But
    if most links to T1s are lossy, that is not the NIC's loss.
    """
    most = (window.lost[0] + LOST_PROBES + 2 * np.sqrt(window.lost[0])) / np.maximum(window.judged[0], 1)
    return np.asarray(np.maximum(np.minimum(np.median(ratio(window), axis=0), most), ratio(longer)[0]))


UP, DOWN = "up", "down"
_LEAST_EXPECTED = 0.5  # of the EVs should have lost a probe; with fewer, EVs without a loss prove nothing


def direction(loss: float, probes_per_ev: float, has_lost: Bools, is_known: Bools) -> str | None:
    """Returns UP or DOWN; None if it cannot be told.

    `loss`: the part of the link probes that was lost. Of the EVs across the link, `is_known` says which were probed, by
    `probes_per_ev` probes in the same time, and `has_lost` which of them have lost something.
    """
    evs = int(is_known.sum())
    expected = 1 - (1 - loss) ** probes_per_ev
    if not evs or expected < _LEAST_EXPECTED:
        return None
    found = int((has_lost & is_known).sum()) / evs
    if found >= expected / 2:
        return UP
    return DOWN if found <= expected / 10 else None
