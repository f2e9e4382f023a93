# SPDX-License-Identifier: BSD-2-Clause
"""Measures how packets are shared: by the EVs of a plane that returns, and by T1s while all of them drop alike.

return   a NIC of the sender of a TCP flow loses its link and gets it back: every 10 ms, what each EV of the plane sends
loss     every T1 drops 10 %, and all hosts send to all others: the packets by T1, over all hosts
"""

import time
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from labkit.bench.frame import Bench, Bound, Options, Result, Table
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.cluster.patience import wait_for
from labkit.entry import progress
from labkit.traffic import candidates
from labkit.traffic.candidates import SOURCE, TARGET
from labkit.traffic.flow import Flow
from labkit.traffic.mesh import Mesh
from mrcd.kernel.pinned import Tables

PLANE, NIC = 1, "nic:h0:1"
DROP = 0.1
RATE = 2000  # packets per second and pair
BIN_S, AFTER_S, RETURN_S, LOSS_S = 0.01, 1.5, 20.0, 10.0
MOST, UNEVEN = 1.5, 0.1  # of the mean
FAIR = 0.15  # of four planes: at the end of AFTER_S the plane's weight may still be growing
_GOOD_WITHIN_S = 60.0
_LEAST = 64  # packets of the plane in a bin: with fewer, one burst is more than half of the mean

Counts = NDArray[np.int64]


def measure(lab: Lab, options: Options) -> Result:
    """Measures both in packet granularity: a burst would be half of what an EV sends in 10 ms."""
    lab.up(granularity="packet")
    returned = [_return(lab, n + 1) for n in range(options.pairs or (1 if options.short else 5))]
    loss = _loss(lab, 2.0 if options.short else LOSS_S)
    worst, least = max(r["most_of_mean"] for r in returned), min(r["share_5_ratio"] for r in returned)
    falls = sum(r["falls"] for r in returned)
    bounds = [
        Bound(f"return: most of an EV in {BIN_S * 1000:.0f} ms, of the mean of its plane", MOST, "").judge(worst),
        Bound("return: parts in which the plane's share falls by a tenth below an equal one", 0, "").judge(falls),
        Bound("return: share of the plane at the end", FAIR, "_ratio", is_least=True).judge(least),
        Bound("loss: a T1's packets, beside the mean of all", UNEVEN, "_ratio").judge(loss[0]["off_mean_ratio"]),
    ]
    titles = (
        f"Plane {PLANE} of a TCP flow returns: its share of the packets, by time",
        f"All T1s drop {DROP:.0%}, every host sends to every other: the packets by T1, over all hosts",
    )
    return Result([Table(t, rows) for t, rows in zip(titles, (returned, loss), strict=True)], bounds)


def _return(lab: Lab, turn: int) -> Document:
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)
    progress(f"shares: plane {PLANE} returns, turn {turn}")
    tables = Tables(observe.pins(lab, SOURCE), writable=False)
    row = int(TARGET.removeprefix("h"))
    try:
        with Flow(lab, candidates.overlay(lab, 4)) as flow:
            flow.poll(1.0)
            lab.fail(NIC, down=True)
            flow.poll(1.0)
            lab.heal(NIC)
            before = _sent(tables, row)
            width = len(before) // lab.fabric.parameters.planes
            columns = slice(PLANE * width, (PLANE + 1) * width)

            def carries() -> bool:
                return bool((_sent(tables, row) != before)[columns].any())

            wait_for("the plane carries packets again", carries, RETURN_S, 0.001)
            sent = _bins(tables, row, AFTER_S)
            flow.finish()
    finally:
        tables.close()
    by_plane = sent.reshape(len(sent), lab.fabric.parameters.planes, -1)
    plane = by_plane[:, PLANE]
    total = plane.sum(axis=1)
    full = total >= _LEAST
    means = np.maximum(plane.mean(axis=1, keepdims=True), 1)
    shares = [float(part[:, PLANE].sum() / max(1, part.sum())) for part in np.array_split(by_plane, 5)]
    return {
        "turn": turn,
        "most_of_mean": float((plane / means)[full].max(initial=0.0)),
        "bins": int(full.sum()),
        **{f"share_{n + 1}_ratio": share for n, share in enumerate(shares)},
        "falls": sum(b < 0.9 * min(a, 1 / by_plane.shape[1]) for a, b in pairwise(shares)),
    }


def _bins(tables: Tables, row: int, seconds: float) -> Counts:
    """Returns the packets sent to a peer by EV, (bins, EVs)."""
    counts, due = [_sent(tables, row)], time.monotonic()
    for _ in range(round(seconds / BIN_S)):
        due += BIN_S
        time.sleep(max(0.0, due - time.monotonic()))
        counts.append(_sent(tables, row))
    return np.array(counts[1:]) - np.array(counts[:-1])


def _sent(tables: Tables, row: int) -> Counts:
    return np.asarray(tables.evs["tx_packets"][row].astype(np.int64))


def _loss(lab: Lab, seconds: float) -> list[Document]:
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)
    progress(f"shares: all T1s drop {DROP:.0%}")
    p = lab.fabric.parameters
    for plane in range(p.planes):
        for t1 in range(p.t1):
            lab.fail(f"t1:{plane}:{t1}", drop=DROP)
    try:
        with Mesh(lab, RATE):
            time.sleep(1.0)
            before = _by_t1(lab)
            time.sleep(seconds)
            sent = _by_t1(lab) - before
    finally:
        lab.heal()
    mean = sent.mean()
    row: Document = {"t1s": sent.size, "packets": int(sent.sum())}
    row |= {"least_of_mean": float(sent.min() / mean), "most_of_mean": float(sent.max() / mean)}
    return [row | {"off_mean_ratio": float(np.abs(sent / mean - 1).max())}]


def _by_t1(lab: Lab) -> Counts:
    """Returns the packets that all hosts have sent through each T1, (planes, T1s)."""
    p = lab.fabric.parameters
    found = np.zeros((p.planes, p.t1), np.int64)
    for host in lab.fabric.hosts:
        for path in observe.paths(lab, host):
            if path["t1"] is not None:
                found[path["plane"], path["t1"]] += path["tx_packets"]
    return found


BENCH = Bench("shares", measure)
