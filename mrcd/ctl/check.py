"""`mrcctl config check`: what a cluster file amounts to. Imports pydantic, so it is imported late."""

import socket
from pathlib import Path
from typing import Any

from mrcd.config import load
from mrcd.errors import UsageError
from mrcd.topology import plan


def summary(file: Path, host: str | None) -> dict[str, Any]:
    """Validate the file and sum it up as `host` sees it: shapes as printed by --json, sizes in bytes.

    Without `host` it is this machine if the file names it, else the file's first. Raises UsageError, ConfigError.
    """
    if not file.exists():
        raise UsageError(f"{file}: no such file", hint="a commented example is scripts/deploy/mrcd.toml")
    config = load(file)
    names = [h.name for h in config.hosts]
    here = socket.gethostname()
    seen_from = host or (here if here in names else names[0])
    # Explicit paths can be at fault at their sources only: look from there too.
    for source in {p.source for p in config.paths} - {seen_from}:
        plan(config, source)
    mine = plan(config, seen_from)
    evs = [len(p.evs) for p in mine.peers] or [0]
    c = config.cluster
    return {
        "valid": True,
        "file": str(file),
        "cluster": c.name,
        "hosts": len(names),
        "planes": c.planes,
        "t0s": c.t0s,
        "t1s": c.t1s,
        "evs_per_peer": c.evs_per_peer,
        "evs": {"min": min(evs), "max": max(evs)},
        "steering": c.steering,
        "granularity": c.granularity,
        "mtu": c.mtu,
        "inner_mtu": mine.inner_mtu,
        "host": seen_from,
        "interfaces": list(mine.interfaces),
    }
