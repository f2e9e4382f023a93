# SPDX-License-Identifier: BSD-2-Clause
"""Writes and reads running.json, beside the socket: mrcctl needs it to read the pinned tables without the daemon."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrcd.config import ranges
from mrcd.config.cluster_file import Config
from mrcd.fabric.topology import Plan, plan

RUNNING_FILE = "running.json"

Document = dict[str, Any]


def save_running(run_dir: Path, plan_: Plan, pins: Path, hooks: list[Document], layouts: Document) -> None:
    """Write the host's name, its configuration, hooks, directory of pins and layouts of tables, by a rename."""
    document = json.dumps({"host": plan_.host.name, "pins": str(pins), "hooks": hooks, "layouts": layouts})
    new = run_dir / (RUNNING_FILE + ".new")
    new.write_text(f'{document[:-1]}, "config": {plan_.config.model_dump_json()}}}')
    new.rename(run_dir / RUNNING_FILE)


def read_running(path: Path) -> tuple[Any, os.stat_result]:
    """Return the document, and the stat of its file for checks of its owner. Raises OSError, ValueError.

    Symbolic links are refused and pipes do not block, because a user without privileges may have replaced the file
    that root reads.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as f:
        return json.load(f), os.fstat(f.fileno())


def hosts_before(run_dir: Path) -> dict[int, str]:
    """Return the names of all hosts by id in the configuration of the last run; empty if that is unknown."""
    try:
        tables = read_running(run_dir / RUNNING_FILE)[0]["config"]["hosts"]
        ranged = [(int(table["id"]), ranges.parse(str(table["name"]))) for table in tables]
        return {first + k: names.name(k) for first, names in ranged for k in range(names.size)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def layouts_before(run_dir: Path) -> Document:
    """Return the layouts of the tables of the last run; none if they are unknown."""
    try:
        found = read_running(run_dir / RUNNING_FILE)[0]["layouts"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def replaced_hosts(before: Mapping[int, str], plan_: Plan) -> set[int]:
    """Return the ids of peers that are not the same hosts as before; empty if no host is known from before.

    Such an id had another name before, or neither the id nor the name was known.
    """
    names = set(before.values())
    ids = ((p.host.id, p.host.name) for p in plan_.peers)
    return {i for i, name in ids if names and (before[i] != name if i in before else name not in names)}


def plan_in(document: Document) -> Plan:
    """Return the plan of a document of read_running(). Raises ValueError, KeyError, TypeError, ConfigError."""
    return plan(Config.model_validate(document["config"]), document["host"])
