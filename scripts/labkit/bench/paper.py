# SPDX-License-Identifier: BSD-2-Clause
"""Repeats the MRC paper's failure experiments with one TCP flow over 4 planes × 4 T1s, beside the paper's points.

19b and 9b: planes of one host leave and return. 12/13 and 16: one EV, or every path, drops packets at random.
Experiments are run alternately; results are medians, and the picture has the run in the middle.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from labkit import plot
from labkit.bench import paper_points as points
from labkit.bench.faults import FLOW
from labkit.bench.frame import Bench, Bound, Options, Result, Table, unmeasured
from labkit.bench.paper_points import Curve, Phase, Plateau, middle
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.fabric import Parameters
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput
from labkit.measure.host_tables import Cluster
from labkit.tables import percent
from labkit.traffic import candidates
from labkit.traffic.candidates import SOURCE
from labkit.traffic.flow import Flow
from mrcd.errors import MachineError

RATE_BITS_PER_S = 200_000_000  # rate of every link
ERROR = 0.02
BIN_NS = 10_000_000
BIN_S = BIN_NS / 1e9
WARM_UP_S = 1.0
# Times of 19b; the paper's take 15 s. A returning plane has its share after 1.1 s.
PHASE_S, REMOVED_S, RETURNED_S, SILENT_S = 4.0, 1.2, 2.1, 5.0
FLAP_BEFORE_S, FLAP_AFTER_S = 3.0, 3.5
SHORT_BEFORE_S, SHORT_DOWN_S = 1.2, 1.6
EV_TARGET, EV_DROP = "t1:1:2", 0.2
BEFORE_S, LOSSY_S = (1.5, 3.0), (3.0, 10.0)  # of 12: without and with the fault; short, and at length
RANDOM, RANDOM_S = (0.0, 0.001, 0.01), (3.0, 6.0)
_STARTED_S = 1.0  # time from a flow's first byte to its usual goodput
_FIRST_BYTE_S = 10.0
_GOOD_WITHIN_S = 60.0
_QUIET_S = 0.2


class Paper(NamedTuple):
    """A figure of the paper: its file, the parts of its levels, and the time until which it has no fault."""

    file: str
    parts: int
    first_s: float

    def read(self) -> tuple[Curve, list[Plateau]]:
        """Returns the figure as shares of its usual level, and its plateaus."""
        shares = points.curve(self.file, self.first_s)
        return shares, points.plateaus(shares, self.parts)


FIGURE_19B, FIGURE_9B = Paper("fig19b.csv", 4, 15.0), Paper("fig09b.csv", 2, 5.4)


# ---- a flow under faults ----


@dataclass
class Course:
    """A running flow. Times in seconds since `begin`."""

    lab: Lab
    flow: Flow
    begin_ns: int
    spans: dict[str, Document] = field(default_factory=dict)  # target and number → a fault, with begin and end

    def go_on_until(self, seconds: float) -> None:
        """Reads the flow until that time."""
        self.flow.poll(max(0.0, (self.begin_ns - time.monotonic_ns()) / 1e9 + seconds))

    def fail(self, target: str, label: str, *, drop: float | None = None, down: bool = False) -> float:
        """Makes a fault. Returns its time."""
        at = self._at(self.lab.fail(target, drop=drop, down=down))
        self.spans[f"{target} {at}"] = {"begin_s": at, "end_s": None, "target": target, "label": label}
        return at

    def heal(self, target: str) -> tuple[float, Document]:
        """Heals a fault. Returns the time, and the fault's last counts."""
        record = self.lab.heal(target)[0]
        next(s for s in reversed(self.spans.values()) if s["target"] == target)["end_s"] = at = self._at(record)
        return at, record

    def _at(self, record: Document) -> float:
        return float(record["monotonic_ns"] - self.begin_ns) / 1e9


@contextlib.contextmanager
def course(lab: Lab, warm_up_s: float, seconds: float) -> Iterator[tuple[Course, Document]]:
    """A block with a running flow. Yields the course, and its document, which is filled in after the block.

    Time 0 is a whole bin after the flow had `warm_up_s` to start; or, if that is 0, the first bin with data. After the
    block the flow continues until `seconds` and stops, and faults are healed.
    """
    document: Document = {}
    with Flow(lab, candidates.overlay(lab, 4), BIN_NS) as flow:
        flow.poll(warm_up_s)
        until = time.monotonic() + _FIRST_BYTE_S
        while not flow.bins:
            if time.monotonic() > until:
                raise MachineError(f"nothing has arrived of the flow within {_FIRST_BYTE_S:.0f} s")
            flow.poll(BIN_S)
        now_ns = time.monotonic_ns()
        c = Course(lab, flow, now_ns - now_ns % BIN_NS if warm_up_s else min(flow.bins))
        yield c, document
        c.go_on_until(seconds)
        flow.finish()
    lab.heal()
    found = goodput.regular(flow.bins, c.begin_ns, c.begin_ns + round(seconds / BIN_S) * BIN_NS, BIN_NS)
    document |= {
        "seconds": seconds,
        "bits_per_s": [goodput.bits_per_s(n, BIN_NS) for n in found],
        "faults": [s | {"end_s": s["end_s"] if s["end_s"] is not None else seconds} for s in c.spans.values()],
        "retransmitted_segments": flow.retransmitted_segments,
        "steps": [],
        "paper": None,
    }


# ---- planes leave and return ----


def removed(lab: Lab, full: bool, *, silent: bool) -> Document:
    """Removes one plane after the other until one is left, and restores them in the opposite order."""
    planes = lab.fabric.parameters.planes
    down_s, up_s = (SILENT_S, SILENT_S) if silent else (PHASE_S, PHASE_S) if full else (REMOVED_S, RETURNED_S)
    targets = [f"nic:{SOURCE}:{plane}" for plane in range(planes - 1)]
    phases = [Phase(0.0, planes)]
    returns_s = (len(targets) + 1) * down_s
    with course(lab, WARM_UP_S, returns_s + len(targets) * up_s) as (c, measured):
        for n, target in enumerate(targets):
            c.go_on_until((n + 1) * down_s)
            at = c.fail(target, f"{_label(target)} removed", drop=1.0 if silent else None, down=not silent)
            phases.append(Phase(at, planes - n - 1))
        for n, target in enumerate(reversed(targets)):
            c.go_on_until(returns_s + n * up_s)
            phases.append(Phase(c.heal(target)[0], planes - len(targets) + n + 1))
    how = "drops everything silently" if silent else "loses its carrier"
    what = f"planes removed one by one, and restored: the NIC–T0 link of {SOURCE} {how}"
    return _with_steps("19b" + (" silent" if silent else ""), what, measured, phases, FIGURE_19B)


def flapped(lab: Lab, full: bool) -> Document:
    """Removes half of the planes together, if `full` for as long as in the paper, and restores them."""
    planes, targets = lab.fabric.parameters.planes, _half(lab)
    down_s, up_s = points.edges(*FIGURE_9B.read())
    down_for_s = up_s - down_s if full else SHORT_DOWN_S
    before_s, after_s = (FLAP_BEFORE_S, FLAP_AFTER_S) if full else (SHORT_BEFORE_S, RETURNED_S)
    phases = [Phase(0.0, planes)]
    with course(lab, WARM_UP_S, before_s + down_for_s + after_s) as (c, measured):
        c.go_on_until(before_s)
        phases.append(Phase(min([c.fail(t, _label(t), down=True) for t in targets]), planes - len(targets)))
        c.go_on_until(before_s + down_for_s)
        phases.append(Phase(min([c.heal(t)[0] for t in targets]), planes))
    what = f"half the planes flap: NIC–T0 links of {SOURCE} lose their carriers for {down_for_s:.1f} s"
    return _with_steps("9b", what, measured, phases, FIGURE_9B)


def _half(lab: Lab) -> list[str]:
    return [f"nic:{SOURCE}:{plane}" for plane in range(lab.fabric.parameters.planes // 2)]


def _label(target: str) -> str:
    return f"plane {target.rpartition(':')[2]}"


def _with_steps(figure: str, what: str, measured: Document, phases: Sequence[Phase], paper: Paper) -> Document:
    """Returns a course with its steps, and the paper's beside it."""
    shares, found = paper.read()
    rates, end_s, begins = measured["bits_per_s"], measured["seconds"], [p.begin_s for p in phases[1:]]
    ours, theirs = points.steps(rates, BIN_S, phases, end_s), points.theirs(shares, found)
    return measured | {
        "figure": figure,
        "what": what,
        "usual_bits_per_s": points.mean(rates, BIN_S, begins[0] * (1 - points.LAST_PART), begins[0]),
        "steps": [s | {"paper": theirs[i] if i < len(theirs) else None} for i, s in enumerate(ours)],
        "paper": {"points": points.beside(shares, points.edges(shares, found), begins, end_s)},
    }


# ---- random loss ----


def one_ev(lab: Lab, full: bool) -> Document:
    """Makes a T1 of one EV of the flow drop 20 % for ten seconds, or three; then the flow ends."""
    before_s, lossy_s = BEFORE_S[full], LOSSY_S[full]
    crosses = tuple(int(n) for n in EV_TARGET.split(":")[1:])
    with Cluster(lab) as cluster:
        evs = cluster.of_pair(cluster.crossing(lambda source, peer, plane, t1: (plane, t1) == crosses), FLOW)
        others = [ev for ev in range(len(cluster.sent(FLOW))) if ev not in evs]
        before = [cluster.missing(FLOW, e) for e in (evs, others)]
        with course(lab, WARM_UP_S, before_s + lossy_s) as (c, measured):
            c.go_on_until(before_s)
            sent = int(cluster.sent(FLOW).sum())
            at = c.fail(EV_TARGET, f"drops {EV_DROP:.0%}", drop=EV_DROP)
            c.go_on_until(before_s + lossy_s)
            last_ns = int(cluster.newest(FLOW, evs, "last_tx_ns"))
            first_ns = c.heal(EV_TARGET)[1]["first_drop_ns"]
        time.sleep(_QUIET_S)
        sent = int(cluster.sent(FLOW).sum()) - sent
        # Read while nothing is in flight, so for the whole flow: losses before the fault are included.
        on_ev, elsewhere = (cluster.missing(FLOW, e) - n for e, n in zip((evs, others), before, strict=True))
    rates, end_s = measured["bits_per_s"], measured["seconds"]
    usual = points.mean(rates, BIN_S, 0.0, at)
    shares = points.curve("fig12.csv")
    return measured | {
        "figure": "12/13",
        "what": f"one of {len(evs) + len(others)} EVs drops {EV_DROP:.0%} (T1 {EV_TARGET.removeprefix('t1:')})",
        "usual_bits_per_s": usual,
        "mean_ratio": points.mean(rates, BIN_S, at, end_s) / usual if usual else None,
        "last_used_after_ms": (last_ns - first_ns) / 1e6 if first_ns else None,
        "lost_on_ev": on_ev,
        "lost_elsewhere": elsewhere,
        "loss_ratio": (on_ev + elsewhere) / max(1, sent),
        "paper": {
            "mean_ratio": fmean(shares.values),
            "points": [(t, v) for t, v in zip(shares.times_s, shares.values, strict=True) if t <= end_s],
        },
    }


def random_loss(lab: Lab, full: bool) -> Document:
    """Makes every T1 drop that share of the packets, from before the flow begins; a flow for each share."""
    p = lab.fabric.parameters
    targets = [f"t1:{plane}:{t1}" for plane in range(p.planes) for t1 in range(p.t1)]
    theirs, seconds = points.messages(), RANDOM_S[full]
    sizes, their_usual = [size for size, _ in theirs["MRC1@0"]], max(rate for _, rate in theirs["MRC1@0"])
    runs: list[Document] = []
    for drop in RANDOM:
        observe.wait_until_good(lab, FLOW, _GOOD_WITHIN_S)
        for target in targets if drop else ():
            lab.fail(target, drop=drop)
        with course(lab, 0.0, seconds) as (_, measured):
            pass
        rates = measured["bits_per_s"]
        mean = points.mean(rates, BIN_S, _STARTED_S, seconds)
        usual = runs[0]["mean_bits_per_s"] if runs else mean
        their = theirs[f"MRC1@{drop * 100:g}%" if drop else "MRC1@0"]
        runs.append(
            {
                "drop_ratio": drop,
                "mean_bits_per_s": mean,
                "mean_ratio": mean / usual if usual else None,
                "messages": [(size, rate / (usual or 1.0)) for size, rate in points.arrived(rates, BIN_S, sizes)],
                "paper_ratio": their[-1][1] / theirs["MRC1@0"][-1][1],
                "paper_points": [(size, rate / their_usual) for size, rate in their],
            }
        )
    what = "every path drops packets at random; goodput of a message by its size, the flow's start included"
    return {"figure": "16", "what": what, "usual_bits_per_s": runs[0]["mean_bits_per_s"], "runs": runs, "steps": []}


# ---- the bench ----


class Experiment(NamedTuple):
    """An experiment, run at length or in less time, and the number of runs: in the short form, and in the full one."""

    run: Callable[[Lab, bool], Document]
    short: int
    full: int


EXPERIMENTS: dict[str, Experiment] = {
    "19b": Experiment(lambda lab, full: removed(lab, full, silent=False), 5, 5),
    "9b": Experiment(flapped, 5, 5),
    "12": Experiment(one_ev, 3, 5),
    "16": Experiment(random_loss, 1, 1),
    "19b-silent": Experiment(lambda lab, full: removed(lab, full, silent=True), 0, 1),
}


def measure(lab: Lab, options: Options) -> Result:
    """Runs the chosen experiments alternately. One that fails does not discard the others' results."""
    wanted = {name: number_of_runs(name, options) for name in EXPERIMENTS}
    runs: dict[str, list[Document]] = {name: [] for name, number in wanted.items() if number}
    bounds: list[Document] = []
    for number in range(max(wanted.values())):
        for name in [n for n in runs if number < wanted[n]]:
            progress(f"paper: figure {name}, run {number + 1} of {wanted[name]}")
            try:
                _up(lab)
                runs[name].append(EXPERIMENTS[name].run(lab, options.full))
            except MachineError as e:
                progress(f"  {name} failed: {e}")
                bounds.append(unmeasured(f"figure {name}", str(e)))
    found = [{"name": name, **combined(of_one)} for name, of_one in runs.items() if of_one]
    for d in found:
        bounds += _bounds(d)
    return Result([_table(d) for d in found], bounds, _picture(found), {"experiments": found})


def number_of_runs(name: str, options: Options) -> int:
    """Returns the number of runs of an experiment; 0: not chosen."""
    e = EXPERIMENTS[name]
    if options.figures and name not in options.figures:
        return 0
    usual = e.full if options.full else e.short
    return options.pairs or usual or 1 if options.figures or usual else 0


def _up(lab: Lab) -> None:
    """Brings up the lab, all its paths GOOD; a new one, since a path that flapped before has a longer hold-down."""
    quiet = Lab(lab.state.name, say=lambda _: None)
    quiet.down()
    quiet.up(**Parameters(rate_bits_per_s=RATE_BITS_PER_S).as_json())
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)


def combined(runs: Sequence[Document]) -> Document:
    """Returns the run with the middle gaps and losses, its results replaced by the medians of all runs.

    `error_ratio` is that of the median level, and `errors` has those of all runs.
    """

    def badness(run: Document) -> tuple[float, float]:
        return max((s["hole_ms"] for s in run["steps"]), default=0.0), -(run.get("mean_ratio") or 0.0)

    found = dict(sorted(runs, key=badness)[(len(runs) - 1) // 2]) | {"rounds": len(runs), "steps": []}
    for step in zip(*(r["steps"] for r in runs), strict=True):
        s: Document = {k: step[0][k] for k in ("begin_s", "end_s", "planes", "ideal_ratio", "paper")}
        s |= {k: middle([r[k] for r in step]) for k in ("level_ratio", "hole_ms")}
        s |= {"error_ratio": s["level_ratio"] / s["ideal_ratio"] - 1, "errors": [r["error_ratio"] for r in step]}
        found["steps"].append(s | {"most_hole_ms": max(r["hole_ms"] for r in step)})
    keys = ("mean_ratio", "last_used_after_ms", "loss_ratio")
    return found | {k: middle([r[k] for r in runs]) for k in keys if k in found}


def _bounds(d: Document) -> list[Document]:
    """Returns the bounds: every level is the capacity of the present planes, as a share of all; gaps are short."""
    if d["name"] == "12":
        words = f"figure {d['figure']}: mean goodput beside the fault-free, where {d['what']}"
        return [Bound(words, 1 - ERROR, "_ratio", is_least=True).judge(d["mean_ratio"])]
    if not d["steps"]:
        return []
    worst = max(abs(s["error_ratio"]) for s in d["steps"])
    longer = sum(not shorter(s["hole_ms"], s["paper"]) for s in d["steps"] if s["paper"])
    return [
        Bound(f"figure {d['figure']}: plateaus off (n−k)/n", ERROR, "_ratio").judge(worst),
        Bound(f"figure {d['figure']}: gaps longer than the paper's, or than its samples hide", 0, "").judge(longer),
    ]


def shorter(hole_ms: float, paper: Document) -> bool:
    """Returns whether a gap is shorter than the paper's at the same step, or than its samples can hide."""
    return bool(not hole_ms or hole_ms < (paper["hole_ms"] or paper["most_hidden_ms"]))


def _table(d: Document) -> Table:
    title = f"Figure {d['figure']}: {d['what']}; without a fault {d['usual_bits_per_s'] / 1e6:.0f} Mbit/s"
    rounds = f"medians of {d['rounds']} runs" if d["rounds"] > 1 else "one run"
    if "runs" in d:
        rows = [{k: r[k] for k in ("drop_ratio", "mean_bits_per_s", "mean_ratio", "paper_ratio")} for r in d["runs"]]
        return Table(title, rows)
    if not d["steps"]:
        keys = ("mean_ratio", "loss_ratio", "last_used_after_ms", "lost_on_ev", "lost_elsewhere")
        row = {k: d[k] for k in keys}
        return Table(f"{title}; {rounds}", [row | {"paper_mean_ratio": d["paper"]["mean_ratio"]}])
    rows = []
    for s in d["steps"]:
        p = s["paper"]
        row = {k: s[k] for k in ("planes", "ideal_ratio", "level_ratio", "error_ratio")}
        row |= {"paper_level_ratio": p and p["level_ratio"], "hole_ms": s["hole_ms"], "most_hole_ms": s["most_hole_ms"]}
        row |= {f"paper_{k}_ms": p[f"{k}_ms"] if p else "-" for k in ("hole", "most_hidden")}
        rows.append(row)
    notes = [
        "HOLE: longest run of bins of 10 ms below half of the lower neighbouring plateau; MOST HIDDEN: what the "
        "paper's samples can hide"
    ]
    return Table(f"{title}; {rounds}", rows, notes)


def _picture(found: Sequence[Document]) -> plot.Picture:
    words = f"one TCP flow, 16 EVs, 4 planes of {RATE_BITS_PER_S / 1e6:g} Mbit/s; beside its own goodput without faults"
    legend = ("mrcd, one TCP flow", "the paper's points (arXiv 2605.04333; MRC in hardware)", "ideal")
    panels = [_messages(d) if "runs" in d else _course(d) for d in found]
    return plot.Picture("The failure experiments of the MRC paper, with TCP over mrcd", words, panels, legend=legend)


def _course(d: Document) -> plot.Panel:
    """Returns the panel of a course over time."""
    usual = d["usual_bits_per_s"] or 1.0
    series = [plot.Series([(i * BIN_S, v / usual) for i, v in enumerate(d["bits_per_s"])], "ours", "steps")]
    if d["paper"]:
        series.append(plot.Series(d["paper"]["points"], "theirs", "dots"))
    words = f"longest gap {max(s['hole_ms'] for s in d['steps']):.0f} ms" if d["steps"] else percent(d["mean_ratio"])
    return plot.Panel(
        *(f"Figure {d['figure']}: {d['what']}", words, "time, s", "goodput, of fault-free", 0.0, d["seconds"], series),
        goals=[plot.Goal(s["begin_s"], s["end_s"], s["ideal_ratio"]) for s in d["steps"]],
        faults=[plot.Fault(f["begin_s"], f["end_s"], f["label"]) for f in d["faults"]],
    )


def _messages(d: Document) -> plot.Panel:
    """Returns the panel of goodput by message size."""
    series = []
    for run in d["runs"]:
        loss = f"{run['drop_ratio'] * 100:g} %"
        series.append(plot.Series(run["messages"], "ours", "joined", f"{loss} mrcd"))
        series.append(plot.Series(run["paper_points"], "theirs", "joined", f"{loss} paper"))
    sizes = [size for s in series for size, _ in s.points]
    x_label = "size of a message, MB (the paper's: a ring all-reduce of it)"
    return plot.Panel(
        *(f"Figure {d['figure']}: {d['what']}", "", x_label, "goodput, of fault-free", min(sizes), max(sizes), series),
        ticks=[(size, f"{size / 1e6:g}" if size < 1e9 else f"{size / 1e9:.0f} G") for size, _ in series[1].points],
    )


BENCH = Bench("paper", measure)
