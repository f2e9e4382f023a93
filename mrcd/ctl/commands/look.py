# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl status`, `peers`, `paths`, `histograms`, `events` and `version`."""

import json
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import click

import mrcd
from mrcd.ctl.base import Options, colours, common, emit, terminal_width
from mrcd.ctl.client import DaemonDown, Json, follow_events
from mrcd.ctl.documents import diagnosis
from mrcd.ctl.documents import histograms as bars
from mrcd.ctl.documents.events import event_lines
from mrcd.ctl.documents.paths import hop_lines, path_lines
from mrcd.ctl.documents.peers import peer_lines
from mrcd.ctl.documents.status import brief_lines, status_lines
from mrcd.ctl.documents.version import version_lines
from mrcd.ctl.offline import envelope, open_view, pins_gone, read
from mrcd.ctl.options import STATES, StateType, peer_option, plane_option, wide_option
from mrcd.ctl.terminal.reader import leave_with_reader
from mrcd.errors import DaemonError, MrcdError
from mrcd.versions import ABI_VERSION, SCHEMA_VERSION, WIRE_VERSION

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _say(message: str) -> None:
    click.echo(f"mrcctl: {message}", err=True)


def _table(options: Options, name: str, document: Json, lines: Callable[..., list[str]], wide: bool) -> None:
    emit(options, document, lambda d, **style: lines(d[name], **style), colour=colours(), width=terminal_width(wide))


def _complete(options: Options, document: Json) -> None:
    """Add what mrcd cannot see, because it has its own mounts and few capabilities."""
    pins = document.get("pins") or {}
    if pins and not pins.get("lost") and pins_gone(pins.get("directory")):
        pins["lost"] = f"nothing is pinned at {pins['directory']}"
        document["forwarding_without_daemon"] = {"works": False, "how": pins["lost"]}
    unnamed = [f for f in document.get("other_programs") or [] if not f["program"] and f["program_id"]]
    if unnamed and os.geteuid() == 0:
        from mrcd.bpf.info import program_name

        for f in unnamed:
            f["program"] = program_name(f["program_id"])


@click.command(short_help="Show what is wrong, the host, its planes, peers and EVs.")
@click.option("--brief", "-b", is_flag=True, help="One line.")
@click.option("--check", is_flag=True, help="One line for monitoring; exit status 0, 1 or 2.")
@wide_option
@common
@click.pass_obj
def status(options: Options, brief: bool, check: bool, wide: bool) -> None:
    """Show what is wrong now and what to do; then the host, daemon, hooks, planes, peers and EVs.

    `forwarding without the daemon` says whether programs and routes would keep working if mrcd died now.

    --check prints one line, as plugins of Nagios do. Exit status 0: all well, or only denials of an administrator;
    1: loss, delay, single failed EVs, or a detached host; 2: something is dead, or mrcd does not answer.
    """
    if check:
        _check(options)
        return
    document, _ = read(options, lambda daemon: daemon.get("/v1/status"), lambda view: view.status())
    _complete(options, document)
    emit(options, document, brief_lines if brief else status_lines, colour=colours(), width=terminal_width(wide))


def _check(options: Options) -> None:
    """Print the line for monitoring, and exit with its status."""
    try:
        document, _ = read(options, lambda daemon: daemon.get("/v1/status"), lambda view: view.status(), quiet=True)
        code, line = diagnosis.check(document)
    except MrcdError as e:
        code, line, document = 2, f"CRITICAL - {e.args[0]}".replace("|", "/"), {}
    if options.json:
        emit(options, {"exit_code": code, "line": line, "diagnosis": document.get("diagnosis") or []}, list)
    else:
        click.echo(line)
    sys.exit(code)


@click.command(short_help="List the other hosts: EVs, traffic, loss.")
@wide_option
@common
@click.pass_obj
def peers(options: Options, wide: bool) -> None:
    """List the other hosts: reachability, EVs by state, traffic, loss."""
    found, source = read(options, lambda daemon: daemon.get("/v1/peers"), lambda view: view.peers())
    _table(options, "peers", envelope("peers", found, source), peer_lines, wide)


@click.command(short_help="List EVs: state, traffic, loss, round-trip time.")
@peer_option
@plane_option
@click.option("--state", type=StateType(STATES), help="Only EVs in this state.")
@click.option("--decode", is_flag=True, help="Show the meaning of each uSID of the carriers.")
@wide_option
@common
@click.pass_obj
def paths(options: Options, peer: str | None, plane: int | None, state: str | None, decode: bool, wide: bool) -> None:
    """List EVs: state, time in that state, traffic, loss, round-trip time.

    --decode shows the hops of the carrier: T0 3 → T1 2 → T0 7 → host port 1. Hops of paths that the cluster file
    lists in [[paths]] may be wrong, because their uSIDs need not follow mrcd's numbering.
    """
    found, source = read(
        options,
        lambda daemon: daemon.get("/v1/paths", peer=peer, plane=plane, state=state, decode=int(decode) or None),
        lambda view: view.paths(peer=peer, plane=plane, state=state, decode=decode),
    )
    lines = hop_lines if decode else path_lines
    _table(options, "paths", envelope("paths", found, source), lines, wide)


@click.command(short_help="Show histograms of detection times and round trips.")
@common
@click.pass_obj
def histograms(options: Options) -> None:
    """Show the times to detect failed EVs, the packets sent meanwhile, and the probes' round trips."""
    found, source = read(options, lambda daemon: daemon.get("/v1/histograms"), lambda view: view.histograms())
    emit(options, envelope("histograms", found, source), lambda d: bars.histograms(d["histograms"]))


# ---- events ----------------------------------------------------------------------------------


def _moment(ctx: click.Context, param: click.Parameter, given: str | None) -> datetime | None:
    """Return the moment of an age (90s, 10m, 2h, 7d) or of an ISO 8601 time, which is UTC unless it has an offset."""
    if given is None:
        return None
    age = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", given.strip())
    try:
        if age:
            return datetime.now(UTC) - timedelta(seconds=float(age[1]) * _UNITS[age[2]])
        moment = datetime.fromisoformat(given.strip())
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{given!r} is neither an age (90s, 10m, 2h, 7d) nor a time (2030-01-02T03:04)", ctx, param
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_wanted(event: Json, since: datetime | None, peer: str | None) -> bool:
    return (peer is None or event.get("peer") == peer) and (
        since is None or datetime.fromisoformat(event["time"]) >= since
    )


@click.command(short_help="List changes with reason and evidence.")
@click.option("--since", callback=_moment, metavar="AGE|TIME", help="Only newer ones: 10m, 2h, 2030-01-02T03:04 (UTC).")
@click.option("--follow", "-f", is_flag=True, help="Print new events as they happen; JSON is one event per line.")
@peer_option
@wide_option
@common
@click.pass_obj
def events(options: Options, since: datetime | None, follow: bool, peer: str | None, wide: bool) -> None:
    """List changes with reason and evidence.

    mrcd remembers the newest 10,000 events; its log has all (`journalctl -u mrcd`). While mrcd is down, the events
    that the eBPF programs have written since are listed; its next start reads them too.
    """
    if not follow:
        source = "daemon"
        try:
            found = options.client.get("/v1/events", after=0, wait=0)["events"]
        except DaemonDown as down:
            found, source = open_view(options.run_dir, down).unread_events(), "tables"
            _say("mrcd is not running; events since it stopped, from the pinned tables (earlier ones: its log)")
        document = envelope("events", found, source)
        document["events"] = [e for e in document["events"] if _is_wanted(e, since, peer)]
        _table(options, "events", document, event_lines, wide)
        return
    leave_with_reader()
    heading = not options.json
    for batch in follow_events(options.client, _say):
        fresh = [e for e in batch if _is_wanted(e, since, peer)]
        if options.json:
            lines = [json.dumps({"schema_version": SCHEMA_VERSION, **e}, ensure_ascii=False) for e in fresh]
        else:
            lines = event_lines(fresh, colour=colours(), heading=heading, width=terminal_width(wide)) if fresh else []
            heading = heading and not fresh
        if lines:
            click.echo("\n".join(lines), color=True)
            sys.stdout.flush()


@click.command()
@common
@click.pass_obj
def version(options: Options) -> None:
    """Print the versions of mrcctl and of the running mrcd.

    Exit code 2 if mrcd may be running but does not answer.
    """
    daemon = error = None
    try:
        daemon = options.client.get("/v1/version")
    except DaemonDown:
        pass
    except DaemonError as e:
        error = e
    document = {
        "schema_version": SCHEMA_VERSION,
        "mrcctl": mrcd.__version__,
        "abi_version": ABI_VERSION,
        "wire_version": WIRE_VERSION,
        "daemon": daemon,
        "error": str(error.args[0]) if error else None,
    }
    emit(options, document, version_lines)
    if error:
        raise error
