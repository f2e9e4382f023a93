# SPDX-License-Identifier: BSD-2-Clause
"""Measures what an incast of seven hosts to one leaves to another flow between the same T0s: the MRC paper's figure 18.

All senders are under one T0, both receivers under another, so that the victim shares all links between T0s and T1s with
the incast, but not the receiver's port. TCP's congestion control is each of those that the kernel has: the host's
applications choose it, not mrcd. DCTCP needs marks, which the lab's links do not make.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from labkit.bench.frame import Bench, Bound, Options, Result, Table, check_only, unmeasured
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput
from labkit.traffic.flow import Ends, Flow

ALGORITHMS = ("cubic", "bbr")
SHAPE = {"hosts": 10, "hosts_per_t0": 8, "t1": 8, "rate_bits_per_s": 50_000_000}
SENDERS, RECEIVER = tuple(f"h{n}" for n in range(7)), "h8"
VICTIM = ("h7", "h9")
PAPER = 388.8 / 390  # of the victim's goodput alone; with DCQCN 320 / 390 (arXiv 2605.04333, figure 18)
LEAST = 0.98
_KNOWN = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_STARTED_S = 1.0  # time from a flow's first byte to its usual goodput


def measure(lab: Lab, options: Options) -> Result:
    """Runs the victim alone, and then beside the incast, for each congestion control."""
    known = _KNOWN.read_text(encoding="ascii").split()
    check_only(options.only, ALGORITHMS)
    chosen = [a for a in ALGORITHMS if a in known and (not options.only or a in options.only)]
    lab.up(**SHAPE)
    rows, bounds = [], []
    for algorithm in chosen:
        observe.wait_until_good(lab, lab.fabric.hosts, 60.0)
        row = _run(lab, algorithm, options.seconds or 5.0)
        rows.append(row)
        words = f"{algorithm}: the victim's goodput beside an incast, of its goodput alone"
        bounds.append(Bound(words, LEAST, "_ratio", is_least=True).judge(row["mean_ratio"]))
    missing = [a for a in ALGORITHMS if a not in chosen and (not options.only or a in options.only)]
    bounds += [
        unmeasured(f"{a}: the victim's goodput beside an incast", "this kernel has no such one") for a in missing
    ]
    title = "Figure 18: an incast of seven hosts to one, and a victim between the same T0s"
    return Result([Table(title, rows)], bounds)


def _run(lab: Lab, algorithm: str, seconds: float) -> Document:
    address = lab.fabric.address
    with Flow(lab, Ends(VICTIM[0], address(VICTIM[0]), VICTIM[1], address(VICTIM[1])), algorithm=algorithm) as victim:
        progress(f"incast: {algorithm}, the victim alone")
        victim.poll(_STARTED_S + seconds)
        with _incast(lab, algorithm) as senders:
            progress(f"incast: {algorithm}, beside the incast")
            while not all(flow.bins for flow in senders):
                for flow in senders:
                    flow.poll(0.05)
            began_ns = max(min(flow.bins) for flow in senders)
            for _ in range(10):
                for flow in (victim, *senders):
                    flow.poll((_STARTED_S + seconds) / 10 / (1 + len(senders)))
            ended_ns = max(victim.bins)
        victim.finish()
    first, started = min(victim.bins), int(_STARTED_S * 1e9)
    alone = goodput.mean(victim.bins, first + started, first + started + int(seconds * 1e9)) or 0.0
    beside = goodput.mean(victim.bins, began_ns + started, ended_ns) or 0.0
    total = sum(goodput.mean(f.bins, began_ns + started, ended_ns) or 0.0 for f in senders)
    return {
        "congestion_control": algorithm,
        "alone_bits_per_s": alone,
        "beside_bits_per_s": beside,
        "incast_bits_per_s": total,
        "mean_ratio": beside / alone if alone else None,
        "paper_ratio": PAPER,
        "retransmitted_segments": victim.retransmitted_segments,
    }


@contextlib.contextmanager
def _incast(lab: Lab, algorithm: str) -> Iterator[list[Flow]]:
    address = lab.fabric.address
    with contextlib.ExitStack() as stack:
        ends = [Ends(h, address(h), RECEIVER, address(RECEIVER)) for h in SENDERS]
        flows = [stack.enter_context(Flow(lab, e, algorithm=algorithm)) for e in ends]
        yield flows
        for flow in flows:
            flow.finish()


BENCH = Bench("incast", measure)
