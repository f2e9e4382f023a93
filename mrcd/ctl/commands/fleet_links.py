# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl fleet links`, which asks Prometheus and needs no mrcd on its host."""

import sys
from typing import TYPE_CHECKING

import click

from mrcd.ctl.base import Options, colours, common, emit, terminal_width
from mrcd.ctl.documents.fleet_links import links_lines
from mrcd.ctl.options import prometheus_options, wide_option

if TYPE_CHECKING:
    from mrcd.prometheus import Prometheus

_LEAST_WINDOW_S = 2.0  # Prometheus answers with 11,000 windows at most: so many has its history


@click.command(short_help="Name the links, NICs and switches that lose packets, from all hosts' counts.")
@prometheus_options
@click.option(
    "--window",
    type=click.FloatRange(min=_LEAST_WINDOW_S, max=86_400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Take the counts of so long; at least four scrapes.",
)
@wide_option
@common
@click.pass_obj
def links(options: Options, /, server: "Prometheus", window: float, wide: bool) -> None:
    """Name the links, NICs and switches of the fabric that lose packets, by what all hosts have sent and lost.

    Prometheus has to scrape /metrics/fabric of all hosts. LOSS % is the least loss ratio: hosts leave lossy paths, and
    what they would have sent there is not known. SURE % is the probability that it is this part and no other. LOSES
    says in which direction: up is host → T0 → T1, down is T1 → T0 → host.

    Exit status 0 if no part loses packets, 1 if some do or for wrong usage, 2 if that cannot be told. --timeout is for
    each question.
    """
    from mrcd.fleet_links.document import localised

    document = localised(server, window)
    emit(options, document, links_lines, colour=colours(), width=terminal_width(wide))
    sys.exit(1 if document["links"] else 0)
