# SPDX-License-Identifier: BSD-2-Clause
"""`scripts/demo`: the command line."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from labkit import entry, plot
from labkit.cluster import observe
from labkit.cluster.observe import Document
from labkit.cluster.patience import patience
from labkit.demo import record, report
from labkit.demo.live import View
from labkit.places import REPOSITORY
from labkit.traffic import candidates

_GOING_ON = """\
The lab is still up:
  scripts/lab exec --name {name} {source} -- mrcctl paths --peer {target}
  scripts/lab exec --name {name} {source} -- mrcctl events --follow
  scripts/lab fail --name {name} t1:2:1        scripts/lab heal --name {name} --all
  scripts/lab down --name {name}"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--name", default="demo", show_default=True, help="name of its lab; an existing lab of that name is replaced"
)
@click.option("--keep", is_flag=True, help="leave the lab up")
@click.option("--json", "as_json", is_flag=True, help="print one JSON document; the live view goes to stderr")
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    default=REPOSITORY / "build/demo.svg",
    help="file of the picture  [default: build/demo.svg]",
)
def demo(name: str, keep: bool, as_json: bool, svg: Path) -> int:
    """One TCP flow over every path of a cluster on this machine, while things break and heal.

    Exit status 1 if a broken path stayed in use or the flow stopped for too long.
    """
    entry.check_writable(svg.parent)
    with entry.own_lab(name, keep=keep) as lab:
        lab.up()
        observe.wait_until_good(lab, lab.fabric.hosts, patience(15.0))
        ends = candidates.overlay(lab, 4)
        with View(Console(stderr=as_json), f"One TCP flow {ends.source} → {ends.target} over every path") as view:
            seen = record.record(lab, ends, view)
        document = {"lab": lab.fabric.parameters.as_json(), **report.build(seen), "svg": str(svg)}
    status = show(document, svg, report.picture(document), report.summary(document), as_json=as_json)
    if keep and not as_json:
        print(_GOING_ON.format(name=name, source=ends.source, target=ends.target))
    return status


def show(document: Document, svg: Path, picture: plot.Picture, lines: Sequence[str], *, as_json: bool) -> int:
    """Saves a demo's picture, and prints its document or its tables. Returns the exit status."""
    entry.save(svg, plot.draw(picture))
    if as_json:
        entry.print_json(document)
    else:
        print("\n".join(["", *lines, "", f"Picture: {entry.relative(svg)}"]))
    return 0 if all(p["kept"] for p in document["promises"]) else 1


def main() -> None:
    """Entry point."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    entry.main("scripts/demo", demo)
