# SPDX-License-Identifier: BSD-2-Clause
"""Registers the commands of mrcctl.

Exit status: 0 done; 1 wrong usage or configuration; 2 the daemon, the kernel or the machine refused.
"""

import click

import mrcd
from mrcd.ctl.base import Cli, common, terminal_width
from mrcd.errors import UsageError


def main() -> None:
    """Run mrcctl."""
    cli(prog_name="mrcctl")


# ---- commands --------------------------------------------------------------------------------

_MODULES = {
    "attach": ("detach", "attach"),
    "bugreport": ("bugreport",),
    "completion": ("completion",),
    "config": ("config", "reload"),
    "denials": ("deny", "allow", "drain", "undrain", "denials"),
    "events": ("events",),
    "fabric": ("fabric",),
    "fleet": ("fleet",),
    "histograms": ("histograms",),
    "job": ("job",),
    "keys": ("keys",),
    "links": ("links",),
    "measure": ("probe", "trace", "capture", "preflight", "doctor"),
    "paths": ("paths",),
    "peers": ("peers",),
    "status": ("status",),
    "version": ("version",),
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
