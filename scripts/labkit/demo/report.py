# SPDX-License-Identifier: BSD-2-Clause
"""Reports a recording as one document of plain numbers, which `--json` prints, as tables and as a picture. Pure.

Units are in the names: `_s` are seconds since the recording began, `_ms` durations. A time that
never came is null.
"""

from collections.abc import Sequence

from labkit import plot
from labkit.cluster.observe import Document
from labkit.cluster.patience import patience
from labkit.demo.record import Fault, Recording
from labkit.measure import goodput
from labkit.measure.goodput import WIDE_NS
from labkit.tables import duration, percent, rate, table

SCHEMA_VERSION = 2
WITHDRAWN_WITHIN_MS = patience(200.0)
GOOD_WITHIN_MS = patience(5000.0)
# TCP's own timer: a packet lost twice waits for the retransmission timeout, at least 200 ms on Linux.
STANDS_AT_MOST_MS = patience(500.0)
_S, _MS = 1_000_000_000, 1_000_000
_BEFORE_NS = 2 * _S  # interval before a fault, and at most after its healing, over which goodput is averaged
_START_NS = _S  # the start of TCP is left out of the usual goodput


def build(r: Recording) -> Document:
    """Returns the document."""
    faults = [_fault(r, f) for f in r.failed_ns]
    bad = [e | {"at_s": r.seconds(e["monotonic_ns"])} for e in r.events if e["to"] == "ASSUMED_BAD"]
    hit = {_key(p) for f in r.failed_ns for p in r.paths if f.hits(p)}
    keys = ("host", "peer", "ev", "at_s", "reason", "evidence")
    unexpected = [{k: e[k] for k in keys} for e in bad if _key(e) not in hit]
    begin_ns, bins = r.begin_ns + _START_NS, r.flow.bins
    return {
        "schema_version": SCHEMA_VERSION,
        "duration_s": r.seconds(r.end_ns),
        "flow": r.ends._asdict()
        | {
            "congestion_control": r.flow.congestion_control,
            "mss_bytes": r.flow.mss_bytes,
            "received_bytes": sum(bins.values()),
            "mean_bits_per_s": goodput.mean(bins, begin_ns, r.end_ns),
            "median_bits_per_s": goodput.usual(bins, begin_ns, r.end_ns),
            "retransmitted_segments": r.flow.retransmitted_segments,
        },
        "spread": _spread(r),
        "faults": faults,
        "unexpected_withdrawals": unexpected,
        "promises": _promises(faults, len(unexpected)),
        "goodput": {
            "bin_s": WIDE_NS / _S,
            "bits_per_s": [goodput.bits_per_s(n, WIDE_NS) for n in goodput.regular(bins, r.begin_ns, r.end_ns)],
        },
        "states": [_states(r, p) for p in r.of_flow(r.paths)],
    }


def _spread(r: Recording) -> Document:
    """Returns how evenly the flow was spread over the EVs, by their counters."""
    (begin_ns, before), (end_ns, after) = r.counted
    document: Document = {"seconds": (end_ns - begin_ns) / _S, "evs": len(after)}
    for what in ("tx_packets", "tx_bytes"):
        counts = [now[what] - then[what] for then, now in zip(before, after, strict=True)]
        document[what] = {"mean": sum(counts) / len(counts), "min": min(counts), "max": max(counts)}
    return document


def _fault(r: Recording, fault: Fault) -> Document:
    bins, begin_ns, heal_ns = r.flow.bins, r.failed_ns[fault], r.healed_ns[fault]
    later_ns = min((ns for ns in r.failed_ns.values() if ns > heal_ns), default=r.end_ns)
    before_ns = max(begin_ns - _BEFORE_NS, r.begin_ns + _START_NS)
    hole = goodput.longest_hole(bins, begin_ns, heal_ns, goodput.usual(bins, before_ns, begin_ns))
    hit = [p for p in r.paths if fault.hits(p)]
    counts = [(s.monotonic_ns, s.retransmitted_segments) for s in r.flow.samples if s.monotonic_ns < heal_ns]
    before = [count for at, count in counts if at < begin_ns]
    return {
        "target": fault.target,
        "what": fault.words,
        "begin_s": r.seconds(begin_ns),
        "heal_s": r.seconds(heal_ns),
        "flow_evs": _verdicts(r, r.of_flow(hit), begin_ns, heal_ns),
        "acknowledgement_evs": _verdicts(r, r.of_flow(hit, back=True), begin_ns, heal_ns),
        "all_evs": _verdicts(r, hit, begin_ns, heal_ns),
        "longest_hole_ms": hole.length_ns / _MS,
        "before_bits_per_s": goodput.mean(bins, before_ns, begin_ns),
        "during_bits_per_s": goodput.mean(bins, begin_ns, heal_ns),
        "after_bits_per_s": goodput.mean(bins, heal_ns, min(later_ns, heal_ns + _BEFORE_NS, r.end_ns)),
        "retransmitted_segments": counts[-1][1] - (before[-1] if before else 0) if counts else 0,
    }


def _verdicts(r: Recording, paths: Sequence[Document], begin_ns: int, heal_ns: int) -> Document:
    """Returns how many EVs were withdrawn and returned for good, when the last did, and failures after a return."""
    withdrawn, returned, flaps = [], [], 0
    for path in paths:
        events = [(e["monotonic_ns"], e["to"]) for e in _events(r, path)]
        withdrawn += [at for at, to in events if to == "ASSUMED_BAD" and begin_ns <= at < heal_ns][:1]
        if events and events[-1][1] == "GOOD" and events[-1][0] >= heal_ns:
            returned.append(events[-1][0])
        good_ns = next((at for at, to in events if to == "GOOD" and at >= heal_ns), r.end_ns)
        flaps += sum(to == "ASSUMED_BAD" and at >= good_ns for at, to in events)
    return {
        "hit": len(paths),
        "withdrawn": len(withdrawn),
        "last_withdrawn_after_ms": (max(withdrawn) - begin_ns) / _MS if withdrawn else None,
        "returned": len(returned),
        "last_returned_after_ms": (max(returned) - heal_ns) / _MS if returned else None,
        "flaps_after_healing": flaps,
    }


def _key(of: Document) -> tuple[str, str, int]:
    return of["host"], of["peer"], of["ev"]


def _events(r: Recording, path: Document) -> list[Document]:
    return sorted((e for e in r.events if _key(e) == _key(path)), key=lambda e: int(e["monotonic_ns"]))


def _states(r: Recording, path: Document) -> Document:
    """Returns an EV's states over the whole recording, without gaps."""
    changes = [(0.0, path["state"]), *((r.seconds(e["monotonic_ns"]), e["to"]) for e in _events(r, path))]
    ends = [*(at for at, _ in changes[1:]), r.seconds(r.end_ns)]
    spans = [{"begin_s": at, "end_s": end, "state": s} for (at, s), end in zip(changes, ends, strict=True)]
    return {"ev": path["ev"], "plane": path["plane"], "t1": path["t1"], "spans": spans}


# ---- promises ----


def _promises(faults: Sequence[Document], unexpected: int) -> list[Document]:
    """Returns the demo's requirements, whether each was met, and the measurement."""
    found = []
    for f in faults:
        flow, everyone, target = (f["flow_evs"], f["acknowledgement_evs"]), f["all_evs"], f["target"]
        words = f"the flow's EVs are ASSUMED_BAD within {WITHDRAWN_WITHIN_MS:.0f} ms, both ways"
        found.append(promise(target, words, *_all_within(flow, "withdrawn", WITHDRAWN_WITHIN_MS)))
        words = "every host withdraws the EVs that it hit"
        found.append(promise(target, words, *_all_within([everyone], "withdrawn")))
        words, hole_ms = f"the flow continues: it stops for {STANDS_AT_MOST_MS:.0f} ms at most", f["longest_hole_ms"]
        found.append(promise(target, words, hole_ms <= STANDS_AT_MOST_MS, f"longest hole {hole_ms:.0f} ms"))
        words = f"every EV is GOOD again within {GOOD_WITHIN_MS / 1000:.0f} s of healing"
        in_time, measured = _all_within([everyone], "returned", GOOD_WITHIN_MS)
        flaps = everyone["flaps_after_healing"]
        found.append(promise(target, words, in_time, measured + (f"; {flaps} failed again meanwhile" if flaps else "")))
    words = "no EV is withdrawn that no fault has hit"
    return [*found, promise("any", words, not unexpected, f"{unexpected} were")]


def promise(fault: str, words: str, kept: bool, measured: str) -> Document:
    """Returns a requirement, whether it was met, and the measurement."""
    return {"fault": fault, "promise": words, "kept": kept, "measured": measured}


def _all_within(verdicts: Sequence[Document], what: str, most_ms: float | None = None) -> tuple[bool, str]:
    done, hit = (sum(v[key] for v in verdicts) for key in (what, "hit"))
    last_ms = max((v[f"last_{what}_after_ms"] or 0.0 for v in verdicts), default=0.0)
    in_time = done == hit and (most_ms is None or last_ms <= most_ms)
    return in_time, f"{done} of {hit}" + (f", the last after {last_ms:.0f} ms" if done else "")


# ---- tables and picture ----


def summary(document: Document) -> list[str]:
    """Returns the measurements, and whether the requirements were met."""
    f, s = document["flow"], document["spread"]
    rows = [
        {
            "fault": d["target"],
            "begin_s": d["begin_s"],
            "heal_s": d["heal_s"],
            f"evs {f['source']}→{f['target']}": "{withdrawn}/{hit}".format_map(d["flow_evs"]),
            "assumed_bad_ms": d["flow_evs"]["last_withdrawn_after_ms"],
            "all_hosts": "{withdrawn}/{hit}".format_map(d["all_evs"]),
            "in_ms": d["all_evs"]["last_withdrawn_after_ms"],
            "hole_ms": d["longest_hole_ms"],
            **{f"{when}_bits_per_s": d[f"{when}_bits_per_s"] for when in ("before", "during", "after")},
            "good_again_ms": d["flow_evs"]["last_returned_after_ms"],
            "retransmitted": d["retransmitted_segments"],
        }
        for d in document["faults"]
    ]
    return [
        f"TCP {f['source']} → {f['target']} for {document['duration_s']:.0f} s ({f['congestion_control']}, MSS "
        f"{f['mss_bytes']} bytes): median {rate(f['median_bits_per_s'])}, mean {rate(f['mean_bits_per_s'])}; "
        f"{f['retransmitted_segments']} segments retransmitted",
        "",
        *table(rows),
        *(f"  {d['target']}: {d['what']}" for d in document["faults"]),
        "",
        f"Spread over {s['evs']} EVs in {s['seconds']:.1f} s without a fault: "
        + "; ".join(_deviation(name, s[f"tx_{name}"]) for name in ("bytes", "packets")),
        "",
        *promised(document),
    ]


def _deviation(name: str, s: Document) -> str:
    low, high = (percent(s[k] / s["mean"] - 1) if s["mean"] else "-" for k in ("min", "max"))
    return f"{name} {low} … +{high} of their mean ({s['mean']:,.0f})"


def promised(document: Document) -> list[str]:
    """Returns the table of a document's requirements."""
    return table([p | {"kept": "kept" if p["kept"] else "BROKEN"} for p in document["promises"]])


def picture(document: Document) -> plot.Picture:
    """Returns goodput over time, the faults, and the states of the flow's EVs by plane."""
    flow, bins, end = document["flow"], document["goodput"], document["duration_s"]
    goodput_panel = plot.Panel(
        "Goodput at the receiver",
        f"in bins of {bins['bin_s'] * 1000:.0f} ms; median {rate(flow['median_bits_per_s'])}",
        "time, s",
        "Gbit/s",
        0.0,
        end,
        [plot.Series([(n * bins["bin_s"], b / 1e9) for n, b in enumerate(bins["bits_per_s"])], style="steps")],
        faults=[plot.Fault(f["begin_s"], f["heal_s"], f"{f['what']} ({f['target']})") for f in document["faults"]],
    )
    rows = [
        (f"plane {ev['plane']}, T1 {ev['t1']}", [(s["begin_s"], s["end_s"], s["state"]) for s in ev["spans"]])
        for ev in sorted(document["states"], key=lambda ev: (ev["plane"], ev["t1"]))
    ]
    return plot.Picture(
        title=f"One TCP flow {flow['source']} → {flow['target']} over {len(rows)} SRv6 paths",
        subtitle=(
            f"{flow['congestion_control']}, MSS {flow['mss_bytes']} bytes, "
            f"{flow['retransmitted_segments']} segments retransmitted"
        ),
        panels=[goodput_panel, plot.States("State of each EV, by plane and T1", "", end, rows)],
        notes=[_note(f) for f in document["faults"]],
    )


def _note(f: Document) -> str:
    evs, ms = f["flow_evs"], _MS
    last, hole, again = evs["last_withdrawn_after_ms"], f["longest_hole_ms"], evs["last_returned_after_ms"]
    said = [duration(None if x is None else x * ms) for x in (last, hole, again)]
    return (
        f"{f['target']}: EVs ASSUMED_BAD: {evs['withdrawn']} of {evs['hit']}, after {said[0]}; "
        f"longest hole in goodput {said[1]}; GOOD again {said[2]} after healing"
    )
