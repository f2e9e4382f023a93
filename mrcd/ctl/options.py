# SPDX-License-Identifier: BSD-2-Clause
"""Defines the options that several commands take, and completes their values in a shell."""

import click

from mrcd.ctl.base import F, Options
from mrcd.ctl.client import Client
from mrcd.errors import MrcdError

STATES = ["UNKNOWN", "GOOD", "SKIP", "ASSUMED_BAD", "DENIED"]


class StateType(click.Choice[str]):
    """An EV state in any case. click's `case_sensitive=False` would show the states in lower case."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the state in upper case."""
        return super().convert(value.upper(), param, ctx)


def complete_peer(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of peers; none if the daemon does not answer, because completion shows no errors."""
    options = ctx.ensure_object(Options)
    try:
        names = [str(p["peer"]) for p in Client(options.run_dir, timeout=0.5).get("/v1/peers")]
    except (MrcdError, TypeError, KeyError):
        return []
    return [n for n in names if n.startswith(incomplete)]


def peer_option(command: F) -> F:
    """Add --peer."""
    return click.option("--peer", metavar="NAME", shell_complete=complete_peer, help="Only this peer.")(command)


def plane_option(command: F) -> F:
    """Add --plane."""
    return click.option("--plane", type=click.IntRange(min=0), metavar="N", help="Only this plane.")(command)


def ev_option(command: F) -> F:
    """Add --ev."""
    return click.option("--ev", type=click.IntRange(min=0), metavar="N", help="Only EVs of this number.")(command)


def wide_option(command: F) -> F:
    """Add --wide."""
    return click.option("--wide", "-w", is_flag=True, help="All columns, even if the terminal is narrow.")(command)
