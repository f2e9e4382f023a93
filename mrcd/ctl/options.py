"""Options that several commands take, with the completion of their values."""

import click

from mrcd.ctl.base import F, Options
from mrcd.ctl.client import Client
from mrcd.errors import MrcdError

STATES = ["UNKNOWN", "GOOD", "SKIP", "ASSUMED_BAD", "DENIED"]


class StateType(click.Choice[str]):
    """An EV state; small letters do too. (click's own way of it would show the states in small letters.)"""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The state in capitals."""
        return super().convert(value.upper(), param, ctx)


def complete_peer(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of peers, if a daemon can be asked; a shell that waits for TAB is not told of errors."""
    options = ctx.ensure_object(Options)
    try:
        names = [str(p["peer"]) for p in Client(options.run_dir, timeout=0.5).get("/v1/peers")]
    except (MrcdError, TypeError, KeyError):
        return []
    return [n for n in names if n.startswith(incomplete)]


def peer_option(command: F) -> F:
    """--peer."""
    return click.option("--peer", metavar="NAME", shell_complete=complete_peer, help="Only this peer.")(command)


def plane_option(command: F) -> F:
    """--plane."""
    return click.option("--plane", type=click.IntRange(min=0), metavar="N", help="Only this plane.")(command)


def ev_option(command: F) -> F:
    """--ev."""
    return click.option("--ev", type=click.IntRange(min=0), metavar="N", help="Only the EV of this number.")(command)
