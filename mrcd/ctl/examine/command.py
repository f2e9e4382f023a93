# SPDX-License-Identifier: BSD-2-Clause
"""Collects the data of the checks, runs them, and makes the document of --json and its text.

Doctor sends probes of three sizes per EV, and datagrams of two sizes to each peer through mrc0.
"""

import errno
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mrcd.config import cluster_file
from mrcd.ctl.client import DaemonDown
from mrcd.ctl.examine.checks import Answers, Context, Document, examine
from mrcd.ctl.examine.machine import Machine
from mrcd.ctl.packets import probe
from mrcd.ctl.terminal.render import fold
from mrcd.errors import MachineError, MrcdError
from mrcd.fabric import topology
from mrcd.fabric.topology import Plan
from mrcd.kernel import features
from mrcd.kernel.settings import settings
from mrcd.probes import probe_packet
from mrcd.probes.exchange import Exchange
from mrcd.versions import SCHEMA_VERSION
from mrcd.view.running_file import RUNNING_FILE, plan_in, read_running

_INDENT = 6  # of what is below a status
_LEAST_TEXT = 30  # characters; with less room the text is below the check's name
# Of the packets that doctor sends.
_COUNT = 3
_PER_SECOND = 5000  # probes
_LEAST_S, _WAIT_S = 0.01, 0.5
_DISCARD = 9  # port
_MTU_DISCOVER = {4: (socket.IPPROTO_IP, 10), 6: (socket.IPPROTO_IPV6, 23)}
_PMTUDISC_DO = 2
_HEADERS = {4: 28, 6: 48}
_COLOURS = {"PASS": "32", "WARN": "33", "FAIL": "31", "SKIP": "2"}


def preflight(file: Path | None, host: str | None) -> Document:
    """Return the document of `mrcctl preflight`. Raises UsageError, ConfigError."""
    plan = topology.plan(cluster_file.load(file), host or socket.gethostname()) if file else None
    example = plan or topology.plan(cluster_file.parse(cluster_file.EXAMPLE), "a")
    machine = Machine(settings(example, features.kernel_has()).tobytes())
    return document("preflight", Context(machine, plan))


def doctor(run_dir: Path, documents: Any, down: DaemonDown | None) -> Document:
    """Return the document of `mrcctl doctor`. `documents` are status, peers and paths; None without them.

    Raises MachineError if mrcd has never run here.
    """
    plan, pins = running(run_dir)
    if documents is None:
        why = str(down.args[0]) if down else "mrcd does not answer"
        is_alive = down is not None and down.pid is not None
        return document("doctor", Context(Machine(), plan, installed=True, pins=pins, down=why, is_alive=is_alive))
    status, peers, evs = documents
    context = Context(
        Machine(),
        plan,
        installed=True,
        pins=pins,
        status=status,
        peers=peers,
        answers=answers(status, peers, evs),
        overlay=overlay(status, peers),
    )
    return document("doctor", context)


def answers(
    status: Mapping[str, Any], peers: Sequence[Mapping[str, Any]], paths: Sequence[Mapping[str, Any]]
) -> list[Answers]:
    """Probe every EV with the smallest size, the planes' MTU, and a byte more. Raises MachineError."""
    local, reserved = probe.local_host(status), probe.reserved_bytes(paths)
    ids = {p["peer"]: int(p["host_id"]) for p in peers}
    routes = {(p["peer"], p["ev"]): probe.route(p, ids[p["peer"]], size=0, reserved=reserved) for p in paths}
    if not routes or local.mtu < max(probe_packet.size_of(r.segments, r.reserved) for r in routes.values()):
        return []
    small = [replace(r, key=(*key, 0)) for key, r in routes.items()]
    sizes = (local.mtu, local.mtu + 1)
    large = [replace(r, key=(*key, size), size=size) for key, r in routes.items() for size in sizes]
    with Exchange(local, [r.plane for r in small]) as exchange:
        found = exchange.run(small, _COUNT, max(_LEAST_S, len(small) / _PER_SECOND), _WAIT_S)
        found |= exchange.run(large, _COUNT, max(_LEAST_S, len(large) / _PER_SECOND), _WAIT_S)
    return [
        Answers(p["peer"], p["ev"], p["plane"], p["state"], *(found[p["peer"], p["ev"], size] for size in (0, *sizes)))
        for p in paths
    ]


def overlay(status: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Send datagrams of the inner MTU and a byte more. Returns peer → problem; the text is empty if there is none.

    Only peers to which this host sprays get them, at the discard port.
    """
    if not status["attached"]:
        return {}
    found = {}
    for p in peers:
        addresses = [x.partition("/")[0] for x in p["prefixes"] if x.endswith(("/32", "/128"))]
        if p["status"] == "attached" and addresses:
            wrong = [why for a in addresses if (why := _datagrams(a, int(status["inner_mtu"])))]
            found[str(p["peer"])] = wrong[0] if wrong else ""
    return found


def _datagrams(address: str, mtu: int) -> str:
    version = 6 if ":" in address else 4
    with socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(*_MTU_DISCOVER[version], _PMTUDISC_DO)
        full = mtu - _HEADERS[version]
        try:
            s.sendto(bytes(full), (address, _DISCARD))
        except OSError as e:
            return f"the kernel refuses a packet of {mtu} bytes, the inner MTU: {e.strerror}"
        try:
            s.sendto(bytes(full + 1), (address, _DISCARD))
        except OSError as e:
            return "" if e.errno == errno.EMSGSIZE else f"a packet of {mtu + 1} bytes: {e.strerror}"
        return f"the kernel accepts a packet of {mtu + 1} bytes, more than the inner MTU, which will be lost"


def running(run_dir: Path) -> tuple[Plan, str]:
    """Return the plan of the running configuration, saved beside mrcd's socket, and the directory of its tables.

    Raises MachineError.
    """
    path = run_dir / RUNNING_FILE
    try:
        found, _ = read_running(path)
        return plan_in(found), str(found["pins"])
    except (OSError, ValueError, KeyError, TypeError, MrcdError) as e:
        why = e.strerror if isinstance(e, OSError) else str(e).splitlines()[0]
        raise MachineError(
            f"no usable {path}: {why}",
            hint="mrcd has not run on this host yet, or its directory was removed: then `systemctl restart mrcd`; "
            "`mrcctl preflight` works without it",
        ) from None


def document(command: str, context: Context) -> Document:
    """Return the document of a command: its checks, and how many there are of each status."""
    found = examine(context)
    count = Counter(f["status"] for f in found)
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "host": context.plan.host.name if context.plan else None,
        "checks": found,
        "summary": {s: count[s] for s in ("PASS", "WARN", "FAIL", "SKIP")},
    }


def lines(doc: Mapping[str, Any], *, colour: bool, width: int | None = None) -> list[str]:
    """Return a line per check, a second line with its fix if it has one, and the totals; folded at `width`."""
    longest = max((len(c["id"]) for c in doc["checks"]), default=0)
    is_narrow = width is not None and width < _INDENT + longest + 2 + _LEAST_TEXT
    indent = _INDENT if is_narrow else _INDENT + longest + 2

    def folded(text: str) -> list[str]:
        parts = fold(text, None if width is None else max(_LEAST_TEXT, width - indent))
        return [f"{'':<{indent}}{part}" for part in parts]

    out = []
    for c in doc["checks"]:
        evidence = folded(c["evidence"])
        status = f"\033[{_COLOURS[c['status']]}m{c['status']}\033[0m" if colour else c["status"]
        head = f"{status}  {c['id']:<{longest}}"
        out += [head.rstrip()] if is_narrow else [f"{head}  {evidence.pop(0).strip()}"]
        out += [*evidence, *(folded(f"fix: {c['fix']}") if c["fix"] else [])]
    totals = ", ".join(f"{n} {status}" for status, n in doc["summary"].items() if n)
    return [*out, "", *fold(f"{doc['command']}: {totals or 'nothing was checked'}", width)]
