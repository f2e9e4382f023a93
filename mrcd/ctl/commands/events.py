# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl events`."""

import json
import os
import re
import select
import stat
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from mrcd.ctl.base import Options, colours, command, terminal_width
from mrcd.ctl.client import DaemonDown, Json, batches_of_events
from mrcd.ctl.documents import Found, list_of, open_view, show_list, state_dir
from mrcd.ctl.options import ev_option, peer_argument, plane_option, wide_option
from mrcd.ctl.phrases import is_sum, moment
from mrcd.ctl.terminal.render import NOTHING, Document, field, table_of, text
from mrcd.versions import SCHEMA_VERSION

KINDS = ["daemon", "denial", "ev", "fault", "fleet", "link", "peer", "plane"]
_BROKEN_PIPE = 141  # 128 + SIGPIPE, the exit code of a failed write
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def event_lines(
    docs: Sequence[Document], *, colour: bool, heading: bool = True, width: int | None = None, age_s: None = None
) -> list[str]:
    """Return one line per event. Fixed least widths align the batches of `events --follow`."""
    narrow, tiny = width is not None and width < 120, width is not None and width < 60
    fields = (
        field("TIME (UTC)", lambda e: _time(e, tiny), width=14 if tiny else 23),
        field("KIND", "kind", width=6, rank=3 * narrow),
        field("PEER", "peer", width=0 if tiny else 8),
        field("EV", "ev", right=True, width=0 if tiny else 4),
        field("PLANE", "plane", right=True, width=4, rank=5 * tiny),
        field("T1", "t1", right=True, width=4, rank=2 * narrow),
        field("FROM", "from", width=11, rank=4 * narrow),
        field("TO", "to", width=11, rank=1 * tiny),
        field("REASON", "reason", width=12 if narrow else 24),
        field("EVIDENCE", lambda e: _evidence(e.get("evidence")), rank=6 if tiny else 1 * narrow),
    )
    return table_of(fields, docs, colour=colour, heading=heading, width=width)


def _time(event: Document, brief: bool) -> str:
    time = moment(event.get("time"))
    return time[5:19].replace("T", " ") if brief else time


def _evidence(evidence: object) -> str:
    if not isinstance(evidence, Mapping):
        return text(evidence)
    return " ".join(f"{k}={text(v)}" for k, v in evidence.items()) or NOTHING


def _say(message: str) -> None:
    click.echo(f"mrcctl: {message}", err=True)


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
    if is_sum(event):  # of which nobody knows the peers
        wanted = wanted | {"peer": None} | ({"ev": None} if event["kind"] == "ev" else {})
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


def _leave_with_reader() -> None:
    """End this process as soon as the reader of its standard output closes the pipe (`| grep -m1`)."""
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):  # stdout has no file descriptor
        return

    def wait() -> None:
        gone = select.poll()
        gone.register(fd, 0)  # poll always reports POLLERR, which means that no reader is left
        gone.poll()
        os._exit(_BROKEN_PIPE)

    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        threading.Thread(target=wait, daemon=True).start()


@command("List changes with reason and evidence.")
@click.option("--since", callback=_moment, metavar="AGE|TIME", help="Only newer ones: 10m, 2h, 2030-01-02T03:04 (UTC).")
@click.option("--follow", "-f", is_flag=True, help="Print new events as they happen; JSON is one event per line.")
@click.option("--kind", type=click.Choice(KINDS), help="Only events of this kind.")
@click.option("--lines", "-n", "most", type=click.IntRange(min=0), metavar="N", help="Of the past only the newest N.")
@peer_argument()
@plane_option
@ev_option
@wide_option
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
        document = list_of("events", Found(found, source))
        document["events"] = _newest([e for e in document["events"] if _is_wanted(e, since, wanted)], most)
        show_list(options, document, event_lines, wide)
        return
    _leave_with_reader()
    heading = not options.json
    for batch in batches_of_events(options.client, _say):
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
