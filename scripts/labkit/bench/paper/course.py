# SPDX-License-Identifier: BSD-2-Clause
"""Records what one or several flows from h0 to h2 receive, in bins of 10 ms, under faults."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from labkit.bench import candidates
from labkit.bench.part import SOURCE, TARGET
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.fabric import Parameters
from labkit.cluster.observe import Document
from labkit.measure import goodput
from labkit.traffic.flow import Flow
from mrcd.errors import MachineError

BIN_NS = 10_000_000
BIN_S = BIN_NS / 1e9
FLOW = (SOURCE, TARGET)
_GOOD_WITHIN_S = 30.0
_FIRST_BYTE_NS = 10_000_000_000
_TURN_S = 0.02  # time of reading one of several flows
_ETHERNET_BYTES = 14  # a limited link counts them


class Flows:
    """A number of TCP flows side by side."""

    def __init__(self, lab: Lab, count: int) -> None:
        ends = candidates.overlay(lab, 4)
        self._flows = [Flow(lab, ends, BIN_NS) for _ in range(count)]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Flows":
        with contextlib.ExitStack() as stack:
            for flow in self._flows:
                stack.enter_context(flow)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def poll_until(self, monotonic_ns: int) -> None:
        """Reads the flows until then."""
        while (left := (monotonic_ns - time.monotonic_ns()) / 1e9) > 0:
            for flow in self._flows:
                flow.poll(left if len(self._flows) == 1 else min(_TURN_S, left) / len(self._flows))

    def first_bin_ns(self) -> int:
        """Returns the first bin with data. Raises MachineError if there is none soon."""
        end_ns = time.monotonic_ns() + _FIRST_BYTE_NS
        while not (bins := self.bins):
            if time.monotonic_ns() > end_ns:
                raise MachineError(f"nothing has arrived of the flow within {_FIRST_BYTE_NS / 1e9:.0f} s")
            self.poll_until(time.monotonic_ns() + BIN_NS)
        return min(bins)

    def finish(self) -> None:
        """Stops all flows, and reads them to their ends."""
        for flow in self._flows:
            flow.finish()

    @property
    def bins(self) -> dict[int, int]:
        """Returns the bytes of all flows per bin."""
        total: Counter[int] = Counter()
        for flow in self._flows:
            total.update(flow.bins)
        return dict(total)

    def facts(self) -> Document:
        """Returns the properties of the flows."""
        return {
            "count": len(self._flows),
            "congestion_control": self._flows[0].congestion_control,
            "mss_bytes": self._flows[0].mss_bytes,
            "retransmitted_segments": sum(f.retransmitted_segments for f in self._flows),
        }


@dataclass
class Course:
    """Running flows. Times in seconds since `begin`."""

    lab: Lab
    flows: Flows
    begin_ns: int
    spans: list[Document] = field(default_factory=list)  # the faults, with begin and end
    _broken: dict[str, Document] = field(default_factory=dict)

    def go_on_until(self, seconds: float) -> None:
        """Reads the flows until that time."""
        self.flows.poll_until(self.begin_ns + round(seconds * 1e9))

    def fail(self, target: str, label: str, *, drop: float | None = None, down: bool = False) -> float:
        """Makes a fault. Returns its time."""
        record = self.lab.fail(target, drop=drop, down=down)
        at = self._at(record)
        self._broken[target] = {"begin_s": at, "end_s": None, "target": target, "label": label, "what": record["what"]}
        self.spans.append(self._broken[target])
        return at

    def heal(self, target: str) -> tuple[float, Document]:
        """Heals a fault. Returns the time, and the fault's last counts."""
        record = self.lab.heal(target)[0]
        self._broken[target]["end_s"] = at = self._at(record)
        return at, record

    def _at(self, record: Document) -> float:
        return float(record["monotonic_ns"] - self.begin_ns) / 1e9


@contextlib.contextmanager
def run(lab: Lab, count: int, warm_up_s: float, seconds: float) -> Iterator[tuple[Course, Document]]:
    """A block with `count` running flows. Yields the course, and its document, which is filled in after the block.

    Time 0 is a whole bin after the flows had `warm_up_s` to start; or, if that is 0, the first bin
    with data. After the block the flows continue until `seconds` and stop, and faults are healed.
    """
    document: Document = {}
    with Flows(lab, count) as flows:
        start_ns = time.monotonic_ns()
        flows.poll_until(start_ns + round(warm_up_s * 1e9))
        now_ns = time.monotonic_ns()
        course = Course(lab, flows, now_ns - now_ns % BIN_NS if warm_up_s else flows.first_bin_ns())
        yield course, document
        course.go_on_until(seconds)
        flows.finish()
    lab.heal()
    begin_ns, bins = course.begin_ns, round(seconds / BIN_S)
    found = goodput.regular(flows.bins, begin_ns, begin_ns + bins * BIN_NS, BIN_NS)
    document |= {
        "seconds": seconds,
        "bin_s": BIN_S,
        "bits_per_s": [goodput.bits_per_s(n, BIN_NS) for n in found],
        "faults": [s | {"end_s": s["end_s"] if s["end_s"] is not None else seconds} for s in course.spans],
        "flows": flows.facts(),
    }


def up(lab: Lab, parameters: Parameters) -> None:
    """Brings up this lab, all its paths GOOD; a new one, since a path that flapped before has a longer hold-down."""
    quiet = Lab(lab.state.name, say=lambda _: None)
    quiet.down()
    quiet.up(**parameters.as_json())
    observe.wait_until_good(lab, lab.fabric.hosts, _GOOD_WITHIN_S)


def line_bits_per_s(parameters: Parameters, mss_bytes: int) -> float | None:
    """Returns the capacity of the planes for TCP's data, all headers counted; None if they are not limited. Pure."""
    rate = parameters.rate_bits_per_s
    return rate * parameters.planes * mss_bytes / (parameters.mtu + _ETHERNET_BYTES) if rate else None
