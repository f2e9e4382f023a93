# SPDX-License-Identifier: BSD-2-Clause
"""Measures fleet control: eight hosts follow an etcd of three members, under load, while members die.

etcd's members are hosts of the lab, and their packets take mrcd's paths.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from statistics import median

from labkit.bench.frame import Bench, Bound, Options, Result, Table
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.etcd import EtcdMembers
from labkit.cluster.observe import Document
from labkit.cluster.patience import patience
from labkit.entry import progress
from labkit.traffic.streams import Streams
from mrcd.errors import MachineError

LAB = {"hosts": 8, "planes": 2, "t1": 2}
RATE = 5_000  # packets per second of each of four flows
TIMES = 10
TARGET = "t1:0:1"
_SETTING = "\n[health]\noverdue_ms = {}\n"  # the programs are loaded anew
_PATIENCE_S = patience(60.0)


class Fleet:
    """The hosts of the lab, and the etcd that they follow."""

    def __init__(self, lab: Lab, etcd: EtcdMembers) -> None:
        self.lab, self.etcd = lab, etcd
        self.file = lab.state.cluster_file.read_text()

    def ctl(self, *words: str, given: str | None = None) -> Document:
        """Runs `mrcctl fleet` on h1, and returns its document. Raises MachineError if it fails."""
        done = self.lab.exec("h1", ["mrcctl", "fleet", *words, "--json"], input=given)
        if done.returncode:
            raise MachineError(f"mrcctl fleet {' '.join(words)} failed: {done.stderr.strip()}")
        return dict(json.loads(done.stdout))

    def deny(self, _: int) -> None:
        """Denies a T1 on all hosts."""
        self.ctl("deny", TARGET)

    def allow(self, _: int) -> None:
        """Allows it again."""
        self.ctl("allow", TARGET)

    def drain(self, _: int) -> None:
        """Drains a T1, takes it out, puts it back and allows it."""
        self.ctl("drain", TARGET)
        self.lab.fail(TARGET)
        self.lab.heal(TARGET)
        self.ctl("allow", TARGET)

    def put(self, turn: int) -> None:
        """Gives all hosts a file with another setting of the programs."""
        self.ctl("put", "-", "--wait", "60", given=self.file + _SETTING.format(11 + turn % 2))

    def member(self, turn: int) -> None:
        """Kills a member of etcd, denies and allows, and starts the member again."""
        self.etcd.kill(self.etcd.hosts[turn % 3])
        self.deny(turn)
        self.allow(turn)
        self.etcd.start()

    def restart(self, _: int) -> None:
        """Kills all daemons while no member of etcd runs. Raises MachineError if one does not know what it knew."""
        self.deny(0)
        before = self._known()
        self.etcd.kill()
        for host in self.lab.fabric.hosts:
            pid = self.lab.daemon_pid(host)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        _wait("the daemons have ended", lambda: not any(map(self.lab.daemon_pid, self.lab.fabric.hosts)))
        self.lab.up(**LAB)
        if self._known() != before:
            raise MachineError(f"the daemons knew {before}, and after a restart without etcd {self._known()}")
        self.etcd.start()
        self.wait_until_connected()
        self.allow(0)

    def _known(self) -> list[tuple[int | None, list[str]]]:
        status = [observe.client(self.lab, h).get("/v1/status") for h in self.lab.fabric.hosts]
        return [(s["fleet"]["generation"], [d["target"] for d in s["denials"]]) for s in status]

    def wait_until_connected(self) -> None:
        """Waits until all hosts follow etcd. Raises MachineError."""
        clients = [observe.client(self.lab, h) for h in self.lab.fabric.hosts]
        _wait("all hosts follow etcd", lambda: all(c.get("/v1/status")["fleet"]["connected"] for c in clients))


def _wait(what: str, true: Callable[[], bool]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not true():
        if time.monotonic() > until:
            raise MachineError(f"after {_PATIENCE_S:.0f} s still not: {what}")
        time.sleep(0.02)


def measure(lab: Lab, options: Options) -> Result:
    """Runs each operation some times under load. Raises MachineError without etcd, or if an operation fails."""
    if (why := EtcdMembers.missing()) is not None:
        raise MachineError(why)
    lab.up(**LAB)
    observe.wait_until_good(lab, lab.fabric.hosts)
    etcd = EtcdMembers(lab, ["h0", "h2", "h4"])
    etcd.start()
    try:
        lab.state.cluster_file.write_text(lab.state.cluster_file.read_text() + etcd.section)
        for host in lab.fabric.hosts:
            observe.reload(lab, host)
        fleet = Fleet(lab, etcd)
        fleet.wait_until_connected()
        fleet.ctl("put", "-", given=fleet.file)
        operations = (
            ("deny", fleet.deny, TIMES, fleet.allow),
            ("drain, take out, put back", fleet.drain, TIMES, None),
            ("another file", fleet.put, TIMES // 2, None),
            ("a member of etcd dies", fleet.member, 3, None),
            ("daemons killed, etcd gone", fleet.restart, 2, None),
        )
        rows = [_row(lab, name, do, 1 if options.short else times, undo) for name, do, times, undo in operations]
    finally:
        etcd.kill()
    title = (
        f"{LAB['hosts']} hosts follow an etcd of three members under four flows of {RATE:,} packets/s; "
        "times until all hosts have said that they follow"
    )
    bound = Bound("packets lost", 0, "").judge(sum(r["lost"] for r in rows))
    return Result([Table(title, rows)], [bound])


def _row(
    lab: Lab, name: str, operation: Callable[[int], None], times: int, undo: Callable[[int], None] | None
) -> Document:
    """Runs an operation some times under load; `undo` follows each, and is not timed."""
    progress(f"fleet: {name}, {times} times")
    seconds = []
    with Streams(lab, RATE) as streams:
        for turn in range(times):
            begun = time.monotonic()
            operation(turn)
            seconds.append(time.monotonic() - begun)
            if undo:
                undo(turn)
            streams.go_on()
        sent, lost = streams.finish()
    observe.wait_until_good(lab, lab.fabric.hosts, 30)
    row = {"operation": name, "times": times, "median_s": median(seconds), "max_s": max(seconds)}
    return row | {"sent": sent, "lost": lost}


BENCH = Bench("fleet", measure)
