# SPDX-License-Identifier: BSD-2-Clause
"""Renders the failover document as tables. Pure."""

from collections.abc import Iterator

from labkit.bench.failover.holes import GRACE_NS, STOOD_STILL_NS, empty_bins
from labkit.bench.failover.stats import duration
from labkit.cluster.observe import Document
from mrcd.ctl.terminal.render import Column, count, percent, table

_MS = 1e6


def lines(document: Document) -> list[str]:
    """Returns all tables, with a heading each."""
    found = [*_kinds(document["kinds"])]
    for run in document["loss"]:
        found.append(
            f"Loss in {run['seconds']:g} s where {run['what']}: {percent(run['loss_ratio'])} % "
            f"({run['lost_packets']} of {count(run['sent_packets'])} packets) at {_gbit(run['median_bits_per_s'])}"
        )
    found += ["", *_holes(document)]
    return found


def _kinds(kinds: list[Document]) -> Iterator[str]:
    if not kinds:
        return
    yield "Failover of one TCP flow h0 → h2; LEAVE: first drop to the last data packet on the path; BAD: to ASSUMED_BAD"
    headings = (
        *(
            "FAULTS",
            "UNFOUND",
            "LEAVE p50",
            "p99",
            "MAX",
            "BAD p50",
            "p99",
            "LOST p50",
            "MAX",
            "STILL p50",
            "p99",
            "BACK p50",
            "MAX",
        ),
        *("WRONG", "Gbit/s"),
    )
    rows = [
        [
            d["kind"],
            str(d["leave_ns"]["count"]),
            str(d["leave_ns"]["never"]),
            *(duration(d["leave_ns"][p]) for p in ("p50", "p99", "max")),
            *(duration(d["detected_ns"][p]) for p in ("p50", "p99")),
            *(count(d["lost_packets"][p]) for p in ("p50", "max")),
            *(duration(d["still_ns"][p]) for p in ("p50", "p99")),
            *(duration(d["back_ns"][p]) for p in ("p50", "max")),
            str(len(d["wrong_demotions"])),
            f"{d['flow']['median_bits_per_s'] / 1e9:.1f}",
            d["what"],
        ]
        for d in kinds
    ]
    yield from table([Column("KIND"), *(Column(h, True) for h in headings), Column("WHAT")], rows, colour=False)
    yield "LOST: data packets of the flow as on the wire, per fault; WRONG: other EVs demoted, of any host"
    yield "STILL: the longest time without data for the receiver's application, within 40 ms of the fault"
    yield "BACK: from healing until the paths are GOOD again, with hold-downs of 100 ms"
    for d in kinds:
        flapped = d["wanted"] - d["leave_ns"]["count"] if d["kind"] == "flapping" else 0
        if flapped:
            yield f"flapping: {flapped} of {d['wanted']} times the EV had been left before, and nothing was lost"
        for words in d["wrong_demotions"][:5]:
            yield f"  {d['kind']}: {words} was demoted without being hit"
    yield ""


def _holes(document: Document) -> Iterator[str]:
    ways = document["holes"]
    if ways:
        yield f"The gap in goodput when a T1 on the flow's way forwards nothing, in bins of {ways[0]['bin_ms']:g} ms"
        headings = [
            *("TIMES", "Gbit/s", "AT ZERO p50", "MAX", "BELOW HALF p50", "MAX", "BEFORE", "STANDING", "WATCHED"),
            *("LATE", "STOLEN", "EARLY", "STOLEN"),
        ]
        rows = [
            [
                w["name"],
                str(w["blackholes"]),
                f"{w['median_bits_per_s'] / 1e9:.1f}",
                *(_ms(w[k][p]) for k in ("longest_zero_ms", "below_half_ms") for p in ("p50", "max")),
                _ms(w["before_longest_zero_ms"]["max"]),
                str(w["still_standing"]),
                f"{w['watch_s']:g} s",
                *_empty(w, "late"),
                *_empty(w, "before"),
                w["what"],
            ]
            for w in ways
        ]
        yield from table([Column("WAY"), *(Column(h, True) for h in headings), Column("WHAT")], rows, colour=False)
        yield "AT ZERO: longest run of empty bins, BEFORE: without a fault; BELOW HALF: total below half of usual"
        late, still = GRACE_NS / _MS, STOOD_STILL_NS / _MS
        yield f"LATE: empty bins from {late:g} ms after the first drop on, of all; EARLY: before the fault is put in"
        yield f"STOLEN: those of them in which the hypervisor stopped a CPU for more than {still:g} ms of the bin"
        for w in ways:
            for why in sorted({str(e["unwatched"]) for e in w["events"] if e["unwatched"]}):
                yield f"{w['name']}: pauses of the machine are unknown: {why}"
            if w["restarts"]:
                yield (
                    f"{w['name']}: {w['restarts']} more flows stopped for {w['restarted_after_s']:g} s without a fault "
                    "and were restarted"
                )
    yield from document["notes"]


def _empty(way: Document, when: str) -> tuple[str, str]:
    empty, still, of = empty_bins(way, when)
    return f"{empty}/{of}", str(still)


def _ms(value: float | None) -> str:
    return duration(value * _MS if value is not None else None)


def _gbit(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:.1f} Gbit/s"
