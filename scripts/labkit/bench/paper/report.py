# SPDX-License-Identifier: BSD-2-Clause
"""Renders the paper document as lines, and draws it. Pure."""

from collections.abc import Iterator

from labkit import plot
from labkit.cluster.observe import Document
from labkit.plot import Fault, Goal, Panel, Series
from mrcd.ctl.terminal.render import Column, percent, table


def lines(document: Document) -> list[str]:
    """Returns a heading, a table of steps per experiment with plateaus, and a sentence for each other experiment."""
    line = document["line_bits_per_s"]
    found = [
        f"The paper's failure experiments: {document['flows']} TCP flow{'s' * (document['flows'] > 1)}, "
        f"{document['lab']['planes']} planes of {_mbit(document['lab']['rate_bits_per_s'])}, bins of "
        f"{document['bin_ms']:g} ms; the planes can carry {_mbit(line)} of TCP's data"
    ]
    for d in document["experiments"]:
        found += ["", f"Figure {d['figure']}: {d['what']}", *_one(d, line)]
    return found


def _one(d: Document, line: float) -> Iterator[str]:
    usual = d["usual_bits_per_s"]
    yield f"  without a fault {_mbit(usual)}, {percent(usual / line) if line else '-'} % of what the planes can carry"
    yield f"  {gone(d)}" + (f" (medians of {d['rounds']} runs)" if d["rounds"] > 1 else "")
    if d["steps"]:
        yield from _steps(d, line)


def _steps(d: Document, line: float | None) -> Iterator[str]:
    headings = (
        "IDEAL %",
        "LEVEL %",
        "ERROR %",
        "PAPER %",
        "OF LINE %",
        "HOLE ms",
        "OF ALL",
        "PAPER ms",
        "SETTLED ms",
        "PAPER ms",
        "LOWEST %",
    )
    rows = []
    for s in d["steps"]:
        p = s["paper"]
        of_line = s["level_bits_per_s"] / (line * s["ideal_ratio"]) if line else None
        rows.append(
            [
                str(s["planes"]),
                f"{100 * s['ideal_ratio']:.1f}",
                f"{100 * s['level_ratio']:.1f}",
                f"{100 * s['error_ratio']:+.1f}",
                f"{100 * p['level_ratio']:.1f}" if p else "-",
                f"{100 * of_line:.1f}" if of_line is not None else "-",
                f"{s['hole_ms']:.0f}",
                f"{min(s['holes_ms']):.0f}–{max(s['holes_ms']):.0f}",
                hole(p) if p else "-",
                f"{s['settled_ms']:.0f}" if s["settled_ms"] is not None else "never",
                f"{p['settled_ms']:.0f}" if p else "-",
                f"{100 * s['lowest_sample_ratio']:.0f}",
            ]
        )
    columns = [Column("PLANES", True), *(Column(h, True) for h in headings)]
    yield from (f"  {line}" for line in table(columns, rows, colour=False))
    before = d["undisturbed"]
    yield (
        f"  LEVEL: of the flow's own goodput with all planes; OF LINE: of the capacity of the present planes\n"
        f"  HOLE: longest run of bins below half of the lower neighbouring plateau (before any fault "
        f"{before['hole_ms']:.0f} ms); LOWEST: mean over the paper's {d['paper']['sample_s'] * 1000:.0f} ms, of that "
        f"plateau (before {100 * before['lowest_sample_ratio']:.0f})"
    )


def hole(paper: Document) -> str:
    """Returns the paper's gap in ms; where its samples show none, what they can hide."""
    return f"{paper['hole_ms']:.0f}" if paper["hole_ms"] else f"< {paper['most_hidden_ms']:.0f}"


def gone(d: Document) -> str:
    """Returns the result of the experiment in a sentence."""
    if "runs" in d:
        said = [
            f"at {percent(r['drop_ratio'])} % loss {percent(r['mean_ratio'])} % of the fault-free (paper: "
            f"{percent(r['paper']['mean_ratio'])} %)"
            for r in d["runs"]
            if r["drop_ratio"]
        ]
        return f"{d['granularity']} granularity: {'; '.join(said)}"
    if d["steps"]:
        worst = max(abs(s["error_ratio"]) for s in d["steps"])
        longest = max(s["hole_ms"] for s in d["steps"])
        theirs = max((s["paper"] for s in d["steps"] if s["paper"]), key=lambda p: (p["hole_ms"], p["most_hidden_ms"]))
        return (
            f"plateaus off (n−k)/n by {100 * worst:.1f} % at most; longest hole {longest:.0f} ms, the paper's "
            f"{hole(theirs)} ms at its sampling of {d['paper']['sample_s'] * 1000:.0f} ms"
        )
    mean = f"mean {percent(d['mean_ratio'])} % of the fault-free"
    if "out_after_ms" in d:
        out = f"out after {d['out_after_ms']:.0f} ms" if d["out_after_ms"] is not None else "never out"
        return (
            f"the EV is {out}; {percent(d['loss_ratio'])} % of the packets lost in all, {d['lost_on_ev_packets']} on "
            f"it, {d['lost_elsewhere_packets']} elsewhere; {mean} (paper: {percent(d['paper']['mean_ratio'])} %)"
        )
    return f"{mean}; lowest {d['sample_s'] * 1000:.0f} ms {percent(d['lowest_sample_ratio'])} %"


def _mbit(bits_per_s: float | None) -> str:
    return f"{bits_per_s / 1e6:.0f} Mbit/s" if bits_per_s is not None else "-"


_TIME = "time, s"
_SHARE = "goodput, of fault-free"


def picture(document: Document) -> str:
    """Returns the SVG: a panel per experiment."""
    lab, flows = document["lab"], document["flows"]
    ours = "one TCP flow" if flows == 1 else f"{flows} TCP flows"
    rate = f"{lab['planes']} planes of {lab['rate_bits_per_s'] / 1e6:g} Mbit/s"
    return plot.draw(
        plot.Picture(
            title="The failure experiments of the MRC paper, with TCP over mrcd",
            subtitle=(
                f"{ours}, {lab['planes'] * lab['t1']} EVs, {rate}, each bin {document['bin_ms']:g} ms; each side as a "
                "share of its own goodput without faults"
            ),
            legend=(f"mrcd, {ours}", "the paper's points (arXiv 2605.04333; MRC in hardware)", "ideal"),
            panels=[_messages(d) if "runs" in d else _course(d) for d in document["experiments"]],
        )
    )


def _course(d: Document) -> Panel:
    """Returns the panel of a course over time."""
    usual = d["usual_bits_per_s"] or 1.0
    series = [Series([(i * d["bin_s"], v / usual) for i, v in enumerate(d["bits_per_s"])], "ours", "steps")]
    words = gone(d)
    if d["paper"]:
        series.append(Series(d["paper"]["points"], "theirs", "dots"))
        if d["name"].startswith("19b"):
            words += "; its plateaus are cut short"
    return Panel(
        title=f"Figure {d['figure']}: {d['what']}",
        words=words,
        x_label=_TIME,
        y_label=_SHARE,
        begin=0.0,
        end=d["seconds"],
        series=series,
        goals=[Goal(s["begin_s"], s["end_s"], s["ideal_ratio"]) for s in d["steps"]],
        faults=[Fault(f["begin_s"], f["end_s"], f["label"]) for f in d["faults"]],
    )


def _messages(d: Document) -> Panel:
    """Returns the panel of goodput by message size."""
    series = []
    for run in d["runs"]:
        loss = f"{run['drop_ratio'] * 100:g} %"
        series.append(Series(run["messages"], "ours", "joined", f"{loss} mrcd"))
        series.append(Series(run["paper"]["points"], "theirs", "joined", f"{loss} paper"))
    sizes = [size for s in series for size, _ in s.points]
    ticks = [(size, f"{size / 1e6:g}" if size < 1e9 else f"{size / 1e9:.0f} G") for size, _ in series[1].points]
    return Panel(
        title=f"Figure {d['figure']}: {d['what']}",
        words=gone(d),
        x_label="size of a message, MB (the paper's: a ring all-reduce of it)",
        y_label=_SHARE,
        begin=min(sizes),
        end=max(sizes),
        series=series,
        ticks=ticks,
    )
