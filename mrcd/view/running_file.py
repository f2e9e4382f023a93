# SPDX-License-Identifier: BSD-2-Clause
"""The file that mrcd leaves beside its socket: mrcctl reads the pinned tables by it while no daemon runs."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrcd.config.cluster_file import Config
from mrcd.fabric.topology import Plan, plan

RUNNING_FILE = "running.json"

Document = dict[str, Any]


def save_running(run_dir: Path, plan_: Plan, pins: Path, hooks: list[Document]) -> None:
    """Leave beside the socket what mrcctl needs to read the tables without the daemon."""
    document = json.dumps({"host": plan_.host.name, "pins": str(pins), "hooks": hooks})
    new = run_dir / (RUNNING_FILE + ".new")
    new.write_text(f'{document[:-1]}, "config": {plan_.config.model_dump_json()}}}')
    new.rename(run_dir / RUNNING_FILE)


def read_running(path: Path) -> tuple[Any, os.stat_result]:
    """What mrcd has left, and whose file it is. Root reads what a user who is not may replace: by a link, or a pipe.
    Raises OSError, ValueError.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as f:
        return json.load(f), os.fstat(f.fileno())


def hosts_before(run_dir: Path) -> dict[int, str]:
    """The names of all hosts by id, in the file by which the daemon ran last; none if that is not known."""
    try:
        hosts = read_running(run_dir / RUNNING_FILE)[0]["config"]["hosts"]
        return {int(h["id"]): str(h["name"]) for h in hosts}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def replaced_hosts(before: Mapping[int, str], plan_: Plan) -> set[int]:
    """Peers' ids of which it is not known that they have been these hosts', or that were others', from the names
    before; without any none is."""
    names = set(before.values())
    ids = ((p.host.id, p.host.name) for p in plan_.peers)
    return {i for i, name in ids if names and (before[i] != name if i in before else name not in names)}


def plan_in(document: Document) -> Plan:
    """Of what mrcd has left. Raises ValueError, KeyError, TypeError, ConfigError."""
    return plan(Config.model_validate(document["config"]), document["host"])
