# SPDX-License-Identifier: BSD-2-Clause
"""Upgrades two hosts one after the other to another wire version and back, under a UDP flow and TCP connections."""

import os
import signal
import time
from pathlib import Path

from labkit.bench.frame import Bench, Bound, Options, Result, Table
from labkit.bench.lifecycle import another_build
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.cluster.patience import patience, wait_for
from labkit.entry import progress
from labkit.places import end_program
from labkit.traffic import candidates
from labkit.traffic.candidates import SOURCE, TARGET
from labkit.traffic.flow import Ends, TwoEnds
from labkit.traffic.stream import Stream
from mrcd.errors import MachineError
from mrcd.kernel.object_file import OVERRIDE
from mrcd.versions import WIRE_VERSION

RATE = 50_000  # packets per second
CONNECTIONS = 100
GAP_S = 0.02  # between two requests of a connection
HOSTS = (SOURCE, TARGET)
PATIENCE_S = patience(30.0)
_DEFINE = "#define MRC_WIRE_VERSION "


class Requests(TwoEnds):
    """Requests over many TCP connections, from `with` to `finish`."""

    def __init__(self, lab: Lab, ends: Ends, connections: int) -> None:
        super().__init__(lab, ends, end_program("askend"), "ask")
        self._sender = (connections, GAP_S)

    def finish(self) -> tuple[int, int]:
        """Ends the connections. Returns the answers, and how many connections were broken."""
        self._finish()
        return int(self._facts["answers"]), int(self._facts["broken"])


def run(lab: Lab, turns: int = 1, rate: int = RATE, connections: int = CONNECTIONS) -> Result:
    """Upgrades and goes back `turns` times. The lab is up, and all EVs are GOOD."""
    own, other = f"{_DEFINE}{WIRE_VERSION}", f"{_DEFINE}{WIRE_VERSION - 1}"
    ends, rows, sprayed = candidates.overlay(lab, 4), list[Document](), 0
    with (
        another_build(own, other) as build,
        Stream(lab, ends, rate=rate) as stream,
        Requests(lab, ends, connections) as requests,
    ):
        marks = [stream.mark()]
        for host, program in ((SOURCE, build), (TARGET, build), (SOURCE, None), (TARGET, None)) * turns:
            version = WIRE_VERSION - (program is not None)
            progress(f"versions: {host} gets wire version {version}")
            _upgrade(lab, host, program)
            if host == SOURCE:  # the hosts differ now
                wait_for("both hosts name the version", lambda: all(_names_version(lab, h) for h in HOSTS), 60.0)
                sprayed += sum(_sends(lab, h) for h in HOSTS)
            else:
                wait_for("both hosts spray again", lambda: all(_sends(lab, h) for h in HOSTS), 60.0)
                observe.wait_until_good(lab, HOSTS, PATIENCE_S)
            marks.append(stream.mark())
            rows.append({"host": host, "wire_version": version, "sent": marks[-1] - marks[-2]})
        result = stream.finish()
        answers, broken = requests.finish()
    for row, first, last in zip(rows, marks, marks[1:], strict=False):
        row["lost"] = result.lost(first, last)
    bounds = [
        Bound("packets lost or duplicated", 0, "").judge(result.lost() + result.twice),
        Bound("TCP connections broken", 0, "").judge(broken),
        Bound("packets sprayed while the hosts differ", 0, "").judge(sprayed),
        Bound("answers", 100 * turns, "", is_least=True).judge(answers),
    ]
    title = f"A UDP flow of {result.packets_per_s:,.0f} packets/s and {connections} TCP connections, host by host"
    detail = {"socket_drops": result.socket_drops, "sender_late_ms": result.late_ms, "answers": answers}
    return Result([Table(title, rows)], bounds, detail=detail)


def _upgrade(lab: Lab, host: str, program: Path | None) -> None:
    """Restarts mrcd of a host with these programs, or with its own."""
    pid = lab.daemon_pid(host)
    if pid is None:
        raise MachineError(f"mrcd of {host} does not run")
    os.kill(pid, signal.SIGTERM)
    wait_for("the daemon has ended", lambda: not lab.daemon_pid(host), PATIENCE_S)
    if program:
        os.environ[OVERRIDE] = str(program)
    try:
        lab.up()
    finally:
        os.environ.pop(OVERRIDE, None)


def _names_version(lab: Lab, host: str) -> bool:
    found = observe.client(lab, host).get("/v1/status")["diagnosis"]
    return any("wire version" in cause["sentence"] for cause in found)


def _sends(lab: Lab, host: str) -> int:
    """Returns how many packets a host sends to the other one over its EVs within a moment."""
    other = TARGET if host == SOURCE else SOURCE

    def sent() -> int:
        return sum(int(p["tx_packets"]) for p in observe.paths(lab, host, other))

    before = sent()
    time.sleep(0.2)
    return sent() - before


def measure(lab: Lab, options: Options) -> Result:
    """Measures in burst granularity, the default."""
    lab.up()
    observe.wait_until_good(lab, lab.fabric.hosts)
    return run(lab, 1 if options.short else 5)


BENCH = Bench("versions", measure)
