# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl status`, `peers`, `paths`, `histograms`, `events` and `version`."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import click

import mrcd
from mrcd.ctl.base import Options, colours, common, emit, terminal_width
from mrcd.ctl.client import Client, DaemonDown, Json, follow_events
from mrcd.ctl.documents import diagnosis, live, rates
from mrcd.ctl.documents import histograms as bars
from mrcd.ctl.documents.events import event_lines
from mrcd.ctl.documents.parts import stale_lines
from mrcd.ctl.documents.paths import hop_lines, path_lines
from mrcd.ctl.documents.peers import peer_lines
from mrcd.ctl.documents.rates import Sample
from mrcd.ctl.documents.status import brief_lines, status_lines
from mrcd.ctl.documents.version import version_lines
from mrcd.ctl.offline import envelope, open_view, pins_gone, read, state_dir
from mrcd.ctl.options import BAD_STATES, STATES, StateType, ev_option, peer_argument, plane_option, wide_option
from mrcd.ctl.sampling import SECONDS, sampled
from mrcd.ctl.terminal.reader import leave_with_reader
from mrcd.errors import DaemonError, MrcdError, UsageError, no_peer
from mrcd.versions import ABI_VERSION, SCHEMA_VERSION, WIRE_VERSION

if TYPE_CHECKING:
    from mrcd.view.documents import View

KINDS = ["daemon", "denial", "ev", "fault", "fleet", "link", "peer", "plane"]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _say(message: str) -> None:
    click.echo(f"mrcctl: {message}", err=True)


def _table(options: Options, name: str, document: Json, lines: Callable[..., list[str]], wide: bool) -> None:
    def render(d: Json, **style: Any) -> list[str]:
        return [*lines(d[name], **style), *stale_lines(d.get("tick_age_s"), style["width"])]

    emit(options, document, render, colour=colours(), width=terminal_width(wide))


def _moved(
    options: Options, document: Json, before: Sample, after: Sample, lines: Callable[..., list[str]], wide: bool
) -> None:
    """Print the rates between two samples."""
    document = {"interval_s": round(after.at_s - before.at_s, 3)} | document
    emit(options, document, lines, colour=colours(), width=terminal_width(wide))


_interval = click.option(
    "--interval", "-i", type=SECONDS, metavar="SECONDS", help="Rates and loss over this time, instead of counters."
)


def _complete(options: Options, document: Json) -> None:
    """Add what mrcd cannot see, because it has its own mounts and few capabilities."""
    pins = document.get("pins") or {}
    if pins and not pins.get("lost") and pins_gone(pins.get("directory")):
        pins["lost"] = f"nothing is pinned at {pins['directory']}"
        document["forwarding_without_daemon"] = {"works": False, "how": pins["lost"]}
    unnamed = [f for f in document.get("other_programs") or [] if not f["program"] and f["program_id"]]
    if unnamed and os.geteuid() == 0:
        from mrcd.kernel.attachments import program_name

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

    The exit status is 0 whatever it shows, 2 if there is nothing to show.

    --check prints one line, as plugins of Nagios do. Exit status 0: all well, or only denials of an administrator;
    1: loss, delay, single failed EVs, or a detached host; 2: something is dead, or mrcd does not answer.
    """
    if check:
        _check(options)
        return
    document, source, _ = read(options, lambda daemon: daemon.get("/v1/status"), lambda view: view.status())
    document = document | {"source": source}
    _complete(options, document)
    emit(options, document, brief_lines if brief else status_lines, colour=colours(), width=terminal_width(wide))


def _check(options: Options) -> None:
    """Print the line for monitoring, and exit with its status."""
    try:
        document, _, _ = read(options, lambda daemon: daemon.get("/v1/status"), lambda view: view.status(), quiet=True)
        code, line = diagnosis.check(document)
    except MrcdError as e:
        code, line, document = 2, f"CRITICAL - {e.args[0]}".replace("|", "/"), {}
    if options.json:
        emit(options, {"exit_code": code, "line": line, "diagnosis": document.get("diagnosis") or []}, list)
    else:
        click.echo(line)
    sys.exit(code)


@click.command(short_help="List the other hosts: EVs, traffic, loss.")
@peer_argument()
@_interval
@wide_option
@common
@click.pass_obj
def peers(options: Options, peer: str | None, interval: float | None, wide: bool) -> None:
    """List the other hosts, or one: reachability, EVs by state, traffic, loss.

    LOSS % ever counts all packets since the tables were made; with --interval SECONDS, rates and loss are those of that
    time. RTT is the median of the EVs' smoothed round trips of probes; those of an idle path find the CPUs asleep and
    take longer.
    """

    def chosen(rows: Json) -> Json:
        names = [p["peer"] for p in envelope("peers", rows, "")["peers"]]
        if peer is not None and peer not in names:
            raise no_peer(peer, names)
        return [p for p in rows if peer in (None, p["peer"])]

    def from_daemon(daemon: Client) -> Json:
        return chosen(daemon.get("/v1/peers"))

    def from_tables(view: "View") -> Json:
        return chosen(view.peers())

    if interval is None:
        found = read(options, from_daemon, from_tables)
        lines = partial(peer_lines, age_s=found.tick_age_s)
        _table(options, "peers", envelope("peers", *found), lines, wide)
        return
    before, after, found = sampled(options, "peers", from_daemon, from_tables, interval)
    moved = {r["peer"]: r for r in rates.per_second(before, after)}
    document = envelope("peers", live.peers(after.rows, moved, {}), found.source, found.tick_age_s)
    _moved(options, document, before, after, live.moved_peers, wide)


def _joined(answers: Iterable[Json]) -> Json:
    """Return lists as one; a single answer as it is, whatever it is."""
    found = list(answers)
    return found[0] if len(found) == 1 else [row for rows in found for row in rows]


@click.command(short_help="List EVs: state, traffic, loss, round-trip time.")
@peer_argument()
@plane_option
@click.option("--state", type=StateType(STATES), help="Only EVs in this state.")
@click.option("--bad", is_flag=True, help="Only EVs that are not GOOD, the worst first.")
@_interval
@click.option("--decode", is_flag=True, help="Show the meaning of each uSID of the carriers.")
@wide_option
@common
@click.pass_obj
def paths(
    options: Options,
    peer: str | None,
    plane: int | None,
    state: str | None,
    bad: bool,
    interval: float | None,
    decode: bool,
    wide: bool,
) -> None:
    """List EVs: state, time in that state, traffic, loss, round-trip time.

    USABLE 1/8 is an EV that has returned, and takes one of eight of its turns for now. LOSS % ever counts all packets
    since the tables were made; with --interval SECONDS, rates and loss are those of that time. An EV that has failed
    has no RTT.

    --decode shows the hops of the carrier: T0 3 → T1 2 → T0 7 → host port 1. Hops of paths that the cluster file
    lists in [[paths]] may be wrong, because their uSIDs need not follow mrcd's numbering.
    """
    for first, second, both in (("--bad", "--state", bad and state), ("--decode", "--interval", decode and interval)):
        if both:
            raise UsageError(f"{first} and {second} exclude each other", hint="see `mrcctl paths --help`")
    states = BAD_STATES if bad else [state]  # one by one: all EVs of a large cluster are more than an answer may have
    hops = int(decode) or None

    def from_daemon(daemon: Client) -> Json:
        return _joined(daemon.get("/v1/paths", peer=peer, plane=plane, state=s, decode=hops) for s in states)

    def from_tables(view: "View") -> Json:
        return _joined(view.paths(peer=peer, plane=plane, state=s, decode=decode) for s in states)

    if interval is None:
        found = read(options, from_daemon, from_tables)
        lines = partial(hop_lines if decode else path_lines, age_s=found.tick_age_s)
        _table(options, "paths", envelope("paths", *found), lines, wide)
        return
    before, after, found = sampled(options, "paths", from_daemon, from_tables, interval)
    document = envelope("paths", rates.per_second(before, after), found.source, found.tick_age_s)
    _moved(options, document, before, after, live.moved_paths, wide)


@click.command(short_help="Show histograms of detection times and round trips.")
@wide_option
@common
@click.pass_obj
def histograms(options: Options, wide: bool) -> None:
    """Show the times to detect failed EVs, the packets sent meanwhile, and the probes' round trips."""
    found = read(options, lambda daemon: daemon.get("/v1/histograms"), lambda view: view.histograms())
    _table(options, "histograms", envelope("histograms", *found), bars.histogram_lines, wide)


# ---- events ----------------------------------------------------------------------------------


def _moment(ctx: click.Context, param: click.Parameter, given: str | None) -> datetime | None:
    """Return the moment of an age (90s, 10m, 2h, 7d) or of an ISO 8601 time, which is UTC unless it has an offset."""
    if given is None:
        return None
    age = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", given.strip())
    try:
        if age:
            return ctx.ensure_object(Options).now() - timedelta(seconds=float(age[1]) * _UNITS[age[2]])
        moment = datetime.fromisoformat(given.strip())
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{given!r} is neither an age (90s, 10m, 2h, 7d) nor a time (2030-01-02T03:04)", ctx, param
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_wanted(event: Json, since: datetime | None, wanted: dict[str, object]) -> bool:
    return all(value is None or event.get(key) == value for key, value in wanted.items()) and (
        since is None or datetime.fromisoformat(event["time"]) >= since
    )


def _newest(found: list[Json], most: int | None) -> list[Json]:
    return found if most is None else found[max(0, len(found) - most) :]


def _events_without_mrcd(options: Options, down: DaemonDown) -> list[Json]:
    """Return the events that the last mrcd has kept, and those that the programs have written since."""
    from mrcd.health import event_file

    unread = open_view(options.run_dir, down).unread_events()
    path = state_dir(options.run_dir) / event_file.FILE
    try:
        kept = event_file.read(path, event_file.MOST)
    except OSError as e:
        _say(f"{path}: {e.strerror}; earlier events are not shown")
        kept = []
    _say(f"{down.brief}; from {path} and the pinned tables")
    return [*kept, *unread]


@click.command(short_help="List changes with reason and evidence.")
@click.option("--since", callback=_moment, metavar="AGE|TIME", help="Only newer ones: 10m, 2h, 2030-01-02T03:04 (UTC).")
@click.option("--follow", "-f", is_flag=True, help="Print new events as they happen; JSON is one event per line.")
@click.option("--kind", type=click.Choice(KINDS), help="Only events of this kind.")
@click.option("--lines", "-n", "most", type=click.IntRange(min=0), metavar="N", help="Of the past only the newest N.")
@peer_argument()
@plane_option
@ev_option
@wide_option
@common
@click.pass_obj
def events(
    options: Options, /, since: datetime | None, follow: bool, most: int | None, wide: bool, **wanted: Any
) -> None:
    """List changes with reason and evidence.

    mrcd keeps the newest 10,000 events over restarts and reboots; its log has all (`journalctl -u mrcd`). While mrcd is
    down, these are listed with those that the eBPF programs have written since; its next start reads them too.
    """
    if not follow:
        source = "daemon"
        try:
            found = options.client.get("/v1/events", after=0, wait=0)["events"]
        except DaemonDown as down:
            found, source = _events_without_mrcd(options, down), "tables"
        document = envelope("events", found, source)
        document["events"] = _newest([e for e in document["events"] if _is_wanted(e, since, wanted)], most)
        _table(options, "events", document, event_lines, wide)
        return
    leave_with_reader()
    heading = not options.json
    for batch in follow_events(options.client, _say):
        fresh = _newest([e for e in batch if _is_wanted(e, since, wanted)], most)
        most = None
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

    Exit status 2 if mrcd may be running but does not answer.
    """
    daemon = error = None
    try:
        daemon = options.client.get("/v1/version")
    except DaemonError as e:
        is_down = isinstance(e, DaemonDown) and e.pid is None
        error = None if is_down else e
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
