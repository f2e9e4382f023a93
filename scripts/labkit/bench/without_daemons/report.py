# SPDX-License-Identifier: BSD-2-Clause
"""Renders the document as tables; draws the traffic of the paths that a fault hit, a line per fault. Pure."""

from collections.abc import Iterator
from statistics import median

from labkit import plot
from labkit.bench.failover.stats import duration
from labkit.bench.without_daemons import judge
from labkit.cluster.observe import Document
from labkit.plot import Fault, Goal, Panel, Series
from mrcd.ctl.terminal.render import Column, percent, table

_HEADINGS = (
    *("FAULTS", "UNFOUND", "LEAVE p50", "p99", "MAX", "WITH mrcd p50", "MAX", "OF"),
    *("WELL p50", "MAX", "HOLD DUE", "LATE p50", "MAX", "BACK p50", "MAX", "SHARE p50", "LEAST", "IDLE", "BACK MAX"),
)


def lines(document: Document) -> list[str]:
    """Returns all tables."""
    flows = ", ".join(
        f"{f['source']} → {f['peer']} {f['median_bits_per_s'] / 1e9:.1f} Gbit/s" for f in document["flows"]
    )
    hosts, dead_s = " and ".join(document["ticks"]), document["dead_s"]
    return [
        f"Without daemons: those of {hosts} were killed after {document['killed_s']:.0f} s, and not started again in "
        f"the {dead_s:.0f} s until the end; a TCP flow each way ({flows})",
        *_table(judge.rows(document["faults"])),
        "LEAVE: from the first drop (of nic-down: from the last packet known to have arrived) to the last data packet "
        "on a path, of both directions",
        "WITH mrcd: the same faults before the daemons were killed, OF so many",
        "WELL: from healing to the start of the hold-down; LATE: from there to GOOD, beyond the HOLD DUE; "
        "BACK: from healing to GOOD",
        "SHARE: packets on a path in the second after its ramp, as a ratio to the mean of the paths not hit",
        "IDLE: left paths to hosts without a flow, of those hit",
        "",
        *_series(document),
        *_outliers(document),
        *(f"wrong: {w} was demoted and not hit" for w in document["wrong_demotions"][:5]),
        *document["notes"],
    ]


def said(fault: Document) -> str:
    """Returns one fault in a line."""
    left = ", ".join(duration(w["leave_ns"]) for w in fault["ways"])
    came = fault["returns"]
    never = any(r["back_ns"] is None for r in came)
    back = None if never or not came else max(r["back_ns"] for r in came)
    due = max((r["due_ns"] for r in came), default=None)
    least = min((r["share"] for r in came if r["share"] is not None), default=None)
    return (
        f"{fault['name']} {fault['target']}: left after {left}; back {duration(back)} after healing, hold-down due "
        f"{duration(due)}; least share {percent(least)} %"
    )


def _table(rows: list[Document]) -> list[str]:
    found = [
        [
            r["name"],
            str(r["faults"]),
            str(r["leave_ns"]["never"]),
            *(duration(r["leave_ns"][p]) for p in ("p50", "p99", "max")),
            *_beside(r["leave_ns_with_daemons"]),
            *(duration(r["well_ns"][p]) for p in ("p50", "max")),
            _due(r["due_ns"]),
            *(duration(r["late_ns"][p]) for p in ("p50", "max")),
            *(duration(r["back_ns"][p]) for p in ("p50", "max")),
            *_shares(r["share"]),
            f"{r['idle_left']}/{r['idle_evs']}",
            duration(r["idle_back_ns"]["max"]) if r["idle_left"] else "-",
            r["what"],
        ]
        for r in rows
    ]
    return table([Column("FAULT"), *(Column(h, True) for h in _HEADINGS), Column("WHAT")], found, colour=False)


def _beside(found: Document) -> tuple[str, str, str]:
    if not found["count"]:
        return "-", "-", "0"
    return duration(found["p50"]), duration(found["max"]), str(found["count"])


def _due(found: Document) -> str:
    """Returns the median, and the longest, if it differs."""
    usual, most = duration(found["p50"]), duration(found["max"])
    return usual if usual == most else f"{usual}, {most}"


def _shares(found: Document) -> tuple[str, str]:
    """Returns percentiles that count from above: the values are negated."""
    return tuple("-" if found[p] is None else f"{percent(-found[p])} %" for p in ("p50", "max"))  # type: ignore[return-value]


def _series(document: Document) -> Iterator[str]:
    yield "Hold-downs when a T1 dies three times: as due (as held)"
    for s in judge.series(document["faults"]):
        pairs = zip(s["due_ns"], s["hold_ns"], strict=True)
        holds = ", ".join(f"{duration(due)} ({duration(held)})" for due, held in pairs)
        yield f"  round {s['round'] + 1}, {s['target']}: {holds}" + ("" if s["killed"] else "; with mrcd")


def _outliers(document: Document) -> Iterator[str]:
    """Yields leaves slower than 3 ms, with the machine's part."""
    for f in document["faults"]:
        for w in f["ways"]:
            if f["killed"] and w["leave_ns"] is not None and w["leave_ns"] > judge.OUTLIER_NS:
                yield (
                    f"  {f['name']} {f['target']} at {f['at_s']:.0f} s, {w['source']} → {w['peer']}: "
                    f"{duration(w['leave_ns'])}, the hypervisor's part {duration(w['stood_still_ns'])}; SKIP "
                    f"{w['skips']} times, {', '.join(w['reasons'])} after {duration(w['detected_ns'])}"
                )


_END_S = 9.0


def picture(document: Document) -> str:
    """Returns the SVG: a panel per kind of fault."""
    faults = [f for f in document["faults"] if f["killed"]]
    return plot.draw(
        plot.Picture(
            title="Paths that fail and heal, with mrcd killed at both ends",
            subtitle=(
                "packets on the paths that a fault hits, beside the mean of the others; a TCP flow each way; "
                f"no daemon for {document['dead_s'] / 60:.1f} minutes"
            ),
            legend=("one fault each", "", "full share"),
            panels=[_panel(row, [f for f in faults if f["name"] == row["name"]]) for row in judge.rows(faults)],
        )
    )


def _panel(row: Document, faults: list[Document]) -> Panel:
    broken = median(f["broken_s"] for f in faults)
    left, back = row["leave_ns"], row["back_ns"]
    return Panel(
        title=f"{row['name']}: {row['what']}",
        words=(
            f"{row['faults']} faults; left after p50 {duration(left['p50'])}, at most {duration(left['max'])}; back "
            f"{duration(back['p50'])} after healing, at most {duration(back['max'])}; "
            f"hold-downs up to {duration(row['due_ns']['max'])}"
        ),
        x_label="s after the fault",
        y_label="share of a path",
        begin=-0.5,
        end=_END_S,
        series=[Series([(x, y) for x, y in f["course"]], "ours", "steps") for f in faults],
        goals=[Goal(-0.5, _END_S, 1.0)],
        faults=[Fault(0.0, broken, "broken")],
    )
