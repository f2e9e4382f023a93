# SPDX-License-Identifier: BSD-2-Clause
"""Registers the commands of mrcctl.

Exit status: 0 done; 1 wrong usage or configuration; 2 the daemon, the kernel or the machine refused.
"""

import click

import mrcd
from mrcd.ctl.base import Cli, Options, common, emit, terminal_width
from mrcd.ctl.client import DaemonDown, Json
from mrcd.errors import UsageError


def main() -> None:
    """Run mrcctl."""
    cli(prog_name="mrcctl")


# ---- commands --------------------------------------------------------------------------------

_MODULES = {
    "bugreport": ("bugreport",),
    "completion": ("completion",),
    "config": ("config", "reload"),
    "denials": ("deny", "allow", "drain", "undrain", "denials"),
    "fabric": ("fabric",),
    "fleet": ("fleet",),
    "keys": ("keys",),
    "links": ("links",),
    "look": ("status", "peers", "paths", "events", "histograms", "version"),
    "measure": ("probe", "trace", "capture", "preflight", "doctor"),
    "watch": ("watch", "top"),
}


@click.group(cls=Cli, modules=_MODULES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(mrcd.__version__, prog_name="mrcctl", message="%(prog)s %(version)s")
@common
def cli() -> None:
    """Show and control this host's MRC paths.

    Exit status: 0 done; 1 wrong usage or configuration; 2 mrcd, the kernel or the machine refused.
    """


def _complete_help(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in (*cli.list_commands(ctx), "words") if name.startswith(incomplete)]


@cli.command(name="help", short_help="Show the help of a command, or explain states and reasons.")
@click.argument("command", nargs=-1, metavar="[COMMAND | words]...", shell_complete=_complete_help)
@click.pass_context
def help_(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Show the help of a command. `mrcctl help words` explains states, reasons and drops."""
    if command == ("words",):
        from mrcd.ctl import glossary

        click.echo("\n".join(glossary.lines(terminal_width())))
        return
    context = ctx.find_root()
    for name in command:
        group = context.command
        found = group.get_command(context, name) if isinstance(group, click.Group) else None
        if found is None:
            raise UsageError(f"there is no command {' '.join(command)!r}", hint="`mrcctl help` lists the commands")
        context = click.Context(found, info_name=found.name, parent=context)
    click.echo(context.get_help())


def _say(options: Options, document: Json) -> None:
    emit(options, document, lambda d: [str(d["message"])])


@cli.command(short_help="Take the data plane down.")
@click.option("--force", is_flag=True, help="Detach even if mrcd refuses or is down; removes mrc_pop too.")
@common
@click.pass_obj
def detach(options: Options, force: bool) -> None:
    """Take the data plane down. The kernel's own SRv6 routes then carry the traffic, each flow on one path.

    With encapsulation ecmp there are no such routes: mrcd refuses, and --force cuts the host off.
    """
    try:
        document = options.client.post("/v1/detach", {"force": force})
    except DaemonDown as down:
        if down.pid is not None:  # a running mrcd would attach its programs again
            raise
        if not force:
            raise DaemonDown(
                str(down.args[0]), hint=f"{down.hint}; or detach without mrcd: `mrcctl detach --force`"
            ) from None
        from mrcd.ctl.commands.offline_detach import without_mrcd

        document = without_mrcd(options.run_dir)
    _say(options, document)


@cli.command(short_help="Attach the data plane again.")
@common
@click.pass_obj
def attach(options: Options) -> None:
    """Attach the data plane again after `mrcctl detach`."""
    _say(options, options.client.post("/v1/attach", {}))
