# SPDX-License-Identifier: BSD-2-Clause
"""Runs the part: the experiments alternately, in labs of 4 planes × 4 T1s with limited links."""

from collections.abc import Callable
from dataclasses import dataclass

from labkit.bench.paper import course, lossy, medians, planes, report
from labkit.bench.part import Options, Part, requirement
from labkit.cluster.api import Lab
from labkit.cluster.fabric import Parameters
from labkit.cluster.observe import Document
from labkit.entry import progress
from mrcd.errors import MachineError

RATE_BITS_PER_S = 200_000_000  # rate of every link
ERROR = 0.02
ROUNDS = 5


@dataclass(frozen=True)
class Experiment:
    """An experiment, run `full` or in less time, and the number of runs: in the short form, and in the full one."""

    run: Callable[[Lab, int, bool], Document]  # flows, full
    short: int
    full: int = ROUNDS


EXPERIMENTS: dict[str, Experiment] = {
    "19b": Experiment(lambda lab, flows, full: planes.removed(lab, flows, full=full, silent=False), ROUNDS),
    "9b": Experiment(planes.flapped, ROUNDS),
    "12": Experiment(lossy.one_ev, 3),
    "16": Experiment(lossy.random_loss, 1, 1),
    "19b-silent": Experiment(lambda lab, flows, full: planes.removed(lab, flows, full=full, silent=True), 0, 1),
    "9b-worst": Experiment(planes.worst_flapping, 0, 1),
}


def measure(lab: Lab, options: Options) -> Document:
    """Runs the chosen experiments alternately. One that fails does not discard the others' results."""
    parameters = Parameters(rate_bits_per_s=RATE_BITS_PER_S)
    wanted = {name: number_of_runs(name, options) for name in EXPERIMENTS}
    runs: dict[str, list[Document]] = {name: [] for name, number in wanted.items() if number}
    failed: list[Document] = []
    for number in range(max(wanted.values())):
        for name in [n for n in runs if number < wanted[n]]:
            progress(f"paper: figure {name}, run {number + 1} of {wanted[name]}")
            try:
                course.up(lab, parameters)
                runs[name].append(EXPERIMENTS[name].run(lab, options.flows, options.full))
            except MachineError as e:  # keeps the others' results
                progress(f"  {name} failed: {e}")
                failed.append({"name": name, "why": str(e)})
    found = [{"name": name, **medians.combined(of_one)} for name, of_one in runs.items() if of_one]
    mss = next((f["mss_bytes"] for d in found for f in _flows(d)), 0)
    document = {
        "lab": parameters.as_json(),
        "bin_ms": course.BIN_NS / 1e6,
        "flows": options.flows,
        "line_bits_per_s": course.line_bits_per_s(parameters, mss),
        "experiments": found,
        "failed": failed,
    }
    return document | {"requirements": requirements(document)}


def number_of_runs(name: str, options: Options) -> int:
    """Returns the number of runs of an experiment; 0: not chosen. Pure."""
    e = EXPERIMENTS[name]
    if options.figures and name not in options.figures:
        return 0
    usual = e.full if options.full else e.short
    return options.pairs or usual or 1 if options.figures or usual else 0


def _flows(experiment: Document) -> list[Document]:
    return [d["flows"] for d in experiment.get("runs", [experiment])]


def requirements(document: Document) -> list[Document]:
    """Returns the requirements of the experiments that ran. Pure."""
    found = [requirement(f"figure {f['name']} can be measured", False, f["why"]) for f in document["failed"]]
    for d in document["experiments"]:
        if d["steps"]:
            found += [plateaus_required(d), holes_required(d)]
        elif d["name"] == "12":
            ratio = d["mean_ratio"] or 0.0
            words = f"figure {d['figure']}: the mean goodput stays within {ERROR:.0%} where {d['what']}"
            each = "–".join(f"{m:.1%}" for m in _range([r["mean_ratio"] or 0.0 for r in d["each"]]))
            found.append(requirement(words, ratio >= 1 - ERROR, f"{ratio:.1%} of the fault-free ({each})"))
    return found


def plateaus_required(d: Document) -> Document:
    """Returns the requirement that every level is the capacity of the present planes, as a share of all. Pure."""
    worst = max(d["steps"], key=lambda s: abs(float(s["error_ratio"])))
    levels = ", ".join(f"{s['level_ratio']:.1%}" for s in d["steps"])
    single = max((e for s in d["steps"] for e in s["errors"]), key=abs)
    return requirement(
        f"figure {d['figure']}: each plateau within {ERROR:.0%} of (n−k)/n",
        abs(worst["error_ratio"]) <= ERROR,
        f"{levels}; worst {worst['error_ratio']:+.1%} at {worst['planes']} planes; {_of(d)}, of which the worst "
        f"{single:+.1%}",
    )


def holes_required(d: Document) -> Document:
    """Returns the requirement that each gap is shorter than the paper's, or than its samples hide (plateaus.papers)."""
    known = [s for s in d["steps"] if s["paper"]]
    said = "; ".join(
        f"{_range_ms(s)} (paper: {_theirs(s['paper'])})" for s in known if s["hole_ms"] or s["paper"]["hole_ms"]
    )
    return requirement(
        f"figure {d['figure']}: gaps shorter than the paper's, or than its samples can hide",
        all(shorter(s) for s in known),
        f"{said or 'none'}; {_of(d)}; at the paper's sampling of {d['paper']['sample_s'] * 1000:.0f} ms never below "
        f"{min(s['lowest_sample_ratio'] for s in d['steps']):.0%} of the lower plateau",
    )


def shorter(step: Document) -> bool:
    """Returns whether this gap is shorter than the paper's at the same step, or than its samples can hide."""
    theirs = step["paper"]
    return bool(step["hole_ms"] < (theirs["hole_ms"] or theirs["most_hidden_ms"]) or not step["hole_ms"])


def _theirs(paper: Document) -> str:
    if paper["hole_ms"]:
        return f"{paper['hole_ms']:.0f} ms"
    return f"none seen, {paper['most_hidden_ms']:.0f} ms can be hidden"


def _range_ms(step: Document) -> str:
    low, high = _range(step["holes_ms"])
    return f"{step['planes']} planes {step['hole_ms']:.0f} ms" + (f" ({low:.0f}–{high:.0f})" if high > low else "")


def _range(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def _of(d: Document) -> str:
    return f"medians of {d['rounds']} runs" if d["rounds"] > 1 else "one run"


PART = Part("paper", measure, report.lines, report.picture)
