# SPDX-License-Identifier: BSD-2-Clause
"""Measures loss and reordering of one UDP flow under restarts, kills, upgrades of the object, and reloads."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from labkit.bench.frame import Bench, Bound, Options, Result, Table
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.fabric import host_table
from labkit.cluster.observe import Document
from labkit.cluster.patience import patience
from labkit.entry import progress
from labkit.measure import evorder
from labkit.measure.evorder import Seen
from labkit.places import REPOSITORY
from labkit.traffic import candidates
from labkit.traffic.candidates import SOURCE, TARGET
from labkit.traffic.stream import Stream
from mrcd.errors import MachineError
from mrcd.kernel.object_file import OVERRIDE

TIMES = 10
RATE = 50_000  # packets per second
BURST = 10  # packets per send
HOSTS = (SOURCE, TARGET)
PATIENCE_S = patience(20.0)
_HOP_LIMIT = "#define MRC_HOP_LIMIT {}"  # it shows on the wire
_POLL_S = 0.01


@contextmanager
def another_build(own: str = _HOP_LIMIT.format(64), other: str = _HOP_LIMIT.format(63)) -> Iterator[Path]:
    """A block with an object of other programs: `other` stands in their bpf/mrc_wire.h instead of `own`."""
    with tempfile.TemporaryDirectory(prefix="mrcd-upgrade-") as name:
        root = Path(name)
        shutil.copytree(REPOSITORY / "bpf", root / "bpf")
        shutil.copy(REPOSITORY / "Makefile", root)
        header = root / "bpf/mrc_wire.h"
        text = header.read_text()
        header.write_text(text.replace(own, other))
        if header.read_text() == text:
            raise MachineError(f"bpf/mrc_wire.h has no {own!r}: another build would not differ")
        argv = ["make", "-s", "-C", name, "build/mrc.bpf.o"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise MachineError(f"another build of the programs failed: {done.stderr.strip()}", hint="make set-up")
        yield root / "build/mrc.bpf.o"


@dataclass
class Operations:
    """The operations on the daemons of both ends at once. Each gets the number of its turn."""

    lab: Lab
    other: Path  # the object of another build
    up: Document = field(default_factory=dict)  # parameters of the lab

    def __post_init__(self) -> None:
        self._file = self.lab.state.cluster_file
        self._text = self._file.read_text()

    def restart(self, _: int) -> None:
        """Sends SIGTERM, and starts again."""
        self._end(signal.SIGTERM)
        self.lab.up(**self.up)

    def kill(self, _: int) -> None:
        """Sends SIGKILL, and starts again."""
        self._end(signal.SIGKILL)
        self.lab.up(**self.up)

    def upgrade(self, turn: int) -> None:
        """Restarts with the other object; the next time with the first."""
        self._end(signal.SIGTERM)
        if turn % 2 == 0:
            os.environ[OVERRIDE] = str(self.other)
        try:
            self.lab.up(**self.up)
        finally:
            os.environ.pop(OVERRIDE, None)

    def reload(self, turn: int) -> None:
        """Changes a constant of the programs, and adds or removes a host: by mrcctl at one end, SIGHUP at the other."""
        text = self._text if turn % 2 else _changed(self._text)
        self._file.write_text(text)
        before = self._reloads(TARGET)
        pid = self.lab.daemon_pid(TARGET)
        if pid is None:
            raise MachineError(f"mrcd of {TARGET} does not run")
        os.kill(pid, signal.SIGHUP)
        done = observe.reload(self.lab, SOURCE)
        if not done["programs"]:
            raise MachineError("the reload did not reload the programs", hint=str(done))
        _wait(f"{TARGET} has reloaded", lambda: self._reloads(TARGET) > before)

    def _reloads(self, host: str) -> int:
        return sum(e["reason"] == "reloaded" for e in observe.events(self.lab, host))

    def _end(self, number: signal.Signals) -> None:
        for host in HOSTS:
            pid = self.lab.daemon_pid(host)
            if pid is None:
                raise MachineError(f"mrcd of {host} does not run")
            os.kill(pid, number)
        _wait("both daemons have ended", lambda: not any(self.lab.daemon_pid(h) for h in HOSTS))


def _changed(text: str) -> str:
    """Returns the cluster file with another setting and one host more."""
    host = host_table(60, 0, 99, ["10.99.0.61/32"], name="far")
    head, found, rest = text.partition("[overlay]\n")
    return f"{head}\n{host}\n[overlay]\nflowlet_us = 77\n{rest if found else ''}"


def _wait(what: str, true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > until:
            raise MachineError(f"after {PATIENCE_S:.0f} s still not: {what}")
        time.sleep(_POLL_S)


def run(lab: Lab, times: int, rate: int = RATE, *, other: Path | None = None, **up: object) -> Result:
    """Runs each operation `times` times under one flow. The lab is up with the parameters `up`, and all EVs are GOOD.

    `other`: an object of another_build(), if there is one.
    """
    marks: list[int] = []
    seen: list[Seen] = []
    changed: list[frozenset[int]] = []
    with (
        nullcontext(other) if other else another_build() as build,
        evorder.watching(lab, SOURCE, TARGET) as order,
    ):
        operations = Operations(lab, build, dict(up))
        names = ["restart", "kill", "upgrade", "reload"]
        with Stream(lab, candidates.overlay(lab, 4), rate=rate, burst=BURST) as stream:
            time.sleep(0.5)
            for name in names:
                progress(f"lifecycle: {name}, {times} times")
                marks.append(stream.mark())
                seen.append(order.read())
                for turn in range(times):
                    getattr(operations, name)(turn)
                    if name == "upgrade":
                        time.sleep(0.1)  # so that every EV carries packets
                        changed.append(order.read().hop_limits)
            marks.append(stream.mark())
            result = stream.finish()
        seen.append(order.read())
    rows: list[Document] = []
    for i, name in enumerate(names):
        wire = seen[i + 1].since(seen[i])
        row = {"operation": name, "times": times, "sent": marks[i + 1] - marks[i]}
        row |= {"lost": result.lost(marks[i], marks[i + 1]), "reordered_within_ev": wire.reordered}
        rows.append(row | {"missing_within_ev": wire.missing})
    reordered = sum(r["reordered_within_ev"] for r in rows)
    upgrades = sum(len(now) == 1 and now != then for then, now in pairwise([frozenset[int](), *changed]))
    words = f"packets lost or duplicated in {times} restarts, kills, upgrades and reloads"
    bounds = [
        Bound(words, 0, "").judge(result.lost() + result.twice),
        Bound("packets reordered within their EV", 0, "").judge(reordered),
        Bound("upgrades that reached the wire", times, "", is_least=True).judge(upgrades),
        Bound("packets per second", 0.99 * rate, "_per_s", is_least=True).judge(result.packets_per_s),
    ]
    d = {"socket_drops": result.socket_drops, "sender_late_ms": result.late_ms, "evs": seen[-1].evs}
    title = (
        f"One UDP flow {SOURCE} → {TARGET} of {result.packets_per_s:,.0f} packets/s over {d['evs']} EVs, both hosts' "
        "daemons at once"
    )
    return Result([Table(title, rows)], bounds, detail=d)


def measure(lab: Lab, options: Options) -> Result:
    """Measures in burst granularity, the default."""
    lab.up()
    observe.wait_until_good(lab, lab.fabric.hosts)
    return run(lab, 2 if options.short else TIMES)  # an even number of reloads leaves the file as it was


BENCH = Bench("lifecycle", measure)
