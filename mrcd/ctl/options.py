# SPDX-License-Identifier: BSD-2-Clause
"""Defines the options and arguments that several commands take, and completes their values in a shell."""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import click

from mrcd.ctl.base import F, Options
from mrcd.ctl.client import ANSWER_S, Client
from mrcd.errors import MrcdError, UsageError

SECONDS = click.FloatRange(min=0.1, max=3600)
BAD_STATES = ["ASSUMED_BAD", "DENIED", "UNKNOWN", "SKIP"]  # the worst first
STATES = ["UNKNOWN", "GOOD", "SKIP", "ASSUMED_BAD", "DENIED"]
_TIMEOUT_S = 0.5


class StateType(click.Choice[str]):
    """An EV state in any case. click's `case_sensitive=False` would show the states in lower case."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the state in upper case."""
        return super().convert(value.upper(), param, ctx)


Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _completes(words_of: Callable[[click.Context, Client, str], Iterable[str]]) -> Complete:
    """Make a completion of words; of none if the daemon does not answer, because completion shows no errors."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        client = Client(ctx.ensure_object(Options).run_dir, _TIMEOUT_S)
        try:
            return sorted({w for w in words_of(ctx, client, incomplete) if w.startswith(incomplete)})
        except (MrcdError, TypeError, KeyError):
            return []

    return complete


@_completes
def complete_peer(_ctx: click.Context, client: Client, _incomplete: str) -> Iterable[str]:
    """Return the names of peers."""
    return [str(p["peer"]) for p in client.get("/v1/peers")]


@_completes
def _complete_target(ctx: click.Context, client: Client, incomplete: str) -> Iterable[str]:
    """Yield switches, planes, peers and NICs of this host's paths; for `allow` and `undrain`, denied targets."""
    if ctx.info_name in ("allow", "undrain"):
        yield from (w for d in client.get("/v1/denials")["denials"] for w in d["target"].split())
        return
    for p in client.get("/v1/paths"):
        yield from (f"plane:{p['plane']}", f"peer:{p['peer']}", f"nic:{p['peer']}:{p['plane']}")
        if p["t1"] is not None:
            yield f"t1:{p['plane']}:{p['t1']}"
        if incomplete.startswith("ev:"):
            yield f"ev:{p['peer']}:{p['ev']}"


_LEAST_0 = click.IntRange(min=0)
peer_option = click.option("--peer", metavar="NAME", shell_complete=complete_peer, help="Only this peer.")
plane_option = click.option("--plane", type=_LEAST_0, metavar="N", help="Only this plane.")
ev_option = click.option("--ev", type=_LEAST_0, metavar="N", help="Only EVs of this number.")
wide_option = click.option("--wide", "-w", is_flag=True, help="All columns, even if the terminal is narrow.")
interval_option = click.option(
    "--interval", "-i", type=SECONDS, metavar="SECONDS", help="Rates and loss over this time, instead of counters."
)


def wait_option(default: float, what: str) -> Callable[[F], F]:
    """Make --wait."""
    limits = click.FloatRange(min=0, max=86_400)
    text = f"Wait at most so long for {what}."
    return click.option("--wait", type=limits, default=default, metavar="SECONDS", show_default=True, help=text)


# The words that mrcd/denials/targets.py parses.
target_argument = click.argument("target", nargs=-1, metavar="[TARGET]...", shell_complete=_complete_target)


def peer_argument(*, required: bool = False) -> Callable[[F], F]:
    """Add the argument PEER and the option --peer, which say the same. The command gets `peer`."""

    def add(command: F) -> F:
        @functools.wraps(command)
        def with_peer(*args: Any, peer: str | None, peer_option: str | None, **given: Any) -> Any:
            if peer is not None and peer_option is not None and peer != peer_option:
                raise UsageError(
                    f"two peers are named: {peer} and {peer_option}", hint="PEER and --peer say the same: give one"
                )
            chosen = peer if peer is not None else peer_option
            if chosen is None and required:
                raise click.UsageError("Missing argument 'PEER'", click.get_current_context())
            return command(*args, peer=chosen, **given)

        argument = click.argument("peer", required=False, shell_complete=complete_peer)
        option = click.option(
            "--peer", "peer_option", metavar="NAME", shell_complete=complete_peer, help="The same as PEER."
        )
        return cast(F, argument(option(with_peer)))

    return add


def prometheus_options(command: F) -> F:
    """Add --prometheus and --http-config. The command gets `server`, a mrcd.prometheus.Prometheus."""

    @functools.wraps(command)
    def with_server(*args: Any, url: str, http_config: Path | None, **given: Any) -> Any:
        from mrcd.prometheus import HttpConfig, Prometheus, read_config

        config = read_config(http_config) if http_config else HttpConfig()
        timeout = click.get_current_context().ensure_object(Options).timeout or ANSWER_S
        return command(*args, server=Prometheus(url, timeout, config), **given)

    server = click.option(
        "--prometheus",
        "url",
        required=True,
        envvar="MRC_PROMETHEUS",
        metavar="URL",
        help="The server, such as http://prometheus:9090; default $MRC_PROMETHEUS.",
    )
    config = click.option(
        "--http-config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Credentials and certificates, as in promtool's --http.config.file.",
    )
    return cast(F, server(config(with_server)))
