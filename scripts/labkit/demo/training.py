# SPDX-License-Identifier: BSD-2-Clause
"""`scripts/demo-training`: runs a training job through faults, first over the kernel's SRv6, then with mrcd."""

import contextlib
import functools
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path

import click
from rich.console import Console

from labkit import entry
from labkit.cluster import observe, processes
from labkit.cluster.api import Lab
from labkit.cluster.attachment import ATTACHED, DETACHED, switch
from labkit.cluster.observe import Document
from labkit.cluster.patience import patience
from labkit.demo import live, training_report
from labkit.demo.cli import show
from labkit.demo.live import View, row
from labkit.demo.training_report import WAY_WORDS, Episode, Fault
from labkit.places import REPOSITORY
from labkit.tables import duration
from labkit.traffic import candidates
from labkit.traffic.candidates import KERNEL, MRCD
from labkit.traffic.job import RANKS, Job, JobEndedError, Step, require_torch
from mrcd.errors import MachineError
from mrcd.fabric.topology import UDT4
from mrcd.net.routes import with_function

# gloo's ring sends from each rank to the one before. These two are under different T0s.
SENDER, RECEIVER = "h2", "h1"
VERSION = 4  # of IP
WARM_UP_STEPS = 10
_ENDLESS = 10**9  # steps: the job is killed before
_GOOD_S = 30.0  # with mrcd the next fault waits for this long at most until all EVs are GOOD again
_LOW_MS, _HIGH_MS, _ROWS = 10.0, 10_000.0, 8  # of the chart, which is logarithmic
_COLUMN_NS = 500_000_000
_S, _MS = 1_000_000_000, 1_000_000


@dataclass(frozen=True)
class Times:
    """Seconds: without a fault at the beginning, before each fault, with it, and after healing."""

    lead_s: float = patience(10.0)
    before_s: float = patience(3.0)
    fault_s: float = patience(5.0)
    after_s: float = patience(8.0)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--name", default="training", show_default=True, help="name of its lab; an existing lab of that name is replaced"
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON document; the live view goes to stderr")
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    default=REPOSITORY / "build/training.svg",
    help="file of the picture  [default: build/training.svg]",
)
def demo_training(name: str, as_json: bool, svg: Path) -> int:
    """A training job of four gloo ranks in a lab, through five faults: over the kernel's own SRv6, then with mrcd.

    Needs PyTorch: make demo-training installs it. Exit status 1 if a step with mrcd took more than twice the longest
    without a fault.
    """
    require_torch()
    entry.check_writable(svg.parent)
    with entry.own_lab(name) as lab:
        lab.up(hosts=RANKS)
        observe.wait_until_good(lab, lab.fabric.hosts, patience(15.0))
        episodes, twice = run(lab, Times(), Console(stderr=as_json))
        document = {**training_report.build(episodes, twice, lab.fabric.parameters), "svg": str(svg)}
    lines = training_report.summary(document)
    return show(document, svg, training_report.picture(document), lines, as_json=as_json)


def faults_on_the_kernel_s_path(lab: Lab) -> list[Fault]:
    """Returns the faults, all on the path of IPv4 packets between two hosts that are detached.

    A fault elsewhere would not touch a flow of the kernel, which uses one path. Raises MachineError.
    """
    source, target = map(lab.fabric.address, (SENDER, RECEIVER))
    done = lab.exec(SENDER, ["ip", "-json", "route", "get", target, "from", source], check=True)
    segment = IPv6Address(json.loads(done.stdout)[0].get("segs", ["::"])[-1])
    for path in observe.paths(lab, SENDER, RECEIVER):
        if with_function(IPv6Address(path["segments"][-1]), UDT4) == segment:
            break
    else:
        raise MachineError(
            f"{SENDER} has no SRv6 route of the kernel to {RECEIVER}", hint="are the hosts detached? see ip route there"
        )
    plane, t1, t0 = path["plane"], path["t1"], lab.fabric.config.host(SENDER).t0
    link = f"link:{plane}:{t0}:{t1}"
    return [
        Fault(f"t1:{plane}:{t1}", "a T1 dies"),
        Fault(f"nic:{SENDER}:{plane}", "a NIC is down", down=True),
        Fault(f"t0:{plane}:{t0}", "a T0 is gone"),
        Fault(link, "20 % loss", drop=0.2),
        Fault(link, "1 % loss", drop=0.01),
    ]


def run(lab: Lab, times: Times, console: Console, number: int | None = None) -> tuple[dict[str, list[Episode]], float]:
    """Runs the job over the kernel's SRv6, then with mrcd, through the first `number` faults, or all.

    Returns way → its episodes, and the share of packets that mrcd sent on two paths. All EVs are GOOD before.
    """
    switch(lab, DETACHED)
    play = functools.partial(_run, lab, faults_on_the_kernel_s_path(lab)[:number], times, console)
    # No mrcd runs: also while detached, it would take failed paths out of the kernel's routes.
    processes.end(p for p in (lab.state.daemon(h) for h in lab.fabric.hosts) if p is not None)
    try:
        detached = play(DETACHED)
    finally:
        lab.up(**lab.fabric.parameters.as_json())  # starts them again
    switch(lab, ATTACHED)
    before = _sent(lab)
    attached = play(ATTACHED)
    packets, twice = (after - b for after, b in zip(_sent(lab), before, strict=True))
    return {DETACHED: detached, ATTACHED: attached}, twice / packets


def _sent(lab: Lab) -> tuple[int, int]:
    """Returns how many data packets all hosts have sent, copies included, and of how many they sent two copies."""
    packets = sum(p["tx_packets"] for host in lab.fabric.hosts for p in observe.paths(lab, host))
    status = [observe.client(lab, host).get("/v1/status") for host in lab.fabric.hosts]
    return packets, sum(s["critical"]["sent_twice"] for s in status)


def _run(lab: Lab, faults: Sequence[Fault], times: Times, console: Console, way: str) -> list[Episode]:
    """Runs the job through all faults. A stuck job is killed, and a new one started for the next fault."""
    episodes: list[Episode] = []
    begin_ns = time.monotonic_ns()
    title = f"A training job of {RANKS} ranks: {WAY_WORDS[way]}"
    interface = MRCD if way == ATTACHED else KERNEL
    with View(console, title) as view, candidates.receiving(lab, interface, lab.fabric.hosts):
        while len(episodes) < len(faults):
            with Job(lab, VERSION) as job:
                job.run(WARM_UP_STEPS)
                job.begin(_ENDLESS)
                stage = _Stage(lab, way, job, begin_ns, times, view)
                for fault in faults[len(episodes) :]:
                    before_s = times.before_s if episodes else times.lead_s
                    episodes.append(stage.play(fault, before_s, is_last=fault is faults[-1]))
                    if episodes[-1].is_stuck:
                        break
    return episodes


class _Stage:
    """Makes and heals faults under one job, and updates the view."""

    def __init__(self, lab: Lab, way: str, job: Job, begin_ns: int, times: Times, view: View) -> None:
        self._lab, self._way, self._job, self._times, self._view = lab, way, job, times, view
        self._begin_ns = begin_ns
        self._broken: Fault | None = None
        self._healed: Document = {}  # the record of the last healed fault
        self._end_ns = job.steps[-1].end_ns  # of the last episode

    def play(self, fault: Fault, before_s: float, *, is_last: bool) -> Episode:
        """Runs one episode: the time before the fault, the fault, and the time after healing."""
        begin_ns, first, ended = self._end_ns, len(self._job.steps), None
        fail_ns = heal_ns = 0
        try:
            self._watch(before_s)
            with self._fault(fault) as fail_ns:
                self._watch(self._times.fault_s)
            heal_ns = self._healed["monotonic_ns"]
            self._watch(self._times.after_s)
            if not is_last:
                self._wait_until_good()
        except JobEndedError as e:
            ended, now_ns = str(e), time.monotonic_ns()
            fail_ns, heal_ns = fail_ns or now_ns, heal_ns or now_ns
        self._end_ns = time.monotonic_ns()
        episode = Episode(
            fault=fault,
            begin_ns=begin_ns,
            fail_ns=fail_ns,
            heal_ns=heal_ns,
            end_ns=self._end_ns,
            steps=tuple(self._job.steps[first:]),
            running_since_ns=self._job.steps[-1].end_ns,
            dropped_skbs=self._healed.get("dropped_skbs", 0),
            ended=ended,
        )
        if episode.is_stuck:
            self._note(f"the job is stuck: {ended or 'no step ends'}", "fault")
        return episode

    @contextlib.contextmanager
    def _fault(self, fault: Fault) -> Iterator[int]:
        """A block with the fault; gives CLOCK_MONOTONIC ns of its beginning."""
        fail_ns = self._lab.fail(fault.target, drop=fault.drop, down=fault.down)["monotonic_ns"]
        self._broken = fault
        self._note(f"fault: {fault.words} ({fault.target})", "fault")
        try:
            yield fail_ns
        finally:
            self._healed = self._lab.heal(fault.target)[0]
            self._broken = None
            self._note(f"healed: {fault.target}", "heal")

    def _wait_until_good(self) -> None:
        """Lets the job run with mrcd until every EV is GOOD again, so that the next fault hits EVs in use."""
        until = time.monotonic() + _GOOD_S
        while self._way == ATTACHED and time.monotonic() < until:
            if all(p["state"] == "GOOD" for host in self._lab.fabric.hosts for p in observe.paths(self._lab, host)):
                return
            self._watch(0.5)

    def _note(self, words: str, style: str) -> None:
        self._view.note((time.monotonic_ns() - self._begin_ns) / _S, words, style)

    def _watch(self, seconds: float) -> None:
        self._view.until(time.monotonic() + seconds, self._job.poll, self._look)

    def _look(self) -> None:
        """Shows the steps of the last second, and the longest step of each half second before."""
        now_ns, broken = time.monotonic_ns(), [self._broken.words] if self._broken else []
        last = [s.ns for s in late(self._job.steps, now_ns - _S)]
        running = f"a step has run for {duration(now_ns - self._job.steps[-1].end_ns)}"
        line = f"{len(last):3} steps, the longest {duration(max(last))}" if last else running
        now = f"{duration(last[0])}   {len(last)} steps/s" if last else running
        steps = longest_ms(self._job.steps, now_ns, _COLUMN_NS, self._view.columns)
        heights = [math.log10(max(ms, _LOW_MS) / _LOW_MS) if ms else 0.0 for ms in steps]
        chart = live.chart(heights, math.log10(_HIGH_MS / _LOW_MS), {0: "step  10 s", _ROWS - 1: "10 ms"}, _ROWS)
        board = [*chart, row("now", (now, "bold")), live.faults(broken)]
        self._view.show((now_ns - self._begin_ns) / _S, line + "".join(f"   ({words})" for words in broken), board)


def late(steps: Sequence[Step], since_ns: int) -> Iterator[Step]:
    """Yields the steps that ended after that time, the last one first."""
    for step in reversed(steps):
        if step.end_ns <= since_ns:
            return
        yield step


def longest_ms(steps: Sequence[Step], now_ns: int, width_ns: int, number: int) -> list[float]:
    """Returns the longest step that ran in each of the last intervals, the current step included; 0 without one."""
    end_ns = now_ns - now_ns % width_ns + width_ns
    found = [0.0] * number
    for step in [Step(steps[-1].end_ns, now_ns), *late(steps, end_ns - number * width_ns)]:
        first = max(0, number - 1 - (end_ns - 1 - step.begin_ns) // width_ns)
        for column in range(first, number - (end_ns - step.end_ns) // width_ns):
            found[column] = max(found[column], step.ns / _MS)
    return found


def main() -> None:
    """Entry point."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    entry.main("scripts/demo-training", demo_training)
