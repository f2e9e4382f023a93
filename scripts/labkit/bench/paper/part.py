"""The part: one lab of 4 planes × 4 T1s with limited links; each experiment in it."""

from collections.abc import Callable

from labkit.api import Lab
from labkit.bench.paper import course, lossy, picture, planes, text
from labkit.bench.part import Options, Part, requirement
from labkit.entry import progress
from labkit.fabric import Parameters
from labkit.observe import Document
from mrcd.errors import MachineError

RATE_BITS_PER_S = 200_000_000  # of every link
ERROR = 0.02
EXPERIMENTS: dict[str, Callable[[Lab, int], Document]] = {
    "19b": lambda lab, flows: planes.removed(lab, flows, silent=False),
    "19b-silent": lambda lab, flows: planes.removed(lab, flows, silent=True),
    "9b": planes.flapped,
    "9b-worst": planes.worst_flapping,
    "12": lossy.one_ev,
    "16": lossy.random_loss,
}


def measure(lab: Lab, options: Options) -> Document:
    """The experiments that are wanted. One that fails does not take the others' results with it."""
    parameters = Parameters(rate_bits_per_s=RATE_BITS_PER_S)
    found: list[Document] = []
    failed: list[Document] = []
    chosen = [n for n in EXPERIMENTS if not options.figures or n in options.figures]
    for n, name in enumerate(chosen):
        progress(f"paper: figure {name}, {n + 1} of {len(chosen)}")
        try:
            course.up(lab, parameters)
            found.append({"name": name, **EXPERIMENTS[name](lab, options.flows)})
        except MachineError as e:  # the others' results are worth having
            progress(f"  {name} failed: {e}")
            failed.append({"name": name, "why": str(e)})
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


def _flows(experiment: Document) -> list[Document]:
    return [d["flows"] for d in experiment.get("runs", [experiment])]


def requirements(document: Document) -> list[Document]:
    """What is required of the experiments that ran. Pure."""
    found = [requirement(f"figure {f['name']} can be measured", False, f["why"]) for f in document["failed"]]
    for d in document["experiments"]:
        if d["steps"]:
            found += [plateaus_required(d), holes_required(d)]
        elif d["name"] == "12":
            ratio = d["mean_ratio"] or 0.0
            words = f"figure {d['figure']}: the mean goodput stays within {ERROR:.0%} where {d['what']}"
            found.append(requirement(words, ratio >= 1 - ERROR, f"{ratio:.1%} of the fault-free"))
    return found


def plateaus_required(d: Document) -> Document:
    """Is every level what the planes that are there can carry, as a share of all?"""
    worst = max(d["steps"], key=lambda s: abs(float(s["error_ratio"])))
    levels = ", ".join(f"{s['level_ratio']:.1%}" for s in d["steps"])
    return requirement(
        f"figure {d['figure']}: each plateau within {ERROR:.0%} of (n−k)/n",
        abs(worst["error_ratio"]) <= ERROR,
        f"{levels}; worst {worst['error_ratio']:+.1%} at {worst['planes']} planes",
    )


def holes_required(d: Document) -> Document:
    """Is every hole shorter than the paper's? Where the paper's samples show none, none may be seen so coarsely."""
    bad = [s for s in d["steps"] if s["paper"] and not shorter(s)]
    longest = max(d["steps"], key=lambda s: float(s["hole_ms"]))
    theirs = max((s["paper"]["hole_ms"] for s in d["steps"] if s["paper"]), default=0.0)
    lowest = min(s["lowest_sample_ratio"] for s in d["steps"])
    return requirement(
        f"figure {d['figure']}: holes shorter than the paper's; where it has none, none at its sampling",
        not bad,
        f"longest {longest['hole_ms']:.0f} ms at {longest['planes']} planes (paper: {theirs:.0f} ms); at its sampling "
        f"of {d['paper']['sample_s'] * 1000:.0f} ms never below {lowest:.0%} of the lower plateau",
    )


def shorter(step: Document) -> bool:
    """Is this hole shorter than the paper's at the same step?"""
    theirs = step["paper"]["hole_ms"]
    return bool(step["hole_ms"] < theirs if theirs else step["lowest_sample_ratio"] >= 0.5)


PART = Part("paper", measure, text.lines, picture.picture)
