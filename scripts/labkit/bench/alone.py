# SPDX-License-Identifier: BSD-2-Clause
"""Measures failover with both daemons dead: two flows, one each way; paths fail and heal, and carry their share again.

Rounds of seven faults, each round at other places, until the time is over. Times are the kernel's: see faults.py.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from labkit import plot
from labkit.bench import faults
from labkit.bench.faults import BLACKHOLE, FLOW, HEAVY_LOSS, MS, T1, Broken, Kind, Pair, Place, Stage, strip
from labkit.bench.frame import Bench, Bound, Options, Result, Table, unmeasured
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput
from labkit.measure.host_tables import Cluster
from labkit.measure.statistics import spread, summary
from labkit.tables import duration
from labkit.traffic import candidates
from labkit.traffic.candidates import SOURCE, TARGET
from labkit.traffic.flow import Ends, Flow
from mrcd.errors import MachineError
from mrcd.health import probe_pace
from mrcd.kernel.enums import EvState

WAYS: tuple[Pair, Pair] = (FLOW, FLOW[::-1])
ROUND_S = 50.0
BROKEN_S = (1.5, 2.5)  # long enough for probes to be a second apart
SHARE_S = 1.0  # interval after the ramp in which the share is measured
WHOLE_PLANE = (("p99", 3 * MS),)  # timed from before the fault to the last of several paths
BACK_NS = 5_000_000_000
SLACK_NS = 100_000_000  # ticks are 20 ms apart
FULL_SHARE = 0.9
FIRST, AGAIN, THIRD, LOSS, NIC = "t1-dies", "t1-dies-again", "t1-dies-third", "link-20", "nic-down"
DEATHS = (FIRST, AGAIN, THIRD)
_WORDS = {
    FIRST: "a T1 forwards nothing for 1.5 to 2.5 s, its links stay up",
    AGAIN: "the same T1, as soon as its paths are in full use again",
    THIRD: "the same T1, once more",
    LOSS: "a T0–T1 link drops 20 % for so long",
    NIC: "the NIC–T0 link of h0, or of h2, loses its carrier for so long",
}
_WELL = (EvState.GOOD, EvState.SKIP)
_HANDS_OFF_S = 0.03
_REST_S = 0.02  # between two polls while nothing is timed
_GOOD_WITHIN_S = 90.0
_AFTER_RAMP_S = 0.1
_BACK_WITHIN_S = 15.0  # beyond the hold-down; later returns count as never
_S = 1_000_000_000


@dataclass(frozen=True)
class Step:
    """One fault of a round."""

    kind: Kind
    place: Place


def steps(number: int, planes: int, t1s: int) -> list[Step]:
    """Returns the faults of a round.

    A flap is forgotten for each minute in which a path is in use. By order and places most are forgotten when the
    next fault hits the same path: no hold-down is longer than four times the first, and where a T1 dies three
    times, its paths' hold-downs are once, twice and four times the first.
    """
    t1, plane = number // planes, number % planes
    nic = f"nic:{(SOURCE, TARGET)[number % 2]}:{{plane}}"
    link = "link:{plane}:0:{t1}"
    return [
        Step(Kind(NIC, _WORDS[NIC], nic, down=True), Place((plane + 2) % planes, 0)),
        *(_death(name, plane, t1 % t1s) for name in DEATHS),
        *(_death(FIRST, plane, (t1 + n) % t1s) for n in (3, 2)),
        Step(Kind(LOSS, _WORDS[LOSS], link, drop=0.2), Place(plane, (t1 + 2) % t1s)),
    ]


def _death(name: str, plane: int, t1: int) -> Step:
    return Step(Kind(name, _WORDS[name], T1), Place(plane, t1))


@dataclass
class Return:
    """The return of an EV. Times in ns."""

    source: str
    peer: str
    ev: int
    flaps: int  # remembered flaps, with this one
    due_ns: int  # the hold-down after that many flaps
    well_ns: int | None = None  # from healing to the start of its last hold-down
    hold_ns: int | None = None  # from then to GOOD; None: never
    back_ns: int | None = None  # from healing to GOOD
    share: float | None = None  # packets after the ramp, as a ratio to the mean of the EVs not hit; None: not measured
    again: bool = False  # it failed again before the share was measured


class Run(Stage):
    """The stage of two flows, one each way."""

    def rest(self, seconds: float) -> None:
        """Polls for `seconds`, at a low rate."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.look(min(left, _REST_S))

    def make(self, step: Step, number: int) -> Document:
        """Makes a fault, waits until its paths are left, heals it, and measures the return."""
        kind, cluster = step.kind, self.cluster
        self.wait_until_good()
        evs = {w: self.evs(kind, step.place, w) for w in WAYS}
        for way in WAYS:
            self.wait_until_in_use(way, evs[way])
        broken = self.break_(kind, step.place)
        time.sleep(_HANDS_OFF_S)
        self.until(lambda: all(self._is_left(w, evs[w]) for w in WAYS), kind.cap_s)
        self.rest(broken.command_ns / _S + self.random.uniform(*BROKEN_S) - time.monotonic())
        last = {w: cluster.newest(w, evs[w], "last_tx_ns") if self._is_left(w, evs[w]) else None for w in WAYS}
        arrived = {w: int(cluster.of_path_stats(w, evs[w], "arrived_ns").max()) for w in WAYS}
        left = [r for w in WAYS for r in self._left(w, evs[w])]
        healed = self.heal(broken)
        leaves = []
        for way in WAYS:
            begin_ns = arrived[way] if kind.down else int(healed["first_drop_ns"] or broken.command_ns)
            at_ns = last[way]
            leaves.append(None if at_ns is None else max(0, at_ns - begin_ns))
        self._follow(left, int(healed["monotonic_ns"]))
        self._measure_shares(left)
        progress(
            f"  {kind.name} {kind.at(step.place)}: left after {', '.join(map(duration, leaves))}; "
            f"back {duration(summary([r.back_ns for r in left])['max'])} after healing"
        )
        found = {"name": kind.name, "target": kind.at(step.place), "number": number, "leaves_ns": leaves}
        return found | {"dropped_skbs": int(healed["dropped_skbs"]), "returns": [asdict(r) for r in left]}

    def heal(self, broken: Broken) -> Document:
        """Heals a fault, and returns its record."""
        healed: Document = self.lab.heal(broken.kind.at(broken.place))[0]
        self.excuse(broken.hit, time.monotonic_ns() + faults.EXCUSED_NS)
        return healed

    def _is_left(self, way: Pair, evs: list[int]) -> bool:
        return self.cluster.all_in(EvState.ASSUMED_BAD, way, evs)

    def _left(self, way: Pair, evs: list[int]) -> Iterator[Return]:
        bad = self.cluster.of_evs(way, evs, "state") == EvState.ASSUMED_BAD
        for ev, flaps in zip(np.array(evs)[bad], self.cluster.of_evs(way, evs, "flaps")[bad], strict=True):
            due_ns = int(probe_pace.hold_down_ns(self.lab.fabric.config.health, int(flaps)))
            yield Return(*way, int(ev), int(flaps), due_ns)

    def _follow(self, left: Sequence[Return], healed_ns: int) -> None:
        """Records when the hold-down of each begins and when it returns, until all are back or time is over."""
        waiting = list(left)
        well = {id(r): 0 for r in left}
        until = time.monotonic() + _BACK_WITHIN_S + max((r.due_ns / _S for r in left), default=0.0)
        while waiting and time.monotonic() < until:
            self.look()
            for r in list(waiting):
                pair, evs = (r.source, r.peer), [r.ev]
                loss_ns = int(self.cluster.of_path_stats(pair, evs, "loss_ns")[0])
                is_back = int(self.cluster.of_evs(pair, evs, "state")[0]) in _WELL
                since_ns = int(self.cluster.of_evs(pair, evs, "state_since_ns")[0])
                if not (is_back and well[id(r)] and loss_ns > since_ns):  # a loss after the return is another matter
                    well[id(r)] = loss_ns
                if is_back:
                    waiting.remove(r)
                    r.back_ns, r.well_ns, r.hold_ns = (
                        since_ns - healed_ns, well[id(r)] - healed_ns, since_ns - well[id(r)],
                    )  # fmt: skip

    def _measure_shares(self, left: Sequence[Return]) -> None:
        """Measures the packets of each EV after the ramp, beside the mean of its pair's EVs that were not hit."""
        if any(r.back_ns is None for r in left):
            return
        self.rest(self.lab.fabric.config.health.ramp_ms / 1000 + _AFTER_RAMP_S)
        before = {w: self.cluster.sent(w) for w in WAYS}
        self.rest(SHARE_S)
        for way in WAYS:
            grown = self.cluster.sent(way) - before[way]
            hit = [r for r in left if (r.source, r.peer) == way]
            others = sorted(set(self.cluster.configured(way)) - {r.ev for r in hit})
            usual = float(grown[others].mean()) if others else 0.0
            for r in hit:
                r.share = float(grown[r.ev]) / usual if usual else None
                r.again = int(self.cluster.of_evs(way, [r.ev], "flaps")[0]) != r.flaps


def measure(lab: Lab, options: Options) -> Result:
    """Measures with the default hold-downs. Daemons are killed first."""
    lab.up(health={}, overlay={})
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)
    p = lab.fabric.parameters
    found: list[Document] = []
    failed = ""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(lab))
        there = candidates.overlay(lab, 4)
        back = Ends(there.target, there.target_address, there.source, there.source_address)
        flows = [stack.enter_context(Flow(lab, ends)) for ends in (there, back)]
        run = Run(lab, cluster, flows, {})
        run.rest(1.0)
        faults.kill_daemons(run)
        begin_ns, ticks = time.monotonic_ns(), {h: cluster.ticks(h) for h in FLOW}
        until, number = time.monotonic() + 60 * options.minutes, 0
        try:
            while (left_s := until - time.monotonic()) > 0:
                progress(f"alone: both daemons are dead, round {number + 1}, {left_s:.0f} s to go")
                end = min(time.monotonic() + ROUND_S, until)
                for step in steps(number, p.planes, p.t1):
                    if time.monotonic() < until:
                        found.append(run.make(step, number))
                run.rest(end - time.monotonic())
                number += 1
        except MachineError as e:
            failed = str(e)
            progress(f"  ended early: {failed}")
        end_ns = time.monotonic_ns()
        ticked = {h: [now - then for now, then in zip(cluster.ticks(h), ticks[h], strict=True)] for h in FLOW}
        for flow in flows:
            flow.finish()
    rates = [goodput.usual(flow.bins, begin_ns, end_ns) for flow in flows]
    d = {
        "faults": found,
        "failed": failed,
        "wrong_demotions": run.wrong,
        "dead_s": (end_ns - begin_ns) / _S,
        "alive": [h for h in FLOW if lab.daemon_pid(h) is not None],
        "by_daemon": sum(t[0] for t in ticked.values()),
        "by_packet": min(t[1] for t in ticked.values()),
        "median_bits_per_s": rates,
    }
    return Result(_tables(d), _bounds(d, lab.fabric.config.health.probe_backoff_ms * MS), _picture(d), d)


# ---- bounds ----


def _returns(found: Sequence[Document]) -> list[Document]:
    return [r for f in found for r in f["returns"]]


def _leaves(found: Sequence[Document]) -> Document:
    """Returns the times to leave, of both directions."""
    return summary([ns for f in found for ns in f["leaves_ns"]])


def _bounds(d: Document, backoff_ns: int) -> list[Document]:
    """Returns the bounds. A hold-down begins with the first probe that arrives, at most `backoff_ns` after healing."""
    found = [unmeasured("all", d["failed"])] if d["failed"] else []
    for names, what, limits in (
        (DEATHS, "a T1 dies: out of use after the first drop", BLACKHOLE),
        ((NIC,), "a NIC's link goes down: out of use after the last packet that arrived", WHOLE_PLANE),
        ((LOSS,), "a link loses 20 %: out of use after the first drop", HEAVY_LOSS),
    ):
        mine = _leaves([f for f in d["faults"] if f["name"] in names])
        if mine["count"]:
            found += [Bound(f"{what}, {p}", limit, "_ns").judge(mine[p]) for p, limit in limits]
    came = _returns(d["faults"])
    doubled = [b == 2 * a for s in series(d["faults"]) for a, b in pairwise(s["due_ns"])]
    for words, right in (
        (
            f"EVs not GOOD again within {duration(BACK_NS)} of healing or, if that is more, within the hold-down due, "
            f"{duration(backoff_ns)} (the longest pause between two probes) and {duration(SLACK_NS)}",
            [r["back_ns"] is not None and r["back_ns"] <= _limit(r, backoff_ns) for r in came],
        ),
        (
            f"hold-downs shorter than due, or longer than due and {duration(SLACK_NS)}",
            [r["hold_ns"] is not None and 0 <= r["hold_ns"] - r["due_ns"] <= SLACK_NS for r in came],
        ),
        ("hold-downs that are not twice the one before, when a T1 dies repeatedly", doubled),
        (
            f"EVs without a full share after the ramp, {FULL_SHARE:.0%} of the others' mean, or that failed again",
            [r["share"] is not None and r["share"] >= FULL_SHARE and not r["again"] for r in came],
        ),
    ):
        found.append(Bound(words, 0, "").judge(right.count(False) if right else None))
    found.append(Bound("EVs demoted that no fault has hit", 0, "").judge(len(d["wrong_demotions"])))
    alive = len(d["alive"]) + d["by_daemon"]
    found.append(Bound("daemons alive at the end, and ticks by daemons", 0, "").judge(alive))
    words = "ticks by the timer packet, at each end"
    return [*found, Bound(words, 1, "", is_least=True).judge(d["by_packet"])]


def _limit(r: Document, backoff_ns: int) -> int:
    return max(BACK_NS, int(r["due_ns"]) + backoff_ns + SLACK_NS)


def series(found: Sequence[Document]) -> list[Document]:
    """Returns for each round the T1 that died three times, and the hold-downs of one of its paths, due and as held."""
    rows = []
    for number in sorted({f["number"] for f in found}):
        mine = [f for f in found if f["number"] == number]
        home = next((f["target"] for f in mine if f["name"] == AGAIN), None)
        one = [f["returns"][0] for f in mine if f["target"] == home and f["name"] in DEATHS and f["returns"]]
        if len(one) > 1:
            holds = {f"{k}_ns": [r[f"{k}_ns"] for r in one] for k in ("due", "hold")}
            rows.append({"round": number + 1, "target": home, **holds})
    return rows


# ---- tables, picture ----


def _tables(d: Document) -> list[Table]:
    there, back = (f"{r / 1e9:.1f}" for r in d["median_bits_per_s"])
    title = (
        f"Both daemons killed, and not started again in the {d['dead_s']:.0f} s until the end; a TCP flow each way "
        f"({there} and {back} Gbit/s)"
    )
    rows = []
    for name, what in _WORDS.items():
        mine = [f for f in d["faults"] if f["name"] == name]
        came = _returns(mine)
        if not mine:
            continue
        shares = [r["share"] for r in came if r["share"] is not None]
        row = {"fault": name, "faults": len(mine), "unfound": _leaves(mine)["never"], **spread("leave", _leaves(mine))}
        row |= spread("well", summary([None if r["well_ns"] is None else max(0, r["well_ns"]) for r in came]))
        row |= spread("due", summary([r["due_ns"] for r in came]))
        row |= spread("late", summary([None if r["hold_ns"] is None else r["hold_ns"] - r["due_ns"] for r in came]))
        row |= spread("back", summary([r["back_ns"] for r in came]))
        row |= {"share_p50_ratio": median(shares) if shares else None, "least_ratio": min(shares, default=None)}
        rows.append(row | {"what": what})
    notes = [
        "LEAVE: from the first drop (of nic-down: from the last packet known to have arrived) to the last data packet "
        "on a path, of both directions",
        "WELL: from healing to the start of the hold-down; LATE: from there to GOOD, beyond the hold-down DUE; BACK: "
        "from healing to GOOD; SHARE: packets on a path in the second after its ramp, beside the mean of those not hit",
        *(f"wrong: {w} was demoted and not hit" for w in d["wrong_demotions"][:5]),
    ]
    return [Table(title, rows, notes), Table("Hold-downs when a T1 dies three times", series(d["faults"]))]


def _picture(d: Document) -> plot.Picture:
    found = {n: [ns for f in d["faults"] if f["name"] == n for ns in f["leaves_ns"]] for n in _WORDS}
    strips = plot.Strips("A dot per fault and direction", "", [strip(n, times) for n, times in found.items() if times])
    words = f"how long a broken path is still used; a TCP flow each way; no daemon for {d['dead_s'] / 60:.1f} minutes"
    return plot.Picture("Paths that fail, with mrcd killed at both ends", words, [strips])


BENCH = Bench("alone", measure)
