# SPDX-License-Identifier: BSD-2-Clause
"""Renders the failover document as tables, and draws it. Pure."""

from collections.abc import Iterator
from typing import Literal

from labkit import plot
from labkit.bench.failover.holes import GRACE_NS, STOOD_STILL_NS, empty_bins
from labkit.bench.failover.kinds import BLACKHOLE
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


_NS_IN_S, _MS_IN_S = 1e-9, 1e-3
_LABELS = {
    "t1-blackhole": "T1 black hole",
    "t1-blackhole-killed": "… with mrcd killed",
    "nic-link-killed": "NIC–T0 link, mrcd killed",
    "drop-20-killed": "T1 drops 20 %, mrcd killed",
    "t0-t1-link": "T0–T1 link, silent",
    "nic-link": "NIC–T0 link, silent",
    "nic-down": "NIC–T0 link, carrier lost",
    "one-way-forward": "one way: data lost",
    "one-way-reverse": "one way: ACKs lost",
    "drop-20": "T1 drops 20 %",
    "drop-1": "T1 drops 1 %",
    "drop-0.5": "T1 drops 0.5 %",
    "drop-20-no-dup-acks": "T1 drops 20 %, no ACK copies",
    "flapping": "T1 flaps 13 times a minute",
}
_PEERS = {"mptcp": "MPTCP", "kernel-ecmp": "the kernel's seg6 multipath"}


def picture(document: Document) -> str:
    """Returns the SVG: per kind how long a path was still used, with the requirement and the times of others."""
    shape = document["lab"]
    marks: list[tuple[float, str, Literal["goal", "theirs"]]] = [
        (ns * _NS_IN_S, f"required for blackholes: {p} {duration(ns)}", "goal") for p, ns in BLACKHOLE
    ]
    marks.append((document["bfd_floor_ns"] * _NS_IN_S, "BFD detects: 3 × 10 ms (arithmetic)", "theirs"))
    for way in document["holes"]:
        middle = way["longest_zero_ms"]["p50"]
        if way["name"] in _PEERS and middle:
            mostly = 2 * way["still_standing"] > way["blackholes"]
            until = f"until healed, here {way['watch_s']:g} s" if mostly else f"p50 {duration(middle * 1e6)}"
            marks.append((middle * _MS_IN_S, f"{_PEERS[way['name']]} stops, {until}", "theirs"))
    evs = shape["planes"] * shape["t1"]
    words = (
        "from the first packet lost to the last data packet put on the path, both stamped in the kernel; one "
        f"TCP flow over {evs} EVs ({shape['planes']} planes × {shape['t1']} T1s)"
    )
    notes = ["Red: p50 (thick), p99 (thin). At the left edge: no data was put on the path after the first loss."]
    strips = plot.Strips("A dot per fault", "", [_row(d) for d in document["kinds"]], marks)
    return plot.draw(plot.Picture("Failover: how long a broken path is still used", words, [strips], notes))


def _row(d: Document) -> plot.Strip:
    found = d["leave_ns"]
    p50, p99 = (found[p] * _NS_IN_S if found[p] is not None else None for p in ("p50", "p99"))
    said = f"p50 {duration(found['p50'])}, p99 {duration(found['p99'])}"
    times = [e["leave_ns"] * _NS_IN_S if e["leave_ns"] is not None else None for e in d["events"] if e["in_use"]]
    return plot.Strip(_LABELS[d["kind"]], times, p50, p99, said)
