# SPDX-License-Identifier: BSD-2-Clause
"""Runs a TCP flow and two faults at their times, shows them, and records what happens."""

import functools
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.text import Text

from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.cluster.patience import patience
from labkit.demo import live
from labkit.demo.live import STYLES, View, row
from labkit.measure.goodput import BIN_NS, WIDE_NS, bits_per_s, regular
from labkit.tables import rate
from labkit.traffic.flow import Ends, Flow

DURATION_S = patience(22.0)
# The spread over the EVs is measured without a fault, after TCP's start.
SPREAD_S = (patience(1.0), patience(3.9))
_LETTERS = {"GOOD": "G", "SKIP": "s", "ASSUMED_BAD": "X", "DENIED": "D", "UNKNOWN": "?"}
_ROWS = 6  # the board has 23 lines; a terminal has 24
_S = 1_000_000_000


class Fault(NamedTuple):
    """A T1 that forwards nothing, or a host's link to a plane that loses its carrier."""

    words: str
    begin_s: float
    heal_s: float
    plane: int
    t1: int | None = None
    host: str | None = None

    @property
    def target(self) -> str:
        """Returns the TARGET of `scripts/lab fail`."""
        return f"t1:{self.plane}:{self.t1}" if self.host is None else f"nic:{self.host}:{self.plane}"

    def hits(self, path: Document) -> bool:
        """Returns whether a path, with its `host`, crosses the broken place."""
        crosses = path["t1"] == self.t1 if self.host is None else self.host in (path["host"], path["peer"])
        return bool(path["plane"] == self.plane and crosses)


FAULTS = (
    Fault("T1 2 of plane 1 is a silent black hole", patience(4.0), patience(14.0), plane=1, t1=2),
    Fault("h0's link to plane 3 is cut", patience(9.0), patience(16.5), plane=3, host="h0"),
)


@dataclass
class Recording:
    """The facts of one demo. Times are CLOCK_MONOTONIC ns; paths and events have their `host`."""

    ends: Ends
    flow: Flow
    begin_ns: int
    paths: list[Document]  # of all hosts, at the beginning
    end_ns: int = 0
    failed_ns: dict[Fault, int] = field(default_factory=dict)
    healed_ns: dict[Fault, int] = field(default_factory=dict)
    counted: list[tuple[int, list[Document]]] = field(default_factory=list)  # time, and the source's paths
    events: list[Document] = field(default_factory=list)  # of EVs

    def seconds(self, monotonic_ns: int) -> float:
        """Returns the seconds since the beginning."""
        return (monotonic_ns - self.begin_ns) / _S

    def of_flow(self, paths: Sequence[Document], *, back: bool = False) -> list[Document]:
        """Returns the paths of the flow, or of its acknowledgements."""
        ends = (self.ends.target, self.ends.source) if back else (self.ends.source, self.ends.target)
        return [p for p in paths if (p["host"], p["peer"]) == ends]


def record(lab: Lab, ends: Ends, view: View) -> Recording:
    """Runs the flow with all faults. Returns the recording."""
    hosts = lab.fabric.hosts
    paths = [p | {"host": h} for h in hosts for p in observe.paths(lab, h)]
    with Flow(lab, ends) as flow:
        now_ns = time.monotonic_ns()
        seen = Recording(ends, flow, now_ns - now_ns % BIN_NS, paths)
        _Stage(lab, seen, view).play()
        flow.finish()
    events = (e | {"host": h} for h in hosts for e in observe.events(lab, h))
    seen.events = [e for e in events if e["kind"] == "ev" and e["monotonic_ns"] >= seen.begin_ns]
    return seen


class _Stage:
    """Makes and heals the faults when they are due, and updates the view in between."""

    def __init__(self, lab: Lab, seen: Recording, view: View) -> None:
        self._lab, self._seen, self._view = lab, seen, view
        self._last_event = max((e["id"] for e in observe.events(lab, seen.ends.source)), default=0)

    def play(self) -> None:
        """Runs the timeline."""
        steps: list[tuple[float, Callable[[], None]]] = [(s, self._count) for s in SPREAD_S]
        for fault in FAULTS:
            steps.append((fault.begin_s, functools.partial(self._fail, fault)))
            steps.append((fault.heal_s, functools.partial(self._heal, fault)))
        for seconds, step in [*sorted(steps, key=lambda s: s[0]), (DURATION_S, self._end)]:
            self._view.until(self._seen.begin_ns / _S + seconds, self._seen.flow.poll, self._look)
            step()

    def _fail(self, fault: Fault) -> None:
        at_ns = self._seen.failed_ns[fault] = self._lab.fail(fault.target, down=fault.host is not None)["monotonic_ns"]
        self._view.note(self._seen.seconds(at_ns), f"fault: {fault.words}", "fault")

    def _heal(self, fault: Fault) -> None:
        at_ns = self._seen.healed_ns[fault] = self._lab.heal(fault.target)[0]["monotonic_ns"]
        self._view.note(self._seen.seconds(at_ns), f"healed: {fault.target}", "heal")

    def _count(self) -> None:
        self._seen.counted.append((time.monotonic_ns(), self._paths()))

    def _end(self) -> None:
        self._seen.end_ns = time.monotonic_ns()
        self._look()

    def _paths(self) -> list[Document]:
        return observe.paths(self._lab, self._seen.ends.source, self._seen.ends.target)

    def _look(self) -> None:
        new = observe.events(self._lab, self._seen.ends.source, self._last_event)
        self._last_event = max((e["id"] for e in new), default=self._last_event)
        told = (e for e in new if e["peer"] in (self._seen.ends.target, None))
        for (_, _, _, state, _), same in itertools.groupby(told, _kind):
            events = list(same)
            self._view.note(self._seen.seconds(events[0]["monotonic_ns"]), _sentence(events), str(state))
        now_ns, paths = time.monotonic_ns(), self._paths()
        planes: dict[int, list[Document]] = {}
        for p in paths:
            planes.setdefault(p["plane"], []).append(p)
        last = self._goodput(WIDE_NS, now_ns)[-10:]
        states = "  ".join(f"plane {n} {''.join(_LETTERS[p['state']] for p in ps)}" for n, ps in sorted(planes.items()))
        line = f"{sum(last) / len(last) / 1e9 if last else 0.0:5.1f} Gbit/s  {states}"
        broken = live.faults([f"{f.words} ({f.target})" for f in self._seen.failed_ns if f not in self._seen.healed_ns])
        board = [*self._chart(last, now_ns), Text(), *_grid(planes), Text(), broken]
        self._view.show(self._seen.seconds(now_ns), line, board)

    def _goodput(self, width_ns: int, end_ns: int) -> list[float]:
        """Returns bit/s per bin."""
        return [bits_per_s(n, width_ns) for n in regular(self._seen.flow.bins, self._seen.begin_ns, end_ns, width_ns)]

    def _chart(self, last: Sequence[float], now_ns: int) -> list[Text]:
        """Returns the goodput of the whole recording; the part that is still to come is empty."""
        # A whole number of bins per column, so that all columns cover the same time.
        values = self._goodput(math.ceil(DURATION_S / self._view.columns * _S / BIN_NS) * BIN_NS, now_ns)
        top = max([*values, 1.0])
        now = (rate(last[-1] if last else 0.0), "bold")
        retransmitted = f"   {self._seen.flow.retransmitted_segments} segments retransmitted"
        return [*live.chart(values, top, {0: rate(top)}, _ROWS), row("now", now, (retransmitted, "dim"))]


def _kind(event: Document) -> tuple[str | None, ...]:
    """Returns the key by which successive events are joined into one sentence."""
    return tuple(event[k] for k in ("kind", "peer", "plane", "to", "reason"))


def _sentence(events: Sequence[Document]) -> str:
    """Returns a sentence for events of one kind; the evidence is that of the first."""
    e = events[0]
    evidence = ", ".join(f"{k} {v}" for k, v in e["evidence"].items())
    why = e["reason"] + (f" ({evidence})" if evidence else "")
    where = f"plane {e['plane']}" if e["plane"] is not None else f"peer {e['peer']}"
    if e["kind"] == "ev":
        where = f"EVs {', '.join(str(x['ev']) for x in events)} to {e['peer']} ({where})"
    return f"{where}: {e['to'] or 'changed'}, {why}"


def _grid(planes: dict[int, list[Document]]) -> list[Text]:
    """Returns a line per plane with a cell per T1; an empty square carries no traffic."""
    width = max((len(paths) for paths in planes.values()), default=0)
    lines = [row("", ("".join(f"T1 {n:<11}" for n in range(width)), "dim"))]
    for plane, paths in sorted(planes.items()):
        cells = [(f"{'■' if p['usable'] else '□'} {p['state']:<12}", STYLES[p["state"]]) for p in paths]
        lines.append(row(f"plane {plane}", *cells))
    return lines
