"""The commands that look: status, peers, paths, events, histograms, version."""

import json
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import click

import mrcd
from mrcd.ctl.base import Options, colours, common, emit, room
from mrcd.ctl.client import DaemonDown, Json, follow_events
from mrcd.ctl.documents import histograms as bars
from mrcd.ctl.documents.events import event_lines
from mrcd.ctl.documents.paths import hop_lines, path_lines
from mrcd.ctl.documents.peers import peer_lines
from mrcd.ctl.documents.status import brief_lines, status_lines
from mrcd.ctl.documents.version import version_lines
from mrcd.ctl.offline import envelope, open_view, pins_gone, read
from mrcd.ctl.options import STATES, StateType, peer_option, plane_option, wide_option
from mrcd.ctl.terminal.reader import leave_with_reader
from mrcd.errors import DaemonError
from mrcd.versions import ABI_VERSION, SCHEMA_VERSION, WIRE_VERSION

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _say(message: str) -> None:
    click.echo(f"mrcctl: {message}", err=True)


def _table(options: Options, name: str, document: Json, lines: Callable[..., list[str]], wide: bool) -> None:
    emit(options, document, lambda d, **style: lines(d[name], **style), colour=colours(), room=room(wide))


def _complete(options: Options, document: Json) -> None:
    """What mrcd, in mounts of its own and with few capabilities, may not see itself."""
    pins = document.get("pins") or {}
    if pins and not pins.get("lost") and pins_gone(pins.get("directory")):
        pins["lost"] = f"nothing is pinned at {pins['directory']}"
        document["forwarding_without_daemon"] = {"works": False, "how": pins["lost"]}
    unnamed = [f for f in document.get("other_programs") or [] if not f["program"] and f["program_id"]]
    if unnamed and os.geteuid() == 0:
        from mrcd.bpf.info import program_name

        for f in unnamed:
            f["program"] = program_name(f["program_id"])


@click.command(short_help="Host, planes, peers and EVs at a glance.")
@click.option("--brief", "-b", is_flag=True, help="One line.")
@wide_option
@common
@click.pass_obj
def status(options: Options, brief: bool, wide: bool) -> None:
    """Host, daemon, hooks, planes, peers and EVs at a glance.

    `forwarding without the daemon` says whether programs and routes would go on if mrcd died now.
    """
    document, _ = read(options, lambda daemon: daemon.get("/v1/status"), lambda view: view.status())
    _complete(options, document)
    emit(options, document, brief_lines if brief else status_lines, colour=colours(), room=room(wide))


@click.command(short_help="The other hosts: EVs, traffic, loss.")
@wide_option
@common
@click.pass_obj
def peers(options: Options, wide: bool) -> None:
    """The other hosts: reachable, EVs by state, traffic, loss."""
    found, source = read(options, lambda daemon: daemon.get("/v1/peers"), lambda view: view.peers())
    _table(options, "peers", envelope("peers", found, source), peer_lines, wide)


@click.command(short_help="Every EV: state, traffic, loss, round-trip time.")
@peer_option
@plane_option
@click.option("--state", type=StateType(STATES), help="Only EVs in this state.")
@click.option("--decode", is_flag=True, help="Say what each uSID of the carriers means.")
@wide_option
@common
@click.pass_obj
def paths(options: Options, peer: str | None, plane: int | None, state: str | None, decode: bool, wide: bool) -> None:
    """Every EV: state and since when, traffic, loss, round-trip time.

    With --decode the hops of its carrier: T0 3 → T1 2 → T0 7 → host port 1. Paths that the configuration
    lists one by one are read by mrcd's numbering, too, which their fabric need not share.
    """
    found, source = read(
        options,
        lambda daemon: daemon.get("/v1/paths", peer=peer, plane=plane, state=state, decode=int(decode) or None),
        lambda view: view.paths(peer=peer, plane=plane, state=state, decode=decode),
    )
    lines = hop_lines if decode else path_lines
    _table(options, "paths", envelope("paths", found, source), lines, wide)


@click.command(short_help="Detection times, round trips: how they spread.")
@common
@click.pass_obj
def histograms(options: Options) -> None:
    """How long it took to leave failed EVs, what was sent meanwhile, and the probes' round trips."""
    found, source = read(options, lambda daemon: daemon.get("/v1/histograms"), lambda view: view.histograms())
    emit(options, envelope("histograms", found, source), lambda d: bars.histograms(d["histograms"]))


# ---- events ----------------------------------------------------------------------------------


def _moment(ctx: click.Context, param: click.Parameter, given: str | None) -> datetime | None:
    """A moment: an age such as 90s, 10m, 2h, 7d, or an ISO 8601 time, in UTC unless it says otherwise."""
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


def _wanted(event: Json, since: datetime | None, peer: str | None) -> bool:
    return (peer is None or event.get("peer") == peer) and (
        since is None or datetime.fromisoformat(event["time"]) >= since
    )


@click.command(short_help="What changed, with reason and evidence.")
@click.option("--since", callback=_moment, metavar="AGE|TIME", help="Only newer ones: 10m, 2h, 2030-01-02T03:04 (UTC).")
@click.option("--follow", "-f", is_flag=True, help="Go on with new events as they happen; JSON is one event per line.")
@peer_option
@wide_option
@common
@click.pass_obj
def events(options: Options, since: datetime | None, follow: bool, peer: str | None, wide: bool) -> None:
    """What changed, with reason and evidence.

    mrcd remembers the newest 10,000; all are in its log (`journalctl -u mrcd`). While it is down: what the
    programs have told since, which is kept for its next start.
    """
    if not follow:
        source = "daemon"
        try:
            found = options.client.get("/v1/events", after=0, wait=0)["events"]
        except DaemonDown as down:
            found, source = open_view(options.run_dir, down).unread_events(), "tables"
            _say("mrcd is not running; only what happened since, from the pinned tables (before: its log)")
        document = envelope("events", found, source)
        document["events"] = [e for e in document["events"] if _wanted(e, since, peer)]
        _table(options, "events", document, event_lines, wide)
        return
    leave_with_reader()
    heading = not options.json
    for batch in follow_events(options.client, _say):
        fresh = [e for e in batch if _wanted(e, since, peer)]
        if options.json:
            lines = [json.dumps({"schema_version": SCHEMA_VERSION, **e}, ensure_ascii=False) for e in fresh]
        else:
            lines = event_lines(fresh, colour=colours(), heading=heading, room=room(wide)) if fresh else []
            heading = heading and not fresh
        if lines:
            click.echo("\n".join(lines), color=True)
            sys.stdout.flush()


@click.command()
@common
@click.pass_obj
def version(options: Options) -> None:
    """Versions of mrcctl and of the mrcd that runs.

    Exit code 2 if one runs, or may, and does not say.
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
