# SPDX-License-Identifier: BSD-2-Clause
"""Formats numbers, tables and facts for people. Pure: nothing here prints, or reads the terminal or the clock.

Numbers are rounded only here; `--json` prints them exactly.
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A document of the API: what json.loads gives.
Document = Mapping[str, Any]

# ANSI colours of whole cells, by their text.
_GREEN, _RED, _YELLOW, _FAINT = "32", "31", "33", "2"
_COLOURS = {
    "GOOD": _GREEN,
    "SKIP": _YELLOW,
    "ASSUMED_BAD": _RED,
    "DENIED": _YELLOW,
    "UNKNOWN": _FAINT,
    "attached": _GREEN,
    "detached": _YELLOW,
    "up": _GREEN,
    "down": _RED,
    "unreachable": _RED,
    "ok": _GREEN,
    "lossy": _YELLOW,
    "dead": _RED,
    "unknown": _FAINT,
}
NOTHING = "-"
_LEAST_TEXT, _LEAST_LAST = 8, 12  # characters that a narrow terminal leaves of a long text, and of the last column


# ---- numbers ---------------------------------------------------------------------------------


def count(value: float | None) -> str:
    """Return a count in at most four digits: 1234 → 1234, 123456 → 123k, 1234567 → 1.23M."""
    if value is None:
        return NOTHING
    if abs(value) < 10_000:
        return text(value)
    for unit in "kMGT":
        value /= 1000
        # 999.5 and more would round to four digits; the next unit needs three.
        if abs(value) < 999.5:
            return f"{value:.3g}{unit}"
    return f"{value:.0f}T"


def percent(ratio: float | None) -> str:
    """Return a ratio in percent with three significant digits: 0, 0.002, 12.3."""
    if ratio is None:
        return NOTHING
    return "0" if ratio == 0 else f"{100 * ratio:.3g}" if ratio < 0.9995 else "100"


def microseconds(ns: float | None) -> str:
    """Return nanoseconds in µs with one decimal; "-" for a path without a measured round-trip time."""
    return f"{ns / 1000:.1f}" if ns else NOTHING


def duration(seconds: float | None) -> str:
    """Return seconds in a readable unit: 0.3 s, 42 s, 5 min, 3.2 h, 12 d."""
    if seconds is None:
        return NOTHING
    seconds = max(0.0, seconds)  # a time may be noted after the clock was read
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / size:.1f} h" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def text(value: object) -> str:
    """Return any other value of a document as one cell."""
    if value is None or value == "" or value == []:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(str(v) for v in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- tables ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A table column. `right` aligns numbers; `width` is the least width in characters.

    A narrow terminal drops the columns of the highest `rank` first; it never drops rank 0.
    """

    heading: str
    right: bool = False
    width: int = 0
    rank: int = 0


Field = tuple[Column, Callable[[Document], str]]


def field(
    heading: str,
    of: str | Callable[[Document], Any],
    show: Callable[[Any], str] | None = None,
    *,
    right: bool | None = None,
    width: int = 0,
    rank: int = 0,
) -> Field:
    """Return a column with what its cells show of a document: a key, or a function of it, as text or by `show`.

    What `show` formats as a number is aligned at its right.
    """
    value = of if callable(of) else lambda doc: doc.get(of)
    column = Column(heading, show in (count, percent, microseconds, duration) if right is None else right, width, rank)
    return column, lambda doc: (show or text)(value(doc))


def table_of(fields: Sequence[Field], docs: Iterable[Document], **style: Any) -> list[str]:
    """Return the table of documents, with a column per field."""
    return table([column for column, _ in fields], [[cell(doc) for _, cell in fields] for doc in docs], **style)


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    colour: bool,
    heading: bool = True,
    width: int | None = None,
    remedy: str = "see --wide",
) -> list[str]:
    """Return aligned lines. The last column is not padded, so a long text there does not widen other lines.

    `width` is the terminal's width in characters; None shows all columns. Lines that are still too long are cut. Below
    a heading, a last line names the dropped columns, says whether lines were cut, and where to see all: `remedy`.
    """
    cells = [list(row) for row in rows]
    widths = [max(c.width, len(c.heading), *(len(r[i]) for r in cells), 0) for i, c in enumerate(columns)]
    shown = _fitting(columns, widths, width)
    lines = [[c.heading for c in columns], *cells] if heading else cells
    narrowed = _narrowed(columns, widths, shown, width)
    if narrowed is not None:
        lines = [[cut(c, widths[i]) if i == narrowed else c for i, c in enumerate(line)] for line in lines]
    out = []
    for n, line in enumerate(lines):
        padded = []
        for i in shown:
            blank = " " * (widths[i] - len(line[i]))
            painted = line[i] if heading and n == 0 else paint(line[i], colour)
            padded.append(blank + painted if columns[i].right else painted + blank)
        out.append("  ".join(padded).rstrip())
    if width is None:
        return out
    fitting = [cut(line, width) for line in out]
    missing = [c.heading for i, c in enumerate(columns) if i not in shown and c.heading]
    missing += ["the text at …"] if fitting != out or narrowed is not None else []
    if missing and heading:
        note = f"(no room for {', '.join(missing)}: {remedy})"
        fitting += textwrap.wrap(note, width, subsequent_indent=" ", break_on_hyphens=False)
    return fitting


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int | None) -> list[int]:
    """Return the indices of the columns that fit."""
    shown = list(range(len(columns)))
    while width is not None and sum(widths[i] + 2 for i in shown) - 2 > width:
        most = max(shown, key=lambda i: (columns[i].rank, i))
        if not columns[most].rank:
            break
        shown.remove(most)
    return shown


def _narrowed(columns: Sequence[Column], widths: list[int], shown: Sequence[int], width: int | None) -> int | None:
    """Make the column with the longest text narrower where the last column would have no room; return its index."""
    if width is None or not shown:
        return None
    *others, last = shown
    excess = sum(widths[i] + 2 for i in others) + min(widths[last], _LEAST_LAST) - width
    long = [i for i in others if widths[i] > max(columns[i].width, _LEAST_TEXT) and not columns[i].right]
    if excess <= 0 or not long:
        return None
    longest = max(long, key=lambda i: widths[i])
    widths[longest] = max(_LEAST_TEXT, widths[longest] - excess)
    return longest


def fold(line: str, width: int | None) -> list[str]:
    """Return a line folded at the terminal's width."""
    return [line] if width is None else textwrap.wrap(line, width, break_on_hyphens=False) or [""]


def facts(pairs: Iterable[tuple[str, str]], width: int | None) -> list[str]:
    """Return names with their values, folded at the terminal's width."""
    lines = []
    for name, value in pairs:
        # textwrap counts invisible colour codes, so a folded line may end early.
        folded = textwrap.wrap(value, max(20, (width or 10_000) - 12), break_long_words=False, break_on_hyphens=False)
        lines += [f"{name if not n else '':<12}{part}" for n, part in enumerate(folded or [""])]
    return lines


def paint(cell: str, colour: bool) -> str:
    """Return a cell with the ANSI colour of its text, if it has one."""
    code = _COLOURS.get(cell)
    return f"\033[{code}m{cell}\033[0m" if colour and code else cell


def cut(line: str, columns: int) -> str:
    """Return a line cut to `columns` characters, with … at the cut. Colour codes count as zero width."""
    left, out = columns, []
    for part in re.split(r"(\033\[[0-9;]*m)", line):
        if part.startswith("\033"):
            out.append(part)
        elif len(part) > left:
            out.append(part[: max(0, left - 1)] + "…" if left else "")
            left = 0
        else:
            out.append(part)
            left -= len(part)
    return "".join(out)
