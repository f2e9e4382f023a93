# SPDX-License-Identifier: BSD-2-Clause
"""Measures whether a slow plane costs a flow more than it adds: at the own NIC, a T0–T1 link, the T1s, the peer's NIC.

All links have the same rate, which one CPU can fill. For each element the flow runs without the plane (a link: as it
is), and then with the element at 1/100, 1/40, 1/10 and 1/2 of the rate. In the end, packet by packet, all T1s of the
plane cut the ends of some packets off, as congested switches do: with the host's congestion control, and with BBR, to
which a loss alone does not mean congestion.
"""

from labkit.bench.frame import Bench, Bound, NewEvents, Options, Result, Table, check_only, evs_of
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
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
FAIR = 0.25  # share of one plane of four
TRIM = 0.05  # of the plane's packets
TRIMMED = "trimmed"  # --only
_ALGORITHMS = ("", "bbr")  # congestion control of the flow that is trimmed; "": the host's
_TRIMMED_S = 60.0
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
    check_only(options.only, [*elements, TRIMMED])
    rows, bounds = [], []
    for name, targets in list(elements.items())[: 1 if options.short else None]:
        if options.only and name not in options.only:
            continue
        _heal(lab)
        for target in targets:
            lab.fail(target)
        without = _goodput(lab, seconds)[0]  # the flow leaves dead paths as it begins
        for part in PARTS[:1] if options.short else PARTS:
            progress(f"slow: {name} at 1/{part}")
            _heal(lab)
            for target in targets:
                lab.fail(target, rate=f"{RATE_MBIT / part:g}mbit")
            rows.append({"element": name, "part": f"1/{part}", **_compared(lab, without, seconds)})
            words = f"{name} at 1/{part} of the rate: goodput by that without the plane"
            bounds.append(Bound(words, LEAST, "", is_least=True).judge(rows[-1]["ratio"]))
    trimmed = []
    if not options.only or TRIMMED in options.only:
        trimmed = _trimmed(lab, elements["all T1s"], seconds if options.short else _TRIMMED_S)
    for row in trimmed:
        words = f"{percent(TRIM)} trimmed, {row['congestion_control']}:"
        bounds += [
            Bound(f"{words} trimmed packets", 1, "", is_least=True).judge(row["trimmed_skbs"]),
            Bound(f"{words} EVs that are ASSUMED_BAD", 0, "").judge(row["demotions"]),
            Bound(f"{words} share of the plane", FAIR, "_ratio").judge(row["share_ratio"]),
            Bound(f"{words} goodput by that without the plane", 1, "", is_least=True).judge(row["ratio"]),
        ]
    titles = (
        f"One TCP flow over four planes of {RATE_MBIT} Mbit/s, an element of plane {PLANE} slower",
        f"The same packet by packet, all T1s of plane {PLANE} trim {percent(TRIM)} of the packets",
    )
    return Result([Table(t, r) for t, r in zip(titles, (rows, trimmed), strict=True) if r], bounds)


def _trimmed(lab: Lab, t1s: list[str], seconds: float) -> list[Document]:
    """Returns a row for each congestion control."""
    lab.up(rate_bits_per_s=RATE_MBIT * 1_000_000, granularity="packet")
    rows = []
    for algorithm in _ALGORITHMS:
        progress(f"slow: T1s trim packets for {seconds:.0f} s, congestion control {algorithm or 'of the host'}")
        _heal(lab)
        for t1 in t1s:
            lab.fail(t1)
        without = _goodput(lab, seconds, algorithm)[0]
        _heal(lab)
        for t1 in t1s:
            lab.fail(t1, trim=TRIM)
        events = NewEvents(lab, lab.fabric.hosts)
        row = _compared(lab, without, seconds, algorithm)
        trimmed = sum(h["trimmed_skbs"] for h in lab.heal())
        rows.append({**row, "trimmed_skbs": trimmed, "demotions": evs_of(events.read(to="ASSUMED_BAD"))})
    return rows


def _compared(lab: Lab, without: float, seconds: float, algorithm: str = "") -> Document:
    """Runs a flow, and returns a row that compares it with the goodput without the plane."""
    sent = _sent(lab)
    mean, retransmitted, algorithm = _goodput(lab, seconds, algorithm)
    sent = [after - before for before, after in zip(sent, _sent(lab), strict=True)]
    return {
        "congestion_control": algorithm,
        "without_bits_per_s": without, "with_bits_per_s": mean, "ratio": mean / without,
        "share_ratio": sent[PLANE] / sum(sent), "retransmitted_segments": retransmitted,
    }  # fmt: skip


def _heal(lab: Lab) -> None:
    lab.heal()
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)


def _sent(lab: Lab) -> list[int]:
    """Returns the packets that the source has sent on each plane."""
    found: dict[int, int] = {}
    for path in observe.paths(lab, SOURCE, TARGET):
        found[path["plane"]] = found.get(path["plane"], 0) + path["tx_packets"]
    return [found[plane] for plane in sorted(found)]


def _goodput(lab: Lab, seconds: float, algorithm: str = "") -> tuple[float, int, str]:
    """Returns the mean goodput of a new flow, in bits per second, its retransmissions and its congestion control."""
    with Flow(lab, candidates.overlay(lab, 4), algorithm=algorithm) as flow:
        flow.poll(_BEGIN_S)
        begin = max(flow.bins)
        flow.poll(seconds)
        mean = goodput.mean(flow.bins, begin, max(flow.bins))
        flow.finish()
    return mean or 0.0, flow.retransmitted_segments, flow.congestion_control


BENCH = Bench("slow", measure)
