# SPDX-License-Identifier: BSD-2-Clause
"""`scripts/bench`: the command line."""

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import click

from labkit import entry
from labkit.bench import (
    cost,
    cpu,
    false_demotions,
    fleet,
    job,
    lifecycle,
    planes,
    suite,
    throughput,
)
from labkit.bench.auth import flood
from labkit.bench.auth import part as auth
from labkit.bench.failover import part as failover
from labkit.bench.localise import part as localise
from labkit.bench.paper import part as paper
from labkit.bench.part import Options, Part
from labkit.bench.scale import part as scale
from labkit.bench.without_daemons import part as without_daemons
from labkit.cluster.observe import Document
from labkit.places import REPOSITORY
from mrcd.ctl.examine import checks
from mrcd.ctl.examine.machine import Machine
from mrcd.errors import UsageError

SCHEMA_VERSION = 1
_PARTS = (
    *(throughput.PART, cost.PART, planes.PART, paper.PART),
    *(job.PART, lifecycle.PART, false_demotions.PART, failover.PART, without_daemons.PART, scale.PART),
    *(auth.PART, flood.PART, fleet.PART, localise.PART),
)
PARTS: dict[str, Part] = {p.name: p for p in _PARTS}
_ALL = (throughput.PART, cost.PART, planes.PART, paper.PART, scale.PART)
DIRECTORY = REPOSITORY / "build"
DOCUMENT = "bench.json"
# Enough to try each part. What is still longer says so in its own module.
SHORT = Options(
    pairs=1,
    seconds=0.3,
    only=("tcp-1", "lab", "burst"),
    minutes=0.2,
    cases=("busy",),
    faults=2,
    kinds=("t1-blackhole", "mrcd"),
    figures=("19b",),
    peers=(4,),
    short=True,
)
_NOISY = 0.25
_LISTEN_S = 0.5


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("parts", metavar="[PART]…", nargs=-1, type=click.Choice([*PARTS, "all"]))
@click.option(
    "--pairs",
    type=click.IntRange(min=1),
    help=f"runs of each candidate, or pairs of runs  [default: throughput {throughput.PAIRS}, job {job.PAIRS}, else 5]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.2),
    help=f"length of a run  [default: throughput {throughput.SHORT_S}, --full {throughput.FULL_S}; "
    f"planes {planes.SECONDS}]",
)
@click.option("--ip", type=click.Choice(["4", "6", "both"]), default="both", show_default=True, help="inner IP version")
@click.option(
    "--full",
    is_flag=True,
    help="throughput: the whole matrix (25 minutes); paper: all experiments at length (8); planes, scale: all; "
    "localise: 20 fabrics of each kind",
)
@click.option(
    "--mtu", type=click.IntRange(min=1500, max=65000), help="MTU of throughput's links  [default: 1500 and 9100]"
)
@click.option(
    "--only",
    metavar="WORD",
    multiple=True,
    help="throughput: only cells with this word, e.g. udp-64; localise: only this number of NICs; repeatable",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1),
    default=Options.minutes,
    show_default=True,
    help="calm: length of each case; alone: time without daemons",
)
@click.option(
    "--case", "cases", type=click.Choice(false_demotions.CASES), multiple=True, help="calm: only this case; repeatable"
)
@click.option(
    "--faults",
    type=click.IntRange(min=1),
    default=Options.faults,
    show_default=True,
    help="failover: faults of each kind",
)
@click.option("--kinds", metavar="A,B,…", help=f"failover: only these kinds, of {', '.join(failover.STAGES)}")
@click.option(
    "--peers", type=click.IntRange(1, 4096), multiple=True, help="scale: only this number of peers; repeatable"
)
@click.option(
    "--figure",
    "figures",
    type=click.Choice(list(paper.EXPERIMENTS)),
    multiple=True,
    help="paper: only this figure; repeatable",
)
@click.option(
    "--flows", type=click.IntRange(min=1), default=Options.flows, show_default=True, help="paper: concurrent flows"
)
@click.option(
    "--to",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DIRECTORY,
    help=f"directory of {DOCUMENT} and PART.svg  [default: build]",
)
@click.option(
    "--name", default="bench", show_default=True, help="name of its lab; an existing lab of that name is replaced"
)
@click.option(
    "--short",
    is_flag=True,
    help="as few and as short runs as possible: tries a part and judges no bounds; `all` then means every part",
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
def bench(
    parts: tuple[str, ...],
    pairs: int | None,
    seconds: float | None,
    ip: str,
    full: bool,
    mtu: int | None,
    only: tuple[str, ...],
    minutes: float,
    cases: tuple[str, ...],
    faults: int,
    kinds: str | None,
    peers: tuple[int, ...],
    figures: tuple[str, ...],
    flows: int,
    directory: Path,
    name: str,
    short: bool,
    as_json: bool,
) -> int:
    """Measure mrcd in a lab on this machine, and beside it the kernel's own SRv6.

    Without a PART: throughput, cost, planes, paper and scale, in about fifteen minutes. The other parts are job,
    lifecycle, calm (false demotions under stress), failover, alone (both daemons dead), auth (forged packets, new
    secrets, the cost of tags), flood (a million forged packets per second), fleet (eight hosts follow an etcd, under
    load) and localise (are bad links of simulated fabrics named? needs no lab). Exit code 1 if a bound is not met,
    2 if a part cannot be measured. Progress goes to stderr.
    """
    options = Options(
        pairs=pairs,
        seconds=seconds or Options.seconds,
        versions=(4, 6) if ip == "both" else (int(ip),),
        full=full,
        mtu=mtu,
        only=only,
        minutes=minutes,
        cases=cases,
        faults=faults,
        kinds=chosen_kinds(kinds),
        figures=figures,
        flows=flows,
        peers=peers,
    )
    if short:
        options = SHORT
    chosen = chosen_parts(parts, every=short)
    entry.check_writable(directory)
    machine = _machine()
    if machine["busy_ratio_before"] > _NOISY:
        entry.progress(f"the machine is {machine['busy_ratio_before']:.0%} busy with other processes: expect noise")
    begun = time.monotonic()
    with entry.own_lab(name) as lab:
        found, failed = suite.measure(lab, chosen, options)
    bounds = suite.bounds(found, failed)
    document = {
        "schema_version": SCHEMA_VERSION,
        "machine": machine,
        "taken_s": time.monotonic() - begun,
        "parts": found,
        "failed": failed,
        "bounds": bounds,
        "met": all(b["met"] for b in bounds),
    }
    entry.save(directory / DOCUMENT, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    pictures = suite.draw(chosen, found, directory)
    if as_json:
        entry.print_json(document)
    else:
        print("\n".join(suite.lines(document, chosen)))
    entry.progress(f"Written: {', '.join(map(str, [directory / DOCUMENT, *pictures]))}")
    return 2 if failed else 0 if short or document["met"] else 1


def chosen_parts(names: Sequence[str], *, every: bool = False) -> list[Part]:
    """Returns parts by name, each once; without a name, or with `all`, the parts of `make bench`, or `every` part."""
    of_all = list(PARTS) if every else [p.name for p in _ALL]
    wanted = of_all if not names else [n for n in names if n != "all"]
    if "all" in names:
        wanted = [*of_all, *wanted]
    return [PARTS[n] for n in dict.fromkeys(wanted)]


def chosen_kinds(text: str | None) -> tuple[str, ...]:
    """Parses `a,b` → names of failover's stages. Raises UsageError."""
    names = tuple(n.strip() for n in text.split(",")) if text is not None else ()
    for name in names:
        if name not in failover.STAGES:
            raise UsageError(f"{name!r} is not a kind of failover", hint=f"kinds are {', '.join(failover.STAGES)}")
    return names


def _machine() -> Document:
    """Returns the machine, and how busy it was before."""
    before = cpu.read()
    time.sleep(_LISTEN_S)
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "idle": checks.run("kernel.idle", checks.Context(Machine())).evidence,
        "busy_ratio_before": cpu.read().since(before).busy_ratio,
    }


def main() -> None:
    """Entry point."""
    entry.main("scripts/bench", bench)
