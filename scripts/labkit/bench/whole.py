"""Several parts, one after the other: one document, one table of all bounds, a picture for each part."""

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

_STOLEN = 0.005  # less is not worth a word


def measure(lab: Lab, parts: Sequence[Part], options: Options) -> tuple[Document, list[Document]]:
    """Part → its document, with the seconds it took and the share of the CPUs' time that the hypervisor kept meanwhile;
    and the parts that could not be measured, with why.

    One part that cannot be measured does not take the others' results with it; if it is the only one, or what it is
    asked for is wrong and nothing was measured yet, its error is raised.
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
    """What is required of all parts, and whether it was met; a part that failed meets nothing. Pure."""
    measured = [{"part": name, **r} for name, d in found.items() for r in d["requirements"]]
    missing = [
        {"part": f["part"], "requirement": f"{f['part']} can be measured", "met": False, "measured": f["why"]}
        for f in failed
    ]
    return measured + missing


def draw(parts: Sequence[Part], found: Document, directory: Path) -> list[Path]:
    """Write the pictures of the parts that have one. Raises MachineError."""
    paths = []
    for part in parts:
        if part.picture and part.name in found:
            paths.append(directory / f"{part.name}.svg")
            save(paths[-1], part.picture(found[part.name]))
    return paths


def lines(document: Document, parts: Sequence[Part]) -> list[str]:
    """Every part's tables, then that of all bounds. Pure."""
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
    """What made the parts noisy from without, if anything did."""
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
