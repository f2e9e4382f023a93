# SPDX-License-Identifier: BSD-2-Clause
"""Collects the data of the checks, runs them, and makes the document of --json and its text."""

import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrcd.config import cluster_file
from mrcd.ctl.client import DaemonDown
from mrcd.ctl.examine import sending
from mrcd.ctl.examine.checks import Context, Document, examine
from mrcd.ctl.examine.machine import Machine
from mrcd.ctl.terminal.render import fold
from mrcd.errors import MachineError, MrcdError
from mrcd.fabric import topology
from mrcd.fabric.topology import Plan
from mrcd.kernel import features
from mrcd.kernel.settings import settings
from mrcd.versions import SCHEMA_VERSION
from mrcd.view.running_file import RUNNING_FILE, plan_in, read_running

_INDENT = 6  # of what is below a status
_LEAST_TEXT = 30  # characters; with less room the text is below the check's name
_COLOURS = {"PASS": "32", "WARN": "33", "FAIL": "31", "SKIP": "2"}

# The verifier sees settings as constants and skips dead code. With these settings no code is dead.
EXAMPLE = """
[cluster]
encapsulation = "srh"
t0s = 2
[[hosts]]
name = "a"
id = 0
port = 0
prefixes = ["10.0.0.1/32"]
[[hosts]]
name = "b"
id = 1
t0 = 1
port = 0
prefixes = ["10.0.0.2/32"]
"""


def preflight(file: Path | None, host: str | None) -> Document:
    """Return the document of `mrcctl preflight`. Raises UsageError, ConfigError."""
    plan = topology.plan(cluster_file.load(file), host or socket.gethostname()) if file else None
    example = plan or topology.plan(cluster_file.parse(EXAMPLE), "a")
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
        answers=sending.answers(status, peers, evs),
        overlay=sending.overlay(status, peers),
    )
    return document("doctor", context)


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
