"""`mrcctl config` and `mrcctl reload`: the cluster file, what runs of it, and going over to it."""

import os
from pathlib import Path
from typing import Any

import click

from mrcd.ctl.base import Options, common, emit
from mrcd.ctl.client import DaemonDown
from mrcd.ctl.documents.answers import plan_lines

DEFAULT_FILE = Path("/etc/mrcd/mrcd.toml")  # as mrcd's


@click.group()
@common
def config() -> None:
    """The cluster file: check it, and compare it with what runs."""


@config.command(short_help="Validate a cluster file and sum it up.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--host", metavar="NAME", help="Seen from this host; from the one it runs on unless given.")
@common
@click.pass_obj
def check(options: Options, file: Path, host: str | None) -> None:
    """Validate a cluster file and sum it up; nothing is changed, mrcd need not run."""
    from mrcd.ctl.commands.config_documents import summary

    emit(options, summary(file, host), plan_lines)


@config.command(short_help="What a reload would change.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@common
@click.pass_obj
def diff(options: Options, file: Path | None) -> None:
    """What a reload would change: hosts, EVs, settings; FILE is the one that mrcd reads unless given."""
    from mrcd.ctl.commands.config_documents import difference

    running = _running(options)
    emit(options, difference(running, file or Path(running["file"])), difference_lines)


@config.command(short_help="Print the configuration.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--effective", is_flag=True, help="With all defaults filled in.")
@click.option("--host", metavar="NAME", help="With FILE: seen from this host.")
@common
@click.pass_obj
def show(options: Options, file: Path | None, effective: bool, host: str | None) -> None:
    """Print the configuration that runs, or FILE's, as TOML: what is not default, or all of it."""
    from mrcd.ctl.commands.config_documents import shown

    document = shown(file, host, effective) if file else shown(_running(options), None, effective)
    emit(options, document, shown_lines)


@click.command(short_help="Go over to what the cluster file says now.")
@click.option("--force", is_flag=True, help="Even if packets are lost until all hosts have the file.")
@common
@click.pass_obj
def reload(options: Options, force: bool) -> None:
    """Have mrcd read its cluster file again and apply the difference, without losing a packet.

    A file that is wrong, or that this machine refuses, changes nothing. See `mrcctl config diff` before.
    """
    document = options.client.post("/v1/reload", {"force": force})
    emit(
        options, document, lambda d: [*difference_lines(d), str(d["message"])] if d["changed"] else [str(d["message"])]
    )


def _running(options: Options) -> dict[str, Any]:
    """What /v1/config says, or what the last mrcd left."""
    try:
        document: dict[str, Any] = options.client.get("/v1/config")
    except DaemonDown as down:
        from mrcd.ctl.commands.config_documents import left_behind

        document = left_behind(options.run_dir, down)
        document["file"] = os.environ.get("MRCD_CONFIG") or str(DEFAULT_FILE)
        click.echo("mrcctl: mrcd is not running; from what ran last", err=True)
    return document


# ---- for reading -----------------------------------------------------------------------------


def difference_lines(document: dict[str, Any]) -> list[str]:
    """The document of diff.py: what is added, removed and changed, then what that takes."""
    if not document["changed"]:
        return ["no difference: the file says what runs"]
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
    """TOML."""
    from mrcd.config import toml_text

    of = f"# {document['file'] or 'what runs'}, as {document['host']} takes it"
    return [of, *toml_text.lines(document["config"], defaults=document["effective"])]
