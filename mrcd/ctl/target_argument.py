# SPDX-License-Identifier: BSD-2-Clause
"""Defines the argument TARGET of deny, drain, allow and undrain, and completes it in a shell."""

import click

from mrcd.ctl.base import F, Options
from mrcd.ctl.client import Client
from mrcd.errors import MrcdError

_TIMEOUT_S = 0.5


def target_argument(command: F) -> F:
    """Add TARGET…, the words that mrcd/denials/targets.py parses."""
    return click.argument("target", nargs=-1, metavar="[TARGET]...", shell_complete=_complete_target)(command)


def _complete_target(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return switches, planes, peers and NICs of this host's paths; for `allow` and `undrain`, denied targets."""
    client = Client(ctx.ensure_object(Options).run_dir, _TIMEOUT_S)
    words: set[str] = set()
    try:
        if ctx.info_name in ("allow", "undrain"):
            words = {w for d in client.get("/v1/denials")["denials"] for w in d["target"].split()}
        else:
            for p in client.get("/v1/paths"):
                words |= {f"plane:{p['plane']}", f"peer:{p['peer']}", f"nic:{p['peer']}:{p['plane']}"}
                words |= {f"t1:{p['plane']}:{p['t1']}"} if p["t1"] is not None else set()
                words |= {f"ev:{p['peer']}:{p['ev']}"} if incomplete.startswith("ev:") else set()
    except (MrcdError, TypeError, KeyError):
        return []
    return sorted(w for w in words if w.startswith(incomplete))
