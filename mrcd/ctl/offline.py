# SPDX-License-Identifier: BSD-2-Clause
"""Reads documents from the daemon, or while it is down from the pinned tables, and prints lists of them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mrcd.ctl.base import Options, colours, emit, terminal_width
from mrcd.ctl.client import Client, DaemonDown, Json
from mrcd.ctl.phrases import stale_lines
from mrcd.ctl.terminal.render import duration
from mrcd.errors import DaemonError, MrcdError
from mrcd.state_dir import directory
from mrcd.versions import SCHEMA_VERSION

if TYPE_CHECKING:
    from mrcd.view.documents import View

_RUNNING = "running.json"  # a copy of mrcd.view.running_file.RUNNING_FILE, whose module imports numpy


def open_view(run_dir: Path, down: DaemonDown) -> "View":
    """Return the view of the pinned tables. Raises DaemonDown if they cannot be read either."""
    try:
        # A late import: numpy alone takes longer to import than mrcctl takes to answer.
        from mrcd.view.documents import open_pinned

        return open_pinned(run_dir)
    except MrcdError as e:
        raise down.because(f"and {e.args[0]}") from None
    except ImportError as e:
        raise down.because(f"and its tables cannot be read: {e}") from None


class Found(NamedTuple):
    """A document, and where it is from: "daemon" or "tables".

    `tick_age_s` are the seconds since the pinned tables were refreshed; None from the daemon, which does it all the
    time.
    """

    document: Json
    source: str
    tick_age_s: float | None = None


def read(
    options: Options,
    from_daemon: Callable[[Client], Json],
    from_tables: Callable[["View"], Json],
    *,
    quiet: bool = False,
) -> Found:
    """Return a document and its source.

    The pinned tables are read if the daemon is down; a note on stderr says so unless `quiet`.
    """
    try:
        return Found(from_daemon(options.client), "daemon")
    except DaemonDown as down:
        view = open_view(options.run_dir, down)
        document = from_tables(view)
        if not quiet:
            click.echo(f"mrcctl: {down.brief}; from the pinned tables", err=True)
        return Found(document, "tables", view.tick_age_s())


def state_dir(run_dir: Path) -> Path:
    """Return the directory in which mrcd keeps denials and events."""
    given = os.environ.get("MRCD_STATE_DIR")
    return directory(run_dir, Path(given) if given else None)


def envelope(name: str, rows: Json, source: str, tick_age_s: float | None = None) -> dict[str, Json]:
    """Return a list as mrcctl prints it: {"schema_version", "source", "tick_age_s", name: […]}.

    Raises DaemonError if `rows` is no list of objects.
    """
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise DaemonError(
            f"mrcd's {name} are not a list of objects",
            hint="mrcctl and mrcd may have different versions: see `mrcctl version`",
        )
    age = {} if tick_age_s is None else {"tick_age_s": tick_age_s}
    return {"schema_version": SCHEMA_VERSION, "source": source, **age, name: rows}


def emit_rows(options: Options, name: str, document: Json, lines: Callable[..., list[str]], wide: bool) -> None:
    """Print the list `name` of a document, and below it how old its states are."""

    def render(d: Json, **style: Any) -> list[str]:
        return [*lines(d[name], **style), *stale_lines(d.get("tick_age_s"), style["width"])]

    emit(options, document, render, colour=colours(), width=terminal_width(wide))


def emit_rates(options: Options, seconds: float, document: Json, lines: Callable[..., list[str]], wide: bool) -> None:
    """Print the list of a document with its rates over so many seconds."""
    (name,) = (key for key, value in document.items() if isinstance(value, list))

    def render(d: Json, **style: Any) -> list[str]:
        age_s = d.get("tick_age_s")
        rows = lines(d[name], age_s=age_s, **style) if d[name] else [f"no {name}"]
        return [f"over {duration(d['interval_s'])}", *rows, *stale_lines(age_s, style["width"])]

    document = {"interval_s": round(seconds, 3)} | document
    emit(options, document, render, colour=colours(), width=terminal_width(wide))


def pins_gone(directory: object) -> bool:
    """Return whether the pins are missing in the mounts of this process; the daemon may have other mounts."""
    try:
        return not Path(str(directory), "links").exists()
    except PermissionError:
        return False
