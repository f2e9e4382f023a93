# SPDX-License-Identifier: BSD-2-Clause
"""Measures the loss of a flow of ten seconds over a lossy path, by both ends' counters."""

import time

from labkit.bench import candidates
from labkit.bench.failover.events import FLOW
from labkit.bench.failover.tables import Cluster
from labkit.bench.part import SOURCE, requirement
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput
from labkit.traffic.flow import Flow
from mrcd.ctl.terminal.render import percent

SECONDS = 10.0
BOUND = 0.0007
_GOOD_WITHIN_S = 60.0
_QUIET_S = 0.2
_CASES = (
    ("one T1, an EV of the flow, drops 20 %", "t1:1:2", 0.2),
    ("the sender's NIC–T0 link of plane 0 drops 5 %", f"nic:{SOURCE}:0", 0.05),
)


def measure(lab: Lab) -> list[Document]:
    """Runs a flow per case; the fault begins with the flow, and stays."""
    return [_run(lab, *case) for case in _CASES]


def _run(lab: Lab, words: str, target: str, drop: float) -> Document:
    progress(f"  loss: {words}, {SECONDS:g} s")
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)
    with Cluster(lab) as cluster:
        sent, missing = int(cluster.sent(FLOW).sum()), cluster.missing(FLOW)
        with Flow(lab, candidates.overlay(lab, 4)) as flow:
            fault = lab.fail(target, drop=drop)
            flow.poll(SECONDS)
            flow.finish()
        time.sleep(_QUIET_S)
        sent, missing = int(cluster.sent(FLOW).sum()) - sent, cluster.missing(FLOW) - missing
    healed = lab.heal(target)[0]
    return {
        "what": words,
        "target": target,
        "drop_ratio": drop,
        "seconds": SECONDS,
        "sent_packets": sent,
        "lost_packets": missing,
        "loss_ratio": missing / sent if sent else None,
        "dropped_skbs": healed["dropped_skbs"],
        "median_bits_per_s": goodput.usual(flow.bins, fault["monotonic_ns"], max(flow.bins)),
    }


def required(run: Document) -> Document:
    """Returns the requirement on the loss of a run."""
    ratio = run["loss_ratio"]
    return requirement(
        f"a flow of {run['seconds']:g} s loses at most {percent(BOUND)} % where {run['what']}",
        ratio is not None and ratio <= BOUND,
        f"{percent(ratio)} %, {run['lost_packets']} of {run['sent_packets']} packets",
    )
