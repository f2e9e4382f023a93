"""What the daemons of a lab say of themselves: the documents of `mrcctl … --json`, by the same client."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from mrcd.ctl.client import Client
from mrcd.errors import MachineError
from mrcd.view.documents import RUNNING_FILE

TIMEOUT_S = patience(10.0)
Document = dict[str, Any]


def client(lab: Lab, host: str) -> Client:
    """A client of a host's daemon. Asking it costs the host less than starting mrcctl."""
    return Client(lab.run_dir(host), TIMEOUT_S)


def paths(lab: Lab, host: str, peer: str | None = None) -> list[Document]:
    """`mrcctl paths --json`: the EVs of a host, to one peer or to all."""
    found: list[Document] = client(lab, host).get("/v1/paths", peer=peer)
    return found


def events(lab: Lab, host: str, after: int = 0) -> list[Document]:
    """`mrcctl events --json`: what a host's daemon has seen, from the event after number `after` on."""
    found: list[Document] = client(lab, host).get("/v1/events", after=after)["events"]
    return found


def wait_until_good(lab: Lab, hosts: Sequence[str], patience_s: float = 15.0) -> None:
    """Until every EV of these hosts is GOOD. Raises MachineError after `patience_s`."""
    wait_until(lab, hosts, _good, "GOOD", patience_s)


def wait_until(
    lab: Lab, hosts: Sequence[str], so: Callable[[Document], bool], words: str, patience_s: float = 15.0
) -> None:
    """Until every EV of these hosts is `so`, in words. Raises MachineError after `patience_s`."""
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


def _good(path: Document) -> bool:
    return bool(path["state"] == "GOOD")


def pins(lab: Lab, host: str) -> Path:
    """Where a host's tables are pinned. Raises MachineError."""
    path = lab.run_dir(host) / RUNNING_FILE
    try:
        return Path(json.loads(path.read_text(encoding="utf-8"))["pins"])
    except (OSError, ValueError, KeyError) as e:
        raise MachineError(f"{path}: {e}", hint="its mrcd has not started; see scripts/lab status") from None
