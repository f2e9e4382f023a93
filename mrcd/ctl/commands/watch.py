# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl watch` and `mrcctl top`, which show rates of peers and paths."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import click

from mrcd.ctl.base import Options, colours, command, show, terminal_width
from mrcd.ctl.client import Client, Json
from mrcd.ctl.commands.paths import rate_lines as path_lines
from mrcd.ctl.commands.peers import rate_lines as peer_lines
from mrcd.ctl.commands.peers import with_rates
from mrcd.ctl.documents import list_of, read, rows_of
from mrcd.ctl.options import SECONDS, peer_argument, wide_option
from mrcd.ctl.phrases import plain_states, sentence, stale_lines
from mrcd.ctl.rates import Sample, busiest, per_second, sampled, usable_by_plane, worst
from mrcd.ctl.terminal.render import Document, count, cut, duration, fold, paint, text
from mrcd.errors import DaemonError, MrcdError, UsageError
from mrcd.versions import SCHEMA_VERSION

_ALL = 10_000
_LIVE = "widen the terminal"  # watch has no --wide
_EVENTS = 20  # earlier events in the first frame
_PATHS = 20  # bad paths per frame
_MOST_PATHS = 16_384  # more take over 10 MB per frame
_STATUS = ("host", "cluster", "attached", "daemon", "evs", "usable_evs", "drops")


def frame(
    document: Document,
    recent: Sequence[Document],
    *,
    colour: bool,
    columns: int | None = None,
    height: int | None = None,
) -> list[str]:
    """Return one sample as lines. `columns` and `height` are the terminal's; None is no limit."""
    width, free, age_s = columns, (height or _ALL) - 5, document.get("tick_age_s")
    out = [line for parts in _head(document, colour) for line in _joined(parts, width)]
    out += stale_lines(age_s, width)[1:]
    out += ["q ends it"] if height else []
    shown = max(1, free // 3)
    rows = sorted(document["peers"], key=lambda p: (bool(p["reachable"]), -(p["tx_bits_per_s"] or 0)))
    out += ["", *peer_lines(rows[:shown], age_s=age_s, colour=colour, width=width, remedy=_LIVE)]
    if len(rows) > shown:
        out.append(f"and {len(rows) - shown} more peers")
    left = (height or _ALL) - len(out) - 2
    wrong = document["worst"][: max(1, left // 2 - 2)] if height else document["worst"]
    what = "out of use" if document["partial"] else "out of use or losing packets"
    note = " (too many paths to list those that lose packets: --peer NAME)" if document["partial"] else ""
    out += ["", f"paths {what}: {document['bad_paths']}{note}"]
    if wrong:
        out += path_lines(wrong, age_s=age_s, colour=colour, width=width, remedy=_LIVE)
    left = (height or _ALL) - len(out) - 2
    told = [part for e in recent for part in fold(sentence(e), width)]
    if told and left > 0:
        out += ["", *told[-left:]]
    return [cut(line, columns) for line in out] if columns else out


def _head(document: Document, colour: bool) -> list[list[str]]:
    status = document["status"]
    daemon = status.get("daemon") or {}
    if document["error"]:
        running = "NO ANSWER; last sample below"
    elif document["source"] == "tables":
        running = (
            f"mrcd {'does not answer' if daemon.get('running') else 'is not running'}: read from the pinned tables"
        )
    else:
        running = f"mrcd {text(daemon.get('version'))} up {duration(daemon.get('uptime_s'))}"
    attached = paint("attached" if status.get("attached") else "detached", colour)
    evs = status.get("evs") or {}
    drops = sum((status.get("drops") or {}).values())
    host = f"{text(status.get('host'))} of {text(status.get('cluster'))}"
    return [
        [host, f"{text(document['time'])[:19]} UTC", attached, running],
        [
            f"EVs {text(status.get('usable_evs'))} of {sum(evs.values())} usable: {plain_states(evs)}",
            f"planes up {text(status.get('planes_up'))}",
            f"drops {count(drops)}",
        ],
        *([[document["error"]]] if document["error"] else []),
    ]


def _joined(parts: Sequence[str], width: int | None) -> list[str]:
    """Return parts in as few lines as the width allows; a part that is longer than a line is folded."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}  {part}" if lines[-1] else part
        if width is not None and lines[-1] and len(longer) > width:
            lines.append(part)
        else:
            lines[-1] = longer
    return [piece for line in lines for piece in fold(line, width)]


def top_lines(document: Document, *, colour: bool, width: int | None = None) -> list[str]:
    """Return the document of `mrcctl top` as lines."""
    age_s = document.get("tick_age_s")

    def rows(name: str, none: str) -> list[str]:
        shown = document[name]
        return path_lines(shown, age_s=age_s, colour=colour, width=width) if shown else [none]

    return [
        *fold(f"busiest of {document['paths']} paths, over {duration(document['interval_s'])}", width),
        *rows("busiest", "no path carries traffic"),
        "",
        "out of use, or losing packets",
        *rows("worst", "none"),
        *stale_lines(age_s, width),
    ]


_interval = click.option(
    "--interval",
    "-i",
    type=SECONDS,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two samples.",
)


def _samples(options: Options, peer: str | None) -> Iterator[dict[str, Any]]:
    """Yield a document per sample, also while the daemon stops and returns.

    Only the first sample may raise; a later error is part of the document.
    """
    document: dict[str, Any] = {}
    before: tuple[Sample, Sample] | None = None  # paths, peers
    newest: int | None = None  # number of the newest event seen
    while True:
        head = {"schema_version": SCHEMA_VERSION, "time": options.now().isoformat(timespec="milliseconds")}
        try:
            status, source, age_s = read(options, "status", quiet=True)
            peers = read(options, "peers", quiet=True).document
            if not isinstance(status, dict) or not isinstance(peers, list):
                raise DaemonError("this mrcctl does not understand mrcd's answer", hint="compare with `mrcctl version`")
            evs_out_of_use = {state: n for state, n in status["evs"].items() if state != "GOOD"}
            is_partial = peer is None and sum(status["evs"].values()) > _MOST_PATHS
            if is_partial:
                paths = _paths_out_of_use(options, evs_out_of_use)
            else:
                paths = rows_of("paths", read(options, "paths", quiet=True, peer=peer))
            events, newest = _new_events(options.client, status, newest) if source == "daemon" else ([], None)
        except MrcdError as e:
            if not document:
                raise
            document = document | head | {"source": None, "error": str(e.args[0]), "events": []}
            yield document
            continue
        now = options.monotonic_s()
        after = Sample(now, paths), Sample(now, peers)
        path_rates, peer_rates = (per_second(a, b) for a, b in zip(before or after, after, strict=True))
        if before is None:  # the first sample has no rates
            unknown = dict.fromkeys(("tx_packets_per_s", "tx_bits_per_s", "lost_packets_per_s"))
            path_rates = [r | unknown for r in path_rates]
        before, bad = after, worst(path_rates, len(path_rates))
        of_peers, by_plane = {r["peer"]: r for r in peer_rates}, {} if is_partial else usable_by_plane(path_rates)
        up = [p["plane"] for p in status.get("planes") or [] if p.get("up")]
        document = (
            head
            | {"source": source}
            | ({} if age_s is None else {"tick_age_s": age_s})
            | {
                "error": None,
                "status": {k: status.get(k) for k in _STATUS} | {"planes_up": up},
                "peers": with_rates([p for p in peers if peer in (None, p["peer"])], of_peers, by_plane),
                "bad_paths": sum(evs_out_of_use.values()) if is_partial else len(bad),
                "partial": is_partial,
                "worst": bad[:_PATHS],
                "events": events,
            }
        )
        yield document


def _new_events(client: Client, status: Json, seen: int | None) -> tuple[list[Json], int]:
    """Return the events since `seen`, or some earlier ones for the first sample; and the number of the newest."""
    last = int((status.get("last_event") or {}).get("id") or 0)
    if seen is None or last < seen:  # the first sample, or a daemon that restarted its numbers
        seen = max(0, last - _EVENTS)
    events = client.get("/v1/events", after=seen, wait=0)["events"] if last > seen else []
    return events, max((e["id"] for e in events), default=seen)


def _paths_out_of_use(options: Options, counts: Mapping[str, int]) -> list[Json]:
    """Return the paths in these states, as far as they are not too many to read them all."""
    found: list[Json] = []
    for state, n in counts.items():
        if 0 < n <= _MOST_PATHS - len(found):
            with suppress(UsageError):  # a plane has failed since: the daemon refuses so many at once
                found += read(options, "paths", quiet=True, state=state).document
    return found


@command("Show peers, traffic, bad paths and events, live.")
@_interval
@click.option("--count", "-c", type=click.IntRange(min=1), metavar="N", help="End after N samples.")
@peer_argument()
def watch(options: Options, interval: float, count: int | None, peer: str | None) -> None:
    """Show peers, traffic, bad paths and events, live; `q` ends it.

    A terminal shows one sample on the whole screen; a pipe or file gets all samples. --json prints one per line.
    """
    full = sys.stdout.isatty() and not options.json and os.environ.get("TERM") != "dumb"
    recent: list[Json] = []
    with ExitStack() as stack:
        screen = None
        for n, document in enumerate(_samples(options, peer)):
            if full and screen is None:
                from mrcd.ctl.terminal.screen import Screen

                screen = stack.enter_context(Screen())
            if screen:
                recent = [*recent, *document["events"]][-_EVENTS:]
                columns, height = screen.size
                screen.draw(frame(document, recent, colour=colours(), columns=columns, height=height))
            elif options.json:
                click.echo(json.dumps(document, ensure_ascii=False))
            else:
                lines = frame(document, document["events"], colour=False, columns=terminal_width())
                click.echo("\n".join([*lines, ""]))
            sys.stdout.flush()
            if count is not None and n + 1 >= count:
                break
            if screen:
                if screen.wait(interval):
                    break
            else:
                options.clock.sleep(interval)


@command("Show the busiest and the worst paths.")
@_interval
@click.option(
    "--lines", "-n", type=click.IntRange(min=1), default=10, metavar="N", show_default=True, help="Paths of each kind."
)
@peer_argument()
@wide_option
def top(options: Options, interval: float, lines: int, peer: str | None, wide: bool) -> None:
    """Show the busiest paths, and those that are out of use or lose packets, between two samples.

    `watch` repeats this.
    """
    before, after, found = sampled(options, "paths", interval, peer=peer)
    moved = per_second(before, after)
    document = list_of("paths", found, after.at_s - before.at_s)
    document |= {"paths": len(moved), "busiest": busiest(moved, lines), "worst": worst(moved, lines)}
    show(options, document, top_lines, wide)
