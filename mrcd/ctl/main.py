"""The commands of mrcctl.

Exit codes: 0 done; 1 wrong usage or configuration; 2 the daemon, the kernel or the machine refused.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

import mrcd
from mrcd.ctl import bars, render, steering
from mrcd.ctl.base import Cli, Options, colours, common, emit
from mrcd.ctl.client import Client, DaemonDown, Json, follow_events
from mrcd.ctl.offline import open_view
from mrcd.ctl.options import STATES, StateType, peer_option, plane_option

if TYPE_CHECKING:
    from mrcd.view import View


def main() -> None:
    """Entry point."""
    cli(prog_name="mrcctl")


def read(options: Options, from_daemon: Callable[[Client], Json], from_tables: Callable[["View"], Json]) -> Json:
    """Ask the daemon; if it is down, the pinned tables, and say so."""
    try:
        return from_daemon(options.client)
    except DaemonDown as down:
        view = open_view(options.run_dir, down)
        document = from_tables(view)
        click.echo("mrcctl: mrcd is not running; from the pinned tables", err=True)
        return document


# ---- commands --------------------------------------------------------------------------------


@click.group(cls=Cli, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(mrcd.__version__, prog_name="mrcctl", message="%(prog)s %(version)s")
@common
def cli() -> None:
    """Look at this host's MRC paths and steer them.

    Exit codes: 0 done; 1 wrong usage or configuration; 2 mrcd, the kernel or the machine refused.
    """


@cli.command()
@common
@click.pass_obj
def status(options: Options) -> None:
    """Host, planes, peers and EVs at a glance."""
    document = read(options, lambda daemon: daemon.get("/v1/status"), lambda view: view.status())
    emit(options, document, render.status, colour=colours())


@cli.command(short_help="The other hosts: EVs, traffic, loss.")
@common
@click.pass_obj
def peers(options: Options) -> None:
    """The other hosts: reachable, EVs by state, traffic, loss."""
    document = read(options, lambda daemon: daemon.get("/v1/peers"), lambda view: view.peers())
    emit(options, document, render.peers, colour=colours())


@cli.command(short_help="Every EV: state, traffic, loss, round-trip time.")
@peer_option
@plane_option
@click.option("--state", type=StateType(STATES), help="Only EVs in this state.")
@common
@click.pass_obj
def paths(options: Options, peer: str | None, plane: int | None, state: str | None) -> None:
    """Every EV: state and since when, traffic, loss, round-trip time."""
    document = read(
        options,
        lambda daemon: daemon.get("/v1/paths", peer=peer, plane=plane, state=state),
        lambda view: view.paths(peer=peer, plane=plane, state=state),
    )
    emit(options, document, render.paths, colour=colours())


@cli.command(name="histograms", short_help="Detection times, round trips: how they spread.")
@common
@click.pass_obj
def histograms_(options: Options) -> None:
    """How long it took to leave failed EVs, what was sent meanwhile, and the probes' round trips."""
    document = read(options, lambda daemon: daemon.get("/v1/histograms"), lambda view: view.histograms())
    emit(options, document, bars.histograms)


@cli.command(short_help="What changed, with reason and evidence.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new events as they happen; JSON is one event per line.")
@common
@click.pass_obj
def events(options: Options, follow: bool) -> None:
    """What mrcd remembers of changes, with reason and evidence."""
    if not follow:
        document = options.client.get("/v1/events", after=0, wait=0)["events"]
        emit(options, document, render.events, colour=colours())
        return
    heading = not options.json
    for batch in follow_events(options.client, lambda message: click.echo(f"mrcctl: {message}", err=True)):
        if options.json:
            lines = [json.dumps(event, ensure_ascii=False) for event in batch]
        else:
            lines = render.events(batch, colour=colours(), heading=heading)
            heading = False
        click.echo("\n".join(lines), color=True)
        sys.stdout.flush()


for command in (steering.deny, steering.allow, steering.drain, steering.undrain, steering.denials):
    cli.add_command(command)


def _attachment(options: Options, action: str, force: bool) -> None:
    document = options.client.post(f"/v1/{action}", {"force": force})
    emit(options, document, lambda d: [str(d["message"])])


@cli.command(short_help="Take the data plane down.")
@click.option("--force", is_flag=True, help="Even if mrcd advises against it.")
@common
@click.pass_obj
def detach(options: Options, force: bool) -> None:
    """Take the data plane down; traffic goes on over the kernel's own SRv6 routes, flow by flow."""
    _attachment(options, "detach", force)


@cli.command(short_help="Put the data plane back up.")
@click.option("--force", is_flag=True, help="Even if mrcd advises against it.")
@common
@click.pass_obj
def attach(options: Options, force: bool) -> None:
    """Put the data plane back up."""
    _attachment(options, "attach", force)


@cli.group()
@common
def config() -> None:
    """The cluster file."""


@config.command(short_help="Validate a cluster file and sum it up.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--host", metavar="NAME", help="Seen from this host; from the one it runs on unless given.")
@common
@click.pass_obj
def check(options: Options, file: Path, host: str | None) -> None:
    """Validate a cluster file and sum it up; nothing is changed, mrcd need not run."""
    from mrcd.ctl.check import summary

    emit(options, summary(file, host), render.plan)


@cli.command()
@common
@click.pass_obj
def version(options: Options) -> None:
    """Versions of mrcctl and of the mrcd that runs."""
    try:
        daemon = options.client.get("/v1/version")
    except DaemonDown:
        daemon = None
    emit(options, {"mrcctl": mrcd.__version__, "daemon": daemon}, render.version)


@cli.command(short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell's completion script, e.g. for: source <(mrcctl completion bash)."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "mrcctl", "_MRCCTL_COMPLETE").source())
