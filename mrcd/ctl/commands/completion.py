# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl completion`, which prints the script that a shell sources."""

import click
from click.shell_completion import get_completion_class


@click.command(short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the shell's completion script.

    For the current shell: source <(mrcctl completion bash). For all shells: write it to
    /etc/bash_completion.d/mrcctl, to _mrcctl in a directory of zsh's $fpath, or to
    ~/.config/fish/completions/mrcctl.fish.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "mrcctl", "_MRCCTL_COMPLETE").source())
