# SPDX-License-Identifier: BSD-2-Clause
"""Measures the cost of probes: one TCP flow, with and without piggybacked probes, alternately.

A pair is two windows of the flow, one with probes and one without. The order alternates from pair to pair
(on off, off on, on off, …), so that drift favours neither. Where pairs meet, two windows have the same setting:
their difference shows the resolution of the method.

In the lab the switches forward probes on the hosts' CPUs, unlike a real fabric. So the cost of probes for a host is
also measured between two hosts without switches, and there they must cost no goodput.
"""

import time
from collections.abc import Sequence
from statistics import median
from typing import cast

from labkit.bench import candidates, cpu, pairs
from labkit.bench.cells import WORDS, Where
from labkit.bench.part import Options, Part, requirement
from labkit.bench.probing import Counts, Probing, Wire, total
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput
from labkit.traffic.flow import Flow
from mrcd.config.cluster_file import Granularity
from mrcd.ctl.terminal.render import Column, count, percent, table
from mrcd.errors import MachineError, UsageError

# By resampling 240 measured pairs (median ratio 0.966): 80 pairs detect that difference in 50 %, 160 pairs in 88 %.
PAIRS = 160
SECONDS = 0.3  # length of a window: short, because two busy CPUs change their pace about every second
SETTLE_S = 0.1  # before each window, switched or not: replies arrive, TCP adapts
PLACES: tuple[tuple[Where, Granularity], ...] = (("direct", "burst"), ("lab", "burst"), ("lab", "packet"))
MOST_REQUESTS = 0.02  # most requests per data packet of a host
_LEFT = 0.1  # share of piggybacked probes above which they were not off
_STEP = 40  # pairs between two lines of progress
BOTH = "both"


def measure(lab: Lab, options: Options) -> Document:
    """Runs a flow in each place and granularity; each takes a lab of its own."""
    number = options.pairs or PAIRS
    if number < pairs.LEAST:
        raise UsageError(f"{number} pairs are too few", hint=f"--pairs {pairs.LEAST} or more; {PAIRS} by default")
    runs: list[Document] = []
    for where, granularity in PLACES:
        lab.up(granularity=granularity, direct=where == "direct")
        observe.wait_until_good(lab, lab.fabric.hosts)
        runs.append({"where": where, "granularity": granularity} | _run(lab, options.versions[0], number, options))
        progress(f"overhead: {name(runs[-1])}: goodput with / without {pairs.words(runs[-1]['goodput_ratio'])}")
    return {
        "seconds": SECONDS,
        "settle_s": SETTLE_S,
        "mtu_bytes": lab.fabric.parameters.mtu,
        "runs": runs,
        "requirements": [few_probes(runs[-1]), no_loss(runs[0])],
    }


def _run(lab: Lab, version: int, number: int, options: Options) -> Document:
    seen = {h: max((e["id"] for e in observe.events(lab, h)), default=0) for h in lab.fabric.hosts}
    with Probing(lab, *candidates.pair(lab)) as probing, Flow(lab, candidates.overlay(lab, version)) as flow:
        flow.poll(options.warm_up_s)
        evs, found = probing.evs, []
        for n, on in enumerate(turns(number)):
            if n % (2 * _STEP) == 0:
                left = (2 * number - n) * (SECONDS + SETTLE_S)
                progress(f"overhead: pair {n // 2 + 1} of {number}, {left:.0f} s to go")
            probing.switch(on)
            flow.poll(SETTLE_S)
            found.append(_window(flow, probing, on))
        flow.finish()
    windows = [_with_goodput(w, flow) for w in found]
    check_off(windows, evs)
    withdrawn = [e for h in seen for e in observe.events(lab, h, seen[h]) if e["to"] == "ASSUMED_BAD"]
    return {
        "version": version,
        "congestion_control": flow.congestion_control,
        "mss_bytes": flow.mss_bytes,
        "evs": evs,
        **summary(windows, Wire.of(lab.fabric.config, candidates.pair(lab)[0])),
        "withdrawals_without_a_fault": len(withdrawn),
        "windows": windows,
    }


def name(run: Document) -> str:
    """Returns the place and the granularity of a run."""
    return f"{WORDS[cast(Where, run['where'])]}, {run['granularity']}"


def turns(number: int) -> list[bool]:
    """Returns whether probes are on, window by window, for that many pairs."""
    return [(n + 1) // 2 % 2 == 0 for n in range(2 * number)]


def _window(flow: Flow, probing: Probing, on: bool) -> Document:
    retransmitted = flow.retransmitted_segments
    used, before, begin_ns = cpu.read(), probing.counts(), time.monotonic_ns()
    flow.poll(SECONDS)
    end_ns, after, used = time.monotonic_ns(), probing.counts(), cpu.read().since(used)
    probing.confirm()
    return {
        "probing": on,
        "begin_ns": begin_ns,
        "end_ns": end_ns,
        "cpu_busy_s": used.busy_s,
        "cpu_busy_ratio": used.busy_ratio,
        "retransmitted_segments": flow.retransmitted_segments - retransmitted,
        "hosts": {h: after[h].since(before[h])._asdict() for h in after},
    }


def _with_goodput(window: Document, flow: Flow) -> Document:
    """Adds the goodput, whose bins are complete only at the end of a flow. Raises MachineError if nothing arrived."""
    rate = goodput.mean(flow.bins, window["begin_ns"], window["end_ns"])
    if not rate:
        raise MachineError(f"nothing has arrived in {SECONDS:g} s", hint="was a path withdrawn? see mrcctl events")
    gbit = rate * (window["end_ns"] - window["begin_ns"]) / 1e18
    return window | {"bits_per_s": rate, "cpu_s_per_gbit": window["cpu_busy_s"] / gbit}


def check_off(windows: Sequence[Document], evs: int) -> None:
    """Checks by the counters that probes were off when they should be. Raises MachineError. Pure."""
    switched_on, switched_off = (
        [_piggybacked_per_s(w, evs) for w in windows if w["probing"] is on] for on in (True, False)
    )
    usual, most = median(switched_on), max(switched_off)
    if not usual or most > _LEFT * usual:
        raise MachineError(
            f"switching probes off did not work: {most:.0f}/s piggybacked in a window without, {usual:.0f}/s with",
            hint="does mrc_node.probe_ifindex still enable them? see bpf/piggyback.h",
        )


def _piggybacked_per_s(window: Document, evs: int) -> float:
    return sum(Counts(**c).piggybacked(evs) for c in window["hosts"].values()) / _seconds(window)


def _seconds(window: Document) -> float:
    return float(window["end_ns"] - window["begin_ns"]) / 1e9


def summary(windows: Sequence[Document], wire: Wire) -> Document:
    """Returns the flow with and without probes, its packets on the wire, and ratios, from windows in order. Pure."""
    halves = {on: [w for w in windows if w["probing"] is on] for on in (True, False)}
    paired = [(a, b) if a["probing"] else (b, a) for a, b in zip(windows[::2], windows[1::2], strict=True)]
    alike = zip(windows[2::2], windows[1::2], strict=False)
    return {
        "settings": [_setting(on, halves[on], wire) for on in (True, False)],
        "goodput_ratio": pairs.compare([on["bits_per_s"] / off["bits_per_s"] for on, off in paired]),
        "cpu_per_bit_ratio": pairs.compare([on["cpu_s_per_gbit"] / off["cpu_s_per_gbit"] for on, off in paired]),
        "goodput_ratio_alike": pairs.compare([later["bits_per_s"] / earlier["bits_per_s"] for later, earlier in alike]),
    }


def _setting(on: bool, windows: Sequence[Document], wire: Wire) -> Document:
    goodputs, seconds = [w["bits_per_s"] for w in windows], sum(map(_seconds, windows))
    gbits = sum(w["bits_per_s"] * _seconds(w) / 1e9 for w in windows)
    hosts = {h: total(Counts(**w["hosts"][h]) for w in windows) for h in windows[0]["hosts"]}
    least = min(
        hosts.values(), key=lambda c: c.data_bytes
    )  # the host that sends ACKs: requests may have these behind them
    kept = least.data_bytes / least.data_packets if least.data_packets else 0.0
    return {
        "probing": on,
        "median_bits_per_s": median(goodputs),
        "min_bits_per_s": min(goodputs),
        "max_bits_per_s": max(goodputs),
        "cpu_s_per_gbit": sum(w["cpu_busy_s"] for w in windows) / gbits,
        "cpu_busy_ratio": sum(w["cpu_busy_ratio"] for w in windows) / len(windows),
        "retransmitted_segments_per_s": sum(w["retransmitted_segments"] for w in windows) / seconds,
        "seconds": seconds,
        "probes": [
            _probes(requester, c, seconds, wire, kept)
            for requester, c in [*hosts.items(), (BOTH, total(hosts.values()))]
        ],
    }


def _probes(requester: str, c: Counts, seconds: float, wire: Wire, kept: float) -> Document:
    """Returns the probes of one host to the other and the received replies; or of both hosts together."""
    packets, data = c.data_packets, wire.data_bytes(c)
    return {
        "requester": requester,
        **c._asdict(),
        "data_packets_per_s": packets / seconds,
        "requests_per_s": c.requests / seconds,
        "reports_per_s": c.reports / seconds,
        "requests_elsewhere_per_s": c.requests_elsewhere / seconds,
        "requests_ratio": c.requests / packets if packets else None,
        "replies_ratio": c.replies / packets if packets else None,
        "probes_ratio": (c.requests + c.replies) / packets if packets else None,
        "all_requests_ratio": (c.requests + c.requests_elsewhere) / packets if packets else None,
        "probe_bytes_ratio": wire.probe_bytes(c, kept) / data if data else None,
    }


def few_probes(run: Document) -> Document:
    """Returns the requirement on the requests of the flow's source, to all peers, per data packet. Pure."""
    setting = next(s for s in run["settings"] if s["probing"])
    source, *_, both = setting["probes"]
    ratio = source["all_requests_ratio"]
    return requirement(
        f"{source['requester']} sends at most {MOST_REQUESTS:.0%} as many probe requests, to all peers, as data "
        f"packets: {name(run)}",
        ratio is not None and ratio <= MOST_REQUESTS,
        f"{percent(ratio)} % (to the flow's peer {percent(source['requests_ratio'])} %, with the replies "
        f"{percent(source['probes_ratio'])} %; all probes of both hosts per data packet of both "
        f"{percent(both['probes_ratio'])} %)",
    )


def no_loss(run: Document) -> Document:
    """Returns the requirement that probes cost no measurable goodput, and the loss that is not excluded. Pure."""
    found = run["goodput_ratio"]
    met = found["low"] is not None and not pairs.below(found, 1.0)
    unseen = f"; a loss of {percent(1 - found['low'])} % is not excluded" if met and found["low"] < 1 else ""
    return requirement(
        f"probes cost no measurable goodput (the {pairs.CONFIDENCE:.0%} interval of the ratio is not below 1): "
        f"{name(run)}",
        met,
        pairs.words(found) + unseen,
    )


def lines(document: Document) -> list[str]:
    """Returns tables, and sentences on the ratios."""
    runs = document["runs"]
    found = [
        f"Overhead of probes piggybacked on the packets of one TCP flow, "
        f"{runs[0]['congestion_control']}, links of MTU {document['mtu_bytes']} bytes, "
        f"windows of {document['seconds']:g} s, alternating",
        *_costs(runs),
        "",
        *_on_the_wire(runs),
        "%: of the data packets (bytes) that the requesting host sends; REPLIES: received by it; BYTES: of requests "
        "and replies, at most; off: only the tick's probes, and probe bursts on lagging EVs",
        "",
    ]
    for r in runs:
        found += [
            f"{name(r)}: goodput with / without probes: {pairs.words(r['goodput_ratio'])}",
            f"  the same between neighbours with the same setting: {pairs.words(r['goodput_ratio_alike'])}",
            f"  CPU per bit with / without probes: {pairs.words(r['cpu_per_bit_ratio'])}",
            f"  EVs withdrawn meanwhile: {r['withdrawals_without_a_fault']}",
        ]
    return [
        *found,
        "The intervals are the paired sign test's. All switches of the lab forward probes on the same CPUs as the "
        "hosts: part of what probes cost there is theirs. Host to host there are no switches.",
    ]


def _costs(runs: list[Document]) -> list[str]:
    headings = ("WINDOWS", "Gbit/s MEDIAN", "MIN", "MAX", "CPU s/Gbit", "CPU BUSY %", "RETRANS/s", "SKIPS/s")
    rows = [
        [
            name(r),
            _word(s),
            str(len(r["windows"]) // 2),
            *(f"{s[f'{k}_bits_per_s'] / 1e9:.2f}" for k in ("median", "min", "max")),
            f"{s['cpu_s_per_gbit']:.4f}",
            percent(s["cpu_busy_ratio"]),
            count(s["retransmitted_segments_per_s"]),
            count(s["probes"][-1]["skips"] / s["seconds"]),
        ]
        for r in runs
        for s in r["settings"]
    ]
    return table([Column("WHERE"), Column("PROBES"), *(Column(h, True) for h in headings)], rows, colour=False)


def _on_the_wire(runs: list[Document]) -> list[str]:
    headings = ("DATA pkts/s", "REQUESTS/s", "REPORTS/s", "REQUESTS %", "REPLIES %", "TOGETHER %", "BYTES %")
    rows = [
        [
            name(r),
            _word(s),
            p["requester"],
            *(count(p[f"{k}_per_s"]) for k in ("data_packets", "requests", "reports")),
            *(percent(p[f"{k}_ratio"]) for k in ("requests", "replies", "probes", "probe_bytes")),
        ]
        for r in runs
        for s in r["settings"]
        for p in s["probes"]
    ]
    first = map(Column, ("WHERE", "PROBES", "REQUESTER"))
    return table([*first, *(Column(h, True) for h in headings)], rows, colour=False)


def _word(setting: Document) -> str:
    return "on" if setting["probing"] else "off"


PART = Part("overhead", measure, lines)
