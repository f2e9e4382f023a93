# SPDX-License-Identifier: BSD-2-Clause
"""Measures what the daemon keeps after a day of many changes: links come and go, files are reloaded, routes are stolen.

The daemon's clock jumps (jumping_clock.py), so that the day takes minutes. Kernel, programs and peers are real.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from labkit.bench import jumping_clock
from labkit.bench.bad_days import FABRIC, PEER4
from labkit.bench.frame import Bench, Bound, Options, Result, Table
from labkit.cluster import bringup, observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.cluster.patience import wait_for
from labkit.entry import progress
from labkit.traffic.candidates import SOURCE
from mrcd.errors import MachineError
from mrcd.health import event_file
from mrcd.health.event_file import EventFile

ROUNDS, WARM = 8, 4  # of which the first ones fill caches
PARTS = 5  # of a round
LINK_EVENTS, RELOADS, THEFTS, SECONDS = 256, 25, 3, 2160.0  # in a part
GROWTH = 0.01  # of the memory, from the last warm round to the last
DUMPS = 1.0  # per simulated second, in a round
# Two links of others come and go, and one of mrcd's changes four times.
_EIGHT_EVENTS = (
    "link add leak0 type veth peer name leak1\nlink del leak0\n" + "link set p0 alias a\nlink set p0 alias b\n" * 2
)
_SETTINGS = ("grey_false_alarms = 2.0", "grey_false_alarms = 3.0")
_WITHIN_S = 60.0
_ROUND_WITHIN_S = 1200.0


def _change_links(lab: Lab, events: int) -> None:
    lab.exec(SOURCE, ["ip", "-batch", "-"], input=_EIGHT_EVENTS * (events // 8), check=True)


def _reload(lab: Lab, times: int) -> None:
    path = lab.state.cluster_file
    text = path.read_text(encoding="utf-8")
    settings = text.index("[health]\n") + len("[health]\n")
    try:
        for n in range(times - 1):
            path.write_text(f"{text[:settings]}{_SETTINGS[n % 2]}\n{text[settings:]}", encoding="utf-8")
            observe.reload(lab, SOURCE)
    finally:
        path.write_text(text, encoding="utf-8")
        observe.reload(lab, SOURCE)


def _steal_routes(lab: Lab, times: int) -> None:
    def is_ours() -> bool:
        shown = lab.exec(SOURCE, ["ip", "-j", "route", "show", PEER4], check=True).stdout
        return {r["dev"] for r in json.loads(shown) if r.get("metric") == 100} == {"mrc0"}

    for _ in range(times):
        lab.exec(SOURCE, ["ip", "route", "replace", PEER4, "dev", "p0", "metric", "100"], check=True)
        wait_for("the route is taken back", is_ours, _WITHIN_S, 0.02)


def _fill_history(lab: Lab) -> None:
    """Gives the next daemon as many events as it keeps, so that those of the day replace others, and add none."""
    path = lab.run_dir(SOURCE) / event_file.FILE
    path.unlink(missing_ok=True)
    event: dict[str, Any] = dict.fromkeys(("peer", "ev", "plane", "t1", "from", "to"))
    event |= {"kind": "daemon", "reason": "reloaded", "monotonic_ns": 0, "evidence": {"secrets": [1]}}
    kept = EventFile(path)
    for number in range(1, event_file.MOST + 1):
        kept.append(event | {"id": number, "time": datetime.now(UTC).isoformat(timespec="milliseconds")})
    kept.close()


@contextmanager
def _jumping(lab: Lab) -> Iterator["subprocess.Popen[bytes]"]:
    """A block in which the daemon of SOURCE has the jumping clock."""
    pid = lab.daemon_pid(SOURCE)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        wait_for("mrcd has ended", lambda: lab.daemon_pid(SOURCE) is None, _WITHIN_S)
    _fill_history(lab)
    argv = [sys.executable, jumping_clock.__file__, "--config", str(lab.state.cluster_file), "--host", SOURCE]
    argv += ["--run-dir", str(lab.run_dir(SOURCE)), "--bpffs", str(lab.state.bpffs(SOURCE))]
    with lab.state.log(SOURCE).open("ab") as log:
        daemon = lab.popen(SOURCE, argv, stdout=log, stderr=log)
    try:
        yield daemon
    finally:
        daemon.terminate()
        daemon.wait(30)


def _held(lab: Lab, daemon: "subprocess.Popen[bytes]") -> Document:
    """Returns what the daemon has now."""
    path = lab.run_dir(SOURCE) / jumping_clock.REPORT
    path.unlink(missing_ok=True)
    daemon.send_signal(signal.SIGUSR1)

    wait_for("the daemon says what it holds", lambda: path.exists() or daemon.poll() is not None, _WITHIN_S)
    if daemon.returncode is not None:
        raise MachineError(f"mrcd of {SOURCE} has ended with {daemon.returncode}: see {lab.state.log(SOURCE)}")
    held: Document = json.loads(path.read_text(encoding="utf-8"))
    return held | {"pins": sum(len(files) for _, _, files in os.walk(lab.run_dir(SOURCE) / "bpf"))}


def _spend(lab: Lab, daemon: "subprocess.Popen[bytes]", parts: int, until_s: float) -> None:
    """Makes the changes of a round, and waits for its end."""
    for _ in range(parts):
        _change_links(lab, LINK_EVENTS)
        _reload(lab, RELOADS)
        _steal_routes(lab, THEFTS)
    wait_for("the round is over", lambda: _held(lab, daemon)["simulated_s"] >= until_s, _ROUND_WITHIN_S, 1.0)
    observe.wait_until_good(lab, lab.fabric.hosts)


def measure(lab: Lab, options: Options) -> Result:
    """Makes the changes round by round, and looks at the daemon after each."""
    lab.up(**FABRIC)
    observe.wait_until_good(lab, lab.fabric.hosts)
    parts = 1 if options.short else PARTS
    rows = list[Document]()
    with _jumping(lab) as daemon:
        wait_for("mrcd answers", lambda: bringup.answers(lab.run_dir(SOURCE) / "mrcd.sock"), _WITHIN_S)
        before = _held(lab, daemon)
        for number in range(2 if options.short else ROUNDS):
            began = time.monotonic()
            _spend(lab, daemon, parts, (number + 1) * parts * SECONDS)
            held = _held(lab, daemon)
            passed_s = held["simulated_s"] - before["simulated_s"]
            row = {"round": number + 1, "seconds": round(time.monotonic() - began, 1)} | held
            row["dumps_per_s"] = round((row.pop("dumps") - before["dumps"]) / passed_s, 3)
            rows.append(row)
            before = held
            progress(f"leaks: {row}")
    warm, last = rows[0 if options.short else WARM - 1], rows[-1]
    did = f"{parts * LINK_EVENTS} link events, {parts * RELOADS} reloads, {parts * THEFTS} stolen routes"
    title = f"A daemon after rounds of {parts * SECONDS / 3600:.1f} simulated hours with {did}"
    bounds = [
        Bound(f"more {what} than after the warm rounds", 0, "").judge(last[what] - warm[what])
        for what in ("descriptors", "threads", "tasks", "pins")
    ]
    grown = last["anonymous_kb"] / warm["anonymous_kb"] - 1
    bounds.append(Bound("growth of the memory since then", GROWTH, "").judge(round(grown, 4)))
    bounds.append(Bound("netlink dumps per simulated second", DUMPS, "").judge(max(r["dumps_per_s"] for r in rows)))
    return Result([Table(title, rows)], bounds)


BENCH = Bench("leaks", measure)
