# SPDX-License-Identifier: BSD-2-Clause
"""Renders the results of checks as text. Pure."""

from collections.abc import Mapping
from typing import Any

_COLOURS = {"PASS": "32", "WARN": "33", "FAIL": "31", "SKIP": "2"}


def lines(doc: Mapping[str, Any], *, colour: bool) -> list[str]:
    """Return a line per check, a second line with its fix if it has one, and the totals."""
    width = max((len(c["id"]) for c in doc["checks"]), default=0)
    out = []
    for c in doc["checks"]:
        out.append(f"{_paint(c['status'], colour)}  {c['id']:<{width}}  {c['evidence']}")
        if c["fix"]:
            out.append(f"{'':<4}  {'':<{width}}  fix: {c['fix']}")
    totals = ", ".join(f"{n} {status}" for status, n in doc["summary"].items() if n)
    return [*out, "", f"{doc['command']}: {totals or 'nothing was checked'}"]


def _paint(status: str, colour: bool) -> str:
    return f"\033[{_COLOURS[status]}m{status}\033[0m" if colour else status
