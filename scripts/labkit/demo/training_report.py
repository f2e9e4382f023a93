# SPDX-License-Identifier: BSD-2-Clause
"""Reports both runs of the training job as one document of plain numbers, as tables and as a picture. Pure.

Units are in the names: `_s` are seconds since the run began, without the time between jobs; `_ms` durations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from labkit import plot
from labkit.cluster.attachment import ATTACHED, DETACHED
from labkit.cluster.fabric import Parameters
from labkit.cluster.observe import Document
from labkit.demo.report import promise, promised
from labkit.tables import duration, table
from labkit.traffic.job import BYTES, RANKS, Step

SCHEMA_VERSION = 2
MOST = 2.0  # a step with mrcd takes at most so many times the longest without a fault
WAY_WORDS = {ATTACHED: "with mrcd", DETACHED: "over the kernel's own SRv6, with mrcd detached and stopped"}
_S, _MS = 1_000_000_000, 1_000_000


@dataclass(frozen=True)
class Fault:
    """Something that breaks and heals. `drop` is a share of the packets; `down`: the link loses its carrier."""

    target: str  # the TARGET of `scripts/lab fail`
    words: str
    drop: float | None = None
    down: bool = False


@dataclass(frozen=True)
class Episode:
    """A fault, and the steps around it. Times are CLOCK_MONOTONIC ns."""

    fault: Fault
    begin_ns: int
    fail_ns: int
    heal_ns: int
    end_ns: int
    steps: tuple[Step, ...]  # that ended in the episode
    running_since_ns: int  # the beginning of the step that ran at the end
    dropped_skbs: int  # by the fault: a burst is one; 0 if the link was down
    ended: str | None = None  # why the job ended by itself

    @property
    def is_stuck(self) -> bool:
        """Returns whether the job has ended by itself, or no step has ended since the healing."""
        return self.ended is not None or self.running_since_ns < self.heal_ns

    @property
    def all_steps(self) -> list[Step]:
        """Returns the steps, and as the last one that without an end."""
        return [*self.steps, *([Step(self.running_since_ns, self.end_ns)] if self.is_stuck else [])]

    def between(self, begin_ns: int, end_ns: int) -> list[float]:
        """Returns the ms of the steps that ran in an interval."""
        return [s.ns / _MS for s in self.all_steps if s.end_ns > begin_ns and s.begin_ns < end_ns]


def build(runs: Mapping[str, Sequence[Episode]], twice: float, lab: Parameters) -> Document:
    """Returns the document. `runs`: way → its episodes. `twice`: the share of packets that mrcd sent on two paths."""
    ways = {way: _way(episodes) for way, episodes in runs.items()}
    longest_ms = ways[ATTACHED]["without_a_fault"]["longest_ms"]
    promises = []
    for f in ways[ATTACHED]["faults"]:
        kept = longest_ms is not None and not f["stuck"] and f["longest_ms"] <= MOST * longest_ms
        measured = f"{_longest(f)}; without a fault {_ms(longest_ms)}"
        words = f"no step takes more than {MOST:g} times the longest without a fault"
        promises.append(promise(f["what"], words, kept, measured))
    return {
        "schema_version": SCHEMA_VERSION,
        "ranks": RANKS,
        "step_bytes": BYTES,
        "lab": lab.as_json(),
        "ways": ways,
        "sent_twice_ratio": twice,
        "promises": promises,
    }


def _way(episodes: Sequence[Episode]) -> Document:
    without = [s.ns / _MS for e in episodes for s in e.steps if s.end_ns <= e.fail_ns]
    faults, steps, passed_ns = [], [], 0
    for e in episodes:
        offset_ns = passed_ns - e.begin_ns
        passed_ns += e.end_ns - e.begin_ns
        steps += [{"begin_s": (s.begin_ns + offset_ns) / _S, "ms": s.ns / _MS} for s in e.all_steps]
        faults.append(_fault(e, offset_ns))
    summary = {
        "steps": len(without),
        "median_ms": median(without) if without else None,
        "longest_ms": max(without, default=None),
    }
    return {"duration_s": passed_ns / _S, "without_a_fault": summary, "faults": faults, "steps": steps}


def _fault(episode: Episode, offset_ns: int) -> Document:
    since = episode.between(episode.fail_ns, episode.end_ns)
    return {
        "target": episode.fault.target,
        "what": episode.fault.words,
        "begin_s": (episode.fail_ns + offset_ns) / _S,
        "heal_s": (episode.heal_ns + offset_ns) / _S,
        "steps": sum(episode.fail_ns < s.end_ns <= episode.heal_ns for s in episode.steps),
        "median_ms": median(episode.between(episode.fail_ns, episode.heal_ns) or since),
        "longest_ms": max(since),
        "dropped_skbs": episode.dropped_skbs,
        "stuck": episode.is_stuck,
        "ended": episode.ended,
    }


def _ms(ms: float | None) -> str:
    return duration(None if ms is None else ms * _MS)


def _longest(measured: Document) -> str:
    return f"stuck, {_ms(measured['longest_ms'])} and no end" if measured.get("stuck") else _ms(measured["longest_ms"])


def summary(document: Document) -> list[str]:
    """Returns the measurements, and whether the requirement was met."""
    ways = {"mrcd": document["ways"][ATTACHED], "kernel": document["ways"][DETACHED]}
    none = [{"what": "none", "target": ""} | w["without_a_fault"] for w in ways.values()]
    rows = []
    for both in [none, *zip(*(w["faults"] for w in ways.values()), strict=True)]:
        row = {"fault": both[0]["what"], "target": both[0]["target"]}
        for name, f in zip(ways, both, strict=True):
            row |= {f"{name}:_steps": f["steps"], f"{name}:_median_ms": f["median_ms"], f"{name}:_longest": _longest(f)}
        rows.append(row)
    ended = [f"  {name}, {f['what']}: {f['ended']}" for name, w in ways.items() for f in w["faults"] if f["ended"]]
    return [
        f"{document['ranks']} gloo ranks, one per host, MTU {document['lab']['mtu']}; a step is an all-reduce of "
        f"{document['step_bytes'] / 1e6:g} MB",
        *table(rows),
        "STEPS and MEDIAN: while the fault was there. LONGEST: until the next fault.",
        *ended,
        f"With mrcd {document['sent_twice_ratio']:.2%} of the packets took two paths: the critical ones.",
        "",
        *promised(document),
    ]


def picture(document: Document) -> plot.Picture:
    """Returns a panel per run with the time of each step, both with the same axes."""
    return plot.Picture(
        title=f"Steps of a training job of {document['ranks']} ranks through five faults",
        subtitle=f"a step is a gloo all-reduce of {document['step_bytes'] / 1e6:g} MB over TCP, in the lab",
        legend=("a step takes", "", f"{MOST:g} times the longest step with mrcd and without a fault"),
        panels=[_panel(document, way) for way in (DETACHED, ATTACHED)],
    )


def _panel(document: Document, way: str) -> plot.Panel:
    run, longest_ms = document["ways"][way], document["ways"][ATTACHED]["without_a_fault"]["longest_ms"]
    seconds = max(w["duration_s"] for w in document["ways"].values())
    points = [(s["begin_s"], s["ms"]) for s in run["steps"]]
    points += [(run["duration_s"], ms) for _, ms in points[-1:]]
    without = run["without_a_fault"]
    return plot.Panel(
        title=f"{WAY_WORDS[way][0].upper()}{WAY_WORDS[way][1:]}",
        words=f"without a fault: median {_ms(without['median_ms'])}, longest {_ms(without['longest_ms'])}; "
        f"with the faults: longest {_ms(max(f['longest_ms'] for f in run['faults']))}",
        x_label="time, s",
        y_label="step, ms",
        begin=0.0,
        end=seconds,
        series=[plot.Series(points, "ours", "steps")],
        goals=[] if longest_ms is None else [plot.Goal(0.0, seconds, MOST * longest_ms)],
        faults=[
            plot.Fault(f["begin_s"], f["heal_s"], f["what"] + (": stuck" if f["stuck"] else "")) for f in run["faults"]
        ],
        log_y=(10.0, 20_000.0),
    )
