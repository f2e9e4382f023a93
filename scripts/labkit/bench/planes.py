# SPDX-License-Identifier: BSD-2-Clause
"""Measures how much of limited planes one TCP flow uses: all alike, one slower, or one of half the rate.

Every link of the lab has a rate (tbf). Shares are of what the planes together can carry after headers. MPTCP with
one subflow per plane is measured beside it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from labkit.bench import candidates, pictures, receive_settings
from labkit.bench.failover import mptcp
from labkit.bench.part import TARGET, Options, Part, requirement
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput, order
from labkit.traffic.flow import Ends, Flow, Protocol
from mrcd.ctl.terminal.render import Column, percent, table

RUNS = 5  # runs of a case with a requirement; below, of the others without --full
CONTEXT_RUNS = 2
WARM_UP_S = 1.0
SECONDS = 1.0  # of a run
ETHERNET = 14  # bytes of a frame that tbf counts beside the packet
_MBIT = 1_000_000
MRCD, MPTCP = "mrcd", "mptcp"


class Case(NamedTuple):
    """The properties of the planes. The last plane may differ from the others."""

    name: str
    rate_bits_per_s: int  # of each plane
    least: float  # required share of the sum; 0: none
    delay: str | None = None  # extra delay of the last plane, like `5ms`
    rate_ratio: float = 1.0  # rate of the last plane, as a ratio to the others

    @property
    def sum_bits_per_s(self) -> float:
        """Returns the capacity of the four planes."""
        return self.rate_bits_per_s * (3 + self.rate_ratio)


CASES = (
    Case("4 × 200 Mbit/s", 200 * _MBIT, 0.97),
    Case("one 1 ms slower", 200 * _MBIT, 0.0, delay="1ms"),
    Case("one 5 ms slower", 200 * _MBIT, 0.80, delay="5ms"),
    Case("one 20 ms slower", 200 * _MBIT, 0.0, delay="20ms"),
    Case("one of half the rate", 200 * _MBIT, 0.90, rate_ratio=0.5),
    Case("4 × 1 Gbit/s", 1000 * _MBIT, 0.97),
)


class _Way(NamedTuple):
    name: str
    ends: Ends
    protocol: Protocol
    mtu: int  # MTU of its packets on the links


def measure(lab: Lab, options: Options) -> Document:
    """Measures each case alternately over mrcd and over MPTCP."""
    options = replace(options, seconds=options.seconds or SECONDS)
    cases = []
    rate = None
    for case in CASES:
        if case.rate_bits_per_s != rate:
            rate = case.rate_bits_per_s
            lab.up(rate_bits_per_s=rate)
            observe.wait_until_good(lab, lab.fabric.hosts)
            ways = _ways(lab, options.versions[-1])
        with _made(lab, case):
            cases.append(_case(lab, case, ways, options))
    return {
        "mtu_bytes": lab.fabric.parameters.mtu,
        "seconds": options.seconds,
        "mptcp": mptcp.missing() or "measured",
        "cases": cases,
        "requirements": [r for c in cases for r in required(c)],
    }


def _ways(lab: Lab, version: int) -> list[_Way]:
    p = lab.fabric.parameters
    ways = [_Way(MRCD, candidates.overlay(lab, version), "tcp", p.mtu)]
    if mptcp.missing() is None:
        ways.append(_Way(MPTCP, mptcp.install(lab), "mptcp", candidates.inner_mtu(lab)))
    return ways


@contextmanager
def _made(lab: Lab, case: Case) -> Iterator[None]:
    """A block in which the last plane differs from the others."""
    plane = lab.fabric.parameters.planes - 1
    target = f"nic:{TARGET}:{plane}"
    if case.delay:
        lab.fail(target, delay=case.delay, direction="down")
    elif case.rate_ratio != 1:
        lab.fail(target, rate=f"{case.rate_bits_per_s * case.rate_ratio:.0f}bit", direction="down")
    try:
        yield
    finally:
        lab.heal()


def _case(lab: Lab, case: Case, ways: list[_Way], options: Options) -> Document:
    runs: dict[str, list[Document]] = {w.name: [] for w in ways}
    wanted = {w.name: number_of_runs(case, w.name, options) for w in ways}
    for n in range(max(wanted.values())):
        progress(f"planes: {case.name}, run {n + 1} of {max(wanted.values())}")
        for way in ways:
            if n < wanted[way.name]:
                with receive_settings.in_force(lab, way.name, receive_settings.EQUAL):
                    runs[way.name].append(_run(lab, case, way, options))
    return {
        "case": case.name,
        "rate_bits_per_s": case.rate_bits_per_s,
        "sum_bits_per_s": case.sum_bits_per_s,
        "required_ratio": case.least,
        "ways": [_summary(name, found) for name, found in runs.items()],
    }


def number_of_runs(case: Case, way: str, options: Options) -> int:
    """Returns the number of runs of one way in one case: as many as its bound needs, else few. Pure."""
    full = options.full or (way == MRCD and case.least > 0)
    return options.pairs or (RUNS if full else CONTEXT_RUNS if case.least else 1)


def _run(lab: Lab, case: Case, way: _Way, options: Options) -> Document:
    config = lab.fabric.config
    ports = [*config.interface_names(config.host(TARGET)), config.overlay.interface]
    with order.watching(lab.ns(TARGET), ports) as late, Flow(lab, way.ends, protocol=way.protocol) as flow:
        flow.poll(WARM_UP_S)
        if way.protocol == "mptcp":
            mptcp.check(lab, flow)
        before, begin_ns, retransmitted = late.late(), time.monotonic_ns(), flow.retransmitted_segments
        flow.poll(options.seconds)
        end_ns, retransmitted = time.monotonic_ns(), flow.retransmitted_segments - retransmitted
        counts = [now - then for now, then in zip(late.late(), before, strict=True)]
        flow.finish()
    most = case.sum_bits_per_s * flow.mss_bytes / (way.mtu + ETHERNET)
    bits_per_s = goodput.mean(flow.bins, begin_ns, end_ns) or 0.0
    return {
        "bits_per_s": bits_per_s,
        "most_bits_per_s": most,
        "ratio": bits_per_s / most,
        "mss_bytes": flow.mss_bytes,
        "congestion_control": flow.congestion_control,
        "retransmitted_segments": retransmitted,
        "late_skbs": counts,
    }


def _summary(name: str, runs: list[Document]) -> Document:
    late = [sum(r["late_skbs"][i] for r in runs) for i in range(order.BUCKETS)]
    ratios = [r["ratio"] for r in runs]
    return {
        "name": name,
        "congestion_control": runs[0]["congestion_control"],
        "median_ratio": median(ratios),
        "min_ratio": min(ratios),
        "max_ratio": max(ratios),
        "median_bits_per_s": median(r["bits_per_s"] for r in runs),
        "median_retransmitted_segments": median(r["retransmitted_segments"] for r in runs),
        "late_skbs": late,
        "late_ratio": order.share_late(late),
        "late_bytes_p50": order.percentile(late, 0.5),
        "late_bytes_p99": order.percentile(late, 0.99),
        "runs": runs,
    }


def required(case: Document) -> list[Document]:
    """Returns the requirement on mrcd's flow in a case. Pure."""
    if not case["required_ratio"]:
        return []
    mrcd = case["ways"][0]
    beside = "".join(f"; {w['name']} {percent(w['median_ratio'])} %" for w in case["ways"][1:])
    return [
        requirement(
            f"{case['case']}: one TCP flow gets {case['required_ratio']:.0%} of what the planes can carry",
            mrcd["median_ratio"] >= case["required_ratio"],
            f"{percent(mrcd['median_ratio'])} %{beside}",
        )
    ]


def lines(document: Document) -> list[str]:
    """Returns tables."""
    headings = ("Mbit/s", "SHARE % MEDIAN", "MIN", "MAX", "RETRANS", "LATE %", "LATE p50", "p99 KB")
    rows = [
        [
            c["case"],
            w["name"],
            f"{w['median_bits_per_s'] / 1e6:.0f}",
            *(percent(w[f"{k}_ratio"]) for k in ("median", "min", "max")),
            f"{w['median_retransmitted_segments']:.0f}",
            percent(w["late_ratio"]),
            *(f"{w[k] / 1024:.0f}" for k in ("late_bytes_p50", "late_bytes_p99")),
        ]
        for c in document["cases"]
        for w in c["ways"]
    ]
    first = document["cases"][0]["ways"][0]
    return [
        f"One TCP flow over four planes of limited rate, {first['congestion_control']}, links of MTU "
        f"{document['mtu_bytes']} bytes, {document['seconds']:g} s per run; share of what the planes can carry after "
        "headers; RPS over all CPUs and GRO for both ways",
        *table([Column("PLANES"), Column("WAY"), *(Column(h, True) for h in headings)], rows, colour=False),
        "LATE: skbs that arrive behind data sent after them, and by how many bytes at most, as the receiver's TCP sees "
        "it; for MPTCP of its first subflow. " + (document["mptcp"] if document["mptcp"] != "measured" else ""),
    ]


PART = Part("planes", measure, lines, pictures.planes)
