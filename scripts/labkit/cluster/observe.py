# SPDX-License-Identifier: BSD-2-Clause
"""Reads the daemons' documents, as `mrcctl … --json` prints them, through the same client."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from mrcd.ctl.client import Client
from mrcd.errors import MachineError
from mrcd.view.running_file import RUNNING_FILE

TIMEOUT_S, _RELOAD_S = patience(10.0), patience(30.0)
Document = dict[str, Any]


def client(lab: Lab, host: str) -> Client:
    """Returns a client of a host's daemon; a request costs the host less than a start of mrcctl."""
    return Client(lab.run_dir(host), TIMEOUT_S)


def reload(lab: Lab, host: str) -> Document:
    """Has a host's daemon read its cluster file again: it may load all programs, as a start does."""
    found: Document = Client(lab.run_dir(host), _RELOAD_S).post("/v1/reload", {})
    return found


def paths(lab: Lab, host: str, peer: str | None = None) -> list[Document]:
    """Returns the EVs of a host, to one peer or to all (`mrcctl paths --json`)."""
    found: list[Document] = client(lab, host).get("/v1/paths", peer=peer)
    return found


def events(lab: Lab, host: str, after: int = 0) -> list[Document]:
    """Returns the events of a host's daemon after event number `after` (`mrcctl events --json`)."""
    found: list[Document] = client(lab, host).get("/v1/events", after=after)["events"]
    return found


def wait_until_good(lab: Lab, hosts: Sequence[str], patience_s: float = 15.0) -> None:
    """Waits until every EV of these hosts is GOOD. Raises MachineError after `patience_s`."""
    wait_until(lab, hosts, lambda path: bool(path["state"] == "GOOD"), "GOOD", patience_s)


def wait_until(
    lab: Lab, hosts: Sequence[str], so: Callable[[Document], bool], words: str, patience_s: float = 15.0
) -> None:
    """Waits until `so`, which `words` describe, is true of every EV of these hosts.

    Raises MachineError after `patience_s`.
    """
    until = time.monotonic() + patience_s
    while True:
        bad = [f"{h} → {p['peer']} EV {p['ev']} is {p['state']}" for h in hosts for p in paths(lab, h) if not so(p)]
        if not bad:
            return
        if time.monotonic() > until:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            raise MachineError(
                f"after {patience_s:.0f} s not all paths are {words}: {bad[0]}{more}",
                hint=f"scripts/lab status --name {lab.state.name}, and mrcctl events in that host",
            )
        time.sleep(0.05)


def pins(lab: Lab, host: str) -> Path:
    """Returns the directory of a host's pinned tables. Raises MachineError."""
    path = lab.run_dir(host) / RUNNING_FILE
    try:
        return Path(json.loads(path.read_text(encoding="utf-8"))["pins"])
    except (OSError, ValueError, KeyError) as e:
        raise MachineError(f"{path}: {e}", hint="its mrcd has not started; see scripts/lab status") from None
