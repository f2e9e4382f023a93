# SPDX-License-Identifier: BSD-2-Clause
"""`scripts/bench`: the command line. Runs benches one after the other: one document, one table of bounds, pictures."""

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from labkit import entry, plot
from labkit.bench import (
    alone,
    answers,
    auth,
    calm,
    cost,
    failover,
    host,
    incast,
    job,
    leaks,
    lifecycle,
    localise,
    paper,
    scale,
    shares,
    slow,
    throughput,
    versions,
)
from labkit.bench.frame import Bench, Options, Result, unmeasured
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import machine
from labkit.places import REPOSITORY
from labkit.tables import percent, table
from mrcd.ctl.examine import checks
from mrcd.ctl.examine.machine import Machine
from mrcd.errors import MrcdError, UsageError

SCHEMA_VERSION = 2


_ALL = (throughput.BENCH, cost.BENCH, throughput.PLANES, paper.BENCH, scale.BENCH)
_MORE = (
    job.BENCH, lifecycle.BENCH, versions.BENCH, calm.BENCH, incast.BENCH, shares.BENCH, failover.BENCH, answers.BENCH,
    slow.BENCH, alone.BENCH, host.BENCH, leaks.BENCH, auth.BENCH, auth.FLOOD, localise.BENCH,
)  # fmt: skip
BENCHES: dict[str, Bench] = {b.name: b for b in (*_ALL, *_MORE)}
# Enough to try each bench. What is still longer says so in its own module.
SHORT = Options(
    pairs=1,
    seconds=0.3,
    only=("tcp-1", "lab", "burst"),
    minutes=0.2,
    faults=2,
    kinds=("t1-blackhole", "loss", "hole"),
    figures=("19b",),
    peers=(4,),
    short=True,
)
_NOISY, _STOLEN = 0.25, 0.005
_LISTEN_S = 0.5


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("benches", metavar="[PART]…", nargs=-1, type=click.Choice([*BENCHES, "all"]))
@click.option("--pairs", type=click.IntRange(min=1), help="runs of each candidate, or pairs of runs")
@click.option("--seconds", type=click.FloatRange(min=0.2), help="length of a run")
@click.option("--ip", type=click.Choice(["4", "6", "both"]), default="both", show_default=True, help="inner IP version")
@click.option(
    "--full",
    is_flag=True,
    help="throughput: the whole matrix (25 minutes); paper: all experiments at length (8); planes, scale: all; "
    "localise: 20 fabrics of each kind; versions: the whole mrcd of a commit with another one",
)
@click.option(
    "--only",
    metavar="WORD",
    multiple=True,
    help="throughput: only cells with this word, e.g. udp-64; calm: only this case; answers: only this traffic; "
    "slow: only this element, or trimmed; localise: only this number of NICs; repeatable",
)
@click.option("--minutes", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="of calm, alone")
@click.option(
    "--faults", type=click.IntRange(min=1), default=200, show_default=True, help="failover, answers: of each kind"
)
@click.option("--kinds", metavar="A,B,…", help=f"failover: only these kinds, of {', '.join(failover.STAGES)}")
@click.option("--peers", type=click.IntRange(1, 16_384), multiple=True, help="scale: only this number; repeatable")
@click.option(
    *("--figure", "figures"),
    type=click.Choice(list(paper.EXPERIMENTS)),
    multiple=True,
    help="paper: only this figure; repeatable",
)
@click.option(
    *("--to", "directory"),
    type=click.Path(file_okay=False, path_type=Path),
    default=REPOSITORY / "build",
    help="directory of bench.json and PART.svg  [default: build]",
)
@click.option("--name", default="bench", show_default=True, help="of its lab, which replaces one of that name")
@click.option("--ablate", is_flag=True, help="job: also with one part of mrcd off at a time")
@click.option("--short", is_flag=True, help="try a part, as short as possible, and judge no bounds; `all`: every part")
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
def bench(
    benches: tuple[str, ...],
    ip: str,
    kinds: str | None,
    directory: Path,
    name: str,
    short: bool,
    as_json: bool,
    **rest: Any,
) -> int:
    """Measure mrcd in a lab on this machine, and beside it the kernel's own SRv6.

    Without a PART: throughput, cost, planes, paper and scale, in about fifteen minutes. The other parts are job,
    lifecycle, calm (false demotions under stress), failover, answers (how late single packets come), slow (a slow
    plane), alone (both daemons dead), auth (forged packets, new secrets, the cost of tags), flood (a million forged
    packets per second) and localise (are bad links of simulated fabrics named? needs no lab). Exit code 1 if a bound is
    not met, 2 if a part cannot be measured. Progress goes to stderr.
    """
    versions = (4, 6) if ip == "both" else (int(ip),)
    options = Options(versions=versions, kinds=_kinds(kinds), **rest)
    if short:
        source = click.get_current_context().get_parameter_source
        given = [name for name in (*rest, "kinds") if source(name) is ParameterSource.COMMANDLINE]
        options = replace(SHORT, **{name: getattr(options, name) for name in given})
    chosen = _chosen(benches, every=short)
    entry.check_writable(directory)
    facts = _facts()
    if facts["busy_ratio_before"] > _NOISY:
        progress(f"the machine is {percent(facts['busy_ratio_before'])} busy with other processes: expect noise")
    begun = time.monotonic()
    with entry.own_lab(name) as lab:
        results, bounds = _measure(lab, chosen, options)
    failed = [b for b in bounds if "failed" in b]
    document = {
        "schema_version": SCHEMA_VERSION,
        "short": short,
        "machine": facts,
        "taken_s": time.monotonic() - begun,
        "parts": {part: r.as_json() for part, r in results.items()},
        "bounds": bounds,
        "met": all(b["met"] for b in bounds),
    }
    written = [directory / "bench.json"]
    entry.save(written[0], json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    for part, result in results.items():
        if result.picture:
            written.append(directory / f"{part}.svg")
            entry.save(written[-1], plot.draw(result.picture))
    if as_json:
        entry.print_json(document)
    else:
        print("\n".join(_lines(document, results)))
    progress(f"Written: {', '.join(map(str, written))}")
    return 2 if failed else 0 if short or document["met"] else 1


def _measure(lab: Lab, benches: Sequence[Bench], options: Options) -> tuple[dict[str, Result], list[Document]]:
    """Returns the results by part, and the bounds of all.

    A part that cannot be measured does not discard the others' results: it is a bound that is not met. Its error is
    raised if it is the only part, or if its options are wrong and nothing was measured yet.
    """
    results: dict[str, Result] = {}
    bounds: list[Document] = []
    for b in benches:
        begun, used = time.monotonic(), machine.read_cpu()
        try:
            found = results[b.name] = b.measure(lab, options)
        except (MrcdError, OSError) as e:
            if len(benches) == 1 or (isinstance(e, UsageError) and not results):
                raise
            progress(f"{b.name} cannot be measured: {e}")
            bounds.append({"part": b.name, **unmeasured(b.name, str(e)), "failed": str(e)})
            continue
        found.detail["taken_s"] = time.monotonic() - begun
        found.detail["stolen_ratio"] = machine.read_cpu().since(used).stolen_ratio
        bounds += [{"part": b.name, **bound} for bound in found.bounds]
        progress(f"{b.name} took {found.detail['taken_s']:.0f} s")
    return results, bounds


def _lines(document: Document, results: Mapping[str, Result]) -> list[str]:
    """Returns every part's tables, then that of all bounds."""
    facts, bounds = document["machine"], document["bounds"]
    busy = percent(facts["busy_ratio_before"])
    said = [f"{facts['cpus']} CPUs, kernel {facts['kernel']}, {busy} busy before the start", facts["idle"], ""]
    for result in results.values():
        said += [line for t in result.tables for line in t.lines()]
    if document["short"]:
        return [*said, "--short: too little was measured to judge bounds"]
    rows = [
        {"": "met" if b["met"] else "NOT MET", **{k: b[k] for k in ("part", "bound", "wanted", "measured")}}
        for b in bounds
    ]
    said += table(rows) if rows else []
    minutes = f"{document['taken_s'] / 60:.1f} minutes"
    said.append(f"{sum(b['met'] for b in bounds)} of {len(bounds)} bounds met; {minutes}")
    stolen = {name: p["stolen_ratio"] for name, p in document["parts"].items() if p["stolen_ratio"] >= _STOLEN}
    if stolen:
        words = ", ".join(f"{name} {percent(share)}" for name, share in stolen.items())
        said.append(f"the hypervisor kept CPU time for others: {words}")
    return said


def _chosen(names: Sequence[str], *, every: bool) -> list[Bench]:
    """Returns benches by name, each once; without a name, or with `all`, those of `make bench`, or `every` bench."""
    of_all = list(BENCHES) if every else [b.name for b in _ALL]
    wanted = [x for n in (names or ("all",)) for x in (of_all if n == "all" else [n])]
    return [BENCHES[n] for n in dict.fromkeys(wanted)]


def _kinds(text: str | None) -> tuple[str, ...]:
    """Parses `a,b` → names of failover's stages. Raises UsageError."""
    names = tuple(n.strip() for n in text.split(",")) if text is not None else ()
    for name in names:
        if name not in failover.STAGES:
            raise UsageError(f"{name!r} is not a kind of failover", hint=f"kinds are {', '.join(failover.STAGES)}")
    return names


def _facts() -> Document:
    """Returns the machine, and how busy it was before."""
    before = machine.read_cpu()
    time.sleep(_LISTEN_S)
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "idle": checks.run("kernel.idle", checks.Context(Machine())).evidence,
        "busy_ratio_before": machine.read_cpu().since(before).busy_ratio,
    }


def main() -> None:
    """Entry point."""
    entry.main("scripts/bench", bench)
