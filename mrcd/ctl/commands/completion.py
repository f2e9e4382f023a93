# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl completion`. In bash, which splits words at each colon (COMP_WORDBREAKS), words with colons work."""

import os

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)


class ColonBash(BashComplete):
    """Joins the parts of a word before completion, and answers with the part behind the last colon."""

    _prefix = ""  # the part of the word that bash keeps, up to its last colon

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words, and the incomplete one."""
        at = int(os.environ["COMP_CWORD"])
        # click's script joins words by line feeds, because quoted words may contain blanks.
        raw = os.environ["COMP_WORDS"]
        words = [" ".join(split_arg_string(w)) for w in raw.split("\n" if "\n" in raw else " ")[: at + 1]]
        words += [""] * (at + 1 - len(words))
        joined: list[str] = []
        broken = joins = False
        for word in words:
            if joined and (word == ":" or joins):
                joined[-1] += word
                broken = True
            else:
                joined.append(word)
                broken = False
            joins = word == ":"
        self._prefix = joined[-1].rpartition(":")[0] + ":" if broken else ""
        return joined[1:-1], joined[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Return a completion without the part that bash keeps."""
        item.value = str(item.value).removeprefix(self._prefix)
        return super().format_completion(item)


def register() -> None:
    """Replace click's completion for bash by this one."""
    add_completion_class(ColonBash)


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
