# SPDX-License-Identifier: BSD-2-Clause
"""Checks that hosts whose traffic is paced, shaped or put into queues by priority blame no path for it.

Each case puts a queueing discipline on the plane NICs of two hosts, and sends bulk data over TCP, with requests and
answers beside it. No path fails meanwhile: so no EV may be left, none may lag, which would bring probe bursts, and no
packet may count as lost. All of the lab runs on one CPU. A CPU that waits for its turn holds packets, as a slow path
would. How much the CPU can send does not matter.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit import entry
from labkit.cluster import netns, observe
from labkit.cluster.api import Lab
from labkit.cluster.patience import EMULATED, patience, wait_for
from labkit.kernels.programs import Say
from labkit.places import end_program
from labkit.traffic.flow import Ends, TwoEnds
from mrcd.config.cluster_file import Granularity
from mrcd.errors import MachineError
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables

HOSTS = ("h0", "h1")
SHAPE: dict[str, Any] = {
    "hosts": 2, "hosts_per_t0": 1, "planes": 2, "t1": 2, "overlay": {"rps_cpus": "none"},
}  # fmt: skip
GRANULARITIES: tuple[Granularity, ...] = ("burst", "packet")
_PATIENCE_S = 30.0
# Mbit/s of a NIC: with data always in the queue. And bytes to send.
_NIC_RATE, _BYTES = (20, 4_000_000) if EMULATED else (400, 100_000_000)
_PACED = _NIC_RATE * 100_000  # bytes/s: less than the NICs
_PRIORITY = 6  # of the requests: the first band of pfifo_fast

# Why cases fail.
_QUEUE = (
    "the programs take data for sent while it waits in a queue of the NIC, and reports by another plane overtake it"
)
_LATE = (
    "fq lets a packet go some milliseconds after its time stamp where the CPU is slow, and nothing tells the programs"
)


@dataclass(frozen=True)
class Case:
    """How two hosts send. `qdiscs`: lines of `tc -batch` for a NIC. `known`: why it fails for now, by granularity."""

    name: str
    qdiscs: tuple[str, ...] = ()
    algorithm: str = "cubic"  # congestion control of the bulk data
    rate: int = 0  # SO_MAX_PACING_RATE of the bulk data, bytes per second
    priority: int = 0  # SO_PRIORITY of the requests
    queues: int = 1  # that the NICs need
    modules: tuple[str, ...] = ()  # which many kernels do not have
    known: Mapping[Granularity, str] = field(default_factory=dict)


def _tbf(parent: str = "root handle 1:") -> str:
    return f"qdisc replace dev {{nic}} {parent} tbf rate {_NIC_RATE}mbit burst 70000 limit 2500000"


def _below(kind: str) -> str:
    return f"qdisc replace dev {{nic}} parent 1:1 {kind}"


_FQ = "qdisc replace dev {nic} root fq"
_MQPRIO = "qdisc replace dev {nic} root handle 1: mqprio num_tc 2 map 0 0 0 0 0 0 1 0 queues 1@0 1@1 hw 0"
_QUEUED = dict.fromkeys(GRANULARITIES, _QUEUE)
_PACED_BY_FQ = dict.fromkeys(GRANULARITIES, _LATE)
CASES = (
    Case("no qdisc"),
    Case("SO_MAX_PACING_RATE", rate=_PACED),
    Case("BBR", algorithm="bbr"),
    Case("fq", (_FQ,), modules=("sch_fq",), known=_PACED_BY_FQ),
    Case("fq, SO_MAX_PACING_RATE", (_FQ,), rate=_PACED, modules=("sch_fq",), known=_PACED_BY_FQ),
    Case("fq, BBR", (_FQ,), algorithm="bbr", modules=("sch_fq",), known=_PACED_BY_FQ),
    Case("fq_codel", ("qdisc replace dev {nic} root fq_codel",), modules=("sch_fq_codel",)),
    Case("tbf", (_tbf(),), known=_QUEUED),
    Case("tbf, fq", (_tbf(), _below("fq")), modules=("sch_fq",), known=_QUEUED),
    Case("tbf, fq, BBR", (_tbf(), _below("fq")), algorithm="bbr", modules=("sch_fq",), known=_QUEUED),
    Case(
        "tbf, fq_codel",
        (_tbf(), _below("fq_codel target 1ms interval 10ms")),
        modules=("sch_fq_codel",),
        known=_QUEUED,
    ),
    Case("tbf, pfifo_fast, SO_PRIORITY", (_tbf(), _below("pfifo_fast")), priority=_PRIORITY, known=_QUEUED),
    Case("mqprio, SO_PRIORITY", (_MQPRIO,), priority=_PRIORITY, queues=2, modules=("sch_mqprio",)),
    Case(
        "mqprio, tbf, SO_PRIORITY",
        (_MQPRIO, _tbf("parent 1:1")),
        priority=_PRIORITY,
        queues=2,
        modules=("sch_mqprio",),
        known=_QUEUED,
    ),
)


class Mix(TwoEnds):
    """Bulk data with requests beside it, from h0 to h1."""

    def __init__(self, lab: Lab, case: Case) -> None:
        h0, h1 = (lab.fabric.address(host, 4) for host in HOSTS)
        super().__init__(lab, Ends("h0", h0, "h1", h1), end_program("mixend"), case.algorithm)
        self._sender = (_BYTES, case.rate, case.priority)

    def finish(self) -> str:
        """Waits until all is sent and answered. Returns a description."""
        self._finishing = True
        self._wait_for_end(*self._children)
        return f"{self._facts['retransmitted_segments']} retransmissions, {self._facts['answers']} answers"


class Counts:
    """The counts of the programs of both hosts since this object was made."""

    def __init__(self, both: list[Tables]) -> None:
        self._tables = both
        self._before = self._read()
        self._lags = self._newest_lags()

    def new(self) -> dict[str, int]:
        """Returns the counts, summed over both hosts."""
        found = {name: n - self._before[name] for name, n in self._read().items()}
        return {"lagged": int((self._newest_lags() != self._lags).sum()), **found}

    def _read(self) -> dict[str, int]:
        found = dict.fromkeys(("left", "lost", "unsent", "not arrived"), 0)
        for own, other in (self._tables, self._tables[::-1]):
            found["left"] += int(own.transitions()["count"][EvState.ASSUMED_BAD].sum())
            found["lost"] += int(own.path_stats["lost_before"].sum() + own.path_stats["deficit"].sum())
            found["unsent"] += sum(own.unsent_packets())
            found["not arrived"] += int(own.evs["tx_packets"].sum()) - int(other.rxs["packets"].sum())
        return found

    def _newest_lags(self) -> NDArray[np.uint16]:
        """Returns a number for each EV, which changes when the EV begins to lag."""
        return np.concatenate([t.path_stats["burst_end"] for t in self._tables])

    def sent(self) -> NDArray[np.uint32]:
        """Returns the data packets sent on each EV, in the width of what is judged."""
        return np.concatenate([t.evs["tx_packets"].astype(np.uint32) for t in self._tables])

    def are_judged(self, sent: NDArray[np.uint32]) -> bool:
        """Returns whether reports account for what was sent by then."""
        judged = np.concatenate([t.path_stats["judged_tx"] for t in self._tables])
        configured = np.concatenate([t.evs["configured"] for t in self._tables]) != 0
        return bool(((judged - sent).astype(np.int32) >= 0)[configured].all())


@dataclass(frozen=True)
class Outcome:
    """The result of a case."""

    lagged: int  # EVs that have lagged, and were left or got a probe burst
    left: int  # changes to ASSUMED_BAD
    lost: int  # data packets that count as lost on a path
    words: str

    @property
    def ok(self) -> bool:
        """Returns whether no path was blamed."""
        return not (self.lagged or self.left or self.lost)


def run_case(lab: Lab, case: Case) -> Outcome | None:
    """Runs a case in a lab of SHAPE, on one CPU. Returns None if the kernel has no such qdisc or algorithm."""
    with tables(lab) as both, _queued(lab, case) as has_it:
        if not has_it:
            return None
        _wait(lab, "all EVs are GOOD", lambda: all(_is_good(t) for t in both))
        counts, drops = Counts(both), _drops(lab)
        with Mix(lab, case) as mix:
            words = mix.finish()
        sent = counts.sent()
        _wait(lab, "reports account for all that was sent", lambda: counts.are_judged(sent))
        found = counts.new()
        words += f"; {', '.join(f'{n} {name}' for name, n in found.items())}; {_drops(lab) - drops} dropped by qdiscs"
    return Outcome(found["lagged"], found["left"], found["lost"], words)


def _wait(lab: Lab, words: str, is_so: Callable[[], bool]) -> None:
    """Waits under light traffic, without which the programs do little while the daemons stand still."""

    def poll() -> bool:
        lab.exec("h0", ["ping", "-q", "-c4", "-i0.01", lab.fabric.address("h1", 4)])
        return is_so()

    wait_for(words, poll, _PATIENCE_S)


def shaped(say: Say, _: Path) -> None:
    """Runs all cases in both granularities."""
    modules = {"tcp_bbr", *(m for case in CASES for m in case.modules)}
    subprocess.run(["modprobe", "-a", *modules], capture_output=True, check=False)
    with one_cpu(), netns.room_for_packets(), entry.own_lab("kernels") as lab:
        lab.up(**SHAPE)
        for granularity in GRANULARITIES:
            set_granularity(lab, granularity)
            observe.wait_until_good(lab, HOSTS, patience(_PATIENCE_S))
            with _unburdened(lab):
                for case in CASES:
                    _say_case(say, f"shaped {granularity}", case, run_case(lab, case), case.known.get(granularity))


def _say_case(say: Say, part: str, case: Case, found: Outcome | None, known: str | None) -> None:
    if found is None:
        say(part, case.name, True, "this kernel has none", cell="not had")
    elif known and not found.ok:
        say(part, case.name, True, f"{known}: {found.words}", cell="known")
    else:
        say(part, case.name, found.ok, found.words)


@contextlib.contextmanager
def _unburdened(lab: Lab) -> Iterator[None]:
    """A block in which the daemons of a lab on an emulated CPU stand still: it has no time for them beside traffic."""
    pids = [pid for host in HOSTS if (pid := lab.daemon_pid(host))] if EMULATED else []
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def set_granularity(lab: Lab, granularity: Granularity) -> None:
    """Changes the granularity of both hosts, if they have another one."""
    file = lab.state.cluster_file
    before = text = file.read_text(encoding="utf-8")
    for other in GRANULARITIES:
        text = text.replace(f'granularity = "{other}"', f'granularity = "{granularity}"')
    if text == before:
        return
    file.write_text(text, encoding="utf-8")
    for host in HOSTS:
        observe.reload(lab, host)


@contextlib.contextmanager
def one_cpu() -> Iterator[None]:
    """A block in which this thread, and all that it starts, run on one CPU: a lab's packets stay there, without RPS."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def tables(lab: Lab) -> Iterator[list[Tables]]:
    """A block with the tables of both hosts."""
    with contextlib.ExitStack() as stack:
        found = []
        for host in HOSTS:
            found.append(Tables(observe.pins(lab, host), writable=False))
            stack.callback(found[-1].close)
        yield found


def _is_good(t: Tables) -> bool:
    return bool((t.evs["state"][t.evs["configured"] != 0] == EvState.GOOD).all())


def _nics(lab: Lab, host: str) -> list[str]:
    return [port.name for port in lab.fabric.nodes[host].ports]


@contextlib.contextmanager
def _queued(lab: Lab, case: Case) -> Iterator[bool]:
    """A block in which the plane NICs have the qdiscs of a case. False: this kernel has no such qdisc or algorithm."""
    try:
        yield _has_algorithm(case) and _set_qdiscs(lab, case)
    finally:
        for host in HOSTS:
            netns.batch_in(lab.ns(host), ("tc",), [f"qdisc replace dev {n} root noqueue" for n in _nics(lab, host)])


def _has_algorithm(case: Case) -> bool:
    return case.algorithm in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text("ascii").split()


def _set_qdiscs(lab: Lab, case: Case) -> bool:
    """Returns False without such a qdisc, or with too few queues of a NIC. Raises MachineError for other reasons."""
    for host in HOSTS:
        for nic in _nics(lab, host):
            if case.queues > 1 and lab.exec(host, ["ethtool", "-L", nic, "tx", str(case.queues)]).returncode:
                return False  # a veth has as many queues as the machine has CPUs
            try:
                netns.batch_in(lab.ns(host), ("tc",), [line.format(nic=nic) for line in case.qdiscs])
            except MachineError as e:
                if "qdisc kind is unknown" in str(e):
                    return False
                raise
    return True


def _drops(lab: Lab) -> int:
    """Returns the skbs that the qdiscs of the plane NICs have dropped."""
    found = 0
    for host in HOSTS:
        shown = json.loads(lab.exec(host, ["tc", "-s", "-j", "qdisc", "show"], check=True).stdout)
        found += sum(q["drops"] for q in shown if q["dev"] in _nics(lab, host) and q.get("root"))
    return found
