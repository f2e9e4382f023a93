# SPDX-License-Identifier: BSD-2-Clause
"""Reports a recording as one document of plain numbers, which `--json` prints. Pure.

Units are in the names: `_s` are seconds since the recording began, `_ms` durations. A time that
never came is null.
"""

from collections.abc import Callable, Iterable

from labkit.cluster.observe import Document
from labkit.cluster.patience import patience
from labkit.demo.record import Happened, Recording
from labkit.measure import goodput
from labkit.measure.evspread import spread
from labkit.measure.goodput import WIDE_NS

SCHEMA_VERSION = 1
WITHDRAWN_WITHIN_MS = patience(200.0)
GOOD_WITHIN_MS = patience(5000.0)
# TCP's own timer: a packet lost twice waits for the retransmission timeout, at least 200 ms on Linux.
STANDS_AT_MOST_MS = patience(500.0)
_S, _MS = 1_000_000_000, 1_000_000
_BEFORE_NS = 2 * _S  # interval before a fault, and at most after its healing, over which goodput is averaged
_START_NS = _S  # the start of TCP is left out of the usual goodput

Key = tuple[str, str, int]  # host, peer, EV


def build(r: Recording) -> Document:
    """Returns the document."""
    faults = [_fault(r, h) for h in r.faults]
    hit = {k for h in r.faults for k in _hit(r, h)}
    unexpected = [_unexpected(r, k, e) for k, e in _withdrawals(r) if k not in hit]
    return {
        "schema_version": SCHEMA_VERSION,
        "duration_s": (r.end_ns - r.begin_ns) / _S,
        "flow": _flow(r),
        "spread": spread(*r.spread),
        "faults": faults,
        "unexpected_withdrawals": unexpected,
        "promises": promises(faults, unexpected),
        "goodput": {
            "bin_s": WIDE_NS / _S,
            "bits_per_s": [goodput.bits_per_s(n, WIDE_NS) for n in goodput.regular(r.bins, r.begin_ns, r.end_ns)],
        },
        "states": [_states(r, p) for p in _paths(r, r.ends.source, r.ends.target)],
    }


def _flow(r: Recording) -> Document:
    begin_ns = r.begin_ns + _START_NS
    return {
        "source": r.ends.source,
        "target": r.ends.target,
        "source_address": r.ends.source_address,
        "target_address": r.ends.target_address,
        "congestion_control": r.congestion_control,
        "mss_bytes": r.mss_bytes,
        "received_bytes": sum(r.bins.values()),
        "mean_bits_per_s": goodput.mean(r.bins, begin_ns, r.end_ns),
        "median_bits_per_s": goodput.usual(r.bins, begin_ns, r.end_ns),
        "retransmitted_segments": r.samples[-1].retransmitted_segments if r.samples else 0,
    }


# ---- faults ----


def _fault(r: Recording, h: Happened) -> Document:
    later = min((o.begin_ns for o in r.faults if o.begin_ns > h.heal_ns), default=r.end_ns)
    before = max(h.begin_ns - _BEFORE_NS, r.begin_ns + _START_NS)
    usual = goodput.usual(r.bins, before, h.begin_ns)
    hole = goodput.longest_hole(r.bins, h.begin_ns, h.heal_ns, usual)
    patience_ns = h.begin_ns + int(WITHDRAWN_WITHIN_MS * _MS)
    hit = _hit(r, h)
    there = [k for k in hit if k[:2] == (r.ends.source, r.ends.target)]
    back = [k for k in hit if k[:2] == (r.ends.target, r.ends.source)]
    return {
        "target": h.fault.target,
        "what": h.fault.words,
        "begin_s": _seconds(r, h.begin_ns),
        "heal_s": _seconds(r, h.heal_ns),
        "begin_monotonic_ns": h.begin_ns,
        "heal_monotonic_ns": h.heal_ns,
        "flow_evs": _verdicts(r, h, there),
        "acknowledgement_evs": _verdicts(r, h, back),
        "all_evs": _verdicts(r, h, hit),
        "longest_hole_ms": hole.length_ns / _MS,
        "hole_begin_s": _seconds(r, hole.begin_ns) if hole.length_ns else None,
        "empty_bins_after_200_ms": goodput.empty(r.bins, patience_ns, h.heal_ns),
        "before_bits_per_s": goodput.mean(r.bins, before, h.begin_ns),
        "during_bits_per_s": goodput.mean(r.bins, h.begin_ns, h.heal_ns),
        "after_bits_per_s": goodput.mean(r.bins, h.heal_ns, min(later, h.heal_ns + _BEFORE_NS, r.end_ns)),
        "retransmitted_segments": _retransmitted(r, h.begin_ns, h.heal_ns),
    }


def _verdicts(r: Recording, h: Happened, keys: list[Key]) -> Document:
    """Returns how many of these EVs were withdrawn and returned for good, and when the last of them did."""
    withdrawn = [_first(r, k, "ASSUMED_BAD", h.begin_ns, h.heal_ns) for k in keys]
    returned = [_returned(r, k, h.heal_ns) for k in keys]
    since = [e for k, e in _withdrawals(r) if k in keys and e["monotonic_ns"] >= h.begin_ns]
    first_return = {k: _first(r, k, "GOOD", h.heal_ns, r.end_ns) or r.end_ns for k in keys}
    flaps = [e for k, e in _withdrawals(r) if k in keys and e["monotonic_ns"] >= first_return[k]]
    return {
        "hit": len(keys),
        "withdrawn": sum(t is not None for t in withdrawn),
        "first_withdrawn_after_ms": _after(withdrawn, h.begin_ns, min),
        "last_withdrawn_after_ms": _after(withdrawn, h.begin_ns, max),
        "returned": sum(t is not None for t in returned),
        "last_returned_after_ms": _after(returned, h.heal_ns, max),
        "reasons": sorted({e["reason"] for e in since if e["monotonic_ns"] < h.heal_ns}),
        "flaps_after_healing": [_flap(r, e) for e in flaps],
    }


def _after(times: list[int | None], since_ns: int, which: Callable[[list[int]], int]) -> float | None:
    came = [t for t in times if t is not None]
    return (which(came) - since_ns) / _MS if came else None


def _flap(r: Recording, event: Document) -> Document:
    at_s = _seconds(r, event["monotonic_ns"])
    return {k: event[k] for k in ("peer", "ev", "reason", "evidence")} | {"at_s": at_s}


def _hit(r: Recording, h: Happened) -> list[Key]:
    return [(host, p["peer"], p["ev"]) for host in r.paths for p in r.paths[host] if h.fault.hits(host, p)]


def _first(r: Recording, key: Key, state: str, begin_ns: int, end_ns: int) -> int | None:
    times = (e["monotonic_ns"] for e in _events(r, key) if e["to"] == state)
    return min((t for t in times if begin_ns <= t < end_ns), default=None)


def _returned(r: Recording, key: Key, heal_ns: int) -> int | None:
    """Returns when it became GOOD for good: the last such time after healing, with no later change."""
    last = max(_events(r, key), key=lambda e: e["monotonic_ns"], default=None)
    good = last is not None and last["to"] == "GOOD" and last["monotonic_ns"] >= heal_ns
    return int(last["monotonic_ns"]) if last is not None and good else None


def _withdrawals(r: Recording) -> Iterable[tuple[Key, Document]]:
    for host, events in r.events.items():
        for e in events:
            if e["kind"] == "ev" and e["to"] == "ASSUMED_BAD":
                yield (host, e["peer"], e["ev"]), e


def _unexpected(r: Recording, key: Key, event: Document) -> Document:
    return {
        "host": key[0],
        "peer": key[1],
        "ev": key[2],
        "at_s": _seconds(r, event["monotonic_ns"]),
        "reason": event["reason"],
        "evidence": event["evidence"],
    }


def _retransmitted(r: Recording, begin_ns: int, end_ns: int) -> int:
    """Returns the retransmissions in an interval, by the samples around it, 100 ms apart."""
    before = [s.retransmitted_segments for s in r.samples if s.monotonic_ns < begin_ns]
    until = [s.retransmitted_segments for s in r.samples if s.monotonic_ns < end_ns]
    return (until[-1] if until else 0) - (before[-1] if before else 0)


# ---- EVs ----


def _paths(r: Recording, host: str, peer: str) -> list[Document]:
    return [p for p in r.paths[host] if p["peer"] == peer]


def _events(r: Recording, key: Key) -> list[Document]:
    return [e for e in r.events[key[0]] if e["kind"] == "ev" and (e["peer"], e["ev"]) == key[1:]]


def _states(r: Recording, path: Document) -> Document:
    """Returns an EV's states over the whole recording, without gaps."""
    spans: list[Document] = []
    state, since = path["state"], 0.0
    for e in _events(r, (r.ends.source, path["peer"], path["ev"])):
        at = _seconds(r, e["monotonic_ns"])
        spans.append({"begin_s": since, "end_s": at, "state": state})
        state, since = e["to"], at
    spans.append({"begin_s": since, "end_s": _seconds(r, r.end_ns), "state": state})
    return {"ev": path["ev"], "plane": path["plane"], "t1": path["t1"], "spans": spans}


# ---- promises ----


def promises(faults: list[Document], unexpected: list[Document]) -> list[Document]:
    """Returns the demo's requirements, whether each was met, and the measurement."""
    found = []
    for f in faults:
        flow, everyone, target = [f["flow_evs"], f["acknowledgement_evs"]], f["all_evs"], f["target"]
        in_time = all(_all_within(v, "withdrawn", WITHDRAWN_WITHIN_MS) for v in flow)
        words = f"the flow's EVs are ASSUMED_BAD within {WITHDRAWN_WITHIN_MS:.0f} ms, both ways"
        found.append(promise(target, words, in_time, _measured(flow, "withdrawn")))
        complete = everyone["withdrawn"] == everyone["hit"]
        words = "every host withdraws the EVs that it hit"
        found.append(promise(target, words, complete, _measured([everyone], "withdrawn")))
        words = f"the flow continues: it stops for {STANDS_AT_MOST_MS:.0f} ms at most"
        hole = f["longest_hole_ms"]
        found.append(promise(target, words, hole <= STANDS_AT_MOST_MS, f"longest hole {hole:.0f} ms"))
        words = f"every EV is GOOD again within {GOOD_WITHIN_MS / 1000:.0f} s of healing"
        back = _all_within(everyone, "returned", GOOD_WITHIN_MS)
        flaps = len(everyone["flaps_after_healing"])
        again = f"; {flaps} failed again meanwhile" if flaps else ""
        found.append(promise(target, words, back, _measured([everyone], "returned") + again))
    measured = f"{len(unexpected)} were" if unexpected else "none was"
    found.append(promise(None, "no EV is withdrawn that no fault has hit", not unexpected, measured))
    return found


def promise(target: str | None, words: str, kept: bool, measured: str) -> Document:
    """Returns a requirement, whether it was met, and the measurement."""
    return {"target": target, "promise": words, "kept": kept, "measured": measured}


def _all_within(verdicts: Document, what: str, ms: float) -> bool:
    last = verdicts[f"last_{what}_after_ms"]
    return verdicts[what] == verdicts["hit"] and (last is None or last <= ms)


def _measured(verdicts: list[Document], what: str) -> str:
    times = [v[f"last_{what}_after_ms"] for v in verdicts if v[f"last_{what}_after_ms"] is not None]
    count = f"{sum(v[what] for v in verdicts)} of {sum(v['hit'] for v in verdicts)}"
    return f"{count}, the last after {max(times):.0f} ms" if times else count


def kept(document: Document) -> bool:
    """Returns whether every requirement was met."""
    return all(p["kept"] for p in document["promises"])


def _seconds(r: Recording, monotonic_ns: int) -> float:
    return (monotonic_ns - r.begin_ns) / _S
