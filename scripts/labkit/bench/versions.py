# SPDX-License-Identifier: BSD-2-Clause
"""Upgrades two hosts one after the other to another wire version and back, under a UDP flow and TCP connections.

The other version is a build of these programs that says so; with --full it is the whole mrcd of the newest commit that
had another one.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from labkit.bench.frame import Bench, Bound, Options, Result, Table
from labkit.bench.lifecycle import another_build
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.cluster.patience import patience, wait_for
from labkit.entry import progress
from labkit.places import REPOSITORY
from labkit.traffic import candidates
from labkit.traffic.candidates import SOURCE, TARGET
from labkit.traffic.requests import OpenConnections, Requests
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


@contextmanager
def _former_build() -> Iterator[dict[str, str]]:
    """A block with the environment of an mrcd that says another wire version."""
    with another_build(f"{_DEFINE}{WIRE_VERSION}", f"{_DEFINE}{WIRE_VERSION - 1}") as program:
        yield {OVERRIDE: str(program)}


@contextmanager
def _former_commit() -> Iterator[dict[str, str]]:
    """A block with the environment of the mrcd of the newest commit before this wire version. Raises MachineError."""
    since = _run("git", "log", "-1", "--format=%h", f"-S{_DEFINE}{WIRE_VERSION}\n", "--", "bpf/mrc_wire.h").strip()
    if not since:
        raise MachineError("no commit before this wire version is here", hint="git fetch --unshallow")
    with tempfile.TemporaryDirectory(prefix="mrcd-upgrade-") as name:
        progress(f"versions: builds the commit before {since}")
        _run("sh", "-ec", f"git archive {since}~1 | tar -x -C {name}")
        _run("make", "-s", "-C", name, "mrcd/mrc.bpf.o")
        yield {"PYTHONPATH": name}


def _run(*argv: str) -> str:
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise MachineError(f"{argv[0]}: {done.stderr.strip()}")
    return done.stdout


def run(
    lab: Lab, turns: int = 1, rate: int = RATE, connections: int = CONNECTIONS, *, whole_mrcd: bool = False
) -> Result:
    """Upgrades and goes back `turns` times. The lab is up, and all EVs are GOOD."""
    ends, rows, sprayed = candidates.overlay(lab, 4), list[Document](), 0
    with (
        (_former_commit if whole_mrcd else _former_build)() as former,
        Stream(lab, ends, rate=rate) as stream,
        Requests(lab, ends, OpenConnections(connections, GAP_S)) as requests,
    ):
        marks = [stream.mark()]
        for host, environment in ((SOURCE, former), (TARGET, former), (SOURCE, {}), (TARGET, {})) * turns:
            version = WIRE_VERSION - bool(environment)
            progress(f"versions: {host} gets wire version {version}")
            _upgrade(lab, host, environment)
            if host == SOURCE:  # the hosts differ now
                wait_for("both hosts name the version", lambda: all(_names_version(lab, h) for h in HOSTS), 60.0)
                sprayed += sum(_sends(lab, h) for h in HOSTS)
            else:
                wait_for("both hosts spray again", lambda: all(_sends(lab, h) for h in HOSTS), 60.0)
                observe.wait_until_good(lab, HOSTS, PATIENCE_S)
            marks.append(stream.mark())
            rows.append({"host": host, "wire_version": version, "sent": marks[-1] - marks[-2]})
        result = stream.finish()
        requests.finish()
    for row, first, last in zip(rows, marks, marks[1:], strict=False):
        row["lost"] = result.lost(first, last)
    bounds = [
        Bound("packets lost or duplicated", 0, "").judge(result.lost() + result.twice),
        Bound("TCP connections broken, or without an answer", 0, "").judge(requests.broken + requests.unanswered),
        Bound("packets sprayed while the hosts differ", 0, "").judge(sprayed),
        Bound("answers", 100 * turns, "", is_least=True).judge(len(requests.took)),
    ]
    title = f"A UDP flow of {result.packets_per_s:,.0f} packets/s and {connections} TCP connections, host by host"
    detail = {"socket_drops": result.socket_drops, "sender_late_ms": result.late_ms, "answers": len(requests.took)}
    return Result([Table(title, rows)], bounds, detail=detail)


def _upgrade(lab: Lab, host: str, environment: Mapping[str, str]) -> None:
    """Restarts mrcd of a host with these variables."""
    pid = lab.daemon_pid(host)
    if pid is None:
        raise MachineError(f"mrcd of {host} does not run")
    os.kill(pid, signal.SIGTERM)
    wait_for("the daemon has ended", lambda: not lab.daemon_pid(host), PATIENCE_S)
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        lab.up()
    finally:
        os.environ.clear()
        os.environ.update(before)


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
    return run(lab, 1 if options.short else 5, whole_mrcd=options.full)


BENCH = Bench("versions", measure)
