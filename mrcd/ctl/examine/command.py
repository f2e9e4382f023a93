# SPDX-License-Identifier: BSD-2-Clause
"""Collects the data of the checks, runs them and makes the document of --json."""

import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

from mrcd.config import cluster_file
from mrcd.ctl.client import DaemonDown
from mrcd.ctl.examine import kernel, nics, paths, sending, sysctls
from mrcd.ctl.examine.machine import Machine
from mrcd.ctl.examine.result import Context, Document, Site, examine
from mrcd.errors import MachineError, MrcdError
from mrcd.fabric import topology
from mrcd.fabric.topology import Plan
from mrcd.kernel import features
from mrcd.kernel.settings import settings
from mrcd.versions import SCHEMA_VERSION
from mrcd.view.running_file import RUNNING_FILE

_MODULES = (kernel, nics, sysctls, paths)  # their import registers the checks

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


def site(plan: Plan, pins: str | None = None) -> Site:
    """Return what a plan requires of its host. `pins` is the directory of its tables, if mrcd runs."""
    c, overlay = plan.config.cluster, plan.config.overlay
    return Site(
        plan.host.name,
        plan.interfaces,
        c.mtu,
        plan.inner_mtu,
        c.encapsulation,
        c.granularity,
        overlay.interface,
        str(plan.config.interfaces.gateway),
        overlay.reordering,
        tuple(str(p) for p in plan.host.prefixes if p.prefixlen < p.max_prefixlen),
        pins,
        plan.needs_srh,
        c.udp_port,
        plan.config.hook(plan.host),
    )


def preflight(file: Path | None, host: str | None) -> Document:
    """Return the document of `mrcctl preflight`. Raises UsageError, ConfigError."""
    plan = topology.plan(cluster_file.load(file), host or socket.gethostname()) if file else None
    example = plan or topology.plan(cluster_file.parse(EXAMPLE), "a")
    machine = Machine(settings(example, features.kernel_has()).tobytes())
    return document("preflight", Context(machine, site(plan) if plan else None))


def doctor(run_dir: Path, documents: Any, down: DaemonDown | None) -> Document:
    """Return the document of `mrcctl doctor`. `documents` are status, peers and paths; None without them.

    Raises MachineError if mrcd has never run here.
    """
    wanted = running(run_dir)
    if documents is None:
        why = str(down.args[0]) if down else "mrcd does not answer"
        is_alive = down is not None and down.pid is not None
        return document("doctor", Context(Machine(), wanted, installed=True, down=why, is_alive=is_alive))
    status, peers, evs = documents
    context = Context(
        Machine(),
        wanted,
        installed=True,
        status=status,
        peers=peers,
        answers=sending.answers(status, peers, evs),
        overlay=sending.overlay(status, peers),
    )
    return document("doctor", context)


def running(run_dir: Path) -> Site:
    """Return what the running configuration, saved beside mrcd's socket, requires. Raises MachineError."""
    path = run_dir / RUNNING_FILE
    try:
        found = json.loads(path.read_text())
        return site(
            topology.plan(cluster_file.Config.model_validate(found["config"]), found["host"]), str(found["pins"])
        )
    except (OSError, ValueError, KeyError, MrcdError) as e:
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
        "host": context.site.host if context.site else None,
        "checks": found,
        "summary": {s: count[s] for s in ("PASS", "WARN", "FAIL", "SKIP")},
    }
