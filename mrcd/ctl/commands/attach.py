# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl detach` and `mrcctl attach`."""

import click

from mrcd.ctl.base import Options, command, emit
from mrcd.ctl.client import LOAD_S, DaemonDown, Json


def _say(options: Options, document: Json) -> None:
    emit(options, document, lambda d: [str(d["message"])])


@command("Take the data plane down.")
@click.option("--force", is_flag=True, help="Detach even if mrcd refuses or is down; removes mrc_pop too.")
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


@command("Attach the data plane again.")
def attach(options: Options) -> None:
    """Attach the data plane again after `mrcctl detach`."""
    _say(options, options.client.post("/v1/attach", {}, LOAD_S))
