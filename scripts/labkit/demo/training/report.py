# SPDX-License-Identifier: BSD-2-Clause
"""Reports both runs as one document of plain numbers, which `--json` prints. Pure.

Units are in the names: `_s` are seconds since the run began, without the time between jobs; `_ms` durations.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from labkit.cluster.attachment import ATTACHED, DETACHED
from labkit.cluster.fabric import Parameters
from labkit.cluster.observe import Document
from labkit.demo.report import promise
from labkit.demo.text import milliseconds
from labkit.demo.training.record import Episode
from labkit.traffic.job import BYTES, RANKS, Step

SCHEMA_VERSION = 1
MOST = 2.0  # a step with mrcd takes at most so many times the longest without a fault
_S, _MS = 1_000_000_000, 1_000_000


@dataclass(frozen=True)
class _Course:
    """The steps of an episode; the last one may not have ended."""

    episode: Episode

    def between(self, begin_ns: int, end_ns: int) -> list[float]:
        """Returns the ms of the steps that ran in an interval; those of a step without an end are its ms so far."""
        unfinished = Step(self.episode.running_since_ns, self.episode.end_ns)
        steps = [*self.episode.steps, *([unfinished] if self.episode.is_stuck else [])]
        return [s.ns / _MS for s in steps if s.end_ns > begin_ns and s.begin_ns < end_ns]

    def without_fault(self) -> list[float]:
        """Returns the ms of the steps that ended before the fault."""
        return [s.ns / _MS for s in self.episode.steps if s.end_ns <= self.episode.fail_ns]

    def during(self) -> list[float]:
        """Returns the ms of the steps that ran while the fault was there."""
        return self.between(self.episode.fail_ns, self.episode.heal_ns)

    def since(self) -> list[float]:
        """Returns the ms of the steps that ran with the fault and after it."""
        return self.between(self.episode.fail_ns, self.episode.end_ns)


def build(runs: Mapping[str, Sequence[Episode]], lab: Parameters) -> Document:
    """Returns the document. `runs`: way → its episodes."""
    ways = [_way(way, episodes) for way, episodes in runs.items()]
    return {
        "schema_version": SCHEMA_VERSION,
        "ranks": RANKS,
        "step_bytes": BYTES,
        "lab": lab.as_json(),
        "ways": ways,
        "promises": [p for way in ways if way["way"] == ATTACHED for p in _promises(way)],
    }


def of(document: Document, way: str) -> Document:
    """Returns the part of the document with one run."""
    found: Document = next(w for w in document["ways"] if w["way"] == way)
    return found


def _way(way: str, episodes: Sequence[Episode]) -> Document:
    without = [ms for episode in episodes for ms in _Course(episode).without_fault()]
    offsets = [
        sum(s.end_ns - s.begin_ns for s in episodes[:n]) - episode.begin_ns for n, episode in enumerate(episodes)
    ]
    placed = list(zip(episodes, offsets, strict=True))
    return {
        "way": way,
        "duration_s": sum(s.end_ns - s.begin_ns for s in episodes) / _S,
        "without_a_fault": {
            "steps": len(without),
            "median_ms": median(without) if without else None,
            "longest_ms": max(without, default=None),
        },
        "faults": [_fault(episode, offset) for episode, offset in placed],
        "steps": [step for episode, offset in placed for step in _steps(episode, offset)],
    }


def _fault(episode: Episode, offset_ns: int) -> Document:
    course = _Course(episode)
    return {
        "target": episode.fault.target,
        "what": episode.fault.words,
        "begin_s": (episode.fail_ns + offset_ns) / _S,
        "heal_s": (episode.heal_ns + offset_ns) / _S,
        "end_s": (episode.end_ns + offset_ns) / _S,
        "steps": sum(episode.fail_ns < s.end_ns <= episode.heal_ns for s in episode.steps),
        "median_ms": median(course.during() or course.since()),
        "longest_ms": max(course.since()),
        "dropped_skbs": episode.dropped_skbs,
        "stuck": episode.is_stuck,
        "ended": episode.ended,
    }


def _steps(episode: Episode, offset_ns: int) -> Iterable[Document]:
    for step in episode.steps:
        yield {"begin_s": (step.begin_ns + offset_ns) / _S, "ms": step.ns / _MS}
    if episode.is_stuck:
        running_ms = (episode.end_ns - episode.running_since_ns) / _MS
        yield {"begin_s": (episode.running_since_ns + offset_ns) / _S, "ms": running_ms}


def _promises(way: Document) -> Iterable[Document]:
    longest = way["without_a_fault"]["longest_ms"]
    words = f"no step takes more than {MOST:g} times the longest without a fault"
    for f in way["faults"]:
        kept = longest is not None and not f["stuck"] and f["longest_ms"] <= MOST * longest
        measured = f"{longest_words(f)}; without a fault {milliseconds(longest)}"
        yield promise(f["what"], words, kept, measured)


def longest_words(fault: Document) -> str:
    """Returns the longest step of a fault in words."""
    if fault["stuck"]:
        return f"stuck, {milliseconds(fault['longest_ms'])} and no end"
    return milliseconds(fault["longest_ms"])


WAY_WORDS = {ATTACHED: "with mrcd", DETACHED: "the kernel's SRv6"}
