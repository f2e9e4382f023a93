# SPDX-License-Identifier: BSD-2-Clause
"""Reads documents from the daemon, or while it is down from the pinned tables, and prints lists of them."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mrcd.ctl.base import Options, show
from mrcd.ctl.client import DaemonDown, Json
from mrcd.ctl.phrases import stale_lines
from mrcd.ctl.terminal.render import duration
from mrcd.errors import DaemonError, MrcdError
from mrcd.state_dir import directory
from mrcd.versions import SCHEMA_VERSION

if TYPE_CHECKING:
    from mrcd.view.documents import View


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
    options: Options, name: str, *, quiet: bool = False, each: Sequence[dict[str, Any]] = ({},), **query: Any
) -> Found:
    """Return the document of GET /v1/`name`; of the view's method of this name if the daemon is down.

    With several queries in `each`, return their lists as one. A note on stderr tells of the view once, unless `quiet`.
    """
    try:
        answers = [options.client.get(f"/v1/{name}", **query, **one) for one in each]
        source, age_s, options.view = "daemon", None, None
    except DaemonDown as down:
        if options.view is None:
            options.view = open_view(options.run_dir, down)
            if not quiet:
                click.echo(f"mrcctl: {down.brief}; from the pinned tables", err=True)
        ask = getattr(options.view, name)
        answers = [ask(**{k: v for k, v in (query | one).items() if v is not None}) for one in each]
        source, age_s = "tables", options.view.tick_age_s()
    return Found(answers[0] if len(answers) == 1 else [row for rows in answers for row in rows], source, age_s)


def rows_of(name: str, found: Found) -> list[Json]:
    """Return the rows of a list. Raises DaemonError if it is no list of objects."""
    rows = found.document
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise DaemonError(
            f"mrcd's {name} are not a list of objects",
            hint="mrcctl and mrcd may have different versions: see `mrcctl version`",
        )
    return rows


def list_of(name: str, found: Found, interval_s: float | None = None) -> dict[str, Json]:
    """Return a list as mrcctl prints it: {"schema_version", "interval_s", "source", "tick_age_s", name: […]}."""
    interval = {} if interval_s is None else {"interval_s": round(interval_s, 3)}
    age = {} if found.tick_age_s is None else {"tick_age_s": found.tick_age_s}
    source = {"schema_version": SCHEMA_VERSION} | interval | {"source": found.source}
    return source | age | {name: rows_of(name, found)}


def show_list(options: Options, document: dict[str, Json], lines: Callable[..., list[str]], wide: bool) -> None:
    """Print a list_of(): over how long it was sampled, its rows by `lines`, and how old its states are."""
    name, rows = next((key, value) for key, value in document.items() if isinstance(value, list))
    age_s = document.get("tick_age_s")

    def render(_: Json, **style: Any) -> list[str]:
        over = [f"over {duration(document['interval_s'])}"] if "interval_s" in document else []
        shown = lines(rows, age_s=age_s, **style) if rows else [f"no {name}"]
        return [*over, *shown, *stale_lines(age_s, style["width"])]

    show(options, document, render, wide)


def state_dir(run_dir: Path) -> Path:
    """Return the directory in which mrcd keeps denials and events."""
    given = os.environ.get("MRCD_STATE_DIR")
    return directory(run_dir, Path(given) if given else None)
