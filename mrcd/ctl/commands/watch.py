# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl watch` and `mrcctl top`, which show rates of peers and paths."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mrcd.ctl.base import Options, colours, command, show, terminal_width
from mrcd.ctl.client import DaemonDown, Json
from mrcd.ctl.commands.paths import rate_lines as path_lines
from mrcd.ctl.commands.peers import rate_lines as peer_lines
from mrcd.ctl.commands.peers import with_rates
from mrcd.ctl.documents import list_of, open_view
from mrcd.ctl.options import SECONDS, peer_argument, wide_option
from mrcd.ctl.phrases import plain_states, sentence, stale_lines
from mrcd.ctl.rates import Sample, busiest, per_second, sampled, usable_by_plane, worst
from mrcd.ctl.terminal.render import Document, count, cut, duration, fold, paint, text
from mrcd.errors import DaemonError, MrcdError, UsageError
from mrcd.versions import SCHEMA_VERSION

if TYPE_CHECKING:
    from mrcd.view.documents import View

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


class Sampler:
    """Samples this host's documents repeatedly, also while the daemon stops and returns."""

    def __init__(self, options: Options, peer: str | None) -> None:
        self._options, self._peer = options, peer
        self._view: View | None = None
        self._before: tuple[Sample, Sample] | None = None  # paths, peers
        self._after: int | None = None  # number of the newest event seen

    def sample(self) -> dict[str, Any]:
        """Return the document of this moment. Raises MrcdError without daemon and tables."""
        try:
            source, status, peers, paths, events = "daemon", *self._request()
            self._view, age_s = None, None
        except DaemonDown as down:
            self._after = None
            self._view = self._view or open_view(self._options.run_dir, down)
            view = self._view
            source, status, peers, events = "tables", view.status(), view.peers(), []
            age_s = view.tick_age_s()
            paths = self._paths(status, view.paths)
        if not isinstance(status, dict) or not all(isinstance(x, list) for x in (peers, paths)):
            raise DaemonError("this mrcctl does not understand mrcd's answer", hint="compare with `mrcctl version`")
        now, before = self._options.monotonic_s(), self._before
        self._before = Sample(now, paths), Sample(now, peers)
        path_rates, peer_rates = (per_second(a, b) for a, b in zip(before or self._before, self._before, strict=True))
        if before is None:  # the first sample has no rates
            unknown = dict.fromkeys(("tx_packets_per_s", "tx_bits_per_s", "lost_packets_per_s"))
            path_rates = [r | unknown for r in path_rates]
        bad, is_partial = worst(path_rates, len(path_rates)), self._is_partial(status)
        return {
            "schema_version": SCHEMA_VERSION,
            "time": self._options.now().isoformat(timespec="milliseconds"),
            "source": source,
            **({} if age_s is None else {"tick_age_s": age_s}),
            "error": None,
            "status": {k: status.get(k) for k in _STATUS}
            | {"planes_up": [p["plane"] for p in status.get("planes") or [] if p.get("up")]},
            "peers": with_rates(
                [p for p in peers if self._peer in (None, p["peer"])],
                {r["peer"]: r for r in peer_rates},
                {} if is_partial else usable_by_plane(path_rates),
            ),
            "bad_paths": sum(_out_of_use(status).values()) if is_partial else len(bad),
            "partial": is_partial,
            "worst": bad[:_PATHS],
            "events": events,
        }

    def now(self) -> datetime:
        """Return the present UTC time."""
        return self._options.now()

    def _request(self) -> tuple[Json, Json, Json, list[Json]]:
        client = self._options.client
        status = client.get("/v1/status")
        last = int((status.get("last_event") or {}).get("id") or 0) if isinstance(status, dict) else 0
        if self._after is None or last < self._after:  # the first sample, or a daemon that restarted its numbers
            self._after = max(0, last - _EVENTS)
        events = client.get("/v1/events", after=self._after, wait=0)["events"] if last > self._after else []
        self._after = max((e["id"] for e in events), default=self._after)
        paths = self._paths(status, partial(client.get, "/v1/paths"))
        return status, client.get("/v1/peers"), paths, events

    def _is_partial(self, status: Json) -> bool:
        """Return whether there are so many paths that only those out of use are read."""
        return self._peer is None and sum((status.get("evs") or {}).values()) > _MOST_PATHS

    def _paths(self, status: Json, ask: Callable[..., Json]) -> Json:
        if not isinstance(status, dict) or not self._is_partial(status):
            return ask(peer=self._peer)
        found: list[Json] = []
        for state, n in _out_of_use(status).items():
            if 0 < n <= _MOST_PATHS - len(found):
                with suppress(UsageError):  # a plane has failed since: the daemon refuses so many at once
                    found += ask(state=state)
        return found


def _out_of_use(status: Json) -> dict[str, int]:
    return {state: n for state, n in status["evs"].items() if state != "GOOD"}


def _frames(sampler: Sampler) -> Iterator[dict[str, Any]]:
    """Yield a document per sample. Only the first sample may raise; a later error is part of the document."""
    document = sampler.sample()
    while True:
        yield document
        try:
            document = sampler.sample()
        except MrcdError as e:
            now = sampler.now().isoformat(timespec="milliseconds")
            document = document | {"time": now, "source": None, "error": str(e.args[0]), "events": []}


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
        for n, document in enumerate(_frames(Sampler(options, peer))):
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
