# SPDX-License-Identifier: BSD-2-Clause
"""Lists kinds of faults as data; breaks a path under a TCP flow from h0 to h2, waits until it is left, and heals it.

Times are the kernel's: the fault program stamps the first drop; mrcd's programs stamp the last data packet on an
EV and its change of state. Polling here only decides when to continue.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from labkit import plot
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.faults.targets import Direction
from labkit.measure.host_tables import Bools, Cluster
from labkit.measure.statistics import summary
from labkit.tables import duration
from labkit.traffic.candidates import SOURCE, TARGET
from labkit.traffic.flow import Flow
from mrcd.config.cluster_file import Host
from mrcd.errors import MachineError
from mrcd.kernel.enums import EvState

US, MS = 1_000, 1_000_000
HARD_CAP_S = 3.0  # a path that drops everything and is still used after this counts as not detected
LOSSY_CAP_S = 30.0
FLOW = (SOURCE, TARGET)
_POLL_S = 0.005
_HANDS_OFF_S = 0.03  # the timed programs share two cores with this one: sleep until they are probably done
_QUIET_S = 0.003  # a path without new counts for that long carries no traffic
QUIET_WITHIN_S = 0.1
_JITTER_S = 0.02  # spreads the faults over a probe interval
_IN_USE_WITHIN_S = 30.0
_GOOD_WITHIN_S = 30.0
EXCUSED_NS = 2_000_000_000  # idle hosts may detect a path late that was just broken
_ALWAYS = np.iinfo(np.int64).max

Pair = tuple[str, str]  # source, peer
Missing = dict[tuple[Pair, int], int]  # by pair and EV: data packets sent and not received
Bounds = tuple[tuple[str, float], ...]  # percentile, ns
INCAST = {"hosts": 8, "hosts_per_t0": 2, "rate_bits_per_s": 200_000_000}  # shape of the lab
STALLS_S = (0.005, 0.015, 0.05)
STALLS_WORDS = f"for {', '.join(f'{s * 1000:g}' for s in STALLS_S)} ms in turn"
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
    shape: dict[str, Any] = field(default_factory=dict)  # of the lab (Lab.up)
    stressed: bool = False  # all other hosts send to h2, too, while one CPU stalls again and again

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


T1, _LINK, _NIC = "t1:{plane}:{t1}", "link:{plane}:0:{t1}", f"nic:{SOURCE}:{{plane}}"
KINDS = (
    Kind("t1-blackhole", "a T1 forwards nothing, its links stay up", T1, bounds=BLACKHOLE),
    Kind("t1-blackhole-killed", "the same while mrcd is dead on both hosts", T1, killed=True, bounds=BLACKHOLE),
    Kind("nic-link-killed", "mrcd dead on both hosts: the sender's NIC–T0 link drops everything", _NIC, killed=True),
    Kind("drop-20-killed", "mrcd dead on both hosts: a T1 drops 20 %", T1, drop=0.2, cap_s=LOSSY_CAP_S, killed=True),
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
    Kind("drop-20", "a T1 drops 20 %", T1, drop=0.2, cap_s=LOSSY_CAP_S, bounds=HEAVY_LOSS),
    Kind("drop-1", "a T1 drops 1 %", T1, drop=0.01, cap_s=LOSSY_CAP_S),
    Kind("drop-0.5", "a T1 drops 0.5 %", T1, drop=0.005, cap_s=LOSSY_CAP_S),
    Kind(
        "drop-20-no-dup-acks",
        "a T1 drops 20 %, without copies of ACKs",
        T1,
        drop=0.2,
        cap_s=LOSSY_CAP_S,
        shape={"overlay": {"dup_ack_us": 0}},
    ),
    Kind(
        "t1-blackhole-incast",
        f"a T1 forwards nothing; seven hosts send to h2 over 200 Mbit/s, and a CPU stalls {STALLS_WORDS}",
        T1,
        bounds=BLACKHOLE[1:],
        shape=INCAST,
        stressed=True,
    ),
)
BY_NAME = {k.name: k for k in KINDS}


def places(planes: int, t1s: int) -> Iterator[Place]:
    """Yields all T1s repeatedly, each in another plane than the one before."""
    while True:
        for t1 in range(t1s):
            for plane in range(planes):
                yield Place(plane, t1)


def strip(name: str, times_ns: Sequence[float | None]) -> plot.Strip:
    """Returns a row of a picture: a dot per fault, at the time until its paths were left."""
    found = summary(times_ns)
    p50, p99 = (found[p] / 1e9 if found[p] is not None else None for p in ("p50", "p99"))
    said = f"p50 {duration(found['p50'])}, p99 {duration(found['p99'])}"
    return plot.Strip(name, [t if t is None else t / 1e9 for t in times_ns], p50, p99, said)


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


class Stage:
    """Flows, the tables, and the current fault. `quiet`: packets missing before the flow began."""

    def __init__(self, lab: Lab, cluster: Cluster, flows: Sequence[Flow], quiet: Missing) -> None:
        self.lab, self.cluster, self._flows = lab, cluster, flows
        self.wrong: list[str] = []
        self.random = random.Random(1)
        self._excused_until = {h: np.zeros(b.shape, np.int64) for h, b in cluster.bad().items()}
        self._was_bad = cluster.bad()
        self._quiet = quiet
        self._healed_ns = 0  # time of the newest healing

    def look(self, seconds: float = _POLL_S) -> None:
        """Waits a moment, reads the flows, and records EVs that left without being hit."""
        time.sleep(seconds)
        for flow in self._flows:
            flow.poll(0)
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
        self.wait_until_in_use(kind.timed, evs)
        broken = self.break_(kind, place)
        time.sleep(_HANDS_OFF_S)
        found = self.until(lambda: self.cluster.all_in(EvState.ASSUMED_BAD, kind.timed, evs), kind.cap_s)
        if found:
            self._wait_until_quiet(kind.timed, evs)
        event = self.mend(broken, found)
        if not event.in_use:
            self.wrong.append(f"{' → '.join(kind.timed)} EVs {evs} just before they were hit")
        return event

    def evs(self, kind: Kind, place: Place, pair: Pair | None = None) -> list[int]:
        """Returns the EVs of a pair, by default the timed one, that the fault hits."""
        return self.cluster.of_pair(self.cluster.crossing(lambda *path: kind.hits(place, *path)), pair or kind.timed)

    def break_(self, kind: Kind, place: Place) -> Broken:
        """Makes the fault."""
        hit = self.cluster.crossing(lambda *path: kind.hits(place, *path))
        evs = self.cluster.of_pair(hit, kind.timed)
        self.excuse(hit, _ALWAYS)
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
        self.excuse(broken.hit, _ALWAYS if kind.killed else self._healed_ns + EXCUSED_NS)
        begin_ns = int(healed["first_drop_ns"] or broken.command_ns)
        if kind.stressed:  # others send much more: their packets are dropped long before the first one of this pair
            begin_ns = healed["first_data_drops_ns"].get(self.lab.fabric.config.host(pair[0]).id, begin_ns)
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

    def excuse(self, hit: dict[str, Bools], until_ns: int) -> None:
        """Lets the EVs that a fault has hit leave until then."""
        for host, cells in hit.items():
            self._excused_until[host][cells] = until_ns

    def excuse_no_longer(self) -> None:
        """Makes every EV that leaves without being hit wrong again, from now on."""
        until = time.monotonic_ns() + EXCUSED_NS
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

    def wait_until_in_use(self, pair: Pair, evs: list[int]) -> None:
        """Waits until each of these EVs carries data, and a moment longer."""
        before = self.cluster.sent(pair, evs)
        if not self.until(lambda: bool((self.cluster.sent(pair, evs) > before).all()), _IN_USE_WITHIN_S):
            raise MachineError(
                f"{pair[0]} → {pair[1]}: EVs {evs} are not used within {_IN_USE_WITHIN_S:.0f} s",
                hint=f"has the flow stopped? see scripts/lab status --name {self.lab.state.name}",
            )
        self.until(lambda: False, self.random.uniform(0, _JITTER_S))

    def _wait_until_quiet(self, pair: Pair, evs: list[int]) -> None:
        """Waits until nothing is in flight on these EVs, for a limited time."""
        end = time.monotonic() + QUIET_WITHIN_S
        while time.monotonic() < end:
            before = self.cluster.sent(pair, evs), self.cluster.received(pair, evs)
            self.look(_QUIET_S)
            after = self.cluster.sent(pair, evs), self.cluster.received(pair, evs)
            if all(bool((a == b).all()) for a, b in zip(before, after, strict=True)):
                return


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
