# SPDX-License-Identifier: BSD-2-Clause
"""Breaks a path, waits until it is left, and heals it; repeatedly, under one TCP flow from h0 to h2.

Times are the kernel's: the fault program stamps the first drop; mrcd's programs stamp the last data packet on an
EV and its change of state. Polling here only decides when to continue.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from labkit.bench import candidates
from labkit.bench.failover import stats
from labkit.bench.failover.kinds import Kind, Place, places
from labkit.bench.failover.tables import Bools, Cluster
from labkit.bench.part import SOURCE, TARGET
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput
from labkit.traffic.flow import Flow
from mrcd.errors import MachineError
from mrcd.kernel.enums import EvState

BIN_NS = 10_000_000  # bins of the flows of holes.py,
FINE_NS = 1_000_000  # and of those here
WARM_UP_S = 1.0
FLOW = (SOURCE, TARGET)
_POLL_S = 0.005
_HANDS_OFF_S = 0.03  # the timed programs share two cores with this one: sleep until they are probably done
_QUIET_S = 0.003  # a path without new counts for that long carries no traffic
_QUIET_WITHIN_S = 0.1
_JITTER_S = 0.02  # spreads the faults over a probe interval
_IN_USE_WITHIN_S = 30.0
_GOOD_WITHIN_S = 30.0
_EXCUSED_NS = 2_000_000_000  # idle hosts may detect a path late that was just broken
_ALWAYS = np.iinfo(np.int64).max
_STILL_WITHIN_NS = 40_000_000  # after a fault; later gaps may come from its healing
_GIVE_UP = 5  # ends after that many undetected faults in a row
_BUDGET_S = 600.0  # for a kind of fault: detecting a small loss takes a second or two
_SAY_S = 5.0


Pair = tuple[str, str]  # source, peer
Missing = dict[tuple[Pair, int], int]  # by pair and EV: data packets sent and not received


@dataclass(frozen=True)
class Event:
    """One fault. Times in ns after `begin_ns`; None: not before healing."""

    plane: int
    t1: int
    begin_ns: int  # CLOCK_MONOTONIC
    leave_ns: int | None  # the last data packet on the paths it hit; 0 if there was none after the first drop
    detected_ns: int | None  # ASSUMED_BAD
    lost_skbs: int | None  # of all hosts, by the fault program; None if the link was down
    lost_packets: int  # data packets of the timed pair, as on the wire
    in_use: bool = True  # False: the paths were left before
    still_ns: int | None = None  # longest time without data for the receiving application, soon after the fault
    back_ns: int | None = None  # from healing until the hit paths were GOOD again


class Broken(NamedTuple):
    """The result of `Stage.break_`."""

    kind: Kind
    place: Place
    hit: dict[str, Bools]
    evs: list[int]  # of the timed pair
    command_ns: int


def missing(cluster: Cluster, *pairs: Pair) -> Missing:
    """Returns the missing packets; exact while nothing is in flight."""
    return {(p, ev): cluster.missing(p, [ev]) for p in pairs for ev in range(len(cluster.sent(p)))}


class Polled(Protocol):
    """A flow, or several, whose output must be read regularly."""

    def poll(self, seconds: float) -> None:
        """Reads for that long, at least once."""


class Stage:
    """A flow, the tables, and the current fault. `quiet`: packets missing before the flow began."""

    def __init__(self, lab: Lab, cluster: Cluster, flow: Polled, quiet: Missing) -> None:
        self.lab, self.cluster, self.flow = lab, cluster, flow
        self.wrong: list[str] = []
        self._random = random.Random(1)
        self._excused_until = {h: np.zeros(b.shape, np.int64) for h, b in cluster.bad().items()}
        self._was_bad = cluster.bad()
        self._quiet = quiet
        self._healed_ns = 0  # time of the newest healing

    def look(self, seconds: float = _POLL_S) -> None:
        """Waits a moment, reads the flow, and records EVs that left without being hit."""
        time.sleep(seconds)
        self.flow.poll(0)
        now = time.monotonic_ns()
        for host, bad in self.cluster.bad().items():
            wrong = bad & ~self._was_bad[host] & (self._excused_until[host] < now)
            self.wrong += [f"{host} → host {row} EV {ev}" for row, ev in zip(*np.nonzero(wrong), strict=True)]
            self._was_bad[host] = bad

    def until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Polls until `true()`; False if it was not in time."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                return False
            self.look()
        return True

    def fault(self, kind: Kind, place: Place) -> Event:
        """Breaks a path, waits until it is left or `kind.cap_s` is over, and heals it."""
        evs = self.evs(kind, place)
        self._wait_until_in_use(kind.timed, evs)
        broken = self.break_(kind, place)
        time.sleep(_HANDS_OFF_S)
        found = self.until(lambda: self.cluster.all_in(EvState.ASSUMED_BAD, kind.timed, evs), kind.cap_s)
        if found:
            self._wait_until_quiet(kind.timed, evs)
        event = self.mend(broken, found)
        if not event.in_use:
            self.wrong.append(f"{' → '.join(kind.timed)} EVs {evs} just before they were hit")
        return event

    def evs(self, kind: Kind, place: Place) -> list[int]:
        """Returns the EVs of the timed pair that the fault hits."""
        return self.cluster.of_pair(self.cluster.crossing(lambda *path: kind.hits(place, *path)), kind.timed)

    def break_(self, kind: Kind, place: Place) -> Broken:
        """Makes the fault."""
        hit = self.cluster.crossing(lambda *path: kind.hits(place, *path))
        evs = self.cluster.of_pair(hit, kind.timed)
        self._excuse(hit, _ALWAYS)
        record = self.lab.fail(
            kind.at(place), drop=None if kind.down else kind.drop, down=kind.down, direction=kind.direction
        )
        return Broken(kind, place, hit, evs, int(record["monotonic_ns"]))

    def mend(self, broken: Broken, found: bool) -> Event:
        """Reads the times, then heals the fault. `found`: the paths were left."""
        kind, pair, evs = broken.kind, broken.kind.timed, broken.evs
        last_ns = self.cluster.newest(pair, evs, "last_tx_ns")
        verdict_ns = self.cluster.newest(pair, evs, "state_since_ns")
        # Compared with the last moment when these EVs were quiet, since in between packets are in flight.
        now = {(pair, ev): self.cluster.missing(pair, [ev]) for ev in evs}
        lost = sum(n - self._quiet[at] for at, n in now.items())
        self._quiet |= now
        healed = self.lab.heal(kind.at(broken.place))[0]
        self._healed_ns = time.monotonic_ns()
        # Without a daemon these EVs may be found bad only when it is back: `excuse_no_longer` ends that.
        self._excuse(broken.hit, _ALWAYS if kind.killed else self._healed_ns + _EXCUSED_NS)
        begin_ns = int(healed["first_drop_ns"] or broken.command_ns)
        return Event(
            broken.place.plane,
            broken.place.t1,
            begin_ns,
            max(0, last_ns - begin_ns) if found else None,
            max(0, verdict_ns - begin_ns) if found else None,
            None if kind.down else healed["dropped_skbs"],
            lost,
            in_use=not found or verdict_ns >= broken.command_ns,
        )

    def _excuse(self, hit: dict[str, Bools], until_ns: int) -> None:
        for host, cells in hit.items():
            self._excused_until[host][cells] = until_ns

    def excuse_no_longer(self) -> None:
        """Makes every EV that leaves without being hit wrong again, from now on."""
        until = time.monotonic_ns() + _EXCUSED_NS
        for cells in self._excused_until.values():
            np.minimum(cells, until, out=cells)

    def wait_until_good(self) -> None:
        """Waits until all paths between the two ends of the flow are GOOD, both ways."""
        if not self.until(lambda: self.cluster.all_good(FLOW, FLOW[::-1]), _GOOD_WITHIN_S):
            observe.wait_until_good(self.lab, FLOW, 0)  # its error names the others

    def back(self, kind: Kind, event: Event) -> Event:
        """Waits until all paths are GOOD again, and records the time for those that the newest fault hit."""
        self.wait_until_good()
        evs = self.evs(kind, Place(event.plane, event.t1))
        good_ns = self.cluster.newest(kind.timed, evs, "state_since_ns")
        return replace(event, back_ns=max(0, good_ns - self._healed_ns) if event.leave_ns is not None else None)

    def _wait_until_in_use(self, pair: Pair, evs: list[int]) -> None:
        """Waits until each of these EVs carries data, and a moment longer."""
        before = self.cluster.sent(pair, evs)
        if not self.until(lambda: bool((self.cluster.sent(pair, evs) > before).all()), _IN_USE_WITHIN_S):
            raise MachineError(
                f"{pair[0]} → {pair[1]}: EVs {evs} are not used within {_IN_USE_WITHIN_S:.0f} s",
                hint=f"has the flow stopped? see scripts/lab status --name {self.lab.state.name}",
            )
        self.until(lambda: False, self._random.uniform(0, _JITTER_S))

    def _wait_until_quiet(self, pair: Pair, evs: list[int]) -> None:
        """Waits until nothing is in flight on these EVs, for a limited time."""
        end = time.monotonic() + _QUIET_WITHIN_S
        while time.monotonic() < end:
            before = self.cluster.sent(pair, evs), self.cluster.received(pair, evs)
            self.look(_QUIET_S)
            after = self.cluster.sent(pair, evs), self.cluster.received(pair, evs)
            if all(bool((a == b).all()) for a, b in zip(before, after, strict=True)):
                return


def measure(lab: Lab, kind: Kind, faults: int) -> Document:
    """Runs `faults` faults of one kind, or as many as the budget allows."""
    return record(lab, kind, faults, lambda stage: list(_faults(stage, kind, faults)))


def record(lab: Lab, kind: Kind, wanted: int, run: Callable[[Stage], list[Event]]) -> Document:
    """Returns the document of what `run` does to a flow."""
    with Cluster(lab) as cluster:
        quiet = missing(cluster, FLOW, FLOW[::-1])
        lost, sent = cluster.missing(FLOW), int(cluster.sent(FLOW).sum())
        with Flow(lab, candidates.overlay(lab, 4), FINE_NS) as flow:
            stage = Stage(lab, cluster, flow, quiet)
            flow.poll(WARM_UP_S)
            begin_ns = time.monotonic_ns()
            found = run(stage)
            end_ns = time.monotonic_ns()
            flow.finish()
        found = [replace(e, still_ns=still_ns(flow.bins, e.begin_ns)) for e in found]
        time.sleep(_QUIET_WITHIN_S)
        lost, sent = cluster.missing(FLOW) - lost, int(cluster.sent(FLOW).sum()) - sent
    return {
        "kind": kind.name,
        "what": kind.words,
        "wanted": wanted,
        **summaries(found),
        "wrong_demotions": stage.wrong,
        "flow": {
            "median_bits_per_s": goodput.usual(flow.bins, begin_ns, end_ns),
            "sent_packets": sent,
            "lost_packets": lost,
            "retransmitted_segments": flow.retransmitted_segments,
        },
        "events": [asdict(e) for e in found],
    }


def still_ns(bins: goodput.Bins, begin_ns: int) -> int:
    """Returns the longest run of empty bins in the time after a fault. Pure."""
    first = begin_ns + -begin_ns % FINE_NS
    starts = range(first, first + _STILL_WITHIN_NS, FINE_NS)
    return goodput.longest_run(not bins.get(at) for at in starts).length * FINE_NS


def summaries(found: Sequence[Event]) -> Document:
    """Returns percentiles over the events that met a path in use. Pure."""
    used = [e for e in found if e.in_use]
    return {
        "leave_ns": stats.summary([e.leave_ns for e in used]),
        "detected_ns": stats.summary([e.detected_ns for e in used]),
        "lost_skbs": stats.summary([e.lost_skbs for e in used if e.lost_skbs is not None]),
        "lost_packets": stats.summary([e.lost_packets for e in used]),
        "still_ns": stats.summary([e.still_ns for e in used if e.still_ns is not None]),
        "back_ns": stats.summary([e.back_ns for e in used if e.back_ns is not None]),
    }


def _faults(stage: Stage, kind: Kind, wanted: int) -> Iterator[Event]:
    """Yields faults one after the other, in rounds: the paths are GOOD before each."""
    p = stage.lab.fabric.parameters
    rotation = places(p.planes, p.t1)
    pace = Pace(kind.name, wanted)
    stage.wait_until_good()
    with without_daemons(stage) if kind.killed else contextlib.nullcontext():
        for _ in range(wanted):
            event = stage.back(kind, stage.fault(kind, next(rotation)))
            yield event
            if not pace.goes_on(event.leave_ns is not None):
                return


class Pace:
    """Reports progress and remaining time, and decides when to stop early."""

    def __init__(self, name: str, wanted: int) -> None:
        self._name, self._wanted = name, wanted
        self._began = self._said = time.monotonic()
        self._done = self._misses = 0

    def goes_on(self, found: bool) -> bool:
        """Counts one fault; False if no more are to come. Reports on stderr at intervals."""
        now = time.monotonic()
        self._done += 1
        self._misses = 0 if found else self._misses + 1
        spent, missed = now - self._began, self._misses >= _GIVE_UP
        early = self._done < self._wanted and (missed or spent > _BUDGET_S)
        if early:
            why = f"none of the last {_GIVE_UP} was detected" if missed else f"{_BUDGET_S:.0f} s are over"
            progress(f"  {self._name}: ends after {self._done} of {self._wanted} faults: {why}")
        elif now - self._said > _SAY_S:
            self._said = now
            left = min(spent / self._done * (self._wanted - self._done), _BUDGET_S - spent)
            progress(f"  {self._name}: {self._done} of {self._wanted} faults, {left:.0f} s to go")
        return not early


def kill_daemons(stage: Stage) -> None:
    """Kills mrcd on both ends of the flow. Raises MachineError."""
    lab = stage.lab
    for host in FLOW:
        pid = lab.daemon_pid(host)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        if not stage.until(lambda h=host: lab.daemon_pid(h) is None, 5.0):  # type: ignore[misc]
            raise MachineError(f"mrcd of {host} survives SIGKILL")


@contextlib.contextmanager
def without_daemons(stage: Stage) -> Iterator[None]:
    """A block in which no mrcd runs on either end of the flow: killed before; after it started again and all GOOD."""
    lab = stage.lab
    kill_daemons(stage)
    yield
    Lab(lab.state.name, say=lambda _: None).up(**lab.fabric.parameters.as_json())  # starts dead daemons
    stage.wait_until_good()
    stage.excuse_no_longer()
