# SPDX-License-Identifier: BSD-2-Clause
"""Makes the documents of `mrcctl config check`, `diff` and `show`. Imports pydantic, so commands import it late."""

import socket
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mrcd.config import toml_text
from mrcd.config.cluster_file import Config, load
from mrcd.daemon.config_diff import compare
from mrcd.errors import ConfigError, DaemonError, UnknownHost
from mrcd.fabric.topology import Plan, plan
from mrcd.versions import SCHEMA_VERSION
from mrcd.view.running_file import RUNNING_FILE, plan_in, read_running


def summary(file: Path, host: str | None, run_dir: Path) -> dict[str, Any]:
    """Validate the file and return its summary as `host` sees it; sizes are bytes.

    The default host is that of the mrcd that runs or has run here, then this machine if the file names it, else the
    file's first. Raises UsageError, ConfigError.
    """
    config = load(file)
    here, machine = last_running(run_dir).get("host"), socket.gethostname()
    if host is None and here is not None and not _known(config, here):
        raise ConfigError(
            f"{file}: no host is named {here!r}, as which mrcd runs on this machine; `mrcctl reload` would refuse it",
            hint="add the host to the file, or check it as another one with --host NAME",
        )
    seen_from = host or here or _here(config)
    # Listed paths are checked at their sources only, so plan for each of these hosts too.
    for source in {p.source for p in config.paths} - {seen_from}:
        plan(config, source)
    mine = plan(config, seen_from)
    evs = [p.ev_count for p in mine.peers] or [0]
    c = config.cluster
    return {
        "valid": True,
        "file": str(file),
        "cluster": c.name,
        "hosts": len(config.hosts),
        "planes": c.planes,
        "t0s": c.t0s,
        "t1s": c.t1s,
        "evs_per_peer": c.evs_per_peer,
        "evs": {"min": min(evs), "max": max(evs)},
        "encapsulation": c.encapsulation,
        "granularity": c.granularity,
        "mtu": c.mtu,
        "inner_mtu": mine.inner_mtu,
        "host": mine.host.name,
        "machine": None if host or here or _known(config, machine) else machine,
        "interfaces": list(mine.interfaces),
    }


def _known(config: Config, name: str) -> str | None:
    """Return the name in the file of a host that is called so, qualified or not; None if the file has no such host."""
    try:
        return config.host(name).name
    except UnknownHost:
        return None


def _here(config: Config) -> str:
    """Return the name of this machine in the file if it has it, else the file's first host."""
    return _known(config, socket.gethostname()) or config.hosts[0].name


def last_running(run_dir: Path) -> dict[str, Any]:
    """Return {"host", "config"} as the last mrcd saved them; empty if none has run on this machine."""
    try:
        document, _ = read_running(run_dir / RUNNING_FILE)
        return {"host": str(document["host"]), "config": document.get("config")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _plan_of(running: dict[str, Any]) -> Plan:
    try:
        return plan_in(running)
    except (ValidationError, KeyError) as e:
        raise DaemonError(
            f"another version of mrcd made the running configuration: {type(e).__name__}",
            hint="use the mrcctl of the running mrcd's version; see `mrcctl version`",
        ) from None


def difference(running: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the changes from the running configuration to a file (mrcd/daemon/config_diff.py).

    Raises UsageError, ConfigError.
    """
    before = _plan_of(running)
    config = load(file)
    if running.get("generation") is not None:  # [fleet] of a host that runs a file from etcd is in its own file
        config = config.model_copy(update={"fleet": before.config.fleet})
    after = plan(config, before.host.name)
    return compare(before, after).document() | {"file": str(file), "host": before.host.name}


def shown(source: Path | dict[str, Any], host: str | None, effective: bool) -> dict[str, Any]:
    """Return a file, or the running configuration, as {"schema_version", "file", "host", "effective", "config"}.

    "file" is None for the running configuration. Raises UsageError, ConfigError.
    """
    if isinstance(source, Path):
        config = load(source)
        mine = plan(config, host or _here(config))
    else:
        mine = _plan_of(source)
    return {
        "schema_version": SCHEMA_VERSION,
        "file": str(source) if isinstance(source, Path) else None,
        "host": mine.host.name,
        "effective": effective,
        "config": toml_text.effective(mine.config) if effective else toml_text.given(mine.config),
    }
