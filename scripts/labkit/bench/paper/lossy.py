# SPDX-License-Identifier: BSD-2-Clause
"""Runs experiments 12/13 and 16: one EV, or every path, drops packets at random."""

import time
from statistics import fmean

from labkit.bench.failover.tables import Cluster
from labkit.bench.paper import course, figures, plateaus
from labkit.bench.part import SOURCE, TARGET
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document

EV_TARGET, EV_DROP = "t1:1:2", 0.2
WARM_UP_S = 1.0
BEFORE_S, SHORT_BEFORE_S = 3.0, 1.5  # time without the fault, for comparison
LOSSY_S, SHORT_LOSSY_S = 10.0, 3.0
RANDOM = (0.0, 0.001, 0.01)
RANDOM_S, SHORT_RANDOM_S = 6.0, 3.0
_QUIET_S = 0.2
_STARTED_S = 1.0  # time from a flow's first byte to its usual goodput


def one_ev(lab: Lab, flows: int, full: bool) -> Document:
    """Makes a T1 of one EV of the flow drop 20 % for ten seconds, or three; then the flow ends."""
    before_s, lossy_s = (BEFORE_S, LOSSY_S) if full else (SHORT_BEFORE_S, SHORT_LOSSY_S)
    _, plane, t1 = EV_TARGET.split(":")
    crosses = (int(plane), int(t1))
    newest = (observe.events(lab, SOURCE) or [{"id": 0}])[-1]["id"]
    with Cluster(lab) as cluster:
        hit = cluster.crossing(lambda source, peer, plane, t1: (plane, t1) == crosses)
        evs = cluster.of_pair(hit, course.FLOW)
        others = [ev for ev in range(len(cluster.sent(course.FLOW))) if ev not in evs]
        before = [cluster.missing(course.FLOW, e) for e in (evs, others)]
        with course.run(lab, flows, WARM_UP_S, before_s + lossy_s) as (c, measured):
            c.go_on_until(before_s)
            sent = int(cluster.sent(course.FLOW).sum())
            at = c.fail(EV_TARGET, f"drops {EV_DROP:.0%}", drop=EV_DROP)
            c.go_on_until(before_s + lossy_s)
            left = int(cluster.newest(course.FLOW, evs, "last_tx_ns"))
            counters = c.heal(EV_TARGET)[1]
        time.sleep(_QUIET_S)
        sent = int(cluster.sent(course.FLOW).sum()) - sent
        # Read while nothing is in flight, so for the whole flow: losses before the fault are included.
        on_ev, elsewhere = (cluster.missing(course.FLOW, e) - n for e, n in zip((evs, others), before, strict=True))
    happened = [e for e in observe.events(lab, SOURCE, newest) if e["kind"] == "ev" and e["peer"] == TARGET]
    begin_ns = counters["first_drop_ns"]
    out = [e for e in happened if e["ev"] in evs and e["to"] == "ASSUMED_BAD" and begin_ns]
    rates, end_s = measured["bits_per_s"], measured["seconds"]
    usual = plateaus.mean(rates, course.BIN_S, 0.0, at)
    raw = figures.curve("fig12.csv")
    shares = figures.scaled(raw, figures.usual(raw))
    return measured | {
        "figure": "12/13",
        "what": f"one of {len(evs) + len(others)} EVs drops {EV_DROP:.0%} (T1 {EV_TARGET.removeprefix('t1:')})",
        "usual_bits_per_s": usual,
        "mean_ratio": plateaus.mean(rates, course.BIN_S, at, end_s) / usual if usual else None,
        "out_after_ms": (out[0]["monotonic_ns"] - begin_ns) / 1e6 if out else None,
        "last_used_after_ms": (left - begin_ns) / 1e6 if begin_ns else None,
        "times_out": len(out),
        "transitions": [
            {"at_s": (e["monotonic_ns"] - c.begin_ns) / 1e9, **{k: e[k] for k in ("ev", "from", "to", "reason")}}
            for e in happened
        ],
        "sent_packets": sent,
        "lost_on_ev_packets": on_ev,
        "lost_elsewhere_packets": elsewhere,
        "loss_ratio": (on_ev + elsewhere) / max(1, sent),
        "dropped_skbs": counters["dropped_skbs"],
        "steps": [],
        "paper": {
            "sample_s": lossy_s,
            "mean_ratio": fmean(shares.values),
            "points": [(t, v) for t, v in zip(shares.times_s, shares.values, strict=True) if t <= end_s],
        },
    }


def random_loss(lab: Lab, flows: int, full: bool) -> Document:
    """Makes every T1 drop that share of the packets, from before the flow begins; a flow for each share."""
    p = lab.fabric.parameters
    targets = [f"t1:{plane}:{t1}" for plane in range(p.planes) for t1 in range(p.t1)]
    theirs = figures.messages()
    sizes = [size for size, _ in theirs["MRC1@0"]]
    their_usual = max(rate for _, rate in theirs["MRC1@0"])
    runs: list[Document] = []
    seconds = RANDOM_S if full else SHORT_RANDOM_S
    for drop in RANDOM:
        observe.wait_until_good(lab, course.FLOW, 60.0)
        for target in targets if drop else ():
            lab.fail(target, drop=drop)
        with course.run(lab, flows, 0.0, seconds) as (_, measured):
            pass
        rates = measured["bits_per_s"]
        mean = plateaus.mean(rates, course.BIN_S, _STARTED_S, seconds)
        usual = runs[0]["mean_bits_per_s"] if runs else mean
        their = theirs[f"MRC1@{drop * 100:g}%" if drop else "MRC1@0"]
        runs.append(
            measured
            | {
                "drop_ratio": drop,
                "mean_bits_per_s": mean,
                "mean_ratio": mean / usual if usual else None,
                "messages": [
                    (size, rate / usual if usual else 0.0)
                    for size, rate in plateaus.messages(rates, course.BIN_S, sizes)
                ],
                "paper": {
                    "mean_ratio": their[-1][1] / theirs["MRC1@0"][-1][1],
                    "points": [(size, rate / their_usual) for size, rate in their],
                },
            }
        )
    return {
        "figure": "16",
        "what": "every path drops packets at random; goodput of a message by its size, the flow's start included",
        "granularity": p.granularity,
        "usual_bits_per_s": runs[0]["mean_bits_per_s"],
        "runs": runs,
        "steps": [],
    }
