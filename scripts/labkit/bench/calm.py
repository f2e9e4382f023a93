"""False demotions: a TCP flow without a fault, while every CPU has more to do than it can. No EV may leave GOOD."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from labkit import goodput, observe
from labkit.api import Lab
from labkit.bench import candidates
from labkit.bench.part import Options, Part, requirement
from labkit.entry import progress
from labkit.flow import Flow
from labkit.observe import Document

_BUSY = "while True: pass"
_STEP_S = 10.0


@contextlib.contextmanager
def _busy_cpus() -> Iterator[int]:
    """As many endless loops as there are CPUs."""
    loops = [subprocess.Popen([sys.executable, "-I", "-c", _BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        yield len(loops)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(lab: Lab, options: Options) -> Document:
    """A flow of `options.minutes`; counts every transition in every host."""
    lab.up()
    observe.wait_until_good(lab, lab.fabric.hosts)
    first = {h: (observe.events(lab, h) or [{"id": 0}])[-1]["id"] for h in lab.fabric.hosts}
    with _busy_cpus() as loops, Flow(lab, candidates.overlay(lab, 4)) as flow:
        left = options.minutes * 60
        while left > 0:
            progress(f"calm: {left:.0f} s to go, {loops} busy loops")
            flow.poll(min(_STEP_S, left))
            left -= _STEP_S
        flow.finish()
    found = [e | {"host": h} for h, after in first.items() for e in observe.events(lab, h, after) if e["kind"] == "ev"]
    rate = goodput.mean(flow.bins, min(flow.bins), max(flow.bins)) or 0.0
    met = requirement("no EV leaves GOOD without a fault", not found, f"{len(found)} transitions")
    return {
        "minutes": options.minutes,
        "busy_loops": loops,
        "hosts": len(first),
        "bits_per_s": rate,
        "transitions": found,
        "requirements": [met],
    }


def lines(document: Document) -> list[str]:
    """A sentence, and whatever happened."""
    text = (
        f"Calm: {document['minutes']:g} minutes of one TCP flow at {document['bits_per_s'] / 1e9:.1f} Gbit/s beside "
        f"{document['busy_loops']} busy loops; {len(document['transitions'])} transitions in {document['hosts']} hosts"
    )
    return [
        text,
        *(f"  {e['host']} {e['peer']}/{e['ev']} {e['to']} {e['reason']}" for e in document["transitions"][:10]),
    ]


PART = Part("calm", measure, lines)
