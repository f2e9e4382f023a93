# SPDX-License-Identifier: BSD-2-Clause
"""Runs several parts, one after the other: one document, one table of all bounds, a picture for each part."""

import time
from collections.abc import Sequence
from pathlib import Path

from labkit.bench import cpu
from labkit.bench.part import Options, Part
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress, save
from mrcd.ctl.terminal.render import Column, table
from mrcd.errors import MrcdError, UsageError

_STOLEN = 0.005  # smaller shares are not reported


def measure(lab: Lab, parts: Sequence[Part], options: Options) -> tuple[Document, list[Document]]:
    """Returns part → its document, and the parts that could not be measured with the reason.

    A document has the seconds that the part took, and the share of CPU time that the hypervisor stole meanwhile.
    A part that cannot be measured does not discard the others' results. Its error is raised if it is the only part,
    or if its options are wrong and nothing was measured yet.
    """
    found: Document = {}
    failed: list[Document] = []
    for part in parts:
        begun, used = time.monotonic(), cpu.read()
        try:
            found[part.name] = part.measure(lab, options)
        except (MrcdError, OSError) as e:
            if len(parts) == 1 or (isinstance(e, UsageError) and not found):
                raise
            progress(f"{part.name} cannot be measured: {e}")
            failed.append({"part": part.name, "why": str(e)})
            continue
        took, stolen = time.monotonic() - begun, cpu.read().since(used).stolen_ratio
        found[part.name] |= {"taken_s": took, "stolen_ratio": stolen}
        progress(f"{part.name} took {took:.0f} s")
    return found, failed


def bounds(found: Document, failed: Sequence[Document]) -> list[Document]:
    """Returns the requirements of all parts, and whether they were met; a failed part meets none. Pure."""
    measured = [{"part": name, **r} for name, d in found.items() for r in d["requirements"]]
    missing = [
        {"part": f["part"], "requirement": f"{f['part']} can be measured", "met": False, "measured": f["why"]}
        for f in failed
    ]
    return measured + missing


def draw(parts: Sequence[Part], found: Document, directory: Path) -> list[Path]:
    """Writes the pictures of the parts that have one. Raises MachineError."""
    paths = []
    for part in parts:
        if part.picture and part.name in found:
            paths.append(directory / f"{part.name}.svg")
            save(paths[-1], part.picture(found[part.name]))
    return paths


def lines(document: Document, parts: Sequence[Part]) -> list[str]:
    """Returns every part's tables, then that of all bounds. Pure."""
    machine = document["machine"]
    said = [
        f"{machine['cpus']} CPUs, kernel {machine['kernel']}, {machine['busy_ratio_before']:.0%} busy before the start",
        machine["idle"],
    ]
    for part in parts:
        if part.name in document["parts"]:
            said += ["", *part.lines(document["parts"][part.name])]
    return [*said, "", *_bounds(document), *_stolen(document["parts"])]


def _stolen(parts: Document) -> list[str]:
    """Returns a line on the steal time of the parts, if there was any."""
    shares = {name: part["stolen_ratio"] for name, part in parts.items()}
    if max(shares.values(), default=0.0) < _STOLEN:
        return []
    return ["the hypervisor kept CPU time for others: " + ", ".join(f"{n} {s:.1%}" for n, s in shares.items())]


def _bounds(document: Document) -> list[str]:
    found = document["bounds"]
    rows = [
        ["met" if b["met"] else "NOT MET", b["part"], b["requirement"], " ".join(b["measured"].split())] for b in found
    ]
    columns = [Column(""), Column("PART"), Column("BOUND"), Column("MEASURED")]
    minutes = f"{document['taken_s'] / 60:.1f} minutes"
    if not found:
        return [f"nothing is required of this; {minutes}"]
    met = sum(b["met"] for b in found)
    return [*table(columns, rows, colour=False), f"{met} of {len(found)} bounds met; {minutes}"]
