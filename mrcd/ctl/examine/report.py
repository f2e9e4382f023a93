# SPDX-License-Identifier: BSD-2-Clause
"""Renders the results of checks as text. Pure."""

from collections.abc import Mapping
from typing import Any

from mrcd.ctl.terminal.render import fold

_INDENT = 6  # of what is below a status
_LEAST_TEXT = 30  # characters; with less room the text is below the check's name
_COLOURS = {"PASS": "32", "WARN": "33", "FAIL": "31", "SKIP": "2"}


def lines(doc: Mapping[str, Any], *, colour: bool, width: int | None = None) -> list[str]:
    """Return a line per check, a second line with its fix if it has one, and the totals; folded at `width`."""
    longest = max((len(c["id"]) for c in doc["checks"]), default=0)
    is_narrow = width is not None and width < _INDENT + longest + 2 + _LEAST_TEXT
    indent = _INDENT if is_narrow else _INDENT + longest + 2
    out = []
    for c in doc["checks"]:
        evidence = _folded(c["evidence"], indent, width)
        head = f"{_paint(c['status'], colour)}  {c['id']:<{longest}}"
        out += [head.rstrip()] if is_narrow else [f"{head}  {evidence.pop(0).strip()}"]
        out += [*evidence, *(_folded(f"fix: {c['fix']}", indent, width) if c["fix"] else [])]
    totals = ", ".join(f"{n} {status}" for status, n in doc["summary"].items() if n)
    return [*out, "", *fold(f"{doc['command']}: {totals or 'nothing was checked'}", width)]


def _folded(text: str, indent: int, width: int | None) -> list[str]:
    parts = fold(text, None if width is None else max(_LEAST_TEXT, width - indent))
    return [f"{'':<{indent}}{part}" for part in parts]


def _paint(status: str, colour: bool) -> str:
    return f"\033[{_COLOURS[status]}m{status}\033[0m" if colour else status
