# SPDX-License-Identifier: BSD-2-Clause
"""`scripts/demo-training`: the command line."""

import contextlib
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console

from labkit import entry, plot
from labkit.cluster import observe
from labkit.cluster.patience import patience
from labkit.demo import live
from labkit.demo.report import kept
from labkit.demo.training import picture, record, report, screen, text
from labkit.demo.training.scenario import Times
from labkit.places import REPOSITORY
from labkit.traffic.job import RANKS, require_torch


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--name", default="training", show_default=True, help="name of its lab; an existing lab of that name is replaced"
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON document; the live view goes to stderr")
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    default=REPOSITORY / "build/training.svg",
    help="file of the picture  [default: build/training.svg]",
)
def demo_training(name: str, as_json: bool, svg: Path) -> int:
    """A training job of four gloo ranks in a lab, through five faults: over the kernel's own SRv6, then with mrcd.

    Needs PyTorch: make demo-training installs it. Exit status 1 if a step with mrcd took more than twice the longest
    without a fault.
    """
    require_torch()
    entry.check_writable(svg.parent)
    console = Console(stderr=as_json)
    with entry.own_lab(name) as lab:
        lab.up(hosts=RANKS)
        observe.wait_until_good(lab, lab.fabric.hosts, patience(15.0))
        episodes = record.run(lab, Times(), functools.partial(_view, console))
        document = {**report.build(episodes, lab.fabric.parameters), "svg": str(svg)}
    entry.save(svg, plot.draw(picture.picture(document)))
    if as_json:
        entry.print_json(document)
    else:
        lines = text.summary(document, colour=console.is_terminal and not console.no_color)
        print("\n".join(["", *lines, "", f"Picture: {entry.relative(svg)}"]))
    return 0 if kept(document) else 1


@contextlib.contextmanager
def _view(console: Console, way: str) -> Iterator[screen.Screen]:
    title = f"A training job of {RANKS} ranks: {report.WAY_WORDS[way]}"
    if not console.is_terminal:
        console.print(title)
    with live.view(console, screen.Lines(console), screen.Terminal(console, title)) as shown:
        yield shown


def main() -> None:
    """Entry point."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    entry.main("scripts/demo-training", demo_training)
