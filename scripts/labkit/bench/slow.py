# SPDX-License-Identifier: BSD-2-Clause
"""Measures whether a slow plane costs a flow more than it adds: at the own NIC, a T0–T1 link, the T1s, the peer's NIC.

All links have the same rate, which one CPU can fill. For each element the flow runs without the plane (a link: as it
is), and then with the element at 1/100, 1/40, 1/10 and 1/2 of the rate.
"""

from labkit.bench.frame import Bench, Bound, Options, Result, Table
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.entry import progress
from labkit.measure import goodput
from labkit.tables import percent
from labkit.traffic import candidates
from labkit.traffic.candidates import SOURCE, TARGET
from labkit.traffic.flow import Flow

RATE_MBIT = 400
PARTS = (100, 40, 10, 2)  # a slow element has this part of the rate
PLANE = 1
LEAST = 0.97  # of the goodput without the plane
_BEGIN_S = 0.5
_SECONDS = 4.0
_GOOD_WITHIN_S = 90.0


def measure(lab: Lab, options: Options) -> Result:
    """Runs a flow per element and part of the rate. The flow is new each time: it has to find out."""
    seconds = options.seconds or _SECONDS
    lab.up(rate_bits_per_s=RATE_MBIT * 1_000_000)
    elements = {
        "own NIC": [f"nic:{SOURCE}:{PLANE}"],
        "T0–T1 link": [f"link:{PLANE}:0:2"],
        "all T1s": [f"t1:{PLANE}:{t1}" for t1 in range(lab.fabric.parameters.t1)],
        "peer's NIC": [f"nic:{TARGET}:{PLANE}"],
    }
    rows, bounds = [], []
    for name, targets in list(elements.items())[: 1 if options.short else None]:
        _heal(lab)
        for target in targets:
            lab.fail(target)
        without = _goodput(lab, seconds)[0]  # the flow leaves dead paths as it begins
        for part in PARTS[:1] if options.short else PARTS:
            progress(f"slow: {name} at 1/{part}")
            _heal(lab)
            for target in targets:
                lab.fail(target, rate=f"{RATE_MBIT / part:g}mbit")
            sent = _sent(lab)
            mean, retransmitted = _goodput(lab, seconds)
            sent = [after - before for before, after in zip(sent, _sent(lab), strict=True)]
            rows.append(
                {
                    "element": name, "part": f"1/{part}", "without_bits_per_s": without, "with_bits_per_s": mean,
                    "ratio": round(mean / without, 3), "share": percent(sent[PLANE] / sum(sent)),
                    "retransmitted_segments": retransmitted,
                }
            )  # fmt: skip
            words = f"{name} at 1/{part} of the rate: goodput by that without the plane"
            bounds.append(Bound(words, LEAST, "", is_least=True).judge(mean / without))
    _heal(lab)
    title = f"One TCP flow over four planes of {RATE_MBIT} Mbit/s, an element of plane {PLANE} slower"
    return Result([Table(title, rows)], bounds)


def _heal(lab: Lab) -> None:
    lab.heal()
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)


def _sent(lab: Lab) -> list[int]:
    """Returns the packets that the source has sent on each plane."""
    found: dict[int, int] = {}
    for path in observe.paths(lab, SOURCE, TARGET):
        found[path["plane"]] = found.get(path["plane"], 0) + path["tx_packets"]
    return [found[plane] for plane in sorted(found)]


def _goodput(lab: Lab, seconds: float) -> tuple[float, int]:
    """Returns the mean goodput of a new flow, in bits per second, and its retransmissions."""
    with Flow(lab, candidates.overlay(lab, 4)) as flow:
        flow.poll(_BEGIN_S)
        begin = max(flow.bins)
        flow.poll(seconds)
        mean = goodput.mean(flow.bins, begin, max(flow.bins))
        flow.finish()
    return mean or 0.0, flow.retransmitted_segments


BENCH = Bench("slow", measure)
