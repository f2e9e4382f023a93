# SPDX-License-Identifier: BSD-2-Clause
"""Measures how late single packets come when a path fails. Nothing follows them that would tell that one is lost.

new    500 new TCP connections per second, a request of 200 bytes on each: beside mrcd, the kernel's SRv6 and MPTCP
open   the same requests on open connections
udp    10,000 UDP packets per second of a critical class, and the same of none: what is lost, what comes twice

The faults are T1s that die and NICs that are cut, each healed after a moment, then a minute of a T1 that loses 20 %,
and one of 1 %. What is asked in them is compared with what is asked in the minute without a fault before each kind.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from labkit import plot
from labkit.bench.failover import HEALTH
from labkit.bench.faults import Place, places, strip
from labkit.bench.frame import Bench, Bound, Options, Result, Table, check_only
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.cluster.patience import wait_for
from labkit.entry import progress
from labkit.measure.host_tables import Cluster
from labkit.measure.statistics import percentile
from labkit.traffic import candidates
from labkit.traffic.candidates import KERNEL_ECMP, MPTCP, MRCD, SOURCE, TARGET, Candidate
from labkit.traffic.requests import NewConnections, OpenConnections, Requests
from labkit.traffic.stream import Stream

NEW, OPEN, UDP = "new", "open", "udp"
HOW: dict[str, NewConnections | OpenConnections] = {NEW: NewConnections(500), OPEN: OpenConnections(50, 0.05)}
WORDS = {
    NEW: "500 new TCP connections per second, a request of 200 bytes on each",
    OPEN: "requests of 200 bytes on 50 open TCP connections, each 50 ms after the last answer",
    UDP: "UDP, 10,000 packets per second",
}
RATE = 10_000
CALM = "none"
LATER_NS = {NEW: 30_000_000, OPEN: 15_000_000}  # the latest answer in a fault, later than the latest in none
OPEN_P999_NS = 5_000_000
_BEGIN_S = 1.0
_FAULT_S = 0.3
_BEFORE_NS = 50_000_000  # a packet asked for so long before a fault may be on its way in it
_GOOD_WITHIN_S = 60.0
_OTHERS_REST_S = 3.5  # after a fault: TCP sends a lost SYN again after 1 and 3 s
_OTHERS_FAULTS = 20  # of the ways that mrcd is compared with
_PAIRS = (SOURCE, TARGET), (TARGET, SOURCE)
_CRITICAL = '\n[[classes]]\npolicy = "critical"\nprefixes = ["{}/128"]\n'


class _Fault(NamedTuple):
    name: str
    words: str
    target: str
    drop: float = 1.0
    once: bool = False  # it lasts a minute, instead of many that last a moment


FAULTS = (
    _Fault("t1", "a T1 forwards nothing", "t1:{plane}:{t1}"),
    _Fault("nic", "the sender's NIC is cut off", f"nic:{SOURCE}:{{plane}}"),
    _Fault("loss-20", "a T1 loses 20 %", "t1:{plane}:{t1}", 0.2, once=True),
    _Fault("loss-1", "a T1 loses 1 %", "t1:{plane}:{t1}", 0.01, once=True),
)
Poll = Callable[[float], None]


class _Part(NamedTuple):
    """A part of a measurement, with or without a fault. What had been sent by its ends is as `sent` of _Course says."""

    fault: str
    begin_ns: int
    end_ns: int
    first: int
    last: int


class _Course:
    """The course of one measurement: how often and how long each fault is made."""

    def __init__(
        self, lab: Lab, options: Options, way: Candidate | None = None, sent: Callable[[], int] = lambda: 0
    ) -> None:
        self._lab, self._sent, self._sprays = lab, sent, way is None or way.name == MRCD
        self._times = options.faults if self._sprays else min(options.faults, _OTHERS_FAULTS)
        self._minute_s = 2.0 if options.short else 60.0

    def run(self, poll: Poll) -> Iterator[_Part]:
        """Yields the parts. `poll` reads what the traffic's programs say, for so many seconds."""
        parameters = self._lab.fabric.parameters
        with Cluster(self._lab) as cluster:
            for fault in FAULTS:
                yield self._calm(poll)
                for n, place in enumerate(places(parameters.planes, parameters.t1)):
                    if n == (1 if fault.once else self._times):
                        break
                    if n % 20 == 0:
                        progress(f"answers: {fault.words}, {n} of {1 if fault.once else self._times}")
                    yield self._make(fault, place, poll, cluster)

    def _calm(self, poll: Poll) -> _Part:
        first, begin_ns = self._sent(), time.monotonic_ns()
        poll(self._minute_s)
        return _Part(CALM, begin_ns, time.monotonic_ns(), first, self._sent())

    def _make(self, fault: _Fault, place: Place, poll: Poll, cluster: Cluster) -> _Part:
        target, first = fault.target.format(plane=place.plane, t1=place.t1), self._sent()
        begin_ns = self._lab.fail(target, drop=fault.drop)["monotonic_ns"]
        poll(self._minute_s if fault.once else _FAULT_S)
        end_ns = self._lab.heal(target)[0]["monotonic_ns"]
        poll(_BEFORE_NS / 1e9 if self._sprays else _OTHERS_REST_S)
        if self._sprays:
            wait_for("all paths are GOOD", lambda: self._is_good(cluster, poll), _GOOD_WITHIN_S)
        return _Part(fault.name, begin_ns, end_ns, first, self._sent())

    @staticmethod
    def _is_good(cluster: Cluster, poll: Poll) -> bool:
        poll(0.01)
        return cluster.all_good(*_PAIRS)


# ---- requests over TCP ----


def _ask(lab: Lab, traffic: str, way: Candidate, options: Options) -> list[Document]:
    """Returns a row per fault: how long answers took that were asked for in it."""
    parts: dict[str, list[_Part]] = {}
    progress(f"answers: {way.name}: {WORDS[traffic]}")
    with Requests(lab, way.ends, HOW[traffic], way.protocol) as requests:
        requests.poll(_BEGIN_S)
        for part in _Course(lab, options, way).run(requests.poll):
            parts.setdefault(part.fault, []).append(part)
        requests.finish()
    rows, asked = [], sorted(requests.took)
    for name, of in parts.items():
        found = [_answers(asked, part) for part in of]
        took = [t for answers in found for t in answers]
        rows.append(
            {
                "traffic": traffic, "way": way.name, "fault": name, "times": len(of), "answers": len(took),
                "p50_ns": percentile(took, 0.5), "p999_ns": percentile(took, 0.999),
                "latest_ns": max(took, default=None),
                "each_ns": [max(answers, default=None) for answers in found],
            }
        )  # fmt: skip
    rows[-1] |= {"broken": requests.broken, "unanswered": requests.unanswered}
    return rows


def _answers(asked: Sequence[tuple[int, int]], part: _Part) -> list[int]:
    """Returns how long the answers took that were asked for in a part. `asked`: all of them, in order."""
    begin_ns = part.begin_ns - (0 if part.fault == CALM else _BEFORE_NS)
    return [took_ns for _, took_ns in asked[bisect_left(asked, (begin_ns, 0)) : bisect_left(asked, (part.end_ns, 0))]]


def _judge(rows: Sequence[Document]) -> list[Document]:
    """Returns the bounds of mrcd's rows of one kind of traffic."""
    traffic, (calm, *faults) = rows[0]["traffic"], rows
    latest = max((r["latest_ns"] or 0) for r in faults)
    later = latest - calm["latest_ns"]
    bounds = [
        Bound(f"{traffic}: the latest answer in a fault, later than in none", LATER_NS[traffic], "_ns").judge(later)
    ]
    if traffic == OPEN:
        worst = max((r["p999_ns"] or 0) for r in faults)
        bounds.append(Bound(f"{traffic}: p99.9 of the answers in a fault", OPEN_P999_NS, "_ns").judge(worst))
    lost = rows[-1]["broken"] + rows[-1]["unanswered"]
    bounds.append(Bound(f"{traffic}: connections broken, or without an answer", 0, "").judge(lost))
    return bounds


# ---- UDP ----


def _send(lab: Lab, critical: bool, options: Options) -> list[Document]:
    """Returns a row per fault: what was lost of the packets sent from it until all paths were well; and of all."""
    found: dict[str, int] = {}
    name = "critical" if critical else "of no class"
    progress(f"answers: {WORDS[UDP]}, {name}")
    before = _uncopied(lab), _backlog_drops()
    with Stream(lab, candidates.overlay(lab, 6), rate=RATE, burst=1) as stream:
        stream.poll(_BEGIN_S)
        parts = list(_Course(lab, options, sent=stream.mark).run(stream.poll))
        result = stream.finish()
    for part in parts:
        found[part.fault] = found.get(part.fault, 0) + result.lost(part.first, part.last)
    rows = [{"packets": name, "fault": fault, "lost": lost} for fault, lost in found.items()]
    every = {"lost": result.lost(), "sent": result.sent, "twice": result.twice, "full_socket": result.socket_drops}
    every |= {"sent_once": _uncopied(lab) - before[0], "full_backlog": _backlog_drops() - before[1]}
    return [*rows, {"packets": name, "fault": "all", **every}]


def _uncopied(lab: Lab) -> int:
    """Returns the critical packets that SOURCE has sent on one path, because it had copied too many."""
    once: int = observe.client(lab, SOURCE).get("/v1/status")["critical"]["sent_once"]
    return once


def _backlog_drops() -> int:
    """Returns the packets that this machine's CPUs have dropped, because too many waited to be received."""
    lines = Path("/proc/net/softnet_stat").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1], 16) for line in lines)


def _classify(lab: Lab) -> None:
    """Has the packets to TARGET's IPv6 address critical."""
    path = lab.state.cluster_file
    path.write_text(
        path.read_text(encoding="utf-8") + _CRITICAL.format(lab.fabric.address(TARGET, 6)), encoding="utf-8"
    )
    observe.reload(lab, SOURCE)


def measure(lab: Lab, options: Options) -> Result:
    """Measures the chosen kinds of traffic."""
    only = () if options.short else options.only
    check_only(only, list(WORDS))
    chosen = [w for w in WORDS if not only or w in only]
    lab.up(health=HEALTH)
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)
    tables, bounds, strips = [], list[Document](), list[plot.Strip]()
    for traffic in [w for w in chosen if w != UDP]:
        names = [MRCD, KERNEL_ECMP, MPTCP] if traffic == NEW else [MRCD]
        rows = list[Document]()
        for way in candidates.installed(lab, names, 4):
            rows += _ask(lab, traffic, way, options)
        bounds += _judge([r for r in rows if r["way"] == MRCD])
        strips += [strip(f"{r['traffic']}, {r['way']}, {r['fault']}", r.pop("each_ns")) for r in rows]
        tables.append(Table(WORDS[traffic], rows))
    if UDP in chosen:
        rows = _send(lab, False, options)
        _classify(lab)
        critical = _send(lab, True, options)
        lost = critical[-1]["lost"] + critical[-1]["twice"] - critical[-1]["full_socket"]
        bounds.append(Bound("udp: critical packets lost, or delivered twice", 0, "").judge(lost))
        tables.append(Table(WORDS[UDP], [*rows, *critical]))
    return Result(tables, bounds, _picture(strips))


def _picture(strips: Sequence[plot.Strip]) -> plot.Picture | None:
    if not strips:
        return None
    words = "A dot is the latest answer of those asked for in one fault."
    panel = plot.Strips("The latest answers", words, strips, begin_s=1e-4, end_s=10.0)
    return plot.Picture("Answers while paths fail", "From a request to its answer, at the host that asks.", [panel])


BENCH = Bench("answers", measure)
