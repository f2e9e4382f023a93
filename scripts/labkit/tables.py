# SPDX-License-Identifier: BSD-2-Clause
"""Prints the rows of benches and demos: a column per key, each value in the unit that its key ends with. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from mrcd.ctl.terminal import render
from mrcd.ctl.terminal.render import Column

Row = Mapping[str, Any]
# End of a key → how its values are shown. The first that fits counts.
_UNITS = ("_bits_per_s", "_per_s", "_ratio", "_bytes", "_ns", "_ms", "_s")


def duration(ns: float | None) -> str:
    """Returns nanoseconds in a suitable unit: 0, 870 ns, 12.3 µs, 4.56 ms, 1.2 s; `never` for None."""
    if ns is None:
        return "never"
    for size, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(ns) >= 0.9995 * size:
            return f"{ns / size:.3g} {name}" if abs(ns) < 999.5 * size else f"{ns / size:.0f} {name}"
    return f"{ns:.0f} ns" if ns else "0"


def percent(ratio: float | None) -> str:
    """Returns a ratio in percent with three or more significant digits."""
    if ratio is None:
        return "-"
    value = 100 * ratio
    return f"{value:.3g} %" if abs(value) < 99.95 else f"{value:.1f} %"


def rate(bits_per_s: float | None) -> str:
    """Returns Gbit/s, or Mbit/s below one."""
    if bits_per_s is None:
        return "-"
    return f"{bits_per_s / 1e9:.2f} Gbit/s" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:.0f} Mbit/s"


def shown(key: str, value: Any) -> str:
    """Returns a value as a cell shows it, by the unit that its key ends with."""
    unit = next((u for u in _UNITS if key.endswith(u)), "")
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(shown(key, v) for v in value)
    if unit in ("_ns", "_ms", "_s"):
        return duration(None if value is None else value * {"_ns": 1, "_ms": 1e6, "_s": 1e9}[unit])
    if value is None:
        return "-"
    if unit == "_bits_per_s":
        return rate(value)
    if unit == "_ratio":
        return percent(value)
    if unit == "_bytes":
        return f"{value / 1e6:.1f} MB" if value >= 1e5 else f"{value:.0f} B"
    if isinstance(value, int) or unit == "_per_s" or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def heading(key: str) -> str:
    """Returns the heading of a key's column, without the unit."""
    unit = next((u for u in _UNITS if key.endswith(u)), "")
    return (key.removesuffix(unit) + ("/s" if unit == "_per_s" else "")).replace("_", " ").upper()


def table(rows: Sequence[Row]) -> list[str]:
    """Returns aligned lines. Columns are the keys of all rows; texts are aligned at the left, numbers at the right."""
    keys = list(dict.fromkeys(k for row in rows for k in row))
    columns = [Column(heading(k), right=not all(isinstance(row.get(k, ""), str) for row in rows)) for k in keys]
    return render.table(columns, [[shown(k, row[k]) if k in row else "" for k in keys] for row in rows], colour=False)
