# SPDX-License-Identifier: BSD-2-Clause
"""Measures bad days of a host (bad_days.py): what pings lose, what `mrcctl status` names, and when."""

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from labkit.bench.bad_days import DAYS, FABRIC, Day, Step
from labkit.bench.frame import Bench, Bound, Options, Result, Table
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.traffic.candidates import SOURCE
from mrcd.errors import MachineError, MrcdError

GAP_MS = 100
_APART_MS = 2  # between two pings
_LOOK_S = 0.05
_WELL_WITHIN_S = 60.0
_SHORT = 3  # days


@dataclass
class Pinged:
    """The pings of a block: how many were not answered, and how long the longest gap was, to the end."""

    lost: int = 0
    gap_ms: int = 0


@contextmanager
def _pings(lab: Lab, peer: str) -> Iterator[Pinged]:
    """A block in which SOURCE pings a peer with packets of 1,600 bytes."""
    found = Pinged()
    with tempfile.TemporaryFile("w+") as out:
        argv = ["ping", "-n", "-i", f"{_APART_MS / 1000}", "-s", "1600", peer]
        process = lab.popen(SOURCE, argv, stdout=out, stderr=subprocess.STDOUT)
        try:
            time.sleep(0.3)
            yield found
            time.sleep(0.3)
        finally:
            process.send_signal(2)
            process.wait(10)
        said = Path(f"/proc/self/fd/{out.fileno()}").read_text(encoding="utf-8", errors="replace")
    answered = sorted({int(n) for n in re.findall(r"bytes from .* icmp_seq=(\d+)", said)})
    sent = re.findall(r"(\d+) packets transmitted", said)
    if not sent:
        raise MachineError(f"ping ended: {said[-200:]}")
    # ping does not wait for the answer to the last one
    gaps = [after - before - 1 for before, after in pairwise([0, *answered, max(int(sent[0]), *answered, 0)])]
    found.lost, found.gap_ms = sum(n for n in gaps if n > 0), max(gaps) * _APART_MS


@dataclass
class Told:
    """The causes that status has named, with the seconds until it did."""

    causes: dict[str, float] = field(default_factory=dict)
    is_answered: bool = False  # the newest question

    def look(self, lab: Lab, began: float) -> None:
        """Asks once; a daemon that does not answer tells nothing."""
        try:
            document = observe.client(lab, SOURCE).get("/v1/status")
        except MrcdError:
            self.is_answered = False
            return
        self.is_answered = True
        for cause in document["diagnosis"]:
            self.causes.setdefault(cause["cause"], time.monotonic() - began)


def _do(lab: Lab, steps: Sequence[Step]) -> None:
    for step in steps:
        if callable(step):
            step(lab)
        else:
            lab.exec(SOURCE, ["sh", "-c", step], check=True)


def _wrong(lab: Lab) -> str:
    """Returns what is not well; "" if all is."""
    try:
        causes = observe.client(lab, SOURCE).get("/v1/status")["diagnosis"]
        bad = [f"{p['peer']} EV {p['ev']} {p['state']}" for p in observe.paths(lab, SOURCE) if p["state"] != "GOOD"]
    except MrcdError as e:
        return str(e.args[0])
    return "; ".join([*(c["sentence"] for c in causes), *bad[:3]])


def _wait_until_well(lab: Lab) -> None:
    end = time.monotonic() + _WELL_WITHIN_S
    while wrong := _wrong(lab):
        if time.monotonic() > end:
            raise MachineError(f"not well within {_WELL_WITHIN_S:.0f} s: {wrong}")
        time.sleep(_LOOK_S)


def _spend(lab: Lab, day: Day) -> Document:
    _wait_until_well(lab)
    told = Told()
    try:
        with _pings(lab, day.peer) as pinged:
            began = time.monotonic()
            _do(lab, day.break_)
            told.look(lab, began)
            while time.monotonic() - began < day.lasts_s:
                time.sleep(_LOOK_S)
                told.look(lab, began)
    finally:
        _do(lab, day.mend)
    named, expected = set(told.causes).difference(day.may_name), {day.cause} - {""}
    is_repaired = day.cuts_off or pinged.gap_ms <= GAP_MS
    row = {
        "day": day.name,
        "lost": pinged.lost,
        "gap_ms": pinged.gap_ms,
        "wanted": day.cause or "nothing",
        "named": ", ".join(told.causes) or "nothing",
        "after_s": round(told.causes[day.cause], 2) if day.cause in told.causes else None,
        "right": "yes" if named == expected and is_repaired and told.is_answered else "NO",
    }
    progress(f"  {row['day']}: gap {row['gap_ms']} ms, named {row['named']}: {row['right']}")
    return row


def measure(lab: Lab, options: Options) -> Result:
    """Spends the days one after the other, or those with the words of --only."""
    lab.up(**FABRIC)
    observe.wait_until_good(lab, lab.fabric.hosts)
    days = [d for d in DAYS if not options.only or options.short or all(word in d.name for word in options.only)]
    rows = []
    for number, day in enumerate(days[: _SHORT if options.short else None]):
        progress(f"host: day {number + 1} of {len(days)}: {day.name}")
        rows.append(_spend(lab, day))
    title = f"Bad days of a host: pings each {_APART_MS} ms to a peer, and what status names"
    notes = [f"RIGHT: status names what is wanted and nothing else, and no gap is longer than {GAP_MS} ms"]
    notes.append("(but where another program's route or rule cuts the peer off: mrcd deletes nothing of others)")
    notes.append("LOST, GAP: without pings that the kernel did not take, as where a program swallows what leaves mrc0")
    wrong = sum(row["right"] != "yes" for row in rows)
    return Result([Table(title, rows, notes)], [Bound("days that are not right", 0, "").judge(wrong)])


BENCH = Bench("host", measure)
