# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl links`."""

import sys
from typing import TYPE_CHECKING

import click

from mrcd.ctl.base import Options, colours, common, emit, terminal_width
from mrcd.ctl.client import Client, Json
from mrcd.ctl.documents import links as lines
from mrcd.ctl.offline import envelope, read
from mrcd.ctl.options import plane_option, wide_option
from mrcd.ctl.sampling import SECONDS, sampled

if TYPE_CHECKING:
    from mrcd.view.documents import View


@click.command(short_help="List this host's links to T0s and T1s: state, loss.")
@plane_option
@click.option("--interval", "-i", type=SECONDS, metavar="SECONDS", help="Probes and loss over this time only.")
@wide_option
@common
@click.pass_obj
def links(options: Options, plane: int | None, interval: float | None, wide: bool) -> None:
    """List the links from this host's NICs to its T0s, and from there to the T1s, as link probes see them.

    The switch at the far end of a link sends a link probe back. A dead link to a T1 may also be a dead T1: one host
    cannot tell. LOST says in which direction a bad link loses packets, where EVs tell: up is away from this host.

    Exit status 1 if a link is dead or lossy.
    """

    def chosen(rows: Json) -> Json:
        return [r for r in envelope("links", rows, "")["links"] if plane in (None, r["plane"])]

    def from_daemon(daemon: Client) -> Json:
        return chosen(daemon.get("/v1/links"))

    def from_tables(view: "View") -> Json:
        return chosen(view.links())

    if interval is None:
        document = envelope("links", *read(options, from_daemon, from_tables))
    else:
        before, after, found = sampled(options, "links", from_daemon, from_tables, interval)
        rows = lines.over_interval(before.rows, after.rows)
        document = envelope("links", rows, found.source, found.tick_age_s)
        document = {"interval_s": round(after.at_s - before.at_s, 3)} | document
    emit(options, document, lines.link_lines, colour=colours(), width=terminal_width(wide))
    if any(r["state"] in lines.BAD for r in document["links"]):
        sys.exit(1)
