# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl config` (check, diff, show) and `mrcctl reload`."""

import contextlib
import os
from pathlib import Path
from typing import Any

import click

from mrcd.ctl.base import Commands, Options, command, common, emit
from mrcd.ctl.client import LOAD_S, DaemonDown
from mrcd.ctl.terminal.render import text
from mrcd.errors import DaemonError

DEFAULT_FILE = Path("/etc/mrcd/mrcd.toml")  # the default of mrcd --config


@click.group(cls=Commands)
@common
def config() -> None:
    """Check the cluster file, and compare it with the running configuration."""


@command("Validate a cluster file and print a summary.", group=config)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--host", envvar="MRCD_HOST", metavar="NAME", help="Check as this host; default: the host of this machine."
)
def check(options: Options, file: Path | None, host: str | None) -> None:
    """Validate a cluster file and print a summary. Changes nothing and works without mrcd.

    FILE defaults to mrcd's cluster file. If mrcd runs on this machine, or has run, the file must have its host. Else
    the file is checked as the host with this machine's name, or as its first host.
    """
    from mrcd.ctl.commands.config_documents import summary

    emit(options, summary(file or cluster_file(options), host, options.run_dir), plan_lines)


@command("Show what a reload would change.", group=config)
@click.argument("file", type=click.Path(path_type=Path), required=False)
def diff(options: Options, file: Path | None) -> None:
    """Show the hosts, EVs and settings that a reload would change. FILE defaults to mrcd's cluster file."""
    from mrcd.ctl.commands.config_documents import difference

    running = _running(options)
    emit(options, difference(running, file or Path(running["file"])), difference_lines)


@command("Print the configuration.", group=config)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--effective", is_flag=True, help="Include all defaults.")
@click.option("--host", metavar="NAME", help="With FILE: as this host sees it.")
def show(options: Options, file: Path | None, effective: bool, host: str | None) -> None:
    """Print the running configuration, or FILE's, as TOML. --effective adds the values that equal their defaults."""
    from mrcd.ctl.commands.config_documents import shown

    document = shown(file, host, effective) if file else shown(_running(options), None, effective)
    emit(options, document, shown_lines)


@command("Read the cluster file again and apply its changes.")
@click.option("--force", is_flag=True, help="Apply even if packets are lost until all hosts have the file.")
def reload(options: Options, force: bool) -> None:
    """Have mrcd read its cluster file again and apply the changes, without losing a packet.

    An invalid file, or one that this machine refuses, changes nothing. `mrcctl config diff` shows the changes first.
    """
    document = options.client.post("/v1/reload", {"force": force}, LOAD_S)
    emit(
        options, document, lambda d: [*difference_lines(d), str(d["message"])] if d["changed"] else [str(d["message"])]
    )


def cluster_file(options: Options) -> Path:
    """Return the cluster file of the running mrcd, or that which the next mrcd will read."""
    with contextlib.suppress(DaemonError, TypeError, KeyError):
        return Path(options.client.get("/v1/config")["file"])
    return default_file()


def default_file() -> Path:
    """Return the cluster file that the next mrcd will read."""
    return Path(os.environ.get("MRCD_CONFIG") or DEFAULT_FILE)


def _running(options: Options) -> dict[str, Any]:
    """Return the document of /v1/config, or the configuration that the last mrcd saved."""
    try:
        document: dict[str, Any] = options.client.get("/v1/config")
    except DaemonDown as down:
        from mrcd.ctl.commands.config_documents import last_running

        document = last_running(options.run_dir)
        if not document.get("config"):
            raise
        document["file"] = str(default_file())
        click.echo(f"mrcctl: {down.brief}; showing its last configuration", err=True)
    return document


# ---- for reading -----------------------------------------------------------------------------


def difference_lines(document: dict[str, Any]) -> list[str]:
    """Return the lines of a difference: additions, removals, changes, then the steps that a reload takes."""
    if not document["changed"]:
        return ["no difference: the file equals the running configuration"]
    hosts = document["hosts"]
    found = [f"+ host {name}" for name in hosts["added"]]
    found += [f"- host {name}" for name in hosts["removed"]]
    found += [f"~ host {h['host']}: {', '.join(h['keys'])}" for h in hosts["changed"]]
    for p in document["evs"]:
        counts = [f"{p[what]} {what}" for what in ("added", "removed", "changed") if p[what]]
        found.append(f"~ EVs to {p['peer']}: {', '.join(counts)}")
    found += [f"~ {s['key']}: {_word(s['before'])} → {_word(s['after'])}" for s in document["settings"]]
    return found + [f"  {step}" for step in document["steps"]]


def _word(value: object) -> str:
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def shown_lines(document: dict[str, Any]) -> list[str]:
    """Return the configuration as TOML."""
    from mrcd.config import toml_text

    title = f"# {document['file'] or 'running configuration'}, as {document['host']} sees it"
    return [title, *toml_text.lines(document["config"], defaults=document["effective"])]


def _stands_in(doc: dict[str, Any]) -> str:
    return f" (the file has no host {doc['machine']}, as this machine is called)" if doc["machine"] else ""


def plan_lines(doc: dict[str, Any]) -> list[str]:
    """Return the summary of `config check`."""
    low, high = doc["evs"]["min"], doc["evs"]["max"]
    evs = text(low) if low == high else f"{low} to {high}"
    pairs = [
        ("cluster", f"{doc['cluster']}: {doc['hosts']} hosts, {doc['planes']} planes"),
        ("fabric", f"in each plane {doc['t0s']} T0s, {doc['t1s']} T1s"),
        ("paths", f"{evs} EVs per peer (at most {doc['evs_per_peer']})"),
        ("data plane", f"encapsulation {doc['encapsulation']}, granularity {doc['granularity']}"),
        ("MTU", f"planes {doc['mtu']}, inner {doc['inner_mtu']} bytes"),
        ("seen from", f"{doc['host']}: {', '.join(doc['interfaces'])}{_stands_in(doc)}"),
    ]
    return [f"{doc['file']}: valid", *(f"  {name:<12}{value}" for name, value in pairs)]
