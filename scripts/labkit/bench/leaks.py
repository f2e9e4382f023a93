# SPDX-License-Identifier: BSD-2-Clause
"""Measures what the daemon keeps after many changes: links come and go, files are reloaded, routes are stolen.

A day of a bad host in minutes: the events come one after the other, as fast as they can be made. The clock is real.
"""

import json
import os
import time
from pathlib import Path

from labkit.bench.bad_days import FABRIC, PEER4
from labkit.bench.frame import Bench, Bound, Options, Result, Table
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.cluster.patience import wait_for
from labkit.entry import progress
from labkit.traffic.candidates import SOURCE
from mrcd.errors import MachineError

ROUNDS, WARM = 8, 4  # of which the first ones fill caches and the history of events
LINK_EVENTS, RELOADS, THEFTS = 2500, 250, 25  # in a round
GROWTH = 0.01  # of the memory, from the last warm round to the last
_EVENTS_OF_A_PAIR = 4  # two links come and go
_SETTINGS = ("grey_false_alarms = 2.0", "grey_false_alarms = 3.0")
_WITHIN_S = 60.0


def _change_links(lab: Lab, events: int) -> None:
    pair = "link add leak0 type veth peer name leak1\nlink del leak0\n"
    lab.exec(SOURCE, ["ip", "-batch", "-"], input=pair * (events // _EVENTS_OF_A_PAIR), check=True)


def _reload(lab: Lab, times: int) -> None:
    path = lab.state.cluster_file
    text = path.read_text(encoding="utf-8")
    try:
        for n in range(times):
            path.write_text(f"{text}\n[health]\n{_SETTINGS[n % 2]}\n", encoding="utf-8")
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


def _kept(lab: Lab, pid: int) -> Document:
    """Returns what the daemon has now."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    user, system = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
    return {
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "anonymous_kb": int(status["RssAnon"].split()[0]),
        "pins": sum(len(files) for _, _, files in os.walk(lab.run_dir(SOURCE) / "bpf")),
        "cpu_s": (int(user) + int(system)) / os.sysconf("SC_CLK_TCK"),
    }


def measure(lab: Lab, options: Options) -> Result:
    """Makes the changes round by round, and looks at the daemon after each."""
    lab.up(**FABRIC)
    observe.wait_until_good(lab, lab.fabric.hosts)
    pid = lab.daemon_pid(SOURCE)
    if pid is None:
        raise MachineError(f"mrcd of {SOURCE} does not run")
    part = 10 if options.short else 1
    rows, before = list[Document](), _kept(lab, pid)["cpu_s"]
    for number in range(2 if options.short else ROUNDS):
        began = time.monotonic()
        _change_links(lab, LINK_EVENTS // part)
        _reload(lab, RELOADS // part)
        _steal_routes(lab, max(1, THEFTS // part))
        observe.wait_until_good(lab, lab.fabric.hosts)
        if lab.daemon_pid(SOURCE) != pid:
            raise MachineError(f"mrcd of {SOURCE} is another process now")
        kept = _kept(lab, pid)
        row = {"round": number + 1, "seconds": round(time.monotonic() - began, 1)} | kept
        row["cpu_s"], before = round(kept["cpu_s"] - before, 2), kept["cpu_s"]
        rows.append(row)
        progress(f"leaks: {row}")
    warm, last = rows[0 if options.short else WARM - 1], rows[-1]
    did = f"{LINK_EVENTS // part} link events, {RELOADS // part} reloads, {max(1, THEFTS // part)} stolen routes"
    title = f"A daemon after rounds of {did}"
    bounds = [
        Bound(f"more {what} than after the warm rounds", 0, "").judge(last[what] - warm[what])
        for what in ("descriptors", "threads", "pins")
    ]
    grown = last["anonymous_kb"] / warm["anonymous_kb"] - 1
    bounds.append(Bound("growth of the memory since then", GROWTH, "").judge(round(grown, 4)))
    return Result([Table(title, rows)], bounds)


BENCH = Bench("leaks", measure)
