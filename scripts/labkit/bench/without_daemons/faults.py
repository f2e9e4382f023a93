# SPDX-License-Identifier: BSD-2-Clause
"""Makes a fault under two flows, waits until the paths are left, heals it, and waits until they carry their share.

Times are the kernel's: see failover/events.py. Nothing here uses a daemon.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.bench.failover.events import FLOW, Pair, Polled, Stage
from labkit.bench.failover.tables import Bools, Cluster
from labkit.bench.without_daemons.judge import Step
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from mrcd.errors import MachineError
from mrcd.health import probe_pace
from mrcd.kernel.enums import EvState, Reason

WAYS: tuple[Pair, Pair] = (FLOW, FLOW[::-1])
BROKEN_S = (1.5, 2.5)  # long enough for probes to be a second apart
COURSE_NS = 50_000_000  # between two samples of the packets of each EV
BEFORE_S = 0.5  # start of a course before the fault
SHARE_S = 1.0  # interval after the ramp in which the share is measured
_HANDS_OFF_S = 0.03
_REST_S = 0.02  # between two polls while nothing is timed
_GOOD_WITHIN_S = 30.0
_AFTER_RAMP_S = 0.1
_BACK_WITHIN_S = 15.0  # beyond the hold-down; later returns count as never
_EXCUSED_NS = 2_000_000_000
_WELL = (EvState.GOOD, EvState.SKIP)
_S = 1e9


@dataclass(frozen=True)
class Way:
    """The effect of a fault on one direction of the flows. Times in ns after `begin_ns`; None: not before healing."""

    source: str
    peer: str
    evs: list[int]
    begin_ns: int  # CLOCK_MONOTONIC: the first drop of any packet; with a lost carrier, the last arrival
    leave_ns: int | None  # the last data packet on these EVs
    detected_ns: int | None  # the last of them ASSUMED_BAD
    skips: int  # changes of these EVs to SKIP: more than one each means that they returned in between
    reasons: list[str]  # of the changes to ASSUMED_BAD
    stood_still_ns: int = 0  # part of leave_ns that the hypervisor took from a CPU


@dataclass
class Return:
    """The return of an EV. Times in ns."""

    source: str
    peer: str
    ev: int
    flaps: int  # remembered flaps, with this one
    due_ns: int  # the hold-down after that many flaps
    well_ns: int | None = None  # from healing to the start of its last hold-down
    hold_ns: int | None = None  # from then to GOOD; None: never
    back_ns: int | None = None  # from healing to GOOD
    share: float | None = None  # packets after the ramp, as a ratio to the mean of the EVs not hit; None: not measured
    again: bool = False  # it failed again before the share was measured
    began_anew: int = 0  # hold-downs restarted after healing by another loss, real or not
    lost_meanwhile: int = 0  # packets and probes counted as lost then, without late arrivals


@dataclass
class Fault:
    """One fault, and its effects."""

    name: str
    target: str
    number: int  # of the round
    killed: bool  # no daemon ran at either end
    at_s: float  # since the measurement began
    broken_s: float
    dropped_skbs: int
    ways: list[Way]
    returns: list[Return]  # of the EVs of the flows,
    idle: list[Return]  # and of the left EVs to other peers of the two hosts
    idle_evs: int  # EVs to other peers that it hit
    faultless_sent: int  # data packets of the flows on all EVs while the share was measured, without a fault;
    faultless_lost: int  # those of them known as lost
    course: list[tuple[float, float]] = field(default_factory=list)  # s after the begin, share of the EVs hit

    def as_json(self) -> Document:
        """Returns plain numbers."""
        return asdict(self)


@dataclass(frozen=True)
class _Hit:
    """The EVs that a fault hits, by pair."""

    cells: dict[str, Bools]
    evs: dict[Pair, list[int]]


class Hold:
    """The observed hold-downs of one EV."""

    def __init__(self) -> None:
        self.began_anew = 0
        self.lost_before = 0  # at the start of the first hold-down
        self.lost = 0  # at the last observation before the return
        self.well_ns = 0  # the start of the last hold-down
        self._is_well = False

    def look(self, well_ns: int, good: int, lost: int, back_ns: int | None = None) -> None:
        """Adds an observation: last loss at `well_ns`, `good` good reports in a row since, `lost` packets lost.

        `back_ns`: the return to GOOD, if it has come. A loss after it restarts no hold-down.
        """
        if back_ns is not None and self.well_ns and well_ns > back_ns:
            return
        self.lost = lost
        if well_ns != self.well_ns:
            self.began_anew += self._is_well
            self.well_ns, self._is_well = well_ns, False
        if good and not self._is_well:
            self._is_well = True
            if not self.began_anew:
                self.lost_before = lost


class Run(Stage):
    """The stage of two flows, one each way."""

    def __init__(self, lab: Lab, cluster: Cluster, flows: Polled) -> None:
        self._samples: list[tuple[int, list[NDArray[np.uint64]]]] = []
        self._begun = time.monotonic()
        self._health = lab.fabric.config.health
        self._pairs: list[Pair] = [(h, p) for h in FLOW for p in lab.fabric.hosts if p != h]
        super().__init__(lab, cluster, flows, {})

    def look(self, seconds: float = 0.005) -> None:
        """Polls as the base class does, and samples the packets of each EV."""
        super().look(seconds)
        now = time.monotonic_ns()
        if not self._samples or now - self._samples[-1][0] >= COURSE_NS:
            self._samples.append((now, [self.cluster.sent(w) for w in WAYS]))

    def rest(self, seconds: float) -> None:
        """Polls for `seconds`, at a low rate."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.look(min(left, _REST_S))

    def fault(self, step: Step, number: int, killed: bool) -> Fault:  # type: ignore[override]
        """Makes a fault, waits until its paths are left, heals it, and measures the return."""
        kind, place = step.kind, step.place
        cells = self.cluster.crossing(lambda *path: kind.hits(place, *path))
        hit = _Hit(cells, {p: self.cluster.of_pair(cells, p) for p in self._pairs})
        if not self.until(lambda: self.cluster.all_good(*self._pairs), _GOOD_WITHIN_S):
            raise MachineError(f"not all paths of {' and '.join(FLOW)} are in use again within {_GOOD_WITHIN_S:g} s")
        for pair in WAYS:
            self._wait_until_in_use(pair, hit.evs[pair])
        del self._samples[: -round(2 * BEFORE_S * _S / COURSE_NS)]
        self.rest(BEFORE_S)
        skips = {w: int(self.cluster.of_path_stats(w, hit.evs[w], "skips").sum()) for w in WAYS}
        at_s = time.monotonic() - self._begun
        broken = self.break_(kind, place)
        time.sleep(_HANDS_OFF_S)
        self.until(lambda: all(self._is_left(hit, w) for w in WAYS), kind.cap_s)
        end = broken.command_ns / _S + self._random.uniform(*BROKEN_S)
        self.rest(end - time.monotonic())
        left = {w: self._is_left(hit, w) for w in WAYS}
        times = {w: [self._newest(w, hit, n) for n in ("last_tx_ns", "state_since_ns")] for w in WAYS}
        arrived = {w: int(self.cluster.of_path_stats(w, hit.evs[w], "arrived_ns").max()) for w in WAYS}
        skips = {w: int(self.cluster.of_path_stats(w, hit.evs[w], "skips").sum()) - n for w, n in skips.items()}
        reasons = {w: sorted({Reason(r).name for r in self.cluster.of_evs(w, hit.evs[w], "reason")}) for w in WAYS}
        left_evs = self._left_evs(hit)
        healed = self.lab.heal(step.target)[0]
        healed_ns = int(healed["monotonic_ns"])
        self._excuse(hit.cells, time.monotonic_ns() + _EXCUSED_NS)
        ways = []
        for pair in WAYS:
            begin_ns = arrived[pair] if kind.down else int(healed["first_drop_ns"] or broken.command_ns)
            leave, bad = (max(0, t - begin_ns) if left[pair] else None for t in times[pair])
            ways.append(Way(*pair, hit.evs[pair], begin_ns, leave, bad, skips[pair], reasons[pair]))
        self._follow(left_evs, healed_ns)
        returns = [r for r in left_evs if (r.source, r.peer) in WAYS]
        faultless_sent, faultless_lost = self._measure_shares(returns)
        return Fault(
            kind.name,
            step.target,
            number,
            killed,
            at_s,
            (healed_ns - broken.command_ns) / _S,
            int(healed["dropped_skbs"]),
            ways,
            returns,
            [r for r in left_evs if (r.source, r.peer) not in WAYS],
            sum(len(hit.evs[p]) for p in self._pairs if p not in WAYS),
            faultless_sent,
            faultless_lost,
            course([(t, *self._split(hit, sent)) for t, sent in self._samples], broken.command_ns),
        )

    def _is_left(self, hit: _Hit, pair: Pair) -> bool:
        return self.cluster.all_in(EvState.ASSUMED_BAD, pair, hit.evs[pair])

    def _newest(self, pair: Pair, hit: _Hit, name: str) -> int:
        return self.cluster.newest(pair, hit.evs[pair], name)

    def _left_evs(self, hit: _Hit) -> list[Return]:
        """Returns the EVs that have been left, of all pairs."""
        found = []
        for pair, evs in hit.evs.items():
            bad = self.cluster.of_evs(pair, evs, "state") == EvState.ASSUMED_BAD
            for ev, flaps in zip(np.array(evs)[bad], self.cluster.of_evs(pair, evs, "flaps")[bad], strict=True):
                due_ns = int(probe_pace.hold_down_ns(self._health, int(flaps)))
                found.append(Return(*pair, int(ev), int(flaps), due_ns))
        return found

    def _follow(self, left_evs: Sequence[Return], healed_ns: int) -> None:
        """Records when the hold-down of each begins and when it returns, until all are back or time is over."""
        waiting = [(r, Hold()) for r in left_evs]
        until = time.monotonic() + _BACK_WITHIN_S + max((r.due_ns / _S for r in left_evs), default=0.0)
        while waiting and time.monotonic() < until:
            self.look()
            for r, hold in list(waiting):
                pair, evs = (r.source, r.peer), [r.ev]
                well_ns = int(self.cluster.of_path_stats(pair, evs, "loss_ns")[0])
                lost = self._lost(pair, evs)
                good = int(self.cluster.of_path_stats(pair, evs, "good")[0])
                is_back = int(self.cluster.of_evs(pair, evs, "state")[0]) in _WELL
                since_ns = int(self.cluster.of_evs(pair, evs, "state_since_ns")[0])
                hold.look(well_ns, good, lost, since_ns if is_back else None)
                if is_back:
                    waiting.remove((r, hold))
                    r.began_anew, r.lost_meanwhile = hold.began_anew, hold.lost - hold.lost_before
                    r.back_ns, r.well_ns = since_ns - healed_ns, hold.well_ns - healed_ns
                    r.hold_ns = since_ns - hold.well_ns

    def _lost(self, pair: Pair, evs: list[int]) -> int:
        """Returns the data packets and probes on these EVs that are counted as lost."""
        return int(sum(self.cluster.of_path_stats(pair, evs, n).astype(np.int64).sum() for n in ("deficit", "missed")))

    def _measure_shares(self, returns: Sequence[Return]) -> tuple[int, int]:
        """Measures the packets of each EV after the ramp, as a ratio to the mean of its pair's EVs that were not hit.

        Returns the data packets sent on all EVs, and those lost.
        """
        if any(r.back_ns is None for r in returns):
            return 0, 0
        self.rest(self._health.ramp_ms / 1000 + _AFTER_RAMP_S)
        before = {w: self.cluster.sent(w) for w in WAYS}
        lost = {w: self.cluster.of_path_stats(w, self.cluster.configured(w), "deficit") for w in WAYS}
        self.rest(SHARE_S)
        grown = {w: self.cluster.sent(w) - n for w, n in before.items()}
        for way in WAYS:
            hit = [r for r in returns if (r.source, r.peer) == way]
            others = sorted(set(self.cluster.configured(way)) - {r.ev for r in hit})
            usual = float(grown[way][others].mean()) if others else 0.0
            for r in hit:
                r.share = float(grown[way][r.ev]) / usual if usual else None
                r.again = int(self.cluster.of_evs(way, [r.ev], "flaps")[0]) != r.flaps
            lost[way] = self.cluster.of_path_stats(way, self.cluster.configured(way), "deficit") - lost[way]
        return sum(int(n.sum()) for n in grown.values()), sum(int(n.astype(np.int32).sum()) for n in lost.values())

    def _split(self, hit: _Hit, sent: Sequence[NDArray[np.uint64]]) -> tuple[float, float]:
        """Returns the mean packets on the EVs hit, and on the others, of both directions."""
        mine: list[Any] = []
        theirs: list[Any] = []
        for pair, counts in zip(WAYS, sent, strict=True):
            others = sorted(set(self.cluster.configured(pair)) - set(hit.evs[pair]))
            mine.append(counts[hit.evs[pair]].mean())
            theirs.append(counts[others].mean())
        return float(sum(mine)), float(sum(theirs))


def course(samples: Sequence[tuple[int, float, float]], begin_ns: int) -> list[tuple[float, float]]:
    """Converts (time, mean packets on the EVs hit, on the others) to seconds after the fault, and the share.

    A share holds until the next sample.

    Begins BEFORE_S before the fault. Pure.
    """
    found = []
    for (at, hit, others), (_, hit_next, others_next) in pairwise(samples):
        seconds = (at - begin_ns) / _S
        if seconds >= -BEFORE_S and others_next > others:
            found.append((round(seconds, 3), round((hit_next - hit) / (others_next - others), 3)))
    return found
