# SPDX-License-Identifier: BSD-2-Clause
"""`scripts/demo`: the command line."""

import sys
from pathlib import Path

import click
from rich.console import Console

from labkit import entry, plot
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from labkit.demo import live, picture, record, report, scenario, screen, text
from labkit.places import REPOSITORY
from labkit.traffic.flow import Ends

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
    console = Console(stderr=as_json)
    with entry.own_lab(name, keep=keep) as lab:
        lab.up()
        observe.wait_until_good(lab, lab.fabric.hosts, patience(15.0))
        ends = _ends(lab)
        title = f"One TCP flow {ends.source} → {ends.target} over every path"
        with live.view(console, screen.Lines(console), screen.Terminal(console, title)) as view:
            seen = record.record(lab, ends, scenario.FAULTS, scenario.DURATION_S, scenario.SPREAD_S, view)
        document = {"lab": lab.fabric.parameters.as_json(), **report.build(seen), "svg": str(svg)}
    entry.save(svg, plot.draw(picture.picture(document)))
    if as_json:
        entry.print_json(document)
    else:
        lines = text.summary(document, colour=console.is_terminal and not console.no_color)
        print("\n".join(["", *lines, "", f"Picture: {entry.relative(svg)}"]))
        if keep:
            print(_GOING_ON.format(name=name, source=ends.source, target=ends.target))
    return 0 if report.kept(document) else 1


def _ends(lab: Lab) -> Ends:
    """Returns the ends of the flow: the overlay's IPv4 addresses."""
    config = lab.fabric.config
    source, target = (str(config.host(h).prefixes[0].network_address) for h in (scenario.SOURCE, scenario.TARGET))
    return Ends(scenario.SOURCE, source, scenario.TARGET, target)


def main() -> None:
    """Entry point."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    entry.main("scripts/demo", demo)
