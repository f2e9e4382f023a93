"""`scripts/bench`: the command line."""

import os
import platform
import time
from pathlib import Path

import click

from labkit import entry
from labkit.bench import calm, cost, cpu, lifecycle, overhead, planes, spread, throughput
from labkit.bench.failover import part as failover
from labkit.bench.paper import part as paper
from labkit.bench.part import Options, Part
from labkit.bench.scale import part as scale
from labkit.bringup import REPOSITORY
from labkit.observe import Document
from mrcd.errors import UsageError

SCHEMA_VERSION = 1
_PARTS = (
    *(throughput.PART, cost.PART, spread.PART, planes.PART, paper.PART),
    *(overhead.PART, lifecycle.PART, calm.PART, failover.PART, scale.PART),
)
PARTS: dict[str, Part] = {p.name: p for p in _PARTS}
_QUICK = (throughput.PART, cost.PART, spread.PART, planes.PART)  # of "all"
_NOISY = 0.25
_LISTEN_S = 0.5


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("part", type=click.Choice([*PARTS, "all"]), default="all")
@click.option(
    "--pairs",
    type=click.IntRange(min=1),
    help=f"of throughput and overhead  [default: {throughput.PAIRS} and {overhead.PAIRS}]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.2),
    default=Options.seconds,
    show_default=True,
    help="of a run of throughput",
)
@click.option("--ip", type=click.Choice(["4", "6", "both"]), default="both", show_default=True, help="inner IP version")
@click.option("--full", is_flag=True, help="throughput: the whole matrix (40 minutes), not only what is required")
@click.option("--mtu", type=click.IntRange(min=1500, max=65000), help="of throughput's links  [default: 1500 and 9100]")
@click.option(
    "--only", metavar="WORD", multiple=True, help="of throughput: cells with this word, e.g. udp-64; repeatable"
)
@click.option("--minutes", type=click.FloatRange(min=0.1), default=Options.minutes, show_default=True, help="of calm")
@click.option(
    "--case", "cases", type=click.Choice(calm.CASES), multiple=True, help="of calm, instead of all; repeatable"
)
@click.option("--faults", type=click.IntRange(min=1), default=Options.faults, show_default=True, help="of each kind")
@click.option("--kinds", metavar="A,B,…", help=f"of failover, instead of all: {', '.join(failover.STAGES)}")
@click.option("--peers", type=click.IntRange(1, 4096), multiple=True, help="of scale, instead of all sizes; repeatable")
@click.option(
    "--figure", "figures", type=click.Choice(list(paper.EXPERIMENTS)), multiple=True, help="of paper; repeatable"
)
@click.option("--flows", type=click.IntRange(min=1), default=Options.flows, show_default=True, help="of paper, at once")
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help="where the picture of failover, paper or scale goes  [default: build/PART.svg]",
)
@click.option("--name", default="bench", show_default=True, help="of its lab; one of that name is replaced")
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
def bench(
    part: str,
    pairs: int | None,
    seconds: float,
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
    svg: Path | None,
    name: str,
    as_json: bool,
) -> int:
    """Measure mrcd in a lab on this machine, beside the kernel's own SRv6.

    `overhead`, `lifecycle`, `calm`, `failover`, `paper` and `scale` take their time, and are not in `all`. Exit code 1
    if a requirement is not met. Progress goes to stderr.
    """
    options = Options(
        pairs=pairs,
        seconds=seconds,
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
    chosen = list(_QUICK) if part == "all" else [PARTS[part]]
    machine = _machine()
    if machine["busy_ratio_before"] > _NOISY:
        entry.progress(f"the machine is {machine['busy_ratio_before']:.0%} busy with other things: expect noise")
    with entry.own_lab(name) as lab:
        results = {p.name: p.measure(lab, options) for p in chosen}
    requirements = [r for result in results.values() for r in result["requirements"]]
    met = all(r["met"] for r in requirements)
    if as_json:
        entry.print_json({"schema_version": SCHEMA_VERSION, "machine": machine, "parts": results, "met": met})
    else:
        print("\n".join(_lines(machine, chosen, results, requirements)))
    for p in chosen:
        if p.picture:
            path = svg or REPOSITORY / f"build/{p.name}.svg"
            entry.save(path, p.picture(results[p.name]))
            entry.progress(f"Picture: {path}")
    return 0 if met else 1


def chosen_kinds(text: str | None) -> tuple[str, ...]:
    """`a,b` → names of failover's stages. Raises UsageError."""
    names = tuple(n.strip() for n in text.split(",")) if text is not None else ()
    for name in names:
        if name not in failover.STAGES:
            raise UsageError(f"{name!r} is no kind of failover", hint=f"there are {', '.join(failover.STAGES)}")
    return names


def _machine() -> Document:
    """What the numbers were measured on, and how busy it was before."""
    before = cpu.read()
    time.sleep(_LISTEN_S)
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "busy_ratio_before": cpu.read().since(before).busy_ratio,
    }


def _lines(machine: Document, parts: list[Part], results: Document, requirements: list[Document]) -> list[str]:
    lines = [
        f"{machine['cpus']} CPUs, kernel {machine['kernel']}, {machine['busy_ratio_before']:.0%} busy before the start"
    ]
    for part in parts:
        lines += ["", *part.lines(results[part.name])]
    lines.append("")
    for r in requirements:
        lines.append(f"{'met    ' if r['met'] else 'NOT MET'}  {r['requirement']}: {r['measured']}")
    return lines


def main() -> None:
    """Entry point."""
    entry.main("scripts/bench", bench)
