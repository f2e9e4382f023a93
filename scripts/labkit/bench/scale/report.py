# SPDX-License-Identifier: BSD-2-Clause
"""States the bounds with 1,048,576 EVs, judges by them, and renders the scale document. Pure."""

from collections.abc import Callable

from labkit import plot
from labkit.bench.part import requirement
from labkit.bench.scale import control, t1_failure
from labkit.cluster.observe import Document
from mrcd.ctl.terminal.render import Column, table

LOOK_S = 0.05  # a check of all peers, with a tick
DAEMON_BYTES = 300e6  # the daemon's own memory, see probe.memory
KERNEL_BYTES = 320e6
START_S = 10.0
IDLE_RATIO = 0.01  # share of a core while idle
SCRAPE_S = 1.0
PATHS_S = 0.15  # mrcctl paths --peer, with the start of mrcctl

_MB, _MS = 1e6, 1e3
_RELOADS = ("same", "programs", "fewer", "more")


def requirements(run: Document) -> list[Document]:
    """Returns the requirements of a cluster with a million EVs. Pure."""
    at = f"at {run['evs']:,} EVs"
    tick, look = run["own"]["tick"]["mean_s"], run["look_s"]
    daemon, kernel, idle = run["memory"]["own_bytes"], run["kernel_bytes"], run["idle_cpu_ratio"]
    slowest = max(run["start_s"], run["restart_s"])
    scrape, paths = (run["answers"][name]["s"] for name in ("scrape", "paths_of_a_peer"))
    bounds = (
        (
            f"a tick with its check of all peers takes {_ms(LOOK_S)} at most",
            tick is not None and max(tick, look) <= LOOK_S,
            f"{_ms(tick)}, mean; {_ms(look)} to check each peer",
        ),
        (f"the daemon's memory is {DAEMON_BYTES / _MB:g} MB at most", daemon <= DAEMON_BYTES, _own_memory(run)),
        (f"kernel tables are {KERNEL_BYTES / _MB:g} MB at most", kernel <= KERNEL_BYTES, f"{kernel / _MB:.1f} MB"),
        (f"a start takes {START_S:g} s at most", slowest <= START_S, _starts(run)),
        (f"idle, it takes {IDLE_RATIO:.0%} of a core at most", idle <= IDLE_RATIO, f"{idle:.2%}"),
        (f"a scrape takes {SCRAPE_S:g} s at most", scrape <= SCRAPE_S, f"{scrape:.2f} s"),
        (f"`paths --peer` takes {PATHS_S * _MS:g} ms at most", paths <= PATHS_S, _ms(paths)),
    )
    found = [requirement(f"{words}, {at}", met, measured) for words, met, measured in bounds]
    found += t1_failure.requirements(run["t1_failure"], run["peers"]) if "t1_failure" in run else []
    return found + control.requirements(run["control"])


def _starts(run: Document) -> str:
    return f"{run['start_s']:.1f} s, again {run['restart_s']:.1f} s"


def _own_memory(run: Document) -> str:
    own, total = (run["memory"][f"{of}_bytes"] / _MB for of in ("own", "pss"))
    return f"{own:.0f} MB: its proportional set size, {total:.0f} MB, without the mapped kernel tables"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * _MS:.1f} ms"


def lines(document: Document) -> list[str]:
    """Returns a table of memory and work, and a table of answer times."""
    headings = (
        "EVS",
        "KERNEL MB",
        "DAEMON MB",
        "START s",
        "AGAIN s",
        "LOOK ms",
        "TICK ms",
        "LONGEST ms",
        "IDLE %",
    )
    rows = []
    for r in document["runs"]:
        rows.append(
            [
                str(r["peers"]),
                f"{r['evs']:,}",
                *(f"{n / _MB:.1f}" for n in (r["kernel_bytes"], r["memory"]["own_bytes"])),
                *(f"{r[k]:.1f}" for k in ("start_s", "restart_s")),
                *(f"{n * _MS:.1f}" for n in (r["look_s"], r["own"]["tick"]["mean_s"] or 0)),
                f"{r['own_after_all']['tick']['longest_s'] * _MS:.1f}",
                f"{r['idle_cpu_ratio']:.2%}",
                f"{r['busy_cpu_ratio']:.1%} ({r['busy_peers']})",
            ]
        )
    found = [
        "One host among peers of 256 EVs each, all GOOD; a program emulates them, and answers probes within the call",
        "that sends them, so that this is counted too. LOOK: one check of all peers' state and losses; TICK: a",
        "tick of the daemon, with that check, mean; LONGEST: the longest tick; IDLE, BUSY: of a core; BUSY: UDP to",
        "that many peers. KERNEL: the kernel's accounting of the daemon's maps; DAEMON: its proportional",
        "set size without the mapped part of these",
        *table([Column("PEERS"), *(Column(h, True) for h in (*headings, "BUSY %"))], rows, colour=False),
        "",
        "Seconds to answer: medians of three, the start of mrcctl included",
    ]
    names = ("scrape", "status", "peers", "paths_of_a_peer", "paths_not_good", "paths")
    rows = [
        [str(r["peers"]), *(f"{r['answers'][n]['s']:.2f}" if n in r["answers"] else "–" for n in names)]
        for r in document["runs"]
    ]
    columns = ("SCRAPE", "status", "peers", "paths --peer", "paths --state", "paths")
    found += table([Column("PEERS"), *(Column(h, True) for h in columns)], rows, colour=False)
    found += ["", "Seconds to reload, the start of mrcctl included"]
    rows = [[str(r["peers"]), *(f"{r['reload'][n]['s']:.2f}" for n in _RELOADS)] for r in document["runs"]]
    reloads = ("NOTHING NEW", "A SETTING", "64 HOSTS LESS", "64 HOSTS MORE")
    found += table([Column("PEERS"), *(Column(h, True) for h in reloads)], rows, colour=False)
    return [*found, "", *control.lines(document["runs"][-1]["control"])]


_Of = Callable[[Document], float | None]
_PANELS: tuple[tuple[str, str, tuple[tuple[str, float, _Of], ...]], ...] = (
    (
        "Work",
        f"a tick with its check of all peers: {LOOK_S * 1e3:g} ms; CPU when idle: {IDLE_RATIO:.0%} of a core",
        (
            ("tick", LOOK_S, lambda r: r["own"]["tick"]["mean_s"]),
            ("idle CPU", IDLE_RATIO, lambda r: r["idle_cpu_ratio"]),
        ),
    ),
    (
        "Memory",
        f"the daemon's own: {DAEMON_BYTES / 1e6:g} MB; the kernel's tables: {KERNEL_BYTES / 1e6:g} MB",
        (
            ("daemon", DAEMON_BYTES, lambda r: r["memory"]["own_bytes"]),
            ("tables", KERNEL_BYTES, lambda r: r["kernel_bytes"]),
        ),
    ),
    (
        "Time",
        f"the first start, a start with the tables there, a reload that brings 64 hosts: {START_S:g} s",
        (
            ("start", START_S, lambda r: r["start_s"]),
            ("again", START_S, lambda r: r["restart_s"]),
            ("reload", START_S, lambda r: r["reload"]["more"]["s"]),
        ),
    ),
)


def picture(document: Document) -> str:
    """Returns the SVG."""
    runs = sorted(document["runs"], key=lambda r: int(r["evs"]))
    begin, end = runs[0]["evs"], max(runs[-1]["evs"], runs[0]["evs"] * 2)
    ticks = [(r["evs"], f"{r['evs']:,}") for r in runs]
    return plot.draw(
        plot.Picture(
            title="Scale: what a host with many peers costs",
            subtitle="one host among 1 to 4,096 peers of 256 EVs each, all GOOD; a program emulates them",
            legend=("measured, as a share of what is allowed", "", "allowed"),
            panels=[
                plot.Panel(
                    title=title,
                    words=words,
                    x_label="EVs",
                    y_label="share of what is allowed",
                    begin=begin,
                    end=end,
                    series=[_series(runs, *one) for one in series],
                    goals=[plot.Goal(begin, end, 1.0)],
                    ticks=ticks,
                )
                for title, words, series in _PANELS
            ],
        )
    )


def _series(runs: list[Document], label: str, allowed: float, of: _Of) -> plot.Series:
    points = [(float(r["evs"]), value / allowed) for r in runs if (value := of(r)) is not None]
    return plot.Series(points, "ours", "joined", label)
