# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl histograms`, which draws bars."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from mrcd.ctl.base import Options, command
from mrcd.ctl.documents import list_of, read, show_list
from mrcd.ctl.options import wide_option
from mrcd.ctl.terminal.render import count, fold

_WIDTH = 40  # characters of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉"
_TITLES = {
    "detection": "Detection: from the last packet known to have arrived on an EV to ASSUMED_BAD",
    "packets_before_detection": "Packets before detection: data packets sent on a failed EV until it was left",
    "reinstatement": "Reinstatement: from ASSUMED_BAD to GOOD",
    "rtt": "Round trips of probes",
}


def value(number: float | None, unit: str) -> str:
    """Return a time in a readable unit, or a count."""
    if number is None:
        return "-"
    if unit != "ns":
        return count(number)
    for name, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:.0f} ns"


def histogram_lines(docs: Sequence[Mapping[str, Any]], *, width: int | None = None, **_: Any) -> list[str]:
    """Return a bar chart per histogram, with one line per power of two; `width` is the terminal's."""
    lines: list[str] = []
    for doc in docs:
        plane = "" if doc["plane"] is None else f", plane {doc['plane']}"
        title = f"{_TITLES.get(doc['histogram'], doc['histogram'])}{plane}"
        lines += [*fold(title, width), *fold(f"  {_summary(doc)}", width), *_bars(doc, width), ""]
    return lines[:-1]


def _summary(doc: Mapping[str, Any]) -> str:
    if not doc["count"]:
        return "none yet"
    quantiles = ", ".join(f"{name} ≤ {value(doc[name], doc['unit'])}" for name in ("p50", "p99", "max"))
    return f"{count(doc['count'])}: {quantiles}"


def _bars(doc: Mapping[str, Any], width: int | None) -> list[str]:
    """Return a bar per power of two from the first to the last that is not empty."""
    powers = {
        power: sum(b["count"] for b in some)
        for power, some in itertools.groupby(doc["buckets"], lambda b: int(b["from"]).bit_length())
    }
    if not powers:
        return []
    most = max(powers.values())
    rows = []
    for power in range(min(powers), max(powers) + 1):
        # A bucket excludes its upper bound: show counts less one. One nanosecond does not matter for times.
        low, high = (1 << power) >> 1, (1 << power) - (doc["unit"] != "ns")
        rows.append((value(low, doc["unit"]), value(high, doc["unit"]), powers.get(power, 0)))
    widths = [max(len(r[i]) for r in rows) for i in (0, 1)]
    bar = _WIDTH if width is None else max(1, min(_WIDTH, width - sum(widths) - 14))  # 14: blanks, dash, count
    return [
        f"  {low:>{widths[0]}} – {high:>{widths[1]}}  {_bar(n / most, bar):<{bar}}  {count(n)}" for low, high, n in rows
    ]


def _bar(ratio: float, width: int) -> str:
    """Return a bar in eighths of a character; at least one eighth for any ratio above 0."""
    eighths = round(ratio * width * 8) or (1 if ratio else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


@command("Show histograms of detection times and round trips.")
@wide_option
def histograms(options: Options, wide: bool) -> None:
    """Show the times to detect failed EVs, the packets sent meanwhile, and the probes' round trips."""
    show_list(options, list_of("histograms", read(options, "histograms")), histogram_lines, wide)
