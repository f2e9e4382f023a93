# SPDX-License-Identifier: BSD-2-Clause
"""Measures the planner: a fabric of 131,072 NICs, and a cluster file of as many hosts as there can be.

For each format it writes the configuration of every switch of that fabric, reads them back, and follows 10^6 EVs of
random pairs through what was read. It needs no lab.
"""

import random
import tempfile
import time
from pathlib import Path

from labkit.bench.command import mrcctl
from labkit.bench.part import Options, Part, requirement
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from mrcd import heap
from mrcd.config.cluster_file import Config, load
from mrcd.config.sizes import MAX_HOST_ID
from mrcd.ctl.commands.fabric_documents import follow
from mrcd.ctl.terminal.render import Column, count, table
from mrcd.fabric.switches.formats import FORMATS, Format
from mrcd.fabric.switches.reading import Reading
from mrcd.fabric.walk import Network

HOSTS, PLANES, RADIX = 16_384, 8, 256
NICS = HOSTS * PLANES
EVS = 1_000_000
SWITCHES = ("t0-0-3", "t1-0-1")  # whose texts are measured
PLAN_S, LOAD_S, LOAD_BYTES = 10.0, 5.0, 500e6


def measure(lab: Lab, options: Options) -> Document:
    """Plans, loads, and checks each format. The lab is not used."""
    with tempfile.TemporaryDirectory() as name, heap.collector_paused():
        planned, largest = Path(name, "planned.toml"), Path(name, "largest.toml")
        progress(f"fabric: plan for {NICS} NICs")
        plan = mrcctl("fabric", "plan", *_sizes(HOSTS, PLANES), "--output", planned, "--cables", Path(name, "cables"))
        progress(f"fabric: a cluster file of {MAX_HOST_ID + 1} hosts")
        mrcctl("fabric", "plan", *_sizes(MAX_HOST_ID + 1, 2, 512), "--output", largest)
        loaded = mrcctl("config", "check", largest)
        config = load(planned)
        formats = [_check(config, f) for f in FORMATS.values() if not options.only or f.name in options.only]
        document: Document = {
            "nics": NICS,
            "plan_s": plan.seconds,
            "plan_cpu_s": plan.cpu_s,
            "hosts": MAX_HOST_ID + 1,
            "file_bytes": largest.stat().st_size,
            "load_s": loaded.seconds,
            "load_cpu_s": loaded.cpu_s,
            "load_bytes": loaded.peak_bytes,
            "formats": formats,
        }
    return document | {"requirements": requirements(document)}


def _sizes(hosts: int, planes: int, radix: int = RADIX) -> list[str]:
    return ["--hosts", str(hosts), "--planes", str(planes), "--radix", str(radix)]


def _check(config: Config, f: Format) -> Document:
    """Writes all switches in a format, reads them, and follows EVs."""
    progress(f"fabric: {f.name}: configurations of all switches, and {EVS} EVs through them")
    begun = time.monotonic()
    switches = f.switches(config)
    wiring = [switches.switch(name) for name in switches.names]
    readings: dict[str, Reading] = {}
    size, lines = 0, {}
    for switch in wiring:
        text = f.text(switch)
        size += len(text)
        if switch.name in SWITCHES:
            lines[switch.name] = text.count("\n")
        readings[switch.name] = f.read(text)
    written_s = time.monotonic() - begun
    network = Network(config, wiring, readings)
    follow(network, len(config.hosts), [s.name for s in wiring], EVS, random.Random(0))
    result = network.result
    return {
        "format": f.name,
        "switches": len(wiring),
        "bytes": size,
        "lines": lines,
        "written_and_read_s": written_s,
        "followed": result.followed,
        "mistakes": dict(result.mistakes),
        "examples": result.examples,
        "took_s": time.monotonic() - begun,
    }


def requirements(document: Document) -> list[Document]:
    """Returns the requirements. Pure."""
    d = document
    found = [
        requirement(f"a plan for {d['nics']} NICs in {PLAN_S:.0f} s", d["plan_s"] <= PLAN_S, f"{d['plan_s']:.1f} s"),
        requirement(f"{d['hosts']} hosts load in {LOAD_S:.0f} s", d["load_s"] <= LOAD_S, f"{d['load_s']:.1f} s"),
        requirement(
            f"{d['hosts']} hosts load in {LOAD_BYTES / 1e6:.0f} MB",
            d["load_bytes"] <= LOAD_BYTES,
            f"{d['load_bytes'] / 1e6:.0f} MB",
        ),
    ]
    for f in d["formats"]:
        words = ", ".join(f"{n} × {kind} ({f['examples'][kind]})" for kind, n in f["mistakes"].items())
        met = not f["mistakes"] and f["followed"] >= EVS
        found.append(
            requirement(
                f"{f['format']}: {EVS} EVs through the configurations, no mistake",
                met,
                f"{f['followed']} followed, {words or 'no mistake'}",
            )
        )
    return found


def lines(document: Document) -> list[str]:
    """Returns a table. Pure."""
    d = document
    columns = [Column("FORMAT"), Column("SWITCHES", True), *(Column(f"LINES {name}", True) for name in SWITCHES)]
    columns += [Column(name, True) for name in ("MB", "PACKETS FOLLOWED", "MISTAKES", "s")]
    rows = [
        [
            f["format"],
            str(f["switches"]),
            *(str(f["lines"].get(name, 0)) for name in SWITCHES),
            f"{f['bytes'] / 1e6:.0f}",
            count(f["followed"]),
            str(sum(f["mistakes"].values())),
            f"{f['took_s']:.0f}",
        ]
        for f in d["formats"]
    ]
    return [
        f"A fabric of {d['nics']} NICs: planned in {d['plan_s']:.1f} s ({d['plan_cpu_s']:.1f} s of CPU), with all "
        "cables and the cluster file.",
        f"A cluster file of {d['hosts']} hosts, {d['file_bytes']} bytes: loaded and checked in {d['load_s']:.1f} s "
        f"({d['load_cpu_s']:.1f} s of CPU), {d['load_bytes'] / 1e6:.0f} MB.",
        "Configurations of that fabric's switches, read back, and EVs of random pairs followed through them:",
        *table(columns, rows, colour=False),
    ]


PART = Part("fabric", measure, lines)
